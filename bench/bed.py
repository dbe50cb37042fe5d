"""A network namespace with an empty kernel, and the agent's parts or a bare tool at work in it."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, Self, TypeVar

from agent.daemon import BATCHES
from agent.demo.namespaces import Namespace, owned_name
from agent.kernel.detect import Backend, Tool, installed
from agent.kernel.iptables import Iptables
from agent.kernel.nftables import Generations
from agent.kernel.tools import SubprocessRunner
from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import DetectLocal, Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.port import Wrapped
from bench import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.sync.apply import Follower
    from agent.sync.port import Kernel

P = ParamSpec("P")
T = TypeVar("T")
Layout = Literal["auto", "flat", "tree"]

#: Seconds for a restore, the slowest of which takes minutes.
TIMEOUT = 600.0
VIEW = NodeView(
    Family.V4,
    objects.NODE,
    ip=objects.NODE_IP,
    detect_local=DetectLocal.CIDR,
    detect_value=objects.CLUSTER_CIDR,
)


class Bed:
    """A namespace, and the programs of one backend; a context manager.

    Attributes:
        namespace: it.
        backend: of iptables.
        kernel: as the agent uses it.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.tool = tool(backend)
        self._folder = tempfile.TemporaryDirectory(prefix="onenth-bench-")
        # The lock of legacy is one per machine; nobody else's is waited for.
        lock = {"XTABLES_LOCKFILE": str(Path(self._folder.name, "lock"))}
        self.environment = dict(os.environ) | lock
        self.runner = SubprocessRunner(self.environment)
        self.kernel = Iptables(
            self.tool,
            Family.V4,
            runner=self.runner,
            timeout=TIMEOUT,
            generations=Generations(),
        )
        self.namespace = Namespace(owned_name("bench"))

    @property
    def folder(self) -> Path:
        """For files; it goes with the namespace."""
        return Path(self._folder.name)

    def __enter__(self) -> Self:
        Namespace.create(self.namespace.name)
        self.namespace.run(["ip", "link", "set", "lo", "up"])
        return self

    def __exit__(self, *_: object) -> None:
        self.namespace.close(grace=1.0)
        self._folder.cleanup()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function inside."""
        return self.namespace.call(function, *args, **kwargs)

    def bare(self, text: str) -> None:
        """Run the bare tool on restore input, as anybody would.

        Raises:
            RuntimeError: it refused.
        """
        argv = [*self.tool.command(Family.V4, "-restore"), "--noflush"]
        done = self.runner.run(argv, stdin=text, timeout=TIMEOUT)
        if done.status:
            raise RuntimeError(f"{' '.join(argv)} ended with {done.status}: {done.err}")


@functools.cache
def tool(backend: Backend) -> Tool:
    """The programs of a backend.

    Raises:
        RuntimeError: it is not installed.
    """
    found = installed(SubprocessRunner())[backend]
    if found is None:
        raise RuntimeError(f"iptables has no {backend.value} backend here")
    return found


@functools.lru_cache(maxsize=3)
def store(services: int, endpoints: int, protocol: str = "TCP") -> Store:
    """State with the made-up cluster; made once, since that takes seconds."""
    made = Store(objects.NODE)
    listed, slices = objects.decoded(services, endpoints, protocol)
    made.replace_services(listed)
    made.replace_slices(slices)
    return made


def syncer(
    kernel: Kernel, backend: Backend, layout: Layout = "auto", followers: Sequence[Follower] = ()
) -> Syncer:
    """The parts of the agent that write, as the daemon puts them together."""
    settings = SyncSettings(*BATCHES[backend])
    return Syncer(RuleSet(VIEW, layout), kernel, settings, time.monotonic, followers)


class Recording(Wrapped):
    """Keeps what is restored, and how far the thread was when it began.

    Attributes:
        texts: restore inputs.
        began: ``time.thread_time`` at the first restore since this was reset; 0 for none yet.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.texts: list[str] = []
        self.began = 0.0

    def restore(self, text: str) -> None:
        """Pass on."""
        self.began = self.began or time.thread_time()
        self.texts.append(text)
        super().restore(text)


class NoKernel:
    """Takes everything and holds nothing: for what the agent itself costs."""

    def restore(self, text: str) -> None:
        """Drop it."""

    def save(self, table: str) -> str:
        """An empty table."""
        return f"*{table}\nCOMMIT\n"

    def chains(self, _table: str) -> set[str]:
        """None."""
        return set()

    def chain(self, _table: str, _chain: str) -> list[str] | None:
        """An empty one."""
        return []

    def confirm(self) -> None:
        """Nobody else is there."""

    def untouched(self) -> bool:
        """True."""
        return True

    def digests(self, _table: str, _chains: object) -> dict[str, bytes] | None:
        """None are given."""
        return None
