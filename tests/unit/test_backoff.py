from __future__ import annotations

import random

from agent.cluster.reflector import Backoff
from tests.api.helpers import Latest


def test_delays_double_up_to_the_cap_and_begin_again() -> None:
    """1, 2, 4, 8, 16, 30, 30 seconds at most, and 1 again after a reset."""
    backoff = Backoff(1.0, 30.0, Latest())

    assert [backoff.next() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.reset()
    assert backoff.next() == 1


def test_delays_are_drawn_from_the_whole_range() -> None:
    """Full jitter: of 4,000 delays up to 30 s, each quarter of the range gets a good fifth."""
    backoff = Backoff(30.0, 30.0, random.Random(1))  # noqa: S311 (jitter)
    delays = [backoff.next() for _ in range(4000)]

    assert all(0 <= delay <= 30 for delay in delays)
    for quarter in range(4):
        low = quarter * 7.5
        assert sum(low <= delay < low + 7.5 for delay in delays) > 800


def test_a_thousand_failures_do_not_overflow() -> None:
    """The delay stays at the cap however long the server is away."""
    backoff = Backoff(1.0, 30.0, Latest())

    assert max(backoff.next() for _ in range(2000)) == 30
