from __future__ import annotations

import errno
import itertools
import queue
import socket
import time
from typing import TYPE_CHECKING, ClassVar

import pytest

from agent.kernel import addresses
from agent.kernel.addresses import AddressWatcher, list_addresses
from agent.kernel.errors import NetlinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace

LOOPBACK = ("127.0.0.1/8", "::1/128")


class Heard:
    """What a watcher said."""

    def __init__(self, namespace: Namespace, quiet: float = 0.05) -> None:
        self.changes: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.watcher = AddressWatcher(self.changes.put, self.failures.put, quiet=quiet)
        self.first = namespace.call(self.watcher.start)


@pytest.fixture
def heard(namespace: Namespace) -> Iterator[Heard]:
    found = Heard(namespace)
    yield found
    found.watcher.stop()


def add(namespace: Namespace, *cidrs: str) -> None:
    batch = "".join(f"address replace {cidr} dev lo\n" for cidr in cidrs)
    namespace.run(["ip", "-batch", "-"], stdin=batch)


def test_addresses_of_all_interfaces_are_listed(namespace: Namespace) -> None:
    """Both families, each with its prefix; on a point-to-point link our own end."""
    add(namespace, "192.0.2.7/24", "2001:db8::7/64")
    namespace.run(["ip", "link", "add", "name", "left", "type", "veth", "peer", "name", "right"])
    namespace.run(["ip", "address", "add", "198.51.100.1", "peer", "198.51.100.2", "dev", "left"])

    assert namespace.call(list_addresses) == tuple(
        sorted([*LOOPBACK, "192.0.2.7/24", "2001:db8::7/64", "198.51.100.1/32"])
    )


def test_a_change_is_heard(namespace: Namespace, heard: Heard) -> None:
    """An address that comes, and one that goes, are each told with the whole list."""
    add(namespace, "192.0.2.7/24")
    came = heard.changes.get(timeout=5)
    namespace.run(["ip", "address", "delete", "192.0.2.7/24", "dev", "lo"])
    went = heard.changes.get(timeout=5)

    assert heard.first == LOOPBACK
    assert came == ("127.0.0.1/8", "192.0.2.7/24", "::1/128")
    assert went == LOOPBACK


def test_changes_of_a_moment_are_told_once(namespace: Namespace) -> None:
    """Two hundred addresses, added without a pause, make one call."""
    heard = Heard(namespace, quiet=0.3)
    add(namespace, *(f"192.0.2.{number}/32" for number in range(200)))
    found = heard.changes.get(timeout=5)
    heard.watcher.stop()

    assert len(found) == 202
    assert heard.changes.empty()
    assert heard.failures.empty()


def test_steady_changes_do_not_put_it_off_for_ever(namespace: Namespace) -> None:
    """While addresses keep changing more often than it is quiet, the list still comes."""
    heard = Heard(namespace, quiet=0.1)
    deadline = time.monotonic() + 3
    numbers = itertools.count(1)
    while heard.changes.empty() and time.monotonic() < deadline:
        add(namespace, f"198.51.{next(numbers) % 100}.1/32")
        add(namespace, f"203.0.{next(numbers) % 100}.1/32")
    changed = not heard.changes.empty()
    heard.watcher.stop()

    assert changed


def test_an_address_that_is_renewed_is_no_change(namespace: Namespace, heard: Heard) -> None:
    """A new lifetime is announced by the kernel, but the addresses are the same."""
    lifetime = ["valid_lft", "1000", "preferred_lft", "1000"]
    namespace.run(["ip", "address", "add", "192.0.2.7/24", "dev", "lo", *lifetime])
    heard.changes.get(timeout=5)
    namespace.run(["ip", "address", "replace", "192.0.2.7/24", "dev", "lo", *lifetime])

    with pytest.raises(queue.Empty):
        heard.changes.get(timeout=0.5)


class Tight(socket.socket):
    """A socket with the smallest buffer that the kernel allows, and the errors of receiving."""

    errors: ClassVar[list[int | None]] = []

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.errors:
            time.sleep(0.3)  # long enough for everything to have been said
        try:
            return super().recv(size, flags)
        except OSError as error:
            self.errors.append(error.errno)
            raise


def test_lost_notifications_are_a_reason_to_look(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the kernel had to drop notifications, the right list is told all the same."""
    subscribe = addresses._subscribe

    def tight() -> socket.socket:
        events = Tight(fileno=subscribe().detach())
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        return events

    monkeypatch.setattr(addresses, "_subscribe", tight)
    monkeypatch.setattr(Tight, "errors", [])
    heard = Heard(namespace)
    add(namespace, *(f"192.0.2.{number}/32" for number in range(200)))
    found = heard.changes.get(timeout=5)
    heard.watcher.stop()

    assert errno.ENOBUFS in Tight.errors
    assert len(found) == 202
    assert heard.failures.empty()


def test_an_error_in_the_thread_is_handed_on(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that cannot go on says so, and can still be stopped."""
    heard = Heard(namespace)

    def fail() -> tuple[str, ...]:
        raise NetlinkError("for the test")

    monkeypatch.setattr(addresses, "list_addresses", fail)
    add(namespace, "192.0.2.7/24")
    failure = heard.failures.get(timeout=5)
    heard.watcher.stop()
    heard.watcher.stop()

    assert str(failure) == "for the test"


def test_an_error_of_the_receiver_is_handed_on(namespace: Namespace) -> None:
    """An exception that the callback raises does not vanish with the thread."""
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def fail(_: tuple[str, ...]) -> None:
        raise RuntimeError("in the callback")

    watcher = AddressWatcher(fail, failures.put, quiet=0.05)
    namespace.call(watcher.start)
    add(namespace, "192.0.2.7/24")
    failure = failures.get(timeout=5)
    watcher.stop()

    assert str(failure) == "in the callback"


def test_stopping_without_a_start_is_harmless() -> None:
    """A watcher that was never started can be stopped."""
    watcher = AddressWatcher(lambda _: None, lambda _: None)
    watcher.stop()
    watcher.stop()
