"""Where two sequences differ that are mostly the same, without a look at each item by itself.

One endpoint of a thousand changes, and 999 stay. To compare slices is as fast as the interpreter
gets, all the more as most items are the same objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.rules.endpoints import Chain

T = TypeVar("T")
_FIRST_STEP = 16
#: Chains of a service port that are not of an endpoint: SVC, SVL, EXT and FW.
_OWN = 4


def edges(before: Sequence[T], after: Sequence[T], first: int = 0) -> tuple[int, int]:
    """How many items are the same at the beginning, and how many of the others at the end.

    Those in front of the ``first`` one are not looked at, and counted.
    """
    old, new = len(before), len(after)
    first = min(first, old, new)

    def forwards(low: int, high: int) -> bool:
        return before[first + low : first + high] == after[first + low : first + high]

    def backwards(low: int, high: int) -> bool:
        return before[old - high : old - low] == after[new - high : new - low]

    start = first + _agree(min(old, new) - first, forwards)
    return start, _agree(min(old, new) - start, backwards)


def _agree(most: int, same: Callable[[int, int], bool]) -> int:
    """How many of the first items are the same; ``same`` tells it of those from low to high."""
    low, high = 0, min(_FIRST_STEP, most)
    while same(low, high):
        if high == most:
            return most
        low, high = high, min(3 * high - 2 * low, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if same(low, middle) else (low, middle)
    return low


def differing(before: tuple[Chain, ...], after: tuple[Chain, ...]) -> tuple[list[Chain], list[str]]:
    """Chains of a service port that are new or have other rules, and names of those that are gone.

    Those that are not of an endpoint stand in front, and lists of all endpoints are among them:
    they differ whenever anything does, and are not what the others are compared behind.
    """
    start, end = edges(before, after, _OWN)
    held, wanted = dict(before[:_OWN]), dict(after[:_OWN])
    held.update(before[start : len(before) - end])
    wanted.update(after[start : len(after) - end])
    written = [chain for chain in wanted.items() if held.get(chain[0]) != chain[1]]
    return written, [name for name in held if name not in wanted]
