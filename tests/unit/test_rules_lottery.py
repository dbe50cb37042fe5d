from __future__ import annotations

from fractions import Fraction

import pytest

from agent.rules.lottery import cascade
from agent.rules.rule import Comment, Jump, Rule, Statistic


def lottery(count: int) -> list[Rule]:
    return cascade([((), f"C{i}") for i in range(count)])


def chances(rules: list[Rule]) -> list[Fraction]:
    """The exact probability with which each rule says that it matches."""
    found = []
    for rule in rules:
        dice = [match.one_in for match in rule.matches if isinstance(match, Statistic)]
        found.append(Fraction(1, dice[0]) if dice else Fraction(1))
    return found


def shares(chances: list[Fraction]) -> list[Fraction]:
    """How many of all connections each rule takes."""
    left, found = Fraction(1), []
    for chance in chances:
        found.append(left * chance)
        left *= 1 - chance
    return found


def written(rules: list[Rule]) -> list[str]:
    """The probabilities as they stand in the text; empty for a rule without one."""
    return [rule.text().rpartition("--probability ")[2].partition(" -j")[0] for rule in rules]


@pytest.mark.parametrize(
    ("count", "texts"),
    [
        (0, []),
        (1, ["-j C0"]),
        (2, ["-m statistic --mode random --probability 0.5000000000 -j C0", "-j C1"]),
        (
            4,
            [
                "-m statistic --mode random --probability 0.2500000000 -j C0",
                "-m statistic --mode random --probability 0.3333333333 -j C1",
                "-m statistic --mode random --probability 0.5000000000 -j C2",
                "-j C3",
            ],
        ),
    ],
)
def test_the_cascade_as_text(count: int, texts: list[str]) -> None:
    """Ten decimals, and none on the last rule, which always matches."""
    assert [rule.text() for rule in lottery(count)] == texts


def test_each_gets_exactly_one_nth() -> None:
    """Rule i of n says 1/(n-i) for every n up to 1000, which multiplies out to 1/n each."""
    for n in range(1, 1001):
        assert chances(lottery(n)) == [Fraction(1, left) for left in range(n, 0, -1)]
    for n in (1, 2, 3, 7, 100, 999, 1000):
        assert shares(chances(lottery(n))) == [Fraction(1, n)] * n


@pytest.mark.parametrize("count", [3, 319, 320, 400, 1000])
def test_ten_decimals_are_enough(count: int) -> None:
    """Five decimals repeat from 319 endpoints on (faults 12); ten keep shares within 0.002 %."""
    texts = written(lottery(count))
    dice = texts[:-1]
    real = shares([Fraction(text) for text in dice] + [Fraction(1)])

    assert len(set(dice)) == len(dice)
    assert all(abs(share * count - 1) < Fraction(2, 100_000) for share in real)


def test_what_the_kernel_keeps_is_enough_too() -> None:
    """Rounded to a multiple of 2^-31, shares stay within 0.1 % for 1000 endpoints."""
    step = Fraction(1, 2**31)
    kept = [round(Fraction(text) / step) * step for text in written(lottery(1000))[:-1]]

    assert all(abs(share * 1000 - 1) < Fraction(1, 1000) for share in shares([*kept, Fraction(1)]))


def test_matches_stand_in_front_of_the_dice() -> None:
    """A comment comes first, as kube-proxy writes it, and order is kept."""
    first, last = cascade([((Comment("a"),), "A"), ((Comment("b"),), "B")])

    assert first == Rule((Comment("a"), Statistic(2)), Jump("A"))
    assert last == Rule((Comment("b"),), Jump("B"))
