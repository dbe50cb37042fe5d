"""A netlink socket: one request, its answers, in the caller's thread; and attributes.

pyroute2 is not used for it, though ``deletion`` and some commands do: importing any part of it
takes about 10 MB, which a daemon on every node would pay for ever. In version 0.9 its sockets also
read a dump ahead into memory as fast as the kernel sends (36 MB for 180,000 connection entries),
decode every entry whole (73 us each) and run an event loop for each request. Here the kernel is
asked for the next part only when the last one has been used up, which is netlink's own flow
control, and the caller takes from an answer what it needs. The tests hold the few messages that
are encoded here against pyroute2's.

Requests go to the network namespace in which the socket was opened: that of the opening thread.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Self

from agent.kernel.errors import (
    REMEDY,
    DumpInterruptedError,
    KernelError,
    NetlinkError,
    PrivilegeError,
    UnsupportedError,
)
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import TracebackType

NETLINK_NETFILTER = 12
#: Netfilter's numbers of families are those of addresses.
FAMILIES = {Family.V4: socket.AF_INET, Family.V6: socket.AF_INET6}
#: Protocols that Services have, by IP's numbers (IANA).
PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
FLAG_REQUEST = 0x01
FLAG_ACK = 0x04
FLAG_EXCL = 0x200
FLAG_CREATE = 0x400
_FLAG_DUMP_INTERRUPTED = 0x10
_FLAG_DUMP = 0x300
_DONE = 3
_ERROR = 2
_OVERRUN = 4
_LAST = frozenset({_DONE, _ERROR})
_HEADER = struct.Struct("=IHHII")
_NUMBER = struct.Struct("=i")
#: Netfilter's own header: family, version, resource.
_NETFILTER = struct.Struct("=BBH")
HEADER_SIZE = _HEADER.size
_END_SIZE = HEADER_SIZE + _NUMBER.size
#: Where the attributes of a netfilter message begin.
ATTRIBUTES = HEADER_SIZE + _NETFILTER.size
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_NESTED = 0x8000
_BUFFER = 1 << 17
#: Ten seconds, as the kernel takes them (``struct timeval``).
_PATIENCE = struct.pack("@ll", 10, 0)
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENOSYS}


class Channel:
    """A netlink socket; use it as a context manager, in one thread at a time."""

    def __init__(self, protocol: int = NETLINK_NETFILTER) -> None:
        """Open the socket.

        Raises:
            UnsupportedError: this kernel has no such netlink.
        """
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
            )
        except OSError as error:
            raise UnsupportedError(
                f"opening a netlink socket of protocol {protocol} failed: {error.strerror};"
                " netfilter's needs CONFIG_NETFILTER_NETLINK",
                error.errno or 0,
            ) from error
        # Not settimeout(), which asks the kernel once more for each message.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
        self._socket.connect((0, 0))  # to the kernel: nobody else can answer
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(
        self, action: str, family: int, kind: int, body: bytes = b"", flags: int = 0
    ) -> list[bytes]:
        """Send one netfilter request and return the messages that the kernel answered.

        Args:
            action: what it is for, in an error.
            family: address family, 0 for none.
            kind: message type, with the subsystem in the upper byte.
            body: attributes, encoded.
            flags: besides REQUEST and ACK.

        Raises:
            PrivilegeError: the process may not.
            UnsupportedError: the kernel lacks the subsystem.
            NetlinkError: the kernel refused; ``number`` says why.
        """
        header = _NETFILTER.pack(family, 0, 0)
        self._send(action, header + body, kind, FLAG_REQUEST | FLAG_ACK | flags)
        return self._answers(action)

    def dump(self, action: str, family: int, kind: int, body: bytes = b"") -> Iterator[bytes]:
        """Stream a table of netfilter's; otherwise as ``dump_raw``."""
        return self.dump_raw(action, _NETFILTER.pack(family, 0, 0) + body, kind)

    def dump_raw(self, action: str, payload: bytes, kind: int) -> Iterator[bytes]:
        """Stream a table, one message after the other.

        The kernel holds no more than one buffer ahead. A dump that is not read to its end leaves
        the socket unusable for other requests.

        Args:
            action: what it is for, in an error.
            payload: all behind netlink's own header.
            kind: message type.

        Raises:
            DumpInterruptedError: at the end: the table changed so that some may have been missed.
            PrivilegeError: the process may not.
            UnsupportedError: the kernel lacks the subsystem.
            NetlinkError: the kernel refused or broke off.
        """
        self._send(action, payload, kind, FLAG_REQUEST | _FLAG_DUMP)
        return self._parts(action)

    def dump_whole(self, action: str, family: int, kind: int, body: bytes = b"") -> bytes:
        """All messages of a small dump of netfilter's on end; otherwise as ``dump_raw``.

        For whoever asks sixty thousand times: nothing is taken apart here.
        """
        self._send(action, _NETFILTER.pack(family, 0, 0) + body, kind, FLAG_REQUEST | _FLAG_DUMP)
        parts: list[bytes] = []
        while True:
            data = self._read(action)
            if len(data) < _END_SIZE:
                raise NetlinkError(f"{action}: the kernel's answer is cut short", errno.EMSGSIZE)
            _, kind, _, sequence, _ = _HEADER.unpack_from(data)
            if sequence != self._sequence:
                continue  # of an earlier request, broken off
            if kind == _OVERRUN:
                raise NetlinkError(f"{action}: the kernel lost part of the answer", errno.ENOBUFS)
            if kind == _ERROR:
                _check(action, data)
            # What ends a dump comes alone, or behind the last messages.
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, len(data) - _END_SIZE)
            if (length, kind, sequence) != (_END_SIZE, _DONE, self._sequence):
                parts.append(data)
                continue
            _check(action, data[-_END_SIZE:])
            if flags & _FLAG_DUMP_INTERRUPTED:
                raise DumpInterruptedError(
                    f"{action}: the table changed while it was read; read it again", errno.EINTR
                )
            return b"".join([*parts, data[:-_END_SIZE]])

    def _answers(self, action: str) -> list[bytes]:
        answers: list[bytes] = []
        while True:
            for kind, _, answer in self._receive(action):
                if kind == _ERROR:
                    _check(action, answer)
                    return answers
                answers.append(answer)

    def _parts(self, action: str) -> Iterator[bytes]:
        interrupted = False
        while True:
            for kind, flags, answer in self._receive(action):
                interrupted |= bool(flags & _FLAG_DUMP_INTERRUPTED)
                if kind not in _LAST:
                    yield answer
                    continue
                _check(action, answer)
                if interrupted:
                    raise DumpInterruptedError(
                        f"{action}: the table changed while it was read; read it again",
                        errno.EINTR,
                    )
                return

    def _send(self, action: str, payload: bytes, kind: int, flags: int) -> None:
        self._sequence += 1
        header = _HEADER.pack(_HEADER.size + len(payload), kind, flags, self._sequence, 0)
        try:
            self._socket.send(header + payload)
        except OSError as error:
            raise NetlinkError(f"{action}: sending failed: {error}", error.errno or 0) from error

    def _read(self, action: str) -> bytes:
        try:
            return self._socket.recv(_BUFFER)
        except BlockingIOError as error:
            text = f"{action}: the kernel does not answer"
            raise NetlinkError(text, errno.ETIMEDOUT) from error
        except OSError as error:
            text = f"{action}: receiving failed: {error}"
            raise NetlinkError(text, error.errno or errno.EIO) from error

    def _receive(self, action: str) -> list[tuple[int, int, bytes]]:
        """The next messages that answer the last request: type, flags, the whole message."""
        data = self._read(action)
        messages: list[tuple[int, int, bytes]] = []
        offset, end, mine = 0, len(data), self._sequence
        while offset + HEADER_SIZE <= end:
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
            if not HEADER_SIZE <= length <= end - offset:
                raise NetlinkError(f"{action}: the kernel's answer is cut short", errno.EMSGSIZE)
            if kind == _OVERRUN:
                raise NetlinkError(f"{action}: the kernel lost part of the answer", errno.ENOBUFS)
            # An answer to an earlier request, broken off, is none of this one's.
            if sequence == mine:
                messages.append((kind, flags, data[offset : offset + length]))
            offset += (length + 3) & ~3
        return messages


def attribute(kind: int, *parts: bytes, nested: bool = False) -> bytes:
    """An attribute that holds these parts, padded as netlink has it.

    Args:
        kind: its type.
        parts: values, or attributes.
        nested: say that it holds attributes, where the kernel asks for that.
    """
    value = b"".join(parts)
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind | nested * _NESTED) + value + bytes(-length % 4)


def string(kind: int, text: str) -> bytes:
    """An attribute that holds a string with a zero at its end."""
    return attribute(kind, text.encode(), b"\0")


def attributes(data: bytes, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Type, beginning and end of each attribute between two offsets; a malformed one ends it."""
    while offset + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > end:
            return
        yield kind & _TYPE_MASK, offset + _ATTRIBUTE.size, offset + length
        offset += (length + 3) & ~3


def without(data: bytes, offset: int, kinds: Container[int]) -> bytes:
    """The attributes from an offset on, as they stand, without those of some types.

    A loop of its own: an audit calls it for ten thousand rules.
    """
    parts: list[bytes] = []
    end = len(data)
    while offset + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > end:
            break
        following = offset + ((length + 3) & ~3)
        if kind & _TYPE_MASK not in kinds:
            parts.append(data[offset:following])
        offset = following
    return b"".join(parts)


def values(answer: bytes, offset: int = ATTRIBUTES) -> dict[int, bytes]:
    """The attributes of a message by type; of several of one type, the last."""
    return {kind: answer[start:end] for kind, start, end in attributes(answer, offset, len(answer))}


def _check(action: str, answer: bytes) -> None:
    """Raise what an acknowledgement says, unless it says that all is well."""
    complete = len(answer) >= _HEADER.size + _NUMBER.size
    number = -_NUMBER.unpack_from(answer, _HEADER.size)[0] if complete else 0
    if number:
        raise refusal(action, number)


def refusal(action: str, number: int) -> KernelError:
    """The error for what the kernel answered, by its number."""
    text = f"{action}: {os.strerror(number)}"
    if number in {errno.EPERM, errno.EACCES}:
        return PrivilegeError(f"{text}; {REMEDY}")
    if number in _UNSUPPORTED:
        return UnsupportedError(f"{text}; this kernel cannot do it", number)
    return NetlinkError(text, number)
