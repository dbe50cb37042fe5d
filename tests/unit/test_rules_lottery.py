from __future__ import annotations

from fractions import Fraction

import pytest

from agent.rules.lottery import shares


def chance(text: str) -> Fraction:
    """The probability as it stands in the text of a rule; 1 for a rule without one."""
    written = text.partition("--probability ")[2].partition(" -j")[0]
    return Fraction(written or 1)


def chances(count: int) -> list[Fraction]:
    return list(map(chance, shares(count)))


def taken(chances: list[Fraction]) -> list[Fraction]:
    """How many of all connections each rule takes."""
    left, found = Fraction(1), []
    for chance in chances:
        found.append(left * chance)
        left *= 1 - chance
    return found


@pytest.mark.parametrize(
    ("count", "texts"),
    [
        (0, ()),
        (1, ("-j ",)),
        (2, ("-m statistic --mode random --probability 0.5000000000 -j ", "-j ")),
        (
            4,
            (
                "-m statistic --mode random --probability 0.2500000000 -j ",
                "-m statistic --mode random --probability 0.3333333333 -j ",
                "-m statistic --mode random --probability 0.5000000000 -j ",
                "-j ",
            ),
        ),
    ],
)
def test_the_cascade_as_text(count: int, texts: tuple[str, ...]) -> None:
    """Ten decimals, and none on the last rule, which always matches."""
    assert shares(count) == texts


def test_each_gets_exactly_one_nth() -> None:
    """Rule i of n says 1/(n-i) for every n up to 1000, which multiplies out to 1/n each."""
    half = Fraction(1, 2 * 10**10)
    for n in range(1, 1001):
        assert shares(n)[1:] == shares(n - 1)
        assert abs(chance(shares(n)[0]) - Fraction(1, n)) <= half
    for n in (1, 2, 3, 7, 100, 999, 1000):
        assert taken([Fraction(1, left) for left in range(n, 0, -1)]) == [Fraction(1, n)] * n


@pytest.mark.parametrize("count", [3, 319, 320, 400, 1000])
def test_ten_decimals_are_enough(count: int) -> None:
    """Five decimals repeat from 319 endpoints on (faults 12); ten keep shares within 0.002 %."""
    found = chances(count)

    assert len(set(found)) == len(found)
    assert all(abs(share * count - 1) < Fraction(2, 100_000) for share in taken(found))


def test_what_the_kernel_keeps_is_enough_too() -> None:
    """Rounded to a multiple of 2^-31, shares stay within 0.1 % for 1000 endpoints."""
    step = Fraction(1, 2**31)
    kept = [round(chance / step) * step for chance in chances(1000)]

    assert all(abs(share * 1000 - 1) < Fraction(1, 1000) for share in taken(kept))
