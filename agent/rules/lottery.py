"""The cascade: n rules of which each connection takes one, every one equally likely.

Rule i of n (from 0) matches with probability 1/(n-i), and the last has no probability and
always matches. A connection reaches rule i with probability (n-i)/n, so it takes rule i with
probability (n-i)/n * 1/(n-i) = 1/n. The kernel rolls the dice for the first packet only;
conntrack remembers the outcome for all that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.rules.rule import Jump, Match, Rule, Statistic

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(one_in: int, matches: tuple[Match, ...], chain: str) -> Rule:
    """A rule that takes one in so many of what reaches it; of one in one it takes all."""
    dice = (Statistic(one_in),) if one_in > 1 else ()
    return Rule((*matches, *dice), Jump(chain))


def cascade(chances: Sequence[tuple[tuple[Match, ...], str]]) -> list[Rule]:
    """Rules that send an equal share to each (matches, chain), in the order given."""
    count = len(chances)
    return [
        share(count - position, matches, chain) for position, (matches, chain) in enumerate(chances)
    ]
