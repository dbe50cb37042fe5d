from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rules import radix, ruleset
from agent.rules.dispatch import FlatDispatch
from agent.rules.names import is_tree_chain
from agent.rules.ruleset import RuleSet, differences, own_chains
from agent.state.store import Store
from agent.state.values import Family, NodeView
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, key, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.walk import Packet, fate

if TYPE_CHECKING:
    from agent.cluster.objects import Service
    from agent.rules.ruleset import ServiceChains

VIEW = NodeView(Family.V4, NODE, ip="192.0.2.2")
SERVICES = ("nat", "KUBE-SERVICES")


class World:
    """A store and the rule set that follows it."""

    def __init__(self, layout: Any = "flat") -> None:
        self.store = Store(NODE)
        self.rules = RuleSet(VIEW, layout)
        self.seen = 0

    def put(self, *objects: Service, **slices: int) -> World:
        """Put Services, and slices with so many endpoints by Service."""
        for obj in objects:
            self.store.put_service(obj)
        for name, count in slices.items():
            ips = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(count)]
            self.store.put_slice(endpoint_slice(*ips, service=name))
        return self

    def update(self) -> set[str]:
        snapshot = self.store.snapshot(self.seen)
        self.seen = snapshot.generation
        return {one.name for one in self.rules.update(snapshot.records, self.store)}


def test_an_update_names_what_may_differ() -> None:
    """A change without consequences (an endpoint that is not used) touches nobody."""
    world = World().put(service("a"), service("b", "10.96.0.2"), a=1)

    assert world.update() == {"a", "b"}
    world.store.put_slice(
        endpoint_slice("10.0.0.1", endpoint("10.0.0.9", ready=False), service="a")
    )
    assert world.update() == set()
    assert world.put(a=2).update() == {"a"}


def test_a_service_without_rules_is_absent() -> None:
    """Deleted and headless Services leave nothing behind."""
    world = World().put(service("a"), a=1)
    world.update()
    world.store.put_service(service("a", "None"))

    assert world.update() == {"a"}
    assert world.rules.services == {}
    assert world.rules.total_endpoints == 0
    assert [chain for chain in world.rules.tables()["nat"] if "SVC" in chain] == []


def test_a_service_that_gets_its_first_endpoint() -> None:
    """It is refused no longer, and only then are there endpoints to count."""
    world = World().put(service("a"))
    world.update()
    assert world.rules.total_endpoints == 0
    assert len(world.rules.shared(("filter", "KUBE-SERVICES"))) == 1
    assert len(world.rules.shared(SERVICES)) == 1  # the way to node ports

    world.put(a=1).update()
    assert world.rules.total_endpoints == 1
    assert world.rules.shared(("filter", "KUBE-SERVICES")) == []
    assert len(world.rules.shared(SERVICES)) == 2


def test_ports_of_a_service_come_and_go() -> None:
    """A port that is renamed takes its chains and portals with it."""
    world = World().put(service("a", ports=[{"name": "x", "port": 1}, {"name": "y", "port": 2}]))
    world.update()
    world.store.put_service(service("a", ports=[{"name": "z", "port": 2}]))
    world.update()

    assert [owner[1] for owner in world.rules.services[key("a")]] == ["z"]
    assert len(world.rules.shared(("filter", "KUBE-SERVICES"))) == 1


def test_a_large_service_that_goes_leaves_no_chains_behind() -> None:
    """When it comes back they are the same, but made anew."""
    world = World().put(service("a"), a=65)
    world.update()
    first = [chain for port in world.rules.services[key("a")].values() for chain in port.chains]
    world.store.delete_service(key("a"))
    world.update()
    world.put(service("a")).update()
    again = [chain for port in world.rules.services[key("a")].values() for chain in port.chains]

    assert again == first
    assert again[-1] is not first[-1]


def test_a_layout_that_is_chosen_is_there_from_the_start() -> None:
    """Flat unless a tree is asked for; and a cluster without endpoints is not large."""
    assert [RuleSet(VIEW, layout).tree for layout in ("flat", "auto", "tree")] == [
        False,
        False,
        True,
    ]
    assert not RuleSet(VIEW).tree
    assert RuleSet(VIEW).comments is True


def test_what_is_set_aside_compiles_to_nothing() -> None:
    """Its endpoints still count, so that others keep their comments or their lack of them."""
    world = World().put(service("a"), a=3)
    world.update()
    world.rules.set_aside.add(key("a"))
    record = world.store.get(key("a"))
    assert record is not None

    assert world.rules.update([record], ()) == {key("a")}
    assert world.rules.services == {}
    assert world.rules.total_endpoints == 3


def test_comments_go_in_a_large_cluster_and_come_back() -> None:
    """Crossing the limit compiles everybody anew."""
    with mock.patch.object(ruleset, "LARGE_CLUSTER", 3):
        world = World().put(service("a"), service("b", "10.96.0.2"), a=1)
        found = [(world.put(b=count).update(), world.rules.comments) for count in (2, 3, 4, 2)]

    assert found == [
        ({"a", "b"}, True),
        ({"a", "b"}, False),
        ({"b"}, False),
        ({"a", "b"}, True),
    ]


def test_the_limit_is_a_thousand_endpoints() -> None:
    """1000 is not large, 1001 is."""
    world = World().put(service("a"))

    for count, comments in ((1000, True), (1001, False)):
        world.put(a=count).update()
        assert world.rules.comments is comments


def test_a_new_node_compiles_everything() -> None:
    """Only those whose rules differ are named."""
    world = World().put(service("a"), service("b", "10.96.0.2"), a=1)
    world.update()
    new = NodeView(Family.V4, NODE, ip="192.0.2.2", masquerade_all=True)

    assert world.rules.recompile(world.store, new) == {key("a")}
    assert world.rules.recompile(world.store, new) == set()


def test_shared_chains_that_changed() -> None:
    """At first all, then those that have other rules; the standing ones with a new node."""
    world = World().put(service("a"), a=1)
    world.update()
    changed, gone = world.rules.take_changes()

    assert ("nat", "KUBE-SERVICES") in changed
    assert ("filter", "KUBE-EXTERNAL-SERVICES") in changed
    assert gone == set()
    world.put(a=2).update()
    assert world.rules.take_changes() == (set(), set())
    world.put(service("b", "10.96.0.2")).update()
    assert world.rules.take_changes() == ({("filter", "KUBE-SERVICES")}, set())
    world.rules.recompile(world.store, NodeView(Family.V4, NODE, masquerade_bit=15))
    assert ("nat", "KUBE-MARK-MASQ") in world.rules.take_changes()[0]


def test_a_chain_that_stands_no_longer_has_not_changed() -> None:
    """Whoever asks for what changed can have the rules of all of it."""
    world = World()
    world.rules.recompile(world.store, NodeView(Family.V4, NODE, localhost_node_ports=True))
    world.rules.recompile(world.store, VIEW)
    changed, _ = world.rules.take_changes()

    assert ("filter", "KUBE-FIREWALL") not in changed
    assert {len(world.rules.shared(chain)) for chain in changed} == {0, 1, 3}


def test_the_node_port_rule_stays_last() -> None:
    """Whatever Services come, in either layout."""
    for layout in ("flat", "tree"):
        world = World(layout).put(*(service(f"s{n}", f"10.96.0.{n + 1}") for n in range(40)))
        world.put(**{f"s{n}": 1 for n in range(40)})
        world.update()
        owner, text = world.rules.shared(SERVICES)[-1]

        assert owner is None
        assert "NOTE: this must be the last rule in this chain" in text


def test_numbers() -> None:
    """Rules are counted by table, as many as there are."""
    for layout in ("flat", "tree"):
        world = World(layout).put(
            service("a", type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30000}]),
            service("b", "10.96.0.2", internalTrafficPolicy="Local"),
            service("c", "10.96.0.3"),
            a=2,
            b=1,
        )
        world.update()
        tables = world.rules.tables()

        assert world.rules.counts() == {
            table: sum(map(len, chains.values())) for table, chains in tables.items()
        }
        assert world.rules.without_local_endpoints() == (1, 0)
        own = [chain for one in world.rules.services.values() for chain in own_chains(one)]
        assert world.rules.own_count == len(own) == 4
        world.store.replace_services([])
        world.update()
        assert world.rules.without_local_endpoints() == (0, 0)
        assert world.rules.own_count == 0
        assert world.rules.counts() == {
            table: sum(map(len, chains.values())) for table, chains in world.rules.tables().items()
        }


def test_traffic_that_is_dropped_here_is_counted() -> None:
    """Service ports whose endpoints are all elsewhere, by the traffic that must stay here."""
    local: dict[str, Any] = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    world = World().put(
        service("a", **local),
        service("b", "10.96.0.2", **local),
        service("c", "10.96.0.3", **local, internalTrafficPolicy="Local"),
        a=1, b=1, c=1,
    )  # fmt: skip
    world.update()
    assert world.rules.without_local_endpoints() == (1, 3)
    world.store.put_service(service("b", "10.96.0.2"))
    world.update()
    assert world.rules.without_local_endpoints() == (1, 2)


def test_the_layout_by_itself_grows_a_tree_and_is_flat_again() -> None:
    """Above 200 service ports a tree, below 150 flat, and what there is in between."""
    world = World("auto")

    def with_ports(count: int) -> bool:
        ports = [{"name": f"p{n}", "port": n + 1} for n in range(count)]
        world.put(service("a", ports=ports)).update()
        return world.rules.tree

    assert [with_ports(count) for count in (200, 201, 151, 150, 151)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert isinstance(world.rules.dispatch, FlatDispatch)


def test_branches_are_gone_when_the_layout_is_flat_again() -> None:
    """Their chains are named, so that they can be deleted."""
    world = World("auto")
    world.put(service("a", ports=[{"name": f"p{n}", "port": n + 1} for n in range(300)])).update()
    branches = {chain for chain in world.rules.shared_ids() if is_tree_chain(chain[1])}
    world.rules.take_changes()
    world.put(service("a")).update()
    left = set(world.rules.shared_ids())
    changed, gone = world.rules.take_changes()

    assert branches
    assert gone == branches
    assert changed <= left


def test_branches_of_a_tree_before_the_last_one_are_gone_too() -> None:
    """Though nobody has asked in between."""
    ports = [{"name": f"p{n}", "port": n + 1} for n in range(300)]
    world = World("auto")
    world.put(service("a", ports=ports)).update()
    first = {chain for chain in world.rules.shared_ids() if is_tree_chain(chain[1])}
    world.rules.take_changes()
    for obj in (service("a"), service("a", "10.96.0.9", ports=ports), service("a")):
        world.put(obj).update()

    assert first
    assert first <= world.rules.take_changes()[1]


PLACES = st.tuples(st.integers(0, 3), st.integers(1, 40))
PORTS = st.sampled_from([53, 80, 443, 8000, 8080])
KINDS = st.lists(
    st.tuples(PLACES, st.sets(PORTS, min_size=1, max_size=4), st.booleans(), st.booleans()),
    max_size=12,
    unique_by=lambda kind: kind[0],
)


def fill(kernel: FakeKernel, rules: RuleSet) -> FakeKernel:
    tables = rules.tables()
    for table, chains in tables.items():
        lines = [f":{chain} - [0:0]" for chain in chains]
        lines += [f"-A {chain} {text}" for chain, texts in chains.items() for text in texts]
        kernel.tamper(table, *lines)
    kernel.tamper("nat", "-A PREROUTING -j KUBE-SERVICES")
    kernel.tamper("filter", "-A FORWARD -j KUBE-SERVICES", "-A INPUT -j KUBE-EXTERNAL-SERVICES")
    return kernel


@settings(max_examples=40)
@given(KINDS, st.integers(1, 3))
def test_a_tree_means_what_the_flat_layout_means(kinds: list[Any], limit: int) -> None:
    """Each packet, for a Service or for none, ends alike in both layouts."""
    worlds = [World("flat"), World("tree")]
    packets = [Packet("192.0.2.2", 30000 + n) for n in range(12)]
    with mock.patch.multiple(radix, LIMIT=limit, INLINE=1):
        for index, ((third, last), numbers, ready, external) in enumerate(kinds):
            ip = f"10.96.{third}.{last}"
            packets += [Packet(ip, port) for port in (53, 80, 443, 8000, 8080, 9999)]
            packets += [Packet(f"198.51.100.{last}", 80), Packet(f"10.96.{third}.{last + 1}", 80)]
            ports = [{"name": f"p{n}", "port": n} for n in numbers]
            ports[0]["nodePort"] = 30000 + index
            obj = service(
                f"s{index}",
                ip,
                type="NodePort",
                ports=ports,
                externalIPs=[f"198.51.100.{last}"] if external else [],
            )
            offered = [{"name": f"p{n}", "port": n + 1} for n in numbers]
            entries = endpoint_slice(
                endpoint("10.0.0.1", ready=ready), service=f"s{index}", ports=offered
            )
            for world in worlds:
                world.store.put_service(obj)
                world.store.put_slice(entries)
        for world in worlds:
            world.update()
        flat, tree = (fill(FakeKernel(), world.rules) for world in worlds)

    for packet in packets:
        assert fate(flat, packet) == fate(tree, packet), packet


def test_own_chains_are_those_of_all_ports() -> None:
    """The chains of a Service are the union of its ports' chains."""
    world = World().put(
        service("a", ports=[{"name": "http", "port": 1}, {"name": "alt", "port": 2}])
    )
    world.store.put_slice(
        endpoint_slice(
            "10.0.0.1",
            service="a",
            ports=[{"name": "http", "port": 8080}, {"name": "alt", "port": 8081}],
        )
    )
    world.update()
    chains = own_chains(world.rules.services[key("a")])

    assert sorted(chain[:9] for chain in chains) == ["KUBE-SEP-"] * 2 + ["KUBE-SVC-"] * 2


def test_chains_of_a_service_that_differ() -> None:
    """Of ports that stay, that come and that go: the new and the other ones, and those gone."""

    def compiled(*names: str, ip: str) -> ServiceChains:
        ports = [{"name": name, "port": number} for number, name in enumerate(names, 80)]
        world.put(service("a", ports=ports))
        world.store.put_slice(endpoint_slice("10.0.0.1", ip, service="a", ports=ports))
        world.update()
        return world.rules.services[key("a")]

    world = World()
    before = compiled("stays", "goes", "went", ip="10.0.0.2")
    after = compiled("stays", "comes", "came", ip="10.0.0.3")
    held, wanted = own_chains(before), own_chains(after)

    for old, new, mine in ((before, after, wanted.items() - held.items()),
                           ({}, after, wanted.items()), (after, after, ())):  # fmt: skip
        written, gone = differences(old, new)
        assert sorted(written) == sorted(mine)
        assert sorted(gone) == (sorted(held.keys() - wanted.keys()) if old is before else [])
    assert sorted(differences(before, {})[1]) == sorted(held)
    assert len(differences(before, after)[0]) == 2 + 3 + 3
    assert len(differences(before, after)[1]) == 1 + 3 + 3


def test_branches_come_behind_those_below_them() -> None:
    """So that each can be written before the chains that jump to it; by table, flat has none."""
    with mock.patch.multiple(radix, LIMIT=4, INLINE=1):
        world = World("tree").put(
            *(service(f"s{n}", f"10.{96 + n % 2}.{n % 5}.{n}") for n in range(60))
        )
        world.put(**{f"s{n}": 1 for n in range(40)}).update()
        for table in ("nat", "filter"):
            branches = list(world.rules.dispatch.branches(table))
            chains = [chain for of, chain in world.rules.shared_ids() if of == table]
            assert len(branches) > 2
            assert sorted(branches) == sorted(filter(is_tree_chain, chains))
            nested = False
            for position, branch in enumerate(branches):
                texts = [text for _, text in world.rules.shared((table, branch))]
                below = {text.rpartition(" -j ")[2] for text in texts if " -j KUBE-SVC-T" in text}
                assert below <= set(branches[:position])
                nested = nested or bool(below)
            assert nested

    assert World("flat").rules.dispatch.branches("nat") == ()


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_the_same_cluster_gives_the_same_text(layout: Any) -> None:
    """Order of arrival is not seen in the rules."""
    objects = [service(f"s{n}", f"10.96.0.{n + 1}") for n in range(45)]
    forward = World(layout).put(*objects)
    backward = World(layout).put(*reversed(objects))
    forward.update()
    backward.update()

    assert forward.rules.tables() == backward.rules.tables()
