"""Packets that no ordinary socket sends: a TCP segment out of the window, and SCTP by hand.

Functions work in the network namespace of the calling thread. Layouts: RFC 9293 (TCP), RFC 9260
(SCTP), RFC 768 and 8200 (the pseudo headers that checksums cover).
"""

from __future__ import annotations

import socket
import struct

SCTP = 132
#: ``setsockopt`` of TCP_REPAIR (linux/tcp.h): a way to read a connection's sequence number.
_REPAIR, _REPAIR_QUEUE, _QUEUE_SEQ, _SEND_QUEUE = 19, 20, 21, 2
_INIT, _INIT_ACK = 1, 2


def internet_checksum(data: bytes) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def next_sequence(connection: socket.socket) -> int:
    """The sequence number of the next byte that a TCP connection sends."""
    connection.setsockopt(socket.IPPROTO_TCP, _REPAIR, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _REPAIR_QUEUE, _SEND_QUEUE)
    number = connection.getsockopt(socket.IPPROTO_TCP, _QUEUE_SEQ)
    connection.setsockopt(socket.IPPROTO_TCP, _REPAIR, 0)
    return number & 0xFFFFFFFF


def send_out_of_window(connection: socket.socket, count: int) -> None:
    """Send segments that look like the connection's, half of all sequence numbers away from it."""
    source, target = connection.getsockname()[:2], connection.getpeername()[:2]
    sequence = (next_sequence(connection) + (1 << 31)) & 0xFFFFFFFF
    flags_ack, window = 0x10, 1000
    head = struct.pack("!HHIIBBH", source[1], target[1], sequence, 1, 5 << 4, flags_ack, window)
    family = connection.family
    ends = socket.inet_pton(family, source[0]) + socket.inet_pton(family, target[0])
    size = len(head) + 4
    layout = "!BBH" if family == socket.AF_INET else "!IHBB"
    parts = (0, 6, size) if family == socket.AF_INET else (size, 0, 0, 6)
    checksum = internet_checksum(ends + struct.pack(layout, *parts) + head + b"\0\0\0\0")
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP) as sender:
        for _ in range(count):
            sender.sendto(head + struct.pack("!HH", checksum, 0), (target[0], 0))


class SctpEnd:
    """One end of the beginning of an SCTP association, without any SCTP in the kernel."""

    def __init__(self, family: socket.AddressFamily) -> None:
        self._family = family
        self._socket = socket.socket(family, socket.SOCK_RAW, SCTP)
        self._socket.settimeout(2.0)

    def close(self) -> None:
        """Release the socket."""
        self._socket.close()

    def send_init(self, port: int, to: tuple[str, int]) -> None:
        """Ask for an association."""
        self._send(_INIT, port, to, tag=0)

    def send_init_ack(self, port: int, to: tuple[str, int]) -> None:
        """Answer one."""
        self._send(_INIT_ACK, port, to, tag=1)

    def receive(self) -> tuple[int, int, tuple[str, int]]:
        """Wait for a packet: kind of its first chunk, our port, and who sent it.

        Raises:
            TimeoutError: none came.
        """
        data, sender = self._socket.recvfrom(4096)
        if self._family == socket.AF_INET:
            data = data[(data[0] & 0x0F) * 4 :]
        source, target = struct.unpack_from("!HH", data)
        return data[12], target, (sender[0], source)

    def _send(self, kind: int, port: int, to: tuple[str, int], *, tag: int) -> None:
        chunk = struct.pack("!BBHIIHHI", kind, 0, 20, 1, 65536, 1, 1, 1)
        head = struct.pack("!HHI", port, to[1], tag)
        checksum = struct.pack("<I", crc32c(head + b"\0\0\0\0" + chunk))
        self._socket.sendto(head + checksum + chunk, (to[0], 0))
