"""When it counts as a contest that somebody else changes our rules."""

from __future__ import annotations

from agent.sync.contest import Contest
from tests.fakes import cluster
from tests.fakes.world import V4, World

PERIOD = 30.0


def states(*looks: tuple[float, str]) -> str:
    """What it says after each look: ``!`` means differences before, and a contest behind."""
    contest = Contest(PERIOD)
    found = ""
    for at, look in looks:
        before = contest.going_on
        changed = contest.looked(at, different=look == "!")
        assert changed is (contest.going_on is not before)
        found += "!" if contest.going_on else "."
    return found


def every(seconds: float, looks: str, start: float = 1000.0) -> list[tuple[float, str]]:
    return [(start + number * seconds, look) for number, look in enumerate(looks)]


def test_one_flush_or_two_are_no_contest() -> None:
    """Somebody flushed the tables, and again later: both were repaired, and that was it."""
    assert states(*every(30.0, "!..!.")) == "....."


def test_three_looks_in_a_row() -> None:
    """Differences at three looks, each after a repair."""
    assert states(*every(30.0, "!!!")) == "..!"


def test_quick_looks_after_each_repair_hide_nobody() -> None:
    """A kube-proxy that writes every 30 s, and an agent that looks thrice right after a repair."""
    looks = [look for round_ in range(3) for look in every(1.0, "!...", 1000.0 + 30.0 * round_)]
    assert states(*looks) == "........!!!!"


def test_three_accidents_far_apart_are_no_contest() -> None:
    """The third one comes more than ten periods, and five looks, behind the first."""
    quiet = every(30.0, "....", 1010.0)
    assert states((1000.0, "!"), *quiet, (1150.0, "!"), (1300.1, "!")) == "......."
    assert states((1000.0, "!"), *quiet, (1150.0, "!"), (1300.0, "!")) == "......!"


def test_looks_that_come_late_count_as_well() -> None:
    """A machine so busy that looks come five periods apart; all of three, or three of five."""
    assert states(*every(151.0, "!!!")) == "..!"
    assert states(*every(151.0, "!.!.!")) == "....!"
    assert states(*every(151.0, "!..!.!")) == "......"


def test_it_ends_after_ten_quiet_periods() -> None:
    """Not earlier, however many looks there are; it begins anew after that."""
    contest, quiet = every(1.0, "!!!"), every(30.0, ".....", 1182.0)
    assert states(*contest, *quiet, (1302.1, ".")) == "..!!!!!!."
    assert states(*contest, *quiet, (1302.1, "."), *every(1.0, "!!!", 1400.0)) == "..!!!!!!...!"


def test_nor_does_it_end_after_few_looks_however_late_they_come() -> None:
    assert states(*every(1.0, "!!!"), *every(400.0, ".....", 2000.0)) == "..!!!!!."


def test_the_controller_tells_it_once_and_when_it_is_over() -> None:
    """A table that is flushed before each of four looks; then nobody does it any more."""
    world = World()
    world.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    for _ in range(4):
        world.kernels[V4].flush("nat")
        world.later(31)
    during = world.notes.of("contested")
    repaired = "10.0.0.1:8080" in world.nat()
    for _ in range(10):
        world.later(31)

    assert during == [(V4, True)]
    assert repaired
    assert world.notes.of("contested") == [(V4, True), (V4, False)]
