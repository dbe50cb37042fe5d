"""Services whose rules the kernel refused: kept out of the way, and tried again.

A Service that is set aside costs only itself: it is compiled to nothing until it changes, or
until its delay, which doubles with every refusal, has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.cluster.objects import Key

FIRST_DELAY = 30.0
LONGEST_DELAY = 3600.0
#: More than it takes to reach the longest delay; a float ends at 1,024.
_MOST_DOUBLINGS = 16


class SetAside(msgspec.Struct, frozen=True):
    """One Service that is set aside: why, how often so far, and until when (clock seconds)."""

    reason: str
    refusals: int
    until: float


class Quarantine:
    """All Services that are set aside in one family."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[Key, SetAside] = {}
        self._refusals: dict[Key, int] = {}

    @property
    def entries(self) -> dict[Key, SetAside]:
        """The Services that are set aside now."""
        return dict(self._entries)

    def add(self, key: Key, reason: str) -> SetAside:
        """Set a Service aside."""
        refusals = self._refusals.get(key, 0) + 1
        self._refusals[key] = refusals
        delay = min(FIRST_DELAY * 2 ** min(refusals - 1, _MOST_DOUBLINGS), LONGEST_DELAY)
        self._entries[key] = SetAside(reason, refusals, self._clock() + delay)
        return self._entries[key]

    def changed(self, keys: Iterable[Key]) -> set[Key]:
        """Let go of those that have changed; they start afresh, also if they were let go before."""
        freed: set[Key] = set()
        for key in keys:
            self._refusals.pop(key, None)
            if self._entries.pop(key, None) is not None:
                freed.add(key)
        return freed

    def due(self) -> set[Key]:
        """Let go of those whose delay has passed; another refusal doubles it."""
        now = self._clock()
        freed = {key for key, entry in self._entries.items() if entry.until <= now}
        for key in freed:
            del self._entries[key]
        return freed

    def next_due(self) -> float | None:
        """When the next delay ends, in clock seconds; None if nothing is set aside."""
        return min((entry.until for entry in self._entries.values()), default=None)
