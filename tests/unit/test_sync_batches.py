from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.batches import MOST_CHAINS, at_once, batches, grown
from tests.fakes.cluster import NODE, endpoint_slice, key, service

if TYPE_CHECKING:
    from agent.cluster.objects import Key
    from agent.rules.ruleset import ServiceChains


@pytest.fixture(scope="module")
def compiled() -> dict[Key, ServiceChains]:
    """One Service with twenty endpoints, so with 21 chains."""
    store = Store(NODE)
    store.put_service(service("web", "10.96.0.1"))
    store.put_slice(endpoint_slice(*(f"10.0.0.{n}" for n in range(1, 21)), service="web"))
    rules = RuleSet(NodeView(Family.V4, NODE))
    rules.update(store.snapshot(0).records, [])
    return rules.services


def many(compiled: dict[Key, ServiceChains], count: int) -> dict[Key, ServiceChains]:
    """So many Services with the chains of that one."""
    (chains,) = compiled.values()
    return {key(f"s{number:05}"): chains for number in range(count)}


@pytest.mark.parametrize(
    ("chains", "size"), [(0, 50), (12_000, 66), (48_000, 100), (128_000, 150), (384_000, 250)]
)
def test_transactions_grow_with_the_root_of_the_table(chains: int, size: int) -> None:
    """Twice as large with 48,000 chains there, three times with 128,000."""
    assert grown(50, chains) == size


def test_sizes_grow_with_what_was_written(compiled: dict[Key, ServiceChains]) -> None:
    """Each has as many as what was written before it asks for, and nobody is lost."""
    services = many(compiled, 1000)
    found = list(batches(list(services), services, 50, grows=True))
    sizes = [len(batch) for batch in found]
    written = [21 * before for before in itertools.accumulate(sizes[:-1], initial=0)]

    assert sizes[:3] == [50, 52, 53]
    assert sizes[:-1] == [grown(50, chains) for chains in written[:-1]]
    assert list(itertools.chain(*found)) == list(services)


def test_sizes_stay_where_they_do_not_grow(compiled: dict[Key, ServiceChains]) -> None:
    """Over rules in use the size is fixed."""
    services = many(compiled, 1000)

    assert {len(batch) for batch in batches(list(services), services, 200)} == {200}


def test_no_transaction_has_too_many_chains(compiled: dict[Key, ServiceChains]) -> None:
    """However many Services it might have."""
    services = many(compiled, 1000)
    sizes = [len(batch) for batch in batches(list(services), services, 900, grows=True)]

    assert sizes == [238, 238, 238, 238, 48]
    assert 238 * 21 <= MOST_CHAINS < 239 * 21


@pytest.mark.parametrize(
    ("count", "size", "answer"),
    [(0, 50, True), (50, 50, True), (51, 50, False), (239, 500, False), (1000, None, True)],
)
def test_at_once(
    compiled: dict[Key, ServiceChains], count: int, size: int | None, *, answer: bool
) -> None:
    """All go into one if they are few and have few chains, or if size has no bound."""
    services = many(compiled, count)

    assert at_once(list(services), services, size) is answer
