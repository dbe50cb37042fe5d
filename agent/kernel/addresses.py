"""The addresses of this network namespace's interfaces, and word of every change of them.

Node ports answer on addresses that come and go. The kernel multicasts changes, but may drop
them when they come too fast, and their order does not matter here. So a notification is only a
reason to look: what it says is not read, the addresses are listed anew when it has been quiet for
a moment, and a lost notification (ENOBUFS) is a reason to look as well. Nothing is remembered
that a missed message could make wrong.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from agent.kernel.errors import DumpInterruptedError, NetlinkError
from agent.kernel.netlink import HEADER_SIZE, Channel, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Multicast groups of address changes (linux/rtnetlink.h).
_GROUPS = 0x10 | 0x100
_GET_ADDRESS = 22
#: ``struct ifaddrmsg`` (linux/if_addr.h): family, prefix length, flags, scope, interface.
_HEADER = struct.Struct("=BBBBI")
_ADDRESS, _LOCAL = 1, 2
_BUFFER = 1 << 16
_LIST_ATTEMPTS = 5
#: A steady stream of changes does not put off looking for longer than this many waits.
_PATIENCE = 10


def list_addresses() -> tuple[str, ...]:
    """The addresses of all interfaces, of both families, like ``192.0.2.7/24``; sorted.

    Raises:
        NetlinkError: the kernel did not list them.
    """
    for _ in range(_LIST_ATTEMPTS):
        try:
            return tuple(sorted(set(_read())))
        except DumpInterruptedError:
            continue  # they changed meanwhile: look again
    raise NetlinkError(
        f"listing this node's addresses failed {_LIST_ATTEMPTS} times: they change too often",
        errno.EINTR,
    )


def _read() -> Iterator[str]:
    with Channel(socket.NETLINK_ROUTE) as channel:
        anything = _HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        action = "listing this node's addresses"
        for answer in channel.dump_raw(action, anything, _GET_ADDRESS):
            cidr = _cidr(answer)
            if cidr is not None:
                yield cidr


def _cidr(answer: bytes) -> str | None:
    """The address of a message; None if it is of neither IPv4 nor IPv6."""
    family, length, *_ = _HEADER.unpack_from(answer, HEADER_SIZE)
    if family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    found = values(answer, HEADER_SIZE + _HEADER.size)
    # On a point-to-point link IFA_ADDRESS is the peer's; IFA_LOCAL, where there is one, is ours.
    address = found.get(_LOCAL) or found.get(_ADDRESS)
    return None if address is None else f"{socket.inet_ntop(family, address)}/{length}"


class AddressWatcher:
    """Calls back when the addresses have changed, from a thread of its own."""

    def __init__(
        self,
        changed: Callable[[tuple[str, ...]], None],
        failed: Callable[[BaseException], None],
        *,
        quiet: float = 0.2,
    ) -> None:
        """Nothing happens before ``start``.

        Args:
            changed: gets all addresses after a change, as ``list_addresses`` gives them.
            failed: gets the error that ended the thread, if one did; nothing follows it.
            quiet: seconds without another change before the addresses are listed.
        """
        self._changed = changed
        self._failed = failed
        self._quiet = quiet
        self._thread: threading.Thread | None = None
        self._stop_read, self._stop_write = -1, -1

    def start(self) -> tuple[str, ...]:
        """Begin to watch; returns the addresses as they are, of which no change is missed.

        The network namespace is that of the calling thread.

        Raises:
            NetlinkError: the kernel does not tell of changes, or does not list addresses.
        """
        events = _subscribe()
        try:
            present = list_addresses()
            self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        except BaseException:
            events.close()
            raise
        self._thread = threading.Thread(
            target=self._run, args=(events, present), name="addresses", daemon=True
        )
        self._thread.start()
        return present

    def stop(self) -> None:
        """End the thread; no call follows. Doing it twice, or without a start, does no harm."""
        if self._thread is None:
            return
        os.close(self._stop_write)
        self._thread.join()
        os.close(self._stop_read)
        self._thread = None

    def _run(self, events: socket.socket, present: tuple[str, ...]) -> None:
        try:
            with events:
                while self._wait(events):
                    found = list_addresses()
                    if found != present:
                        present = found
                        self._changed(found)
        except BaseException as error:  # noqa: BLE001 (handed on: a thread must not die unheard)
            self._failed(error)

    def _wait(self, events: socket.socket) -> bool:
        """Wait for a change and then for quiet; False when it is time to stop."""
        waited = [events.fileno(), self._stop_read]
        ready = select.select(waited, [], [])[0]
        latest = time.monotonic() + self._quiet * _PATIENCE
        while ready and self._stop_read not in ready and time.monotonic() < latest:
            _drain(events)
            ready = select.select(waited, [], [], self._quiet)[0]
        return self._stop_read not in ready


def _subscribe() -> socket.socket:
    try:
        events = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        events.setblocking(False)  # noqa: FBT003 (the standard library's signature)
        events.bind((0, _GROUPS))
    except OSError as error:
        raise NetlinkError(
            f"subscribing to address changes failed: {error}", error.errno or 0
        ) from error
    return events


def _drain(events: socket.socket) -> None:
    """Take what has been said off the socket; that it was said is all that counts."""
    while True:
        try:
            events.recv(_BUFFER)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
