from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from agent.cluster.feed import Deleted, Rejected, Replaced, SourceFailed, Upserted
from agent.cluster.objects import (
    Key,
    Kind,
    convert,
)
from agent.state.node import KernelFacts, NodeInfo
from agent.sync.controller import FactsChanged, SourceEndedError
from tests.fakes import cluster
from tests.fakes.cluster import NODE
from tests.fakes.world import V4, V6, World, annotate, dual, lists, upsert

if TYPE_CHECKING:
    from collections.abc import Sequence

# The beginning ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_nothing_is_written_before_all_lists_are_complete(order: Sequence[int]) -> None:
    """In whatever order the lists come, the first write is behind the last of them."""
    world = World()
    events = lists(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    for position in order[:2]:
        world.handle(events[position])
        world.later(3600)
    before = world.controller.ready, world.controller.wait_until(), world.restores()
    world.handle(events[order[2]])

    assert before == (False, None, 0)
    assert world.controller.ready
    assert "DNAT --to-destination 10.0.0.1:8080" in world.nat()
    assert world.notes.families("synced") == [V4, V6]


def test_changes_before_the_lists_are_complete_are_not_lost() -> None:
    """A change that comes while another kind is still being listed is in the first rules."""
    world = World()
    services, slices, node = lists(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    world.handle(services, slices, upsert(cluster.endpoint_slice("10.0.0.9")), node)

    assert "10.0.0.9:8080" in world.nat()
    assert "10.0.0.1:8080" not in world.nat()


def test_the_first_rules_know_the_node() -> None:
    """Zone hints are heeded from the first rule on, though the Node's list comes last."""
    world = World()
    zones = {"here": "10.0.0.1", "there": "10.0.0.2"}
    near = [
        cluster.endpoint(ip, node="n", hints=cluster.hints(zones=[zone]))
        for zone, ip in zones.items()
    ]
    service = cluster.service(trafficDistribution="PreferSameZone")
    services, slices, _ = lists(service, cluster.endpoint_slice(*near))
    labels = {"topology.kubernetes.io/zone": "here"}
    world.handle(services, slices, Replaced(Kind.NODE, (cluster.node(labels=labels),)))

    assert "10.0.0.1:8080" in world.nat()
    assert "10.0.0.2:8080" not in world.nat()
    assert world.restores() == 1


def test_a_missing_node_is_told_and_does_not_stop_the_start() -> None:
    """A list without our Node means that it does not exist; rules are written all the same."""
    world = World()
    services, slices, _ = lists(cluster.service())
    world.handle(services, slices, Replaced(Kind.NODE, (cluster.node("another"),)))

    assert world.notes.of("node") == [(None,)]
    assert world.notes.families("synced") == [V4, V6]


def test_what_rules_depend_on_is_told_even_if_the_node_adds_nothing() -> None:
    """The addresses of node ports are told before the first sync, changed or not."""
    world = World(ips=("192.0.2.10",), node_port_addresses=("192.0.2.0/24",))
    world.list_all()
    views = {view.family: view.node_port_ips for (view,) in world.notes.of("view")}

    assert views == {V4: ("192.0.2.10",), V6: None}


# Changes ----------------------------------------------------------------------------------


def test_a_change_is_written_in_its_own_family_only() -> None:
    """A new IPv6 endpoint makes no IPv4 restore."""
    world = World()
    world.list_all(dual(), cluster.endpoint_slice("10.0.0.1"))
    before = world.restores(V4), world.restores(V6)
    world.now += 5
    world.handle(upsert(cluster.endpoint_slice("fd00::1", name="web-6", family="IPv6")))

    assert (world.restores(V4), world.restores(V6)) == (before[0], before[1] + 1)
    assert "[fd00::1]:8080" in world.nat(V6)


def test_noise_wakes_nobody() -> None:
    """An annotation that says nothing about rules asks for no sync."""
    world = World()
    world.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    told = len(world.notes.of("queued"))
    noise = {"control-plane.alpha.kubernetes.io/leader": "somebody"}
    world.handle(upsert(annotate(cluster.endpoint_slice("10.0.0.1"), noise)))

    assert len(world.notes.of("queued")) == told
    assert world.controller.wait_until() == 130.0  # the next look at the kernel


def test_a_burst_is_one_sync() -> None:
    """Any number of changes within minSyncPeriod is written once, when the period is over."""
    world = World()
    world.list_all(cluster.service())
    before = world.restores()
    for number in range(1, 51):
        world.now += 0.01
        world.handle(upsert(cluster.endpoint_slice(f"10.0.0.{number}")))

    assert world.restores() == before
    assert world.wait() == pytest.approx(0.5)
    assert world.restores() == before + 1
    assert "10.0.0.50:8080" in world.nat()


def test_a_relist_is_a_replacement() -> None:
    """What a second list lacks is deleted, though no event said so."""
    world = World()
    world.list_all(
        cluster.service("a", "10.96.0.1"),
        cluster.service("b", "10.96.0.2"),
        cluster.endpoint_slice("10.0.0.1", service="a"),
        cluster.endpoint_slice("10.0.0.2", service="b"),
    )
    world.now += 5
    world.handle(Replaced(Kind.SERVICE, (cluster.service("a", "10.96.0.1"),)))

    assert "10.0.0.1:8080" in world.nat()
    assert "10.0.0.2:8080" not in world.nat()
    assert "10.96.0.2" not in world.nat()


def test_a_rejected_object_counts_as_absent() -> None:
    """An object that cannot be used loses its rules and is named; the others keep theirs."""
    world = World()
    world.list_all(
        cluster.service("a", "10.96.0.1"),
        cluster.service("b", "10.96.0.2"),
        cluster.endpoint_slice("10.0.0.1", service="a"),
        cluster.endpoint_slice("10.0.0.2", service="b"),
    )
    world.now += 5
    rejected = Rejected(Kind.SERVICE, cluster.key("b"), "garbled")
    world.handle(rejected)

    assert world.notes.of("rejected") == [(rejected,)]
    assert "10.0.0.1:8080" in world.nat()
    assert "10.0.0.2:8080" not in world.nat()


def test_a_rejected_node_is_named_and_the_known_one_holds() -> None:
    """A Node that cannot be used in an event changes nothing; in a list it is missing."""
    world = World()
    world.list_all()
    rejected = Rejected(Kind.NODE, Key("", NODE), "garbled")
    world.handle(rejected)
    nodes = len(world.notes.of("node"))
    world.handle(Replaced(Kind.NODE, (), (rejected,)))

    assert world.notes.of("rejected") == [(rejected,), (rejected,)]
    assert nodes == 1
    assert world.notes.of("node")[1:] == [(None,)]


def test_a_list_tells_which_objects_have_problems() -> None:
    """After a list exactly the objects that it says something bad about are bad."""
    world = World()
    bad = cluster.service("bad", "10.96.0.7", externalIPs=["nonsense"])
    services = (cluster.service("good", "10.96.0.1"), bad)
    rejected = (Rejected(Kind.SERVICE, Key("shop", "worse"), "garbled"),)
    world.handle(Replaced(Kind.SERVICE, services, rejected))
    world.handle(Replaced(Kind.SERVICE, services[:1]))

    assert [args[1] for args in world.notes.of("problem")] != []
    assert world.notes.of("relisted") == [
        (Kind.SERVICE, {cluster.key("bad"), cluster.key("worse")}),
        (Kind.SERVICE, set()),
    ]


def test_an_object_without_problems_settles() -> None:
    """Put without a problem, or deleted, an object is no problem any more."""
    world = World()
    world.list_all()
    bad = cluster.service("web", externalIPs=["nonsense"])
    world.handle(upsert(bad))
    settled = list(world.notes.of("settled"))
    world.handle(upsert(cluster.service("web")), Deleted(Kind.SERVICE, cluster.key("web")))

    assert settled == []
    assert world.notes.of("settled") == [(Kind.SERVICE, cluster.key("web"))] * 2


@pytest.mark.parametrize("refused", [True, False])
def test_a_source_that_ends_ends_the_agent(*, refused: bool) -> None:
    """The failure of the source is raised, with its cause and whether it is a refusal."""
    cause = RuntimeError("no more")
    with pytest.raises(SourceEndedError, match="no more") as caught:
        World().handle(SourceFailed(cause, refused=refused))

    assert caught.value.refused is refused
    assert caught.value.__cause__ is cause


# The node ---------------------------------------------------------------------------------


def test_only_a_difference_in_facts_is_a_change() -> None:
    """Word of new addresses asks for a sync only where node ports depend on them."""
    world = World(node_port_addresses=("192.0.2.0/24",))
    world.list_all()
    before = world.restores(V4), world.restores(V6)
    world.now += 5
    world.facts = KernelFacts(addresses=("192.0.2.10/24", "198.51.100.1/24", "2001:db8::10/64"))
    world.handle(FactsChanged())
    unchanged = world.restores(V4), world.restores(V6)
    world.facts = KernelFacts(addresses=("192.0.2.10/24", "192.0.2.77/24", "2001:db8::10/64"))
    world.handle(FactsChanged())

    assert unchanged == before
    assert (world.restores(V4), world.restores(V6)) == (before[0] + 1, before[1])
    assert "-d 192.0.2.77" in world.nat()


@pytest.mark.parametrize("label", ["topology.kubernetes.io/zone", "kubernetes.io/hostname"])
def test_another_place_of_the_node_is_a_full_sync(label: str) -> None:
    """In both families; the same labels again, and other labels, ask for nothing."""
    world = World()
    world.list_all(cluster.service())
    world.now += 5
    world.handle(Upserted(Kind.NODE, cluster.node(labels={label: "here"})))
    after = [(args[0].rules.node.family, args[1].full) for args in world.notes.of("synced")[2:]]
    world.now += 5
    world.handle(Upserted(Kind.NODE, cluster.node(labels={label: "here", "app": "x"})))

    assert after == [(V4, True), (V6, True)]
    assert len(world.notes.of("synced")) == 4


def test_a_node_that_is_deleted_and_comes_back_is_told() -> None:
    """Deletion of our Node, and of no other, is told once; so is its return."""
    world = World()
    world.list_all()
    other = Deleted(Kind.NODE, Key("", "another"))
    gone = Deleted(Kind.NODE, Key("", NODE))
    world.handle(other, gone, gone, Upserted(Kind.NODE, cluster.node()))

    assert world.notes.of("node") == [(NodeInfo(),), (None,), (NodeInfo(),)]


def test_facts_are_read_again_at_each_look_at_the_kernel() -> None:
    """A sysctl that is changed while the agent runs takes effect within one period."""
    world = World()
    world.list_all()
    before = "--ctstate INVALID" in str(world.kernels[V4].texts("filter"))
    world.facts = KernelFacts(tcp_liberal=True, addresses=world.facts.addresses)
    world.later(31)

    assert before
    assert "--ctstate INVALID" not in str(world.kernels[V4].texts("filter"))


def test_what_a_source_must_not_hand_over_is_an_error() -> None:
    """An object of no known kind is a fault of the source, not silence."""
    alien: Any = Upserted(Kind.SERVICE, convert(Kind.NODE, {"metadata": {"name": "x"}}))
    with pytest.raises(TypeError, match="Node"):
        World().handle(alien)
