"""How much goes into one transaction, where a sync is written in parts.

On nft two things work against each other. The tool walks along a list of the transaction's chains
for each line, so a transaction costs with the square of its chains. And at each commit, however
small, the kernel walks along all chains of all tables three times. The cheapest size therefore
grows with the root of the number of chains that are there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.cluster.objects import Key
    from agent.rules.ruleset import ServiceChains

#: Chains in one transaction on nft, however few Services they are of: 5,000 take it half a second,
#: and its time grows with their square at least.
MOST_CHAINS = 5_000
#: To walk along so many takes as long as all else that a transaction costs but once.
_STANDING = 16_000


def grown(size: int, chains: int) -> int:
    """The size of a transaction that is ``size`` for an empty table, with so many chains there."""
    return round(size * math.sqrt(1 + chains / _STANDING))


def batches(
    services: Sequence[Key],
    compiled: Mapping[Key, ServiceChains],
    size: int | None,
    *,
    grows: bool = False,
) -> Iterator[list[Key]]:
    """Services whose own chains go into one transaction: fewer of giants.

    Args:
        services: all of them.
        compiled: their chains.
        size: so many Services; None for all.
        grows: with what was written in front.
    """
    batch: list[Key] = []
    chains = written = 0
    limit = size
    for key in services:
        weight = sum([len(port.chains) for port in compiled.get(key, {}).values()])
        if batch and limit and (len(batch) == limit or chains + weight > MOST_CHAINS):
            yield batch
            written += chains
            batch, chains = [], 0
            limit = grown(size, written) if size and grows else size
        batch.append(key)
        chains += weight
    if batch:
        yield batch


def at_once(
    services: Sequence[Key], compiled: Mapping[Key, ServiceChains], size: int | None
) -> bool:
    """Whether all of them go into one transaction."""
    found = batches(services, compiled, size)
    return size is None or not services or len(next(found)) == len(services)
