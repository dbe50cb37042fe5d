from __future__ import annotations

import pytest

from agent.cluster.objects import ANNOTATION_TRIGGER_TIME
from agent.state.triggers import TriggerTimes, trigger_time
from tests.fakes.cluster import endpoint_slice, key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:01:40Z", 100.0),
        ("1970-01-01T00:01:40.5Z", 100.5),
        ("1970-01-01T00:01:40.123456789Z", 100.123456),
        ("1970-01-01T01:01:40+01:00", 100.0),
        ("1970-01-01T00:01:40", None),  # without a zone it could be any
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_the_time_of_the_change(text: str | None, expected: float | None) -> None:
    """RFC 3339 with fractions of any length; what is malformed counts as absent."""
    annotations = {} if text is None else {ANNOTATION_TRIGGER_TIME: text}
    one = endpoint_slice(metadata={"name": "s", "annotations": annotations})

    assert trigger_time(one) == expected


def test_times_wait_for_the_kernel() -> None:
    """All that came before an accepted sync are taken by it, once."""
    times = TriggerTimes(since=50.0)
    times.note(key("a"), 100.0)
    times.note(key("a"), 101.0)
    times.note(key("b"), 102.0)

    assert sorted(times.take()) == [100.0, 101.0, 102.0]
    assert times.take() == []


def test_what_says_nothing_about_this_process_is_left_out() -> None:
    """Slices without a time, changes up to the start, and slices that were deleted."""
    times = TriggerTimes(since=50.0)
    times.note(key("a"), None)
    times.note(key("a"), 49.0)
    times.note(key("a"), 50.0)
    times.note(key("b"), 100.0)
    times.drop(key("b"))
    times.drop(key("never"))

    assert times.take() == []


def test_times_that_nobody_takes_have_a_bound() -> None:
    """While the kernel accepts nothing, three times are kept of any number, and the oldest."""
    times = TriggerTimes(since=0.0, most=3)
    for moment in range(1, 100):
        times.note(key("a" if moment % 2 else "b"), float(moment))

    assert sorted(times.take()) == [1.0, 2.0, 3.0]


def test_room_comes_back() -> None:
    """A slice that goes, and a sync that is accepted, make room for later times."""
    times = TriggerTimes(since=0.0, most=3)
    for name, moment in (("a", 1.0), ("b", 2.0), ("b", 3.0)):
        times.note(key(name), moment)
    times.drop(key("a"))
    times.note(key("c"), 4.0)
    times.note(key("d"), 5.0)
    assert sorted(times.take()) == [2.0, 3.0, 4.0]
    for moment in (6.0, 7.0, 8.0, 9.0):
        times.note(key("d"), moment)
    assert times.take() == [6.0, 7.0, 8.0]
