from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from agent.rules import radix
from agent.rules.names import is_tree_chain
from agent.rules.parse import parse_save
from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync import cleanup
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.cleanup import foreign_jumps, is_ours, removals
from tests.fakes.cluster import NODE, endpoint_slice, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.walk import UNTRANSLATED, Packet, fate

if TYPE_CHECKING:
    from agent.rules.ruleset import Layout

TABLES = ("mangle", "nat", "filter")
FOREIGN = (
    ":FOREIGN - [0:0]",
    ":KUBE-KUBELET-CANARY - [0:0]",
    ":KUBE-IPTABLES-HINT - [0:0]",
    "-A FOREIGN -p tcp -j RETURN",
    "-A OUTPUT -j FOREIGN",
    '-A OUTPUT -m comment --comment "kubernetes service portals" -j FOREIGN',
)


def saved(kernel: FakeKernel) -> dict[str, dict[str, list[str]]]:
    texts = [parse_save(kernel.save(table)) for table in TABLES]
    return {table: dict(chains) for one in texts for table, chains in one.items()}


def filled(layout: Layout = "flat", services: int = 3) -> tuple[FakeKernel, FakeKernel]:
    """A kernel with rules of ours among those of others, and one with those of others alone."""
    kernel, before = FakeKernel(), FakeKernel()
    for one in (kernel, before):
        for table in TABLES:
            one.tamper(table, *FOREIGN)
    store = Store(NODE)
    for n in range(1, services + 1):
        store.put_service(service(f"s{n}", f"10.96.0.{n}", internalTrafficPolicy="Local"))
        store.put_service(service(f"t{n}", f"10.96.1.{n}"))
        store.put_slice(endpoint_slice(f"10.0.0.{n}", service=f"t{n}"))
    rules = RuleSet(NodeView(Family.V4, NODE), layout)
    Syncer(rules, kernel, SyncSettings(None), lambda: 0.0).sync(store)
    return kernel, before


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_exactly_ours_is_removed(layout: Layout) -> None:
    """Chains, jumps and canaries of ours go; others', and the kubelet's, are as they were."""
    with mock.patch.multiple(radix, LIMIT=1, INLINE=0):
        kernel, before = filled(layout)
    assert any(map(is_tree_chain, kernel.rules("nat"))) == (layout == "tree")
    for transaction in removals(saved(kernel)):
        kernel.restore(transaction.text())

    assert saved(kernel) == saved(before)
    assert removals(saved(kernel)) == []


def test_no_packet_meets_half_a_service() -> None:
    """After each part, a packet finds its whole Service or no Service at all."""
    kernel, _ = filled()
    packet = Packet("10.96.1.1", 80)
    whole = fate(kernel, packet)
    seen = []
    kernel.on_commit = lambda _table: seen.append(fate(kernel, packet))
    for transaction in removals(saved(kernel)):
        kernel.restore(transaction.text())

    assert seen
    assert all(found in (whole, {UNTRANSLATED: 1}) for found in seen)
    assert seen[-1] == {UNTRANSLATED: 1}


def test_many_chains_are_removed_in_batches() -> None:
    """No transaction grows without bound."""
    kernel, before = filled(services=10)
    with mock.patch.object(cleanup, "BATCH", 4):
        transactions = removals(saved(kernel))
    assert max(len(t.text().splitlines()) for t in transactions[1:]) <= 4 + 2
    for transaction in transactions:
        kernel.restore(transaction.text())

    assert saved(kernel) == saved(before)


def test_doubled_jumps_are_all_removed() -> None:
    """However they came to be there twice."""
    kernel, before = filled()
    jump = '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    kernel.tamper("nat", f"-A PREROUTING {jump}", f"-A PREROUTING {jump}")
    for transaction in removals(saved(kernel)):
        kernel.restore(transaction.text())

    assert saved(kernel) == saved(before)


def test_a_chain_that_others_lead_to_is_emptied() -> None:
    """All else goes; the rule is named, its packets find nothing, and what is left goes later."""
    kernel, before = filled()
    svc = next(chain for chain in kernel.rules("nat") if chain.startswith("KUBE-SVC-"))
    foreign = [f"-A FOREIGN -p udp -j {svc}", "-A OUTPUT -p udp -j KUBE-SERVICES"]
    for one in (kernel, before):
        one.tamper("nat", f":{svc} - [0:0]", ":KUBE-SERVICES - [0:0]", *foreign)
    kernel.tamper("nat", '-I FOREIGN -m comment --comment "-j KUBE-SERVICES" -j RETURN')
    before.tamper("nat", '-I FOREIGN -m comment --comment "-j KUBE-SERVICES" -j RETURN')
    named = foreign_jumps(saved(kernel))
    for transaction in removals(saved(kernel)):
        kernel.restore(transaction.text())

    assert named == {("nat", svc): [foreign[0]], ("nat", "KUBE-SERVICES"): [foreign[1]]}
    assert saved(kernel) == saved(before)
    kernel.tamper("nat", "-F FOREIGN", "-F OUTPUT")
    assert foreign_jumps(saved(kernel)) == {}
    for transaction in removals(saved(kernel)):
        kernel.restore(transaction.text())
    assert not any(is_ours("nat", chain) for chain in kernel.rules("nat"))


def test_rules_that_cannot_be_read_are_not_ours() -> None:
    """Rules of other versions are left alone, and stop nothing."""
    kernel, _ = filled()
    tables = saved(kernel)
    tables["filter"]["OUTPUT"].append("-m conntrack [unsupported revision] -g KUBE-SERVICES")

    lines = [line.text for t in removals(tables) for line in t.lines()]
    assert not any("unsupported" in line for line in lines)
    blocks = {block.table: str(block.lines) for block in removals(tables)[0].blocks}
    assert "-X KUBE-SERVICES" in blocks["nat"]
    assert "-X KUBE-SERVICES" not in blocks["filter"]
    assert foreign_jumps(tables).keys() == {("filter", "KUBE-SERVICES")}


@pytest.mark.parametrize(
    ("table", "chain", "ours"),
    [
        ("nat", "KUBE-SERVICES", True),
        ("filter", "KUBE-SERVICES", True),
        ("mangle", "KUBE-SERVICES", False),
        ("raw", "KUBE-SERVICES", False),
        ("nat", "KUBE-SVC-AAAA", True),
        ("filter", "KUBE-SVC-AAAA", False),
        ("nat", "KUBE-SEP-AAAA", True),
        ("filter", "KUBE-FIREWALL", False),
        ("mangle", "KUBE-PROXY-CANARY", True),
        ("raw", "KUBE-PROXY-CANARY", False),
        ("mangle", "KUBE-KUBELET-CANARY", False),
        ("mangle", "KUBE-IPTABLES-HINT", False),
        ("nat", "KUBE-PROXY-PROBE", True),
        ("nat", "CNI-KUBE-SVC-A", False),
        ("nat", "POSTROUTING", False),
    ],
)
def test_what_is_ours(table: str, chain: str, *, ours: bool) -> None:
    """By table and name; the kubelet's chains are not."""
    assert is_ours(table, chain) is ours
