from __future__ import annotations

import pytest

from agent.sync.setaside import Quarantine, SetAside
from tests.fakes.cluster import key

A, B = key("a"), key("b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quarantine(clock: Clock) -> Quarantine:
    return Quarantine(clock)


def test_a_refused_service_waits_half_a_minute(quarantine: Quarantine, clock: Clock) -> None:
    """It is let go when its time has come, not before, and once."""
    assert quarantine.add(A, "bad line") == SetAside("bad line", 1, 130.0)
    assert quarantine.next_due() == 130.0
    assert quarantine.due() == set()
    clock.now = 129.9
    assert quarantine.due() == set()
    clock.now = 130.0
    assert quarantine.due() == {A}
    assert quarantine.due() == set()
    assert quarantine.entries == {}
    assert quarantine.next_due() is None


def test_each_refusal_doubles_the_wait_up_to_an_hour(quarantine: Quarantine, clock: Clock) -> None:
    """30, 60, 120, 240, 480, 960, 1920, then 3600 seconds."""
    waits = []
    for _ in range(9):
        entry = quarantine.add(A, "")
        waits.append(entry.until - clock.now)
        clock.now = entry.until
        quarantine.due()

    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_many_refusals_overflow_nothing(quarantine: Quarantine, clock: Clock) -> None:
    """A Service that is refused for years still waits an hour."""
    for _ in range(2000):
        entry = quarantine.add(A, "")

    assert entry.until - clock.now == 3600


def test_a_change_frees_a_service_and_forgives_it(quarantine: Quarantine) -> None:
    """Others stay; the next refusal begins at half a minute again."""
    quarantine.add(A, "")
    quarantine.add(A, "")
    quarantine.add(B, "")

    assert quarantine.changed([A, key("other")]) == {A}
    assert quarantine.entries.keys() == {B}
    assert quarantine.add(A, "").refusals == 1


def test_a_change_forgives_also_what_was_let_go_already(
    quarantine: Quarantine, clock: Clock
) -> None:
    """A Service that was tried again, and then changed, is not punished for its past."""
    quarantine.add(A, "")
    clock.now = 1000
    quarantine.due()

    assert quarantine.changed([A]) == set()
    assert quarantine.add(A, "").refusals == 1


def test_the_earliest_comes_first(quarantine: Quarantine, clock: Clock) -> None:
    """Each Service has its own time."""
    quarantine.add(A, "")
    clock.now = 110
    quarantine.add(B, "")

    assert quarantine.next_due() == 130.0
    clock.now = 135
    assert quarantine.due() == {A}
    assert quarantine.next_due() == 140.0
