"""The kernel's UDP connection entries, read as a stream.

A UDP "connection" keeps the destination that it was given first for as long as packets go on, so
an entry can outlive the endpoint that it leads to. Which entries are stale is decided elsewhere,
from state; ``deletion`` deletes them.

The table can hold a million entries and changes while it is read. So it is never held as a
whole, and each entry is taken apart by hand: addresses, ports and zone, nothing else.

The table belongs to a network namespace: everything here speaks of that of the calling thread.
Attributes: ``linux/netfilter/nfnetlink_conntrack.h``.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING

import msgspec

from agent.kernel.errors import DumpInterruptedError, NetlinkError, UnsupportedError
from agent.kernel.netlink import ATTRIBUTES, FAMILIES, Channel, attribute, attributes
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUBSYSTEM = 1 << 8
GET = _SUBSYSTEM | 1
_UDP = 17
_UDP_BYTE = bytes([_UDP])
_DUMP_ATTEMPTS = 3

_CTA_TUPLE_ORIG = 1
_CTA_TUPLE_REPLY = 2
_CTA_ID = 12
_CTA_ZONE = 18
_CTA_FILTER = 25
_CTA_FILTER_ORIG_FLAGS = 1
#: The kernel's flag for "the protocol's number" (net/netfilter/nf_internals.h).
_FILTER_PROTOCOL = 1 << 3
_CTA_TUPLE_ZONE = 3
#: Attributes inside of a tuple: (outer, inner), see ``leaves``. By family: source, destination.
_ADDRESSES = {Family.V4: ((1, 1), (1, 2)), Family.V6: ((1, 3), (1, 4))}
_PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT = (2, 1), (2, 2), (2, 3)
_U16 = struct.Struct("!H")
_U32 = struct.Struct("!I")
_FLAGS = struct.Struct("=I")


class Flow(msgspec.Struct, frozen=True, gc=False):
    """A UDP entry, as far as deciding and deleting need it.

    Attributes:
        family: IPv4 or IPv6.
        orig_src: who sent the first packet.
        orig_sport: from which port.
        orig_dst: to whom, before any translation.
        orig_dport: to which port.
        reply_src: who answers: the endpoint, after the translation.
        reply_sport: from which port.
        reply_dst: to whom, which is the sender unless it is masqueraded.
        reply_dport: to which port.
        zone: conntrack zone, 0 by default.
        id: the kernel's number for the entry; 0 if it is unknown.
    """

    family: Family
    orig_src: str
    orig_sport: int
    orig_dst: str
    orig_dport: int
    reply_src: str
    reply_sport: int
    reply_dst: str
    reply_dport: int
    zone: int = 0
    id: int = 0


def udp_flows(family: Family) -> Iterator[Flow]:
    """Stream the UDP entries of a family.

    The kernel filters by protocol where it can (since 5.8). If the table changed so much during
    the reading that entries may have been missed, it is read again, and entries come twice.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no connection tracking over netlink.
        DumpInterruptedError: it kept changing; what was missed is there the next time.
        NetlinkError: the kernel refused or broke off.
    """
    filtered = True
    for attempt in range(_DUMP_ATTEMPTS):
        try:
            yield from _dump(family, filtered=filtered)
        except DumpInterruptedError:
            if attempt == _DUMP_ATTEMPTS - 1:
                raise
        except NetlinkError as error:
            # A kernel that does not know the filter refuses it before the first entry.
            if not filtered or error.number not in {errno.EINVAL, errno.EOPNOTSUPP}:
                raise
            filtered = False
        else:
            return


def describe(flow: Flow) -> str:
    """The entry in words, for a log line or an error."""
    return (
        f"UDP entry {flow.orig_src} port {flow.orig_sport} to {flow.orig_dst} port"
        f" {flow.orig_dport}, answered by {flow.reply_src} port {flow.reply_sport}"
    )


def _dump(family: Family, *, filtered: bool) -> Iterator[Flow]:
    body = _only_udp() if filtered else b""
    with Channel() as channel:
        try:
            action = f"reading {family.value} UDP entries"
            for answer in channel.dump(action, FAMILIES[family], GET, body):
                flow = parse(family, answer)
                if flow is not None:
                    yield flow
        except NetlinkError as error:
            if error.number == errno.EINVAL and not filtered:
                raise UnsupportedError(
                    f"{error}; this kernel has no connection tracking over netlink"
                    " (CONFIG_NF_CT_NETLINK)",
                    error.number,
                ) from error
            raise


def _only_udp() -> bytes:
    """What makes the kernel list UDP entries alone."""
    flags = attribute(_CTA_FILTER_ORIG_FLAGS, _FLAGS.pack(_FILTER_PROTOCOL))
    outer, inner = _PROTOCOL
    udp = attribute(outer, attribute(inner, _UDP_BYTE))
    return attribute(_CTA_TUPLE_ORIG, udp) + attribute(_CTA_FILTER, flags, nested=True)


def parse(family: Family, answer: bytes) -> Flow | None:
    """Take an entry apart.

    Returns:
        None for what is no complete UDP entry of the family, and for one whose zone holds for a
        single direction: such a zone is somebody's who does the translation himself.
    """
    tuples: dict[int, dict[tuple[int, int], bytes]] = {}
    zone = number = 0
    for kind, start, end in attributes(answer, ATTRIBUTES, len(answer)):
        if kind in {_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY}:
            tuples[kind] = leaves(answer, start, end)
        elif kind == _CTA_ID:
            number = _U32.unpack_from(answer, start)[0]
        elif kind == _CTA_ZONE:
            zone = _U16.unpack_from(answer, start)[0]
    source, destination = _ADDRESSES[family]
    try:
        orig, reply = tuples[_CTA_TUPLE_ORIG], tuples[_CTA_TUPLE_REPLY]
        if orig[_PROTOCOL] != _UDP_BYTE or (_CTA_TUPLE_ZONE, 0) in orig:
            return None
        return Flow(
            family=family,
            orig_src=socket.inet_ntop(FAMILIES[family], orig[source]),
            orig_sport=_U16.unpack(orig[_SOURCE_PORT])[0],
            orig_dst=socket.inet_ntop(FAMILIES[family], orig[destination]),
            orig_dport=_U16.unpack(orig[_DESTINATION_PORT])[0],
            reply_src=socket.inet_ntop(FAMILIES[family], reply[source]),
            reply_sport=_U16.unpack(reply[_SOURCE_PORT])[0],
            reply_dst=socket.inet_ntop(FAMILIES[family], reply[destination]),
            reply_dport=_U16.unpack(reply[_DESTINATION_PORT])[0],
            zone=zone,
            id=number,
        )
    except (KeyError, ValueError, struct.error):
        return None


def leaves(data: bytes, start: int, end: int) -> dict[tuple[int, int], bytes]:
    """What is in a tuple, by outer and inner attribute; a zone counts as (3, 0)."""
    found = {}
    for outer, inner, inner_end in attributes(data, start, end):
        if outer == _CTA_TUPLE_ZONE:
            found[outer, 0] = data[inner:inner_end]
        else:
            for kind, at, until in attributes(data, inner, inner_end):
                found[outer, kind] = data[at:until]
    return found
