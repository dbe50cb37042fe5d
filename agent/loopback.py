"""Letting node ports answer on 127.0.0.1, and only those (CVE-2020-8558).

The kernel routes packets with loopback addresses once ``route_localnet`` is on, whoever they come
from. So the rule that keeps neighbours out goes in first, and without it the setting is not
written: the first sync, which writes the rule as well, may be a long time coming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel.errors import HostError
from agent.kernel.sysctl import ROUTE_LOCALNET, Outcome, Result, Sysctls
from agent.rules import names
from agent.rules.parse import canonical, understood
from agent.rules.static import KUBELET_JUMPS, localnet_guard
from agent.sync.look import read_chain
from agent.sync.port import ReadError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.rules.rule import Rule
    from agent.sync.port import Kernel

_WANTED = 1
_CHAIN = names.KUBELET_FIREWALL


def open_loopback(kernel: Callable[[], Kernel], sysctls: Sysctls) -> Outcome:
    """Switch ``route_localnet`` on, behind its guard.

    Args:
        kernel: makes the writer of IPv4 rules, where one is needed; may raise ``HostError``.
        sysctls: ``/proc/sys``.
    """
    present = sysctls.read_int(ROUTE_LOCALNET).value
    if present != _WANTED and sysctls.could_be(ROUTE_LOCALNET, _WANTED):
        try:
            _guard(kernel())
        except (HostError, ReadError, RestoreError) as error:
            reason = f"the rule that must go with it could not be written: {error}"
            return Outcome(ROUTE_LOCALNET, _WANTED, present, Result.REFUSED, reason)
    return sysctls.ensure(ROUTE_LOCALNET, _WANTED)


def _guard(kernel: Kernel) -> None:
    """Write what is missing of the rule and the jumps to it; the chain may be the kubelet's."""
    guard = localnet_guard()
    held = read_chain(kernel, "filter", _CHAIN)
    lines = [] if held is not None else [f":{_CHAIN} - [0:0]"]
    if not _has(held, guard):
        lines.append(f"-I {_CHAIN} {guard.text()}")
    lines += [
        f"-I {jump.source} {jump.rule.text()}"
        for jump in KUBELET_JUMPS
        if not _has(read_chain(kernel, jump.table, jump.source), jump.rule)
    ]
    if lines:
        kernel.restore("\n".join(("*filter", *lines, "COMMIT", "")))


def _has(held: list[str] | None, wanted: Rule) -> bool:
    same = canonical(wanted)
    return any(understood(text) == same for text in held or ())
