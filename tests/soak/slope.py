"""Whether a measured value is flat: a straight line through it, and how sure that line is.

Readings of memory are anything but independent of each other, so a line through all of them
would look far surer than it is. They are put into twenty blocks of equal length, of which the
middle values are taken; what is left of the dependence between these is small.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = 20
#: 97.5 % quantile of Student's t with ``BLOCKS - 2`` degrees of freedom.
_T = 2.101


@dataclasses.dataclass(frozen=True)
class Slope:
    """Growth from the first to the last reading.

    Attributes:
        growth: of the line.
        error: half of the 95 % interval around it.
        level: mean of the blocks.
    """

    growth: float
    error: float
    level: float

    def flat(self, tolerance: float) -> bool:
        """Whether growth above the tolerance can be ruled out (at 97.5 %)."""
        return self.growth + self.error <= tolerance


def measure(places: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line to readings.

    Args:
        places: where on the axis each was taken, in order: a time, or a count of something done.
        values: what was read.

    Raises:
        ValueError: there are fewer than ``BLOCKS`` of them.
    """
    if len(values) < BLOCKS:
        raise ValueError(f"{len(values)} readings; {BLOCKS} are needed")
    edges = [round(i * len(values) / BLOCKS) for i in range(BLOCKS + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    x = [statistics.fmean(places[part]) for part in parts]
    y = [float(statistics.median(values[part])) for part in parts]
    slope, start = statistics.linear_regression(x, y)
    rest = sum((b - start - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    middle = statistics.fmean(x)
    spread = sum((a - middle) ** 2 for a in x)
    error = _T * math.sqrt(rest / (BLOCKS - 2) / spread)
    span = places[-1] - places[0]
    return Slope(slope * span, error * span, statistics.fmean(y))
