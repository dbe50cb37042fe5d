"""The cascade: n rules of which each connection takes one, every one equally likely.

Rule i of n (from 0) matches with probability 1/(n-i), and the last has no probability and
always matches. A connection reaches rule i with probability (n-i)/n, so it takes rule i with
probability (n-i)/n * 1/(n-i) = 1/n. The kernel rolls the dice for the first packet only;
conntrack remembers the outcome for all that follow.
"""

from __future__ import annotations

import functools

from agent.rules.rule import Jump, Statistic, rule

#: Stands for the chain that a rule leads to.
_CHAIN = "\x03"


@functools.lru_cache(maxsize=4096)
def share(one_in: int) -> str:
    """A rule that takes one in so many of what reaches it, up to its chain; of one it takes all."""
    dice = (Statistic(one_in),) if one_in > 1 else ()
    return rule(*dice, to=Jump(_CHAIN)).text().removesuffix(_CHAIN)


@functools.lru_cache(maxsize=64)
def shares(count: int) -> tuple[str, ...]:
    """The rules that send an equal share to each of so many chains, up to these."""
    return tuple(map(share, range(count, 0, -1)))
