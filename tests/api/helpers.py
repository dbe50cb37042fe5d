"""What the tests against the fake API server share: a consumer, and settings in a hurry."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

from agent.cluster.feed import Deleted, Event, Rejected, Replaced, SourceFailed, Upserted
from agent.cluster.objects import Key, Kind, Object, key_of
from agent.cluster.reflector import WatchSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.cluster.observe import WatchEnd

#: As in production, but a hundred times faster.
FAST = WatchSettings(
    page_limit=3,
    connect_timeout=2.0,
    read_timeout=5.0,
    backoff_first=0.01,
    backoff_cap=0.1,
    healthy_after=0.3,
)
PLURALS = {Kind.SERVICE: "services", Kind.SLICE: "endpointslices", Kind.NODE: "nodes"}


class Latest(random.Random):
    """No luck: every delay is as long as it can be."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


class Sink:
    """Takes events, and keeps the picture that they add up to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.picture: dict[Kind, dict[Key, Object]] = {}
        self._changed = threading.Condition()

    def put(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            match event:
                case Replaced(kind, objects):
                    self.picture[kind] = {key_of(obj): obj for obj in objects}
                case Upserted(kind, obj):
                    self.picture[kind][key_of(obj)] = obj
                case Deleted(kind, key):
                    self.picture[kind].pop(key, None)
                case Rejected(kind, key) if key is not None:
                    self.picture[kind].pop(key, None)
            self._changed.notify_all()

    def wait(self, ready: Callable[[], Any], seconds: float = 10.0) -> None:
        """Wait for a condition; fail with what has come if it does not come true."""
        end = time.monotonic() + seconds
        with self._changed:
            while not ready():
                if time.monotonic() > end:
                    raise AssertionError(f"not within {seconds} s; got {self.events[-20:]}")
                self._changed.wait(0.02)

    def wait_listed(self) -> None:
        """Wait for the first list of every kind."""
        self.wait(lambda: len(self.picture) == len(Kind))

    def names(self, kind: Kind = Kind.SERVICE) -> set[str]:
        """Names of the objects of a kind that exist now, as far as the events tell."""
        with self._changed:
            return {key.name for key in self.picture.get(kind, {})}

    def of(self, kind: Kind) -> list[Event]:
        """Events of a kind, in order."""
        with self._changed:
            return [e for e in self.events if not isinstance(e, SourceFailed) and e.kind is kind]

    def lists(self, kind: Kind = Kind.SERVICE) -> int:
        """How many lists of a kind have come."""
        return sum(isinstance(event, Replaced) for event in self.of(kind))

    def failures(self) -> list[SourceFailed]:
        with self._changed:
            return [event for event in self.events if isinstance(event, SourceFailed)]


class Notes:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.contacts: list[Kind] = []
        self.lists: list[tuple[Kind, int]] = []
        self.failed_lists: list[tuple[Kind, str]] = []
        self.started: list[Kind] = []
        self.ended: list[tuple[Kind, WatchEnd]] = []
        self.events: list[tuple[Kind, Event]] = []
        self.requests: list[tuple[str, str, str]] = []

    def requested(self, method: str, host: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        self.requests.append((method, host, code))

    def contact(self, kind: Kind) -> None:
        self.contacts.append(kind)

    def list_done(self, kind: Kind, seconds: float, items: int) -> None:
        assert seconds >= 0
        self.lists.append((kind, items))

    def list_failed(self, kind: Kind, error: Exception) -> None:
        self.failed_lists.append((kind, str(error)))

    def watch_started(self, kind: Kind) -> None:
        self.started.append(kind)

    def watch_ended(self, kind: Kind, reason: WatchEnd) -> None:
        self.ended.append((kind, reason))

    def event(self, kind: Kind, event: Event) -> None:
        self.events.append((kind, event))

    def ends(self, kind: Kind = Kind.SERVICE) -> list[WatchEnd]:
        """Why the watches of a kind ended, in order."""
        return [reason for of, reason in self.ended if of is kind]
