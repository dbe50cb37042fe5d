"""Whether a split over endpoints is chance or not.

Pearson's chi-square test of equal shares: the p-value is the probability that fair dice give a
split at least this uneven. It is 1 - P((k-1)/2, x/2), P being the regularised lower incomplete
gamma function (NIST Digital Library of Mathematical Functions, 8.11.4 and 8.9.2).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PRECISION = 1e-15
_STEPS = 10_000


def p_value(counts: Sequence[int]) -> float:
    """Probability of a split at least as uneven as this one; 1 if there is nothing to compare."""
    total = sum(counts)
    if len(counts) < 2 or total == 0:
        return 1.0
    expected = total / len(counts)
    statistic = sum((count - expected) ** 2 for count in counts) / expected
    return _upper_gamma((len(counts) - 1) / 2, statistic / 2)


def _upper_gamma(shape: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(shape, x)."""
    if x <= 0:
        return 1.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return max(0.0, 1.0 - scale * _series(shape, x))
    return scale * _fraction(shape, x)


def _series(shape: float, x: float) -> float:
    """Power series; converges quickly below shape + 1."""
    term = total = 1 / shape
    for step in range(1, _STEPS):
        term *= x / (shape + step)
        total += term
        if term < total * _PRECISION:
            break
    return total


def _fraction(shape: float, x: float) -> float:
    """Continued fraction by Lentz's method; converges quickly above shape + 1."""
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    result = d
    for step in range(1, _STEPS):
        a = -step * (step - shape)
        b += 2
        d = 1 / ((a * d + b) or tiny)
        c = (b + a / c) or tiny
        result *= d * c
        if abs(d * c - 1) < _PRECISION:
            break
    return result
