"""Connections that are translated, of all protocols, as connection tracking has them now.

A stream like that of ``agent.kernel.conntrack``, for counting: nothing is kept, and nothing but
addresses, ports and the state is taken out of an entry.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from agent.kernel.conntrack import GET, leaves
from agent.kernel.errors import DumpInterruptedError
from agent.kernel.netlink import ATTRIBUTES, FAMILIES, PROTOCOLS, Channel, attributes
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Protocol, address, port; and protocol, address and port of who answers.
Connection = tuple[tuple[str, str, int], tuple[str, str, int]]

_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _PROTOINFO = 1, 2, 3, 4
#: Within a tuple: source and destination by family, then protocol and ports.
_ADDRESSES = {Family.V4: ((1, 1), (1, 2)), Family.V6: ((1, 3), (1, 4))}
_PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT = (2, 1), (2, 2), (2, 3)
#: State by protocol: attribute within the protocol's, and the number of "established"
#: (linux/netfilter/nf_conntrack_tcp.h, nf_conntrack_sctp.h).
_STATES = {6: ((1, 1), 3), 132: ((3, 1), 4)}
_SEEN_REPLY = 0x2
_PORT = struct.Struct("!H")
_NUMBER = struct.Struct("!I")


def translated(family: Family) -> Iterator[Connection]:
    """Stream the established connections of a family whose destination is translated.

    TCP and SCTP by their state, UDP if it was answered. If the table changed so that some may
    have been missed, that is no error: it is for counting.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no connection tracking over netlink.
        NetlinkError: the kernel refused or broke off.
    """
    action = f"reading {family.value} connections"
    with Channel() as channel:
        try:
            for answer in channel.dump(action, FAMILIES[family], GET):
                found = parse(family, answer)
                if found is not None:
                    yield found
        except DumpInterruptedError:
            return


def parse(family: Family, answer: bytes) -> Connection | None:
    """Take an entry apart; None if it is not established, or not translated."""
    parts: dict[int, tuple[int, int]] = {
        kind: (start, end) for kind, start, end in attributes(answer, ATTRIBUTES, len(answer))
    }
    source, destination = _ADDRESSES[family]
    try:
        orig = leaves(answer, *parts[_TUPLE_ORIG])
        reply = leaves(answer, *parts[_TUPLE_REPLY])
        to, by = orig[destination], reply[source]
        port, answering = orig[_DESTINATION_PORT], reply[_SOURCE_PORT]
        number = orig[_PROTOCOL][0]
        if (to, port) == (by, answering) or not _is_established(answer, parts, number):
            return None
        protocol = PROTOCOLS[number]
        return (
            (protocol, socket.inet_ntop(FAMILIES[family], to), _PORT.unpack(port)[0]),
            (protocol, socket.inet_ntop(FAMILIES[family], by), _PORT.unpack(answering)[0]),
        )
    except (KeyError, ValueError, IndexError, struct.error):
        return None


def _is_established(answer: bytes, parts: dict[int, tuple[int, int]], protocol: int) -> bool:
    if protocol in _STATES:
        where, established = _STATES[protocol]
        state = leaves(answer, *parts[_PROTOINFO]).get(where, b"")
        return state == bytes([established])
    start, _ = parts[_STATUS]
    return bool(_NUMBER.unpack_from(answer, start)[0] & _SEEN_REPLY)
