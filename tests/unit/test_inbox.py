"""The daemon's queue: whole lists wait until they were taken, nothing else does."""

from __future__ import annotations

import queue
import threading

import pytest

from agent.cluster.feed import Deleted, Replaced
from agent.cluster.objects import Key, Kind
from agent.inbox import Inbox

GONE = Deleted(Kind.SERVICE, Key("default", "web"))


class Putter:
    """Puts items one after the other on a thread of its own."""

    def __init__(self, inbox: Inbox, *items: Replaced | Deleted) -> None:
        self.done = threading.Event()
        self._inbox, self._items = inbox, items
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for item in self._items:
            self._inbox.put(item)
        self.done.set()


def test_items_come_in_the_order_in_which_they_were_put() -> None:
    inbox = Inbox()
    list_ = Replaced(Kind.SERVICE, ())
    Putter(inbox, list_, GONE)
    assert [inbox.get(5.0), inbox.get(5.0)] == [list_, GONE]
    with pytest.raises(queue.Empty):
        inbox.get(0.0)


def test_lists_of_one_kind_follow_each_other_and_hold_up_no_other_kind() -> None:
    inbox = Inbox()
    services, slices = Replaced(Kind.SERVICE, ()), Replaced(Kind.SLICE, ())
    first = Putter(inbox, *[services] * 3)
    assert inbox.get(5.0) is services
    second = Putter(inbox, slices)
    rest = [inbox.get(5.0) for _ in range(3)]
    assert rest.count(services) == 2
    assert rest.count(slices) == 1
    assert first.done.wait(5.0)
    assert second.done.wait(5.0)


def test_whoever_puts_a_list_goes_on_when_it_was_taken_and_not_before() -> None:
    inbox = Inbox()
    putter = Putter(inbox, Replaced(Kind.NODE, ()))
    assert not putter.done.wait(0.2)
    inbox.get(5.0)
    assert putter.done.wait(5.0)


def test_single_changes_never_wait() -> None:
    inbox = Inbox()
    for _ in range(1000):
        inbox.put(GONE)
    assert [inbox.get(0.0) for _ in range(1000)] == [GONE] * 1000


def test_a_closed_inbox_keeps_nobody() -> None:
    inbox = Inbox()
    waiting = [Putter(inbox, Replaced(kind, ())) for kind in Kind]
    inbox.close()
    later = [Putter(inbox, *[Replaced(kind, ())] * 3) for kind in Kind]
    assert all(putter.done.wait(5.0) for putter in [*waiting, *later])
