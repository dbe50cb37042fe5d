"""Named packet counters in the kernel (nfnetlink_acct), for rules with ``-m nfacct``.

A counter belongs to a network namespace and outlives the rules that name it, so its count goes
on through every rewrite. A rule can only name a counter that exists, and one that a rule names
cannot be deleted. The kernel may have the counters and lack the match (they are two modules), so
whether a rule can use one is asked separately (``iptables.probe``).

Messages and attributes: ``linux/netfilter/nfnetlink_acct.h``.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, NamedTuple

from agent.kernel.errors import NetlinkError, UnsupportedError
from agent.kernel.netlink import FLAG_CREATE, FLAG_EXCL, Channel, string, values

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUBSYSTEM = 7 << 8
_NEW = _SUBSYSTEM | 0
_GET = _SUBSYSTEM | 1
_DELETE = _SUBSYSTEM | 3
_NAME, _PACKETS, _BYTES = 1, 2, 3
#: Longest name, without the final zero.
NAME_MAX = 31


class Counter(NamedTuple):
    """What a counter has counted since it was made."""

    packets: int
    bytes: int


def ensure(name: str) -> None:
    """Make a counter; one that exists keeps its count.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no such counters.
        NetlinkError: the kernel refused.
    """
    try:
        _ask(f"making nfacct counter {name}", _NEW, name, FLAG_CREATE | FLAG_EXCL)
    except NetlinkError as error:
        if error.number != errno.EEXIST:
            raise


def read(name: str) -> Counter | None:
    """What a counter has counted; None if there is none of that name.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no such counters.
        NetlinkError: the kernel refused.
    """
    try:
        answers = _ask(f"reading nfacct counter {name}", _GET, name)
    except NetlinkError as error:
        if error.number == errno.ENOENT:
            return None
        raise
    for answer in answers:
        found, counter = _decode(answer)
        if found == name:
            return counter
    return None


def read_all() -> dict[str, Counter]:
    """All counters of this network namespace, by name.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no such counters.
        NetlinkError: the kernel refused.
    """
    with Channel() as channel, _explained():
        return dict(map(_decode, channel.dump("listing nfacct counters", 0, _GET)))


def delete(name: str) -> bool:
    """Remove a counter; tells whether there was one.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no such counters.
        NetlinkError: a rule still names it (EBUSY), or the kernel refused otherwise.
    """
    try:
        _ask(f"deleting nfacct counter {name}", _DELETE, name)
    except NetlinkError as error:
        if error.number == errno.ENOENT:
            return False
        raise
    return True


def _ask(action: str, kind: int, name: str, flags: int = 0) -> list[bytes]:
    if not 0 < len(name.encode()) <= NAME_MAX:
        raise ValueError(f"{action}: a name has 1 to {NAME_MAX} bytes")
    with Channel() as channel, _explained():
        return channel.request(action, 0, kind, string(_NAME, name), flags)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Translate what the kernel says of a subsystem that it lacks: "invalid argument"."""
    try:
        yield
    except NetlinkError as error:
        if error.number != errno.EINVAL:
            raise
        raise UnsupportedError(
            f"{error}; this kernel has no nfacct counters (CONFIG_NETFILTER_NETLINK_ACCT)",
            error.number,
        ) from error


def _decode(answer: bytes) -> tuple[str, Counter]:
    found = values(answer)
    packets, octets = (int.from_bytes(found.get(kind, b""), "big") for kind in (_PACKETS, _BYTES))
    return found.get(_NAME, b"").rstrip(b"\0").decode(), Counter(packets, octets)
