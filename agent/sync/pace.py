"""When to sync: bounded frequency, retries that back off, and a regular look at the kernel.

Level-triggered: a request says that something changed, never what; any number of requests
before a sync is one sync. A sync runs at once if the last one is long enough ago, so a single
change on a quiet node does not wait. The clock is injected; nothing here sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class PaceSettings(msgspec.Struct, frozen=True):
    """Periods in seconds.

    Attributes:
        min_period: between the starts of two syncs; 0 for none.
        check_period: between looks at what the kernel holds; also the longest retry delay.
        first_retry: delay after the first failure; it doubles with each further one.
        full_period: between full syncs for no other reason; None for never.
        learn_period: between looks at what the kernel holds while they still learn what it looks
            like; None for no hurry.
    """

    min_period: float = 1.0
    check_period: float = 30.0
    first_retry: float = 1.0
    full_period: float | None = 3600.0
    learn_period: float | None = None


class Pace:
    """Decides when the next sync and the next look at the kernel are due."""

    def __init__(
        self, settings: PaceSettings, clock: Callable[[], float], jitter: Callable[[], float]
    ) -> None:
        """Start with nothing requested.

        Args:
            settings: periods.
            clock: monotonic seconds.
            jitter: a number between 0 and 1, drawn anew for each retry.
        """
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._requested = False
        self._last_start: float | None = None
        self._last_full: float | None = None
        self._retry_at: float | None = None
        self._failures = 0
        self._check_at = clock() + settings.check_period

    @property
    def failures(self) -> int:
        """Syncs that have failed since the last success."""
        return self._failures

    def request(self) -> None:
        """Something changed."""
        self._requested = True

    def sync_at(self) -> float | None:
        """When the next sync is due, in clock seconds; None if nothing asks for one."""
        if self._retry_at is not None:
            return max(self._retry_at, self._earliest())
        if self._requested:
            return self._earliest()
        if self._settings.full_period is not None and self._last_full is not None:
            return self._last_full + self._settings.full_period
        return None

    @property
    def check_period(self) -> float:
        """Seconds between looks at the kernel, but for those to learn by."""
        return self._settings.check_period

    def check_at(self) -> float:
        """When the next look at the kernel is due, in clock seconds."""
        return self._check_at

    def full_due(self) -> bool:
        """Whether the next sync should write everything, for no other reason than its age."""
        period = self._settings.full_period
        if period is None or self._last_full is None:
            return False
        return self._clock() - self._last_full >= period

    def started(self) -> None:
        """A sync begins; what is requested from now on is for the next one."""
        self._requested = False
        self._retry_at = None
        self._last_start = self._clock()

    def succeeded(self, *, full: bool) -> None:
        """The kernel accepted the sync."""
        self._failures = 0
        if full:
            self._last_full = self._clock()

    def failed(self) -> float:
        """The sync failed; returns the seconds until it is tried again.

        The delay doubles and is jittered down by up to a half, and never passes the check
        period: all nodes of a cluster see the same change, and must not retry in step.
        """
        delay = min(
            self._settings.first_retry * float(2**self._failures),
            max(self._settings.check_period, self._settings.first_retry),
        )
        delay *= 1 - self._jitter() / 2
        self._failures = min(self._failures + 1, 32)
        self._retry_at = self._clock() + delay
        return delay

    def checked(self) -> None:
        """A look at the kernel was taken."""
        self._check_at = self._clock() + self._settings.check_period

    def hurry(self) -> None:
        """The next look is still one to learn by."""
        if self._settings.learn_period is not None:
            self._check_at = min(self._check_at, self._clock() + self._settings.learn_period)

    def _earliest(self) -> float:
        if self._last_start is None:
            return self._clock()
        return self._last_start + self._settings.min_period
