from __future__ import annotations

import math

import pytest

from agent.inspect.chance import p_value


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # One degree of freedom: statistic 4, erfc(sqrt(2)).
        ((60, 40), 0.0455002639),
        # Two: statistic 2, exp(-1).
        ((110, 100, 90), 0.3678794412),
        # Four: statistic 8, exp(-4) * (1 + 4).
        ((120, 80, 100, 100, 100), 0.0915781944),
        # Two again, far out: statistic 100, exp(-50).
        ((300, 100, 200), math.exp(-50)),
    ],
)
def test_p_is_that_of_the_chi_square_distribution(counts: tuple[int, ...], expected: float) -> None:
    """Worked out by hand where the distribution has a closed form."""
    assert p_value(counts) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("pairs", range(1, 40))
def test_p_of_many_endpoints_is_a_sum_of_powers(pairs: int) -> None:
    """With 2m degrees of freedom it is exp(-x/2) times the first m terms of exp(x/2)."""
    counts = [103 if number % 2 else 97 for number in range(2 * pairs)] + [100]
    half = sum((count - 100) ** 2 for count in counts) / 100 / 2
    terms = sum(half**k / math.factorial(k) for k in range(pairs))

    assert p_value(counts) == pytest.approx(math.exp(-half) * terms, rel=1e-9)


@pytest.mark.parametrize("counts", [(), (5,), (0, 0, 0), (7, 7)])
def test_without_a_difference_everything_is_chance(counts: tuple[int, ...]) -> None:
    """One endpoint, no connections, or equal counts."""
    assert p_value(counts) == 1
