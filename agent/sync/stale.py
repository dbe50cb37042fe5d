"""When chains that nothing of ours jumps to any more are deleted.

In a large cluster not more often than once per period. A chain that cannot be deleted (a rule of
somebody else jumps to it) must not fail the sync, nor be tried at each one: it is stuck, and tried
again after a delay that doubles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent.rules.dispatch import ChainId

#: Longest time (seconds) after which a stale chain that somebody jumps to is tried again.
_LONGEST_STUCK = 3600.0


class StaleChains:
    """Says which stale chains may be deleted now, and when there will be some."""

    def __init__(self, period: float, clock: Callable[[], float]) -> None:
        self._period = period
        self._clock = clock
        self._cleaned: float | None = None
        self._stuck: set[ChainId] = set()
        self._stuck_since = 0.0
        self._stuck_delay = period

    def may_clean(self, *, large: bool) -> bool:
        """Whether this is the time to delete any, in a large cluster or another one."""
        if not large or self._cleaned is None:
            return True
        return self._clock() - self._cleaned >= self._period

    def free(self, stale: Collection[ChainId]) -> set[ChainId]:
        """Those that are not stuck, as far as is known."""
        return set(stale) - self._stuck

    def due(self, stale: Collection[ChainId]) -> set[ChainId]:
        """Those to try now: the stuck ones only when their delay is over."""
        self._stuck &= set(stale)
        if not self._stuck:
            self._stuck_delay = self._period
            return set(stale)
        if self._clock() - self._stuck_since < self._stuck_delay:
            return set(stale) - self._stuck
        self._stuck_delay = min(self._stuck_delay * 2, _LONGEST_STUCK)
        return set(stale)

    def due_at(self, stale: Collection[ChainId]) -> list[float]:
        """When some may be deleted, in clock seconds."""
        times: list[float] = []
        if self._cleaned is not None and set(stale) - self._stuck:
            times.append(self._cleaned + self._period)
        if self._stuck & set(stale):
            times.append(self._stuck_since + self._stuck_delay)
        return times

    def stick(self, chains: Collection[ChainId]) -> None:
        """The kernel did not let these go."""
        self._stuck |= set(chains)
        self._cleaned = self._stuck_since = self._clock()

    def gone(self, chains: Collection[ChainId]) -> None:
        """These were deleted."""
        self._stuck -= set(chains)
        if chains:
            self._cleaned = self._clock()
