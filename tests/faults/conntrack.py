"""Filling the connection table of a network namespace to the last entry, and emptying it again.

The limit is one number for the whole machine, but each namespace counts its own entries. So the
table is really full, for everybody in the namespace and nobody else. Entries are marked as
ASSURED, or the kernel would evict them for new ones, and carry a mark to be found by.

Messages and attributes: ``linux/netfilter/nfnetlink_conntrack.h``.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

MARK = 0x6F6E6E
#: Above this many entries a machine has too much room to be filled in a test.
MOST = 600_000
_NETLINK_NETFILTER = 12
_NEW, _DELETE = 1 << 8, 1 << 8 | 2
_REQUEST, _CREATE, _ACK = 0x1, 0x400, 0x4
_NESTED = 0x8000
_ORIG, _REPLY, _STATUS, _TIMEOUT, _MARK, _MARK_MASK = 1, 2, 3, 7, 8, 21
_SEEN_REPLY_ASSURED_CONFIRMED = 0b1110
_SECONDS = 600
_BATCH = 400
_UDP = 17
#: A port that looks like nothing else in a message.
_PORT = 0xABCD


def limit() -> int:
    """How many entries a namespace may have."""
    return int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())


def fill(namespace: Namespace) -> None:
    """Make entries until there is no room for another one."""
    namespace.call(_fill)


def empty(namespace: Namespace) -> None:
    """Delete what ``fill`` made, and nothing else."""
    mark = _attribute(_MARK, struct.pack("!I", MARK)) + _attribute(_MARK_MASK, b"\xff" * 4)
    namespace.call(_send, _message(_DELETE, _ACK, mark), answered=True)


def _fill() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as channel:
        channel.bind((0, 0))
        wanted = limit() + 10 * _BATCH
        for first in range(1, wanted, _BATCH):
            channel.send(_entries(first, first + _BATCH))


def _entries(first: int, last: int) -> bytes:
    """Messages of many entries: a template whose addresses and ports are replaced."""
    here, there = b"\xc6\x12\x00\x00", b"\xc6\x13\x00\x01"
    body = (
        _tuple(_ORIG, here, there, _PORT, 9)
        + _tuple(_REPLY, there, here, 9, _PORT)
        + _attribute(_STATUS, struct.pack("!I", _SEEN_REPLY_ASSURED_CONFIRMED))
        + _attribute(_TIMEOUT, struct.pack("!I", _SECONDS))
        + _attribute(_MARK, struct.pack("!I", MARK))
    )
    template = _message(_NEW, _CREATE, body)
    port = struct.pack("!H", _PORT)
    return b"".join(
        template.replace(here, struct.pack("!HH", 0xC612, number >> 16)).replace(
            port, struct.pack("!H", (number & 0xFFFF) or 1)
        )
        for number in range(first, last)
    )


def _tuple(kind: int, source: bytes, destination: bytes, sport: int, dport: int) -> bytes:
    ips = _attribute(1, source) + _attribute(2, destination)
    ports = (
        _attribute(1, bytes([_UDP]))
        + _attribute(2, struct.pack("!H", sport))
        + _attribute(3, struct.pack("!H", dport))
    )
    return _attribute(_NESTED | kind, _attribute(_NESTED | 1, ips) + _attribute(_NESTED | 2, ports))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    content = struct.pack("=BBH", socket.AF_INET, 0, 0) + body
    return struct.pack("=IHHII", 16 + len(content), kind, _REQUEST | flags, 1, 0) + content


def _send(message: bytes, *, answered: bool) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as channel:
        channel.bind((0, 0))
        channel.send(message)
        if answered:
            error = struct.unpack_from("=i", channel.recv(4096), 16)[0]
            assert error == 0, f"the kernel refused: errno {-error}"
