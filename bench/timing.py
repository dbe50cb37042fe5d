"""Time, of two kinds.

*CPU* is what this process and the children that it waited for computed, in user and kernel mode.
A restore does nothing but compute, one process at a time, so on an idle machine it is the time
that passes; unlike that, it does not depend on what else runs. Whole restores are compared by it.
*Wall* is the time that passed: for latencies, always measured in turns with what it is compared
with.
"""

from __future__ import annotations

import gc
import resource
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class Spent(NamedTuple):
    """Seconds: passed, computed by this process, and by its children."""

    wall: float
    own: float
    children: float

    @property
    def cpu(self) -> float:
        """Computed in all."""
        return self.own + self.children


def spend(function: Callable[[], T], *, tidy: bool = True) -> tuple[T, Spent]:
    """Call a function, and tell what it took; ``tidy`` collects garbage before."""
    if tidy:
        gc.collect()
    children = children_cpu()
    own, wall = time.process_time(), time.perf_counter()
    found = function()
    passed, computed = time.perf_counter() - wall, time.process_time() - own
    return found, Spent(passed, computed, children_cpu() - children)


def children_cpu() -> float:
    """What children that ended have computed so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return percentile(values, 50)
