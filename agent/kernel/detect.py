"""Which of the two iptables backends this node uses, and whether the other one is in the way.

Rules written through one backend are invisible to the tools of the other, so everybody who
writes Service rules on a node must use the same. The kubelet leaves a hint for that: it keeps a
chain in the mangle table of the backend that it uses. ``auto`` follows the rules of
kubernetes-sigs/iptables-wrappers version 3, which most images of kube-proxy decide by:

1. the hint is in IPv4 mangle of nft: nft,
2. the hint is in IPv6 mangle of nft: nft,
3. the hint is in any IPv4 table of legacy: legacy,
4. the hint is in any IPv6 table of legacy: legacy,
5. nft.

Errors count as "no hint". Rules are never counted: they would include our own.

Asking legacy about a table by name creates that table in the kernel, and with it hooks that
every packet passes. So legacy is only ever asked for *all* tables, which lists those that exist.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import TYPE_CHECKING

from agent.kernel.errors import KernelError, OtherBackendError, ToolMissingError
from agent.kernel.tools import find
from agent.state.values import Family

if TYPE_CHECKING:
    from pathlib import Path

    from agent.kernel.tools import Runner

_HINT = re.compile(r"^:(?:KUBE-IPTABLES-HINT|KUBE-KUBELET-CANARY)", re.MULTILINE)
_SERVICES = re.compile(r"^:KUBE-SERVICES ", re.MULTILINE)
_NAT = re.compile(r"^\*nat$(?P<body>.*?)^COMMIT$", re.MULTILINE | re.DOTALL)
_VERSION = re.compile(r" v(\d+)\.(\d+)(?:\.(\d+))?")
_QUESTION_SECONDS = 60.0
INSTALL = "install the iptables package (Alpine: iptables and iptables-legacy)"


class Backend(enum.Enum):
    """A backend; the value is its name in the configuration."""

    LEGACY = "legacy"
    NFT = "nft"

    @property
    def other(self) -> Backend:
        """The one that this is not."""
        return Backend.LEGACY if self is Backend.NFT else Backend.NFT

    @property
    def program(self) -> str:
        """The program that holds all of the backend's commands, since iptables 1.8.0."""
        return f"xtables-{self.value}-multi"


@dataclasses.dataclass(frozen=True)
class Tool:
    """The program of one backend.

    Attributes:
        backend: which.
        path: absolute path.
        version: of iptables, like (1, 8, 9).
    """

    backend: Backend
    path: Path
    version: tuple[int, int, int]

    def command(self, family: Family, verb: str = "") -> tuple[str, str]:
        """The beginning of a command: ``verb`` is ``-save``, ``-restore`` or nothing."""
        return str(self.path), ("iptables" if family is Family.V4 else "ip6tables") + verb


@dataclasses.dataclass(frozen=True)
class Choice:
    """A backend, why it was chosen, and what is installed (None: it is not)."""

    backend: Backend
    reason: str
    tools: dict[Backend, Tool | None]

    @property
    def tool(self) -> Tool:
        """The chosen backend's program.

        Raises:
            ToolMissingError: it is not installed.
        """
        tool = self.tools[self.backend]
        if tool is None:
            raise ToolMissingError(
                f"backend {self.backend.value} was chosen ({self.reason}), but"
                f" {self.backend.program} is neither in /usr/sbin, /sbin nor in PATH: {INSTALL}"
                f" or set iptables.backend to {self.backend.other.value}"
            )
        return tool


def installed(runner: Runner) -> dict[Backend, Tool | None]:
    """The programs of both backends.

    Raises:
        ToolMissingError: neither is installed.
    """
    tools = {backend: _probe_tool(backend, runner) for backend in Backend}
    if not any(tools.values()):
        raise ToolMissingError(
            f"neither {Backend.NFT.program} nor {Backend.LEGACY.program} (iptables 1.8.0 or newer)"
            f" is in /usr/sbin, /sbin or PATH: {INSTALL}"
        )
    return tools


def choose(wanted: str, runner: Runner) -> Choice:
    """Choose a backend.

    Args:
        wanted: ``auto``, ``legacy`` or ``nft``.
        runner: runs the programs.

    Raises:
        ToolMissingError: nothing is installed.
    """
    tools = installed(runner)
    if wanted != "auto":
        return Choice(Backend(wanted), "configured", tools)
    for backend in (Backend.NFT, Backend.LEGACY):
        for family in Family:
            # On nft a look at one table creates nothing, and is quicker than all.
            tables = ("-t", "mangle") if backend is Backend.NFT else ()
            if _HINT.search(_printed(tools[backend], family, tables, runner)):
                reason = f"the kubelet's hint chain is in its {family.value} tables"
                return Choice(backend, reason, tools)
    return Choice(Backend.NFT, "no hint chain of a kubelet in either backend", tools)


def refuse_conflict(choice: Choice, runner: Runner) -> None:
    """Check that the backend that was not chosen holds no Service rules.

    Raises:
        OtherBackendError: it does; packets would meet both sets of rules.
    """
    other = choice.backend.other
    for family in Family:
        if holds_services(choice.tools[other], family, runner):
            raise OtherBackendError(
                f"the {family.value} nat table of iptables-{other.value} already holds"
                f" KUBE-SERVICES, and backend {choice.backend.value} was chosen"
                f" ({choice.reason}). Packets would meet the rules of both. Either set"
                f" iptables.backend to {other.value}, to take those rules over, or remove them:"
                f" stop the proxy that writes them and run"
                f" 'onenth cleanup --backend {other.value}'"
            )


def holds_services(tool: Tool | None, family: Family, runner: Runner) -> bool:
    """Whether a backend's nat table has the chain KUBE-SERVICES; False if it cannot be asked."""
    tables = ("-t", "nat") if tool and tool.backend is Backend.NFT else ()
    match = _NAT.search(_printed(tool, family, tables, runner))
    return match is not None and _SERVICES.search(match["body"]) is not None


def parse_version(text: str) -> tuple[int, int, int]:
    """The version in what ``iptables --version`` prints; zeros if there is none."""
    match = _VERSION.search(text)
    if not match:
        return 0, 0, 0
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _probe_tool(backend: Backend, runner: Runner) -> Tool | None:
    path = find(backend.program)
    if path is None:
        return None
    finished = runner.run([str(path), "iptables", "--version"], timeout=_QUESTION_SECONDS)
    return Tool(backend, path, parse_version(finished.out))


def _printed(tool: Tool | None, family: Family, tables: tuple[str, ...], runner: Runner) -> str:
    """What ``iptables-save`` prints, however it ends; nothing if it cannot be run."""
    if tool is None:
        return ""
    try:
        argv = [*tool.command(family, "-save"), *tables]
        return runner.run(argv, timeout=_QUESTION_SECONDS).out
    except KernelError:
        return ""
