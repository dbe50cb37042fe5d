"""The daemon's queue: many threads put, one loop takes, and lists wait their turn.

A whole list is large, and it makes every earlier list of its kind worthless. While the loop is
busy, with a sync that takes long or a restore that hangs, a server that breaks off watches would
have one list after the other queue up, each as large as all that the agent holds. So whoever puts
a list goes on only when it was taken. That ends the race at its source: the same thread would
open the next watch and read the next list. Single changes are small and never wait.
"""

from __future__ import annotations

import queue
import threading

from agent.cluster.feed import Event, Replaced
from agent.cluster.objects import Kind
from agent.config.watch import ConfigChanged
from agent.stopping import Ask, Stop
from agent.sync.controller import FactsChanged

Item = Event | FactsChanged | Stop | ConfigChanged | Ask


class Inbox:
    """A queue without bounds for what is small, and of one place per kind for whole lists."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._taken = {kind: threading.Semaphore(0) for kind in Kind}
        self._closed = False

    def put(self, item: Item) -> None:
        """Add an item; if it is a list, wait until it was taken or the inbox was closed."""
        self._queue.put(item)
        if isinstance(item, Replaced) and not self._closed:
            self._taken[item.kind].acquire()

    def get(self, timeout: float | None) -> Item:
        """Take the oldest item; waits ``timeout`` seconds for one, or for as long as it takes.

        Raises:
            queue.Empty: there is none.
        """
        item = self._queue.get(timeout=timeout)
        if isinstance(item, Replaced):
            self._taken[item.kind].release()
        return item

    def close(self) -> None:
        """Let everybody go on who waits, or would: nothing is taken any more."""
        self._closed = True
        for taken in self._taken.values():
            taken.release()
