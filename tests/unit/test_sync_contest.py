"""When it counts as a contest that somebody else changes our rules."""

from __future__ import annotations

from agent.sync.contest import Contest
from tests.fakes import cluster
from tests.fakes.world import V4, World


def states(looks: str) -> str:
    """What it says after each look: ``!`` means differences before, and a contest behind."""
    contest = Contest()
    found = ""
    for look in looks:
        before = contest.going_on
        changed = contest.looked(different=look == "!")
        assert changed is (contest.going_on is not before)
        found += "!" if contest.going_on else "."
    return found


def test_one_flush_or_two_are_no_contest() -> None:
    """Somebody flushed the tables, and again later: both were repaired, and that was it."""
    assert states("!..!.") == "....."


def test_three_looks_in_a_row() -> None:
    """Differences at three looks, each after a repair."""
    assert states("!!!") == "..!"


def test_a_slower_writer() -> None:
    """Somebody who writes at two of three looks."""
    assert states("!!.!!") == "...!!"


def test_it_ends_after_five_quiet_looks() -> None:
    """Four may be luck; it begins anew after that."""
    assert states("!!!.....!!") == "..!!!!!..."


def test_the_controller_tells_it_once_and_when_it_is_over() -> None:
    """A table that is flushed before each of four looks; then nobody does it any more."""
    world = World()
    world.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    for _ in range(4):
        world.kernels[V4].flush("nat")
        world.later(31)
    during = world.notes.of("contested")
    repaired = "10.0.0.1:8080" in world.nat()
    for _ in range(5):
        world.later(31)

    assert during == [(V4, True)]
    assert repaired
    assert world.notes.of("contested") == [(V4, True), (V4, False)]
