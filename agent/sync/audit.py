"""Does the kernel still hold what we wrote? Other tools flush tables and delete rules.

Each round looks at everything that all Services share (canaries, jumps, shared chains), and at
a sample of the Services' own chains that moves on from round to round: of N chains,
max(50 - N/125, 5) percent, but never fewer than 100, or all there are. The cursor moves by what
was looked at, also when a read failed, so that one unreadable corner cannot hold up the rest;
Services of different namespaces take turns in the order, so that no corner waits for another.

Chains are compared by meaning, not by text (``agent.rules.parse``).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Key
from agent.rules import names
from agent.rules.parse import equal, parse_save
from agent.rules.ruleset import own_chains
from agent.rules.static import BASE_CHAINS, CANARY_TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.sync.apply import Syncer

Tables = dict[str, dict[str, list[str]]]


class Difference(msgspec.Struct, frozen=True):
    """A chain that is not as it was written.

    ``what`` is ``missing``, ``changed``, ``no jump`` (a built-in chain lacks one of ours) or
    ``stray`` (a service chain that is no Service's).
    """

    table: str
    chain: str
    what: str
    service: Key | None = None


def sample_size(chains: int) -> int:
    """How many of this many chains one round looks at."""
    percent = max(50 - chains // 125, 5)
    return min(chains, max(100, chains * percent // 100))


def take_turns(keys: Iterable[Key]) -> list[Key]:
    """The Services in an order in which namespaces alternate."""
    by_namespace: dict[str, list[Key]] = {}
    for key in sorted(keys):
        by_namespace.setdefault(key.namespace, []).append(key)
    rounds = zip_longest(*by_namespace.values())
    return [key for turn in rounds for key in turn if key is not None]


class Audit:
    """Compares the kernel with what it accepted, a part at a time."""

    def __init__(self, syncer: Syncer) -> None:
        self._syncer = syncer
        self._after: Key | None = None

    def run(self) -> list[Difference]:
        """One round; the differences found.

        Raises:
            ReadError: the kernel's rules could not be read.
        """
        sample = self._sample()
        tables: Tables = {}
        for table in CANARY_TABLES:
            text = self._syncer.kernel.save(table)
            tables[table] = parse_save(text).get(table, {})
        nat = tables["nat"]
        return [
            *self._shared(tables),
            *self._jumps(),
            *self._own(sample, nat),
            *self._strays(tables),
        ]

    def _sample(self) -> dict[Key, Mapping[str, tuple[str, ...]]]:
        """The next Services in turn, with their chains; moves the cursor."""
        services = self._syncer.planner.accepted.services
        order = take_turns(services)
        if self._after in services:
            position = order.index(self._after) + 1
            order = order[position:] + order[:position]
        chains = {key: own_chains(services[key]) for key in order}
        wanted = sample_size(sum(map(len, chains.values())))
        sample: dict[Key, Mapping[str, tuple[str, ...]]] = {}
        for key in order:
            if wanted <= 0:
                break
            sample[key] = chains[key]
            wanted -= len(chains[key])
            self._after = key
        return sample

    def _shared(self, tables: Tables) -> list[Difference]:
        found = [
            Difference(table, names.CANARY, "missing")
            for table in CANARY_TABLES
            if names.CANARY not in tables[table]
        ]
        for (table, chain), texts in self._syncer.planner.accepted.shared.items():
            found += _compare(table, chain, texts, tables.get(table, {}))
        return found

    def _jumps(self) -> list[Difference]:
        return [
            Difference(jump.table, jump.source, "no jump") for jump in self._syncer.missing_jumps()
        ]

    def _strays(self, tables: Tables) -> list[Difference]:
        accepted = self._syncer.planner.accepted
        known = {("nat", c) for chains in accepted.services.values() for c in own_chains(chains)}
        known |= accepted.stale | accepted.shared.keys()
        return [
            Difference(table, chain, "stray")
            for table in BASE_CHAINS
            for chain in tables[table]
            if (names.is_service_chain(chain) or names.is_tree_chain(chain))
            and (table, chain) not in known
        ]

    def _own(
        self, sample: Mapping[Key, Mapping[str, tuple[str, ...]]], nat: dict[str, list[str]]
    ) -> list[Difference]:
        return [
            difference
            for key, chains in sample.items()
            for chain, texts in chains.items()
            for difference in _compare("nat", chain, texts, nat, key)
        ]


def _compare(
    table: str,
    chain: str,
    texts: Iterable[str],
    held: dict[str, list[str]],
    service: Key | None = None,
) -> list[Difference]:
    if chain not in held:
        return [Difference(table, chain, "missing", service)]
    if not equal(texts, held[chain]):
        return [Difference(table, chain, "changed", service)]
    return []
