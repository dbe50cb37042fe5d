"""What rules depend on besides Services and the Node, found out from the kernel.

Read anew whenever it is asked for: a sysctl may be changed, an address may come or go while the
agent runs. What only its tools can tell (the backend, the nfacct match) was probed at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel import nfacct
from agent.kernel.addresses import list_addresses
from agent.kernel.errors import NetlinkError, PrivilegeError
from agent.kernel.sysctl import TCP_BE_LIBERAL, Sysctls
from agent.rules.service import COUNTER_LOCALHOST
from agent.rules.static import COUNTER_INVALID
from agent.state.node import KernelFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kernel.iptables import Capabilities
    from agent.state.values import Family

COUNTERS = (COUNTER_INVALID, COUNTER_LOCALHOST)


def make_counters() -> tuple[tuple[str, ...], dict[str, str]]:
    """Make the nfacct counters; each is decided by itself, and none is needed.

    Returns:
        Those that exist now, and why the others do not.
    """
    made: list[str] = []
    refused: dict[str, str] = {}
    for name in COUNTERS:
        try:
            nfacct.ensure(name)
        except (NetlinkError, PrivilegeError) as error:
            refused[name] = str(error)
        else:
            made.append(name)
    return tuple(made), refused


def read_packets(counter: str) -> float | None:
    """Packets that a counter has counted; None if it cannot be read."""
    try:
        found = nfacct.read(counter)
    except (NetlinkError, PrivilegeError):
        return None
    return None if found is None else float(found.packets)


class Facts:
    """Asks the kernel, each time it is called."""

    def __init__(
        self,
        capabilities: Capabilities,
        sysctls: Sysctls,
        *,
        localnet: bool,
        unreadable: Callable[[NetlinkError], None],
    ) -> None:
        """Ask about a machine with these capabilities.

        Args:
            capabilities: what was probed at start.
            sysctls: kernel settings.
            localnet: packets from 127.0.0.1 can be routed.
            unreadable: told when addresses could not be listed; the last known ones hold then.
        """
        self._capabilities = capabilities
        self._sysctls = sysctls
        self._localnet = localnet
        self._unreadable = unreadable
        self._addresses: tuple[str, ...] = ()

    def tcp_be_liberal(self) -> int | None:
        """The sysctl that makes the INVALID rule unnecessary; None if it cannot be read."""
        return self._sysctls.read_int(TCP_BE_LIBERAL).value

    def __call__(self, family: Family) -> KernelFacts:
        """What holds now."""
        try:
            self._addresses = list_addresses()
        except NetlinkError as error:
            self._unreadable(error)
        return KernelFacts(
            tcp_liberal=bool(self.tcp_be_liberal()),
            random_fully=self._capabilities.random_fully,
            count_invalid=self._counts(family, COUNTER_INVALID),
            count_localhost=self._counts(family, COUNTER_LOCALHOST),
            localnet=self._localnet,
            addresses=self._addresses,
        )

    def _counts(self, family: Family, counter: str) -> bool:
        """Whether rules can name a counter; one that somebody has deleted is made again.

        Without it the kernel would refuse every Service with a node port.
        """
        if not self._capabilities.counts(family, counter):
            return False
        try:
            nfacct.ensure(counter)
        except (NetlinkError, PrivilegeError):
            return False
        return True
