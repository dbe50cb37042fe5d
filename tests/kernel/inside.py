"""What several kernel tests need to act inside a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel.tools import Finished, SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.demo.namespaces import Namespace


class NamespaceRunner:
    """A ``Runner`` whose programs run inside a namespace."""

    def __init__(self, namespace: Namespace, *prefix: str) -> None:
        """``prefix`` is put before every command."""
        self._namespace = namespace
        self._prefix = prefix
        self._runner = SubprocessRunner()

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float) -> Finished:
        return self._namespace.call(
            self._runner.run, [*self._prefix, *argv], stdin=stdin, timeout=timeout
        )


def legacy_tables(namespace: Namespace, family: str = "ip") -> list[str]:
    """The legacy tables that exist in the kernel for a namespace."""
    return namespace.run(["cat", f"/proc/net/{family}_tables_names"]).stdout.split()
