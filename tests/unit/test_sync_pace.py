from __future__ import annotations

import pytest

from agent.sync.pace import Pace, PaceSettings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A pace with a clock that stands still and jitter that is chosen."""

    def __init__(self, *, jitter: float = 0.0, **settings: float | None) -> None:
        self.clock = Clock()
        self.jitter = jitter
        self.pace = Pace(PaceSettings(**settings), self.clock, lambda: self.jitter)  # type: ignore[arg-type]

    def sync(self, *, full: bool = False) -> None:
        self.pace.started()
        self.pace.succeeded(full=full)

    def fail(self) -> float:
        self.pace.started()
        return self.pace.failed()


def test_nothing_asked_for_is_nothing_to_do() -> None:
    """An idle agent has no sync to make, but looks at the kernel after half a minute."""
    world = World()

    assert world.pace.sync_at() is None
    assert world.pace.check_at() == 1030.0
    assert not world.pace.full_due()


def test_the_first_change_is_synced_at_once() -> None:
    """A single change on a quiet node does not wait."""
    world = World()
    world.pace.request()
    assert world.pace.sync_at() == 1000.0

    world.sync()
    world.clock.now = 1500.0
    world.pace.request()
    assert world.pace.sync_at() <= 1500.0  # type: ignore[operator]


def test_a_burst_is_one_sync() -> None:
    """Changes within the minimal period wait for its end, however many they are."""
    world = World(min_period=1.0)
    world.pace.request()
    world.sync()
    assert world.pace.sync_at() is None

    for _ in range(1000):
        world.clock.now += 0.0005
        world.pace.request()
    assert world.pace.sync_at() == 1001.0
    world.clock.now = 1001.0
    world.sync()
    assert world.pace.sync_at() is None


def test_no_minimal_period() -> None:
    """With 0 the next sync may follow at once."""
    world = World(min_period=0.0)
    world.pace.request()
    world.sync()
    world.pace.request()

    assert world.pace.sync_at() == 1000.0


def test_a_change_during_a_sync_is_for_the_next_one() -> None:
    """What comes while one runs is not lost."""
    world = World()
    world.pace.request()
    world.pace.started()
    world.pace.request()
    world.pace.succeeded(full=False)

    assert world.pace.sync_at() == 1001.0


def test_a_failed_sync_is_tried_again_by_itself() -> None:
    """Without any further change, after 1, 2, 4 ... seconds, and never later than the period."""
    world = World(min_period=0.0)
    delays = []
    for _ in range(8):
        delays.append(world.fail())
        assert world.pace.sync_at() == world.clock.now + delays[-1]
        world.clock.now += delays[-1]

    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]
    assert world.pace.failures == 8
    world.sync()
    assert (world.pace.failures, world.pace.sync_at()) == (0, None)
    assert world.fail() == 1


@pytest.mark.parametrize(("jitter", "delay"), [(0.0, 4.0), (0.5, 3.0), (1.0, 2.0)])
def test_retries_of_many_nodes_spread(jitter: float, delay: float) -> None:
    """Jitter takes up to half of the delay away, never adds to it."""
    world = World(jitter=jitter)
    world.fail()
    world.fail()

    assert world.fail() == delay


def test_a_retry_keeps_the_minimal_period() -> None:
    """A long minimal period holds for retries as well."""
    world = World(min_period=10.0)
    world.fail()

    assert world.pace.sync_at() == 1010.0


def test_a_change_does_not_hasten_a_retry() -> None:
    """While the kernel refuses, more changes make no storm."""
    world = World(min_period=0.0)
    for _ in range(4):
        delay = world.fail()
        world.clock.now += delay
    world.fail()
    world.pace.request()

    assert world.pace.sync_at() == world.clock.now + 16


def test_thousands_of_failures_overflow_nothing() -> None:
    """A kernel that is broken for a year is still tried every period."""
    world = World(min_period=0.0)
    for _ in range(5000):
        delay = world.fail()

    assert delay == 30


def test_a_full_sync_when_the_last_one_is_old() -> None:
    """Hourly by default, counted from the last full one, whatever partial ones came between."""
    world = World()
    world.pace.request()
    world.sync(full=True)
    world.clock.now = 3000.0
    world.pace.request()
    world.sync(full=False)

    assert world.pace.sync_at() == 4600.0
    assert not world.pace.full_due()
    world.clock.now = 4600.0
    assert world.pace.full_due()
    world.sync(full=True)
    assert not world.pace.full_due()
    assert world.pace.sync_at() == 8200.0


def test_full_syncs_can_be_switched_off() -> None:
    """Then only changes, failures and differences ask for one."""
    world = World(full_period=None)
    world.sync(full=True)
    world.clock.now = 10**9

    assert not world.pace.full_due()
    assert world.pace.sync_at() is None


def test_looks_at_the_kernel_are_regular() -> None:
    """Each look sets the time of the next one."""
    world = World(check_period=15.0)
    assert world.pace.check_at() == 1015.0
    world.clock.now = 1020.0
    world.pace.checked()
    assert world.pace.check_at() == 1035.0
