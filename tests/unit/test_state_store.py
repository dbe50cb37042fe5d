from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.objects import EndpointSlice, Key, Service
from agent.state import endpoints as merging
from agent.state import store as stores
from agent.state.services import AddressPolicy
from agent.state.store import Change, Store
from agent.state.values import Endpoint, Family, ServicePort
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, key, service

V4, V6 = Family.V4, Family.V6
NONE = Change()
FOUR = Change(frozenset({V4}))
DUAL: dict[str, Any] = {"ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.96.0.1", "fd00::a"]}


@pytest.fixture
def store() -> Store:
    return Store(NODE)


def changed(store: Store, since: int) -> list[str]:
    return [record.key.name for record in store.snapshot(since).records]


def ips(store: Store, name: str = "web", family: Family = V4) -> list[str]:
    record = store.get(key(name))
    assert record is not None
    return [e.ip for found in record.endpoints(family).values() for e in found]


def stamp(store: Store, name: str, generation: int) -> None:
    """Break the order, as no method of the store does."""
    record = store.get(key(name))
    assert record is not None
    record.stamp = generation


def test_a_change_says_which_families_it_touches(store: Store) -> None:
    """A Service of one family wakes one family; what changes nothing wakes none."""
    assert store.put_service(service()) == FOUR
    assert store.put_service(service()) == NONE
    assert store.put_service(service(**DUAL)) == Change(frozenset({V6}))
    assert store.put_slice(endpoint_slice("10.0.0.1")) == FOUR
    assert store.put_slice(endpoint_slice("10.0.0.1")) == NONE
    assert store.delete_service(key()) == Change(frozenset({V4, V6}))
    assert store.delete_service(key()) == NONE


def test_what_cannot_change_a_rule_stamps_nothing(store: Store) -> None:
    """Labels, annotations, target ports and the order of a resource version are not looked at."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1", "10.0.0.2"))
    before = store.generation
    noisy = service(
        ports=[{"name": "http", "port": 80, "targetPort": "other"}], selector={"a": "b"}
    )
    renewed = endpoint_slice(
        "10.0.0.1",
        "10.0.0.2",
        metadata={
            "namespace": "shop",
            "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web", "noise": "1"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01"},
            "resourceVersion": "77",
        },
    )

    assert store.put_service(noisy) == NONE
    assert store.put_slice(renewed) == NONE
    assert store.generation == before
    assert changed(store, before) == []


def test_problems_are_handed_on_even_if_nothing_changed(store: Store) -> None:
    """Each put says what was left out of the object."""
    bad = service(externalIPs=["x"])
    first, second = store.put_service(bad), store.put_service(bad)

    assert first.families == {V4}
    assert second.families == frozenset()
    assert first.problems == second.problems != ()


def test_a_snapshot_is_what_changed_newest_first(store: Store) -> None:
    """The walk stops at the first record that is not newer."""
    for name in "abc":
        store.put_service(service(name))
    assert changed(store, 0) == ["c", "b", "a"]

    since = store.snapshot(0).generation
    assert since == 3
    assert changed(store, since) == []

    store.put_slice(endpoint_slice("10.0.0.1", service="a"))
    store.put_service(service("b", "10.96.0.9"))
    assert changed(store, since) == ["b", "a"]
    assert changed(store, since + 1) == ["b"]
    assert changed(store, 0) == ["b", "a", "c"]


def test_a_reader_that_failed_sees_the_change_again(store: Store) -> None:
    """Nothing is consumed by looking: the mark moves only when the reader says so."""
    store.put_service(service("a"))
    since = store.snapshot(0).generation
    store.put_service(service("b"))

    assert changed(store, since) == ["b"]
    assert changed(store, since) == ["b"]


def test_a_deleted_service_is_a_change_until_everybody_has_seen_it(store: Store) -> None:
    """Its record is empty, and goes away only once every reader has got past it."""
    store.put_service(service("a"))
    store.put_service(service("b"))
    since = store.generation
    store.delete_service(key("a"))
    record = store.get(key("a"))

    assert changed(store, since) == ["a"]
    assert record is not None
    assert record.service_ports(V4) == ()

    store.forget(since)
    assert store.get(key("a")) is record
    store.forget(store.generation)
    assert store.get(key("a")) is None
    assert changed(store, 0) == ["b"]
    assert store.rebuilds == 0


def test_forgetting_the_newest_record_leaves_the_order_right(store: Store) -> None:
    """The record in front may be that of a deleted Service."""
    for name in "abc":
        store.put_service(service(name))
    store.delete_service(key("a"))
    store.delete_service(key("b"))
    store.forget(store.generation)

    assert changed(store, 0) == ["c"]
    store.put_service(service("d"))
    assert changed(store, 3) == ["d"]
    store.delete_service(key("c"))
    store.delete_service(key("d"))
    store.forget(store.generation)
    assert changed(store, 0) == []
    assert store.rebuilds == 0


def test_forgetting_spares_what_has_come_back(store: Store) -> None:
    """A Service that was deleted and added again is not dropped."""
    store.put_service(service())
    store.delete_service(key())
    store.put_service(service())
    store.forget(store.generation)

    assert changed(store, 0) == ["web"]


def test_forgetting_some_of_many(store: Store) -> None:
    """Of twenty that were deleted, the ten that came back are spared, and the others are not."""
    names = [f"s{n:02d}" for n in range(20)]
    for name in names:
        store.put_service(service(name))
    for name in names:
        store.delete_service(key(name))
    for name in names[::2]:
        store.put_service(service(name))
    store.forget(store.generation)

    assert [record.key.name for record in store] == names[::2][::-1]


def test_forgetting_what_nobody_had_to_look_at(store: Store) -> None:
    """A slice that came and went without its Service is none of those that the walk counts."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1", service="never", name="s"))
    store.delete_slice(key("s"))
    store.forget(store.generation)

    assert store.get(key("never")) is None
    assert changed(store, 0) == ["web"]
    assert store.rebuilds == 0


def test_forgetting_spares_slices_without_a_service(store: Store) -> None:
    """Slices may come before their Service, and must still be there when it comes."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1"))
    store.delete_service(key())
    store.forget(store.generation)
    store.put_service(service())

    assert ips(store) == ["10.0.0.1"]


def test_slices_before_their_service_wait_in_silence(store: Store) -> None:
    """They wake nobody until the Service exists; then they are there."""
    assert store.put_slice(endpoint_slice("10.0.0.1")) == NONE
    assert changed(store, 0) == []
    assert store.put_service(service()) == FOUR
    assert changed(store, 0) == ["web"]
    assert ips(store) == ["10.0.0.1"]


def test_a_slice_of_a_family_that_the_service_lacks_wakes_nobody(store: Store) -> None:
    """An IPv6 slice of an IPv4 Service cannot change a rule."""
    store.put_service(service())

    assert store.put_slice(endpoint_slice("fd00::1", family="IPv6")) == NONE


def test_a_slice_that_moves_leaves_its_old_service(store: Store) -> None:
    """A changed label takes the endpoints along, and both Services have changed."""
    store.put_service(service("old"))
    store.put_service(service("new", "10.96.0.2"))
    store.put_slice(endpoint_slice("10.0.0.1", service="old", name="s"))
    since = store.generation

    assert store.put_slice(endpoint_slice("10.0.0.1", service="new", name="s")) == FOUR
    assert sorted(changed(store, since)) == ["new", "old"]
    assert ips(store, "old") == []
    assert ips(store, "new") == ["10.0.0.1"]


def test_a_slice_that_moves_to_nobody_leaves_its_old_service(store: Store) -> None:
    """That is a change, though the Service that it names does not exist."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1", name="s"))

    assert store.put_slice(endpoint_slice("10.0.0.1", service="never", name="s")) == FOUR
    assert ips(store) == []


def test_addresses_that_the_configuration_does_not_allow() -> None:
    """They are in no record."""
    store = Store(NODE, AddressPolicy(external=()))
    store.put_service(service(externalIPs=["198.51.100.1"]))
    record = store.get(key())

    assert record is not None
    assert [port.external_ips for port in record.service_ports(V4)] == [()]


@pytest.mark.parametrize("labels", [{}, {"kubernetes.io/service-name": ""}])
def test_a_slice_that_loses_its_label_is_gone(store: Store, labels: dict[str, str]) -> None:
    """Without a Service's name its endpoints count for nobody (faults 34)."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1"))
    bare = {"namespace": "shop", "name": "web-1", "labels": labels}
    change = store.put_slice(endpoint_slice("10.0.0.1", metadata=bare))

    assert change.families == {V4}
    assert len(change.problems) == 1
    assert ips(store) == []


def test_a_slice_that_changes_its_family_is_gone_from_the_old_one(store: Store) -> None:
    """The API forbids that; the endpoints do not stay behind."""
    store.put_service(service(**DUAL))
    store.put_slice(endpoint_slice("10.0.0.1"))

    assert store.put_slice(endpoint_slice("fd00::1", family="IPv6")) == Change(frozenset({V4, V6}))
    assert (ips(store), ips(store, family=V6)) == ([], ["fd00::1"])
    assert store.put_slice(endpoint_slice(family="FQDN")) == Change(frozenset({V6}))


def test_deleting_a_slice(store: Store) -> None:
    """Its endpoints go; deleting it again, or an unknown one, is no change."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1", name="a"))
    store.put_slice(endpoint_slice("10.0.0.2", name="b"))

    assert store.delete_slice(key("a")) == FOUR
    assert ips(store) == ["10.0.0.2"]
    assert store.delete_slice(key("a")) == NONE
    assert store.delete_slice(key("never")) == NONE


def test_whose_a_slice_is(store: Store) -> None:
    """The Service that its label named last; nobody's once it is gone."""
    store.put_slice(endpoint_slice("10.0.0.1", service="old", name="s"))
    assert store.service_of(key("s")) == key("old")
    store.put_slice(endpoint_slice("10.0.0.1", service="new", name="s"))
    assert store.service_of(key("s")) == key("new")
    store.delete_slice(key("s"))
    assert store.service_of(key("s")) is None


def test_a_list_replaces_what_it_lacks(store: Store) -> None:
    """A relist without an object deletes it, whatever events were missed (faults 5)."""
    store.replace_services([service("a"), service("b", "10.96.0.2")])
    store.replace_slices(
        [endpoint_slice("10.0.0.1", service="a"), endpoint_slice("10.0.0.2", service="b")]
    )
    since = store.generation

    assert store.replace_services([service("a")]) == FOUR
    assert changed(store, since) == ["b"]
    since = store.generation
    assert store.replace_slices([endpoint_slice("10.0.0.2", service="b")]) == FOUR
    assert changed(store, since) == ["a"]
    assert store.replace_services([service("a")]) == NONE
    assert store.replace_services([]) == FOUR


def test_nothing_stays_of_a_list_that_says_what_is_known(store: Store) -> None:
    """What is held is what came first: a part of each of many lists would keep all their memory."""

    def held() -> list[object]:
        record = store.get(key("web"))
        assert record is not None
        return [store.service_of(key("web-1")), record.ports[V4], record.slices["web-1"]]

    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1"))
    before = held()
    store.replace_services([service()])
    store.replace_slices([endpoint_slice("10.0.0.1")])

    assert all(one is other for one, other in zip(held(), before, strict=True))


def test_a_list_hands_on_the_problems_of_all(store: Store) -> None:
    """In the order of the objects."""
    change = store.replace_services([service(n, externalIPs=[n]) for n in ("x", "y")])

    assert [(problem.key.name, problem.text) for problem in change.problems] == [
        ("x", "external IP 'x' is not an address"),
        ("y", "external IP 'y' is not an address"),
    ]


def test_a_list_is_as_good_as_single_events(store: Store) -> None:
    """A relist that says what is known changes nothing."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1"))
    before = store.generation

    assert store.replace_services([service()]) == NONE
    assert store.replace_slices([endpoint_slice("10.0.0.1")]) == NONE
    assert store.generation == before


@pytest.mark.parametrize("spec", [{"type": "ExternalName"}, {"ip": "None"}])
def test_a_service_that_goes_headless_and_comes_back(store: Store, spec: dict[str, Any]) -> None:
    """That is a deletion and an addition, for those who look at rules (faults 34)."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1"))

    assert store.put_service(service(**spec)) == FOUR
    assert store.put_service(service(**spec)) == NONE
    assert store.put_service(service()) == FOUR
    assert ips(store) == ["10.0.0.1"]


@pytest.mark.parametrize("moved", ["old to the front", "newest to the back", "middle"])
def test_a_broken_order_is_noticed_rebuilt_and_counted(store: Store, moved: str) -> None:
    """If the walk finds stamps out of order, everything is a change again, once."""
    for name in "abcd":
        store.put_service(service(name))
    since = store.generation
    if moved == "old to the front":  # as no method of the store does
        store._records.move_to_end(key("a"))
    elif moved == "newest to the back":
        store._records.move_to_end(key("d"), last=False)
    else:
        for name in "cbd":
            store._records.move_to_end(key(name))

    assert sorted(changed(store, 1)) == ["a", "b", "c", "d"]
    assert store.rebuilds == 1
    assert sorted(changed(store, since)) == ["a", "b", "c", "d"]
    assert changed(store, store.generation) == []
    assert store.rebuilds == 1
    store._records.move_to_end(store.snapshot(0).records[0].key, last=False)
    assert len(changed(store, 0)) == 4
    assert store.rebuilds == 2


def test_what_a_rebuilt_order_has(store: Store) -> None:
    """All Services, and those that are gone until everybody has seen it; but nobody who waits."""
    for name in "abc":
        store.put_service(service(name))
    store.delete_service(key("b"))
    store.put_slice(endpoint_slice("10.0.0.1", service="never"))
    since = store.generation
    store._records.move_to_end(key("a"))

    for _ in range(2):
        assert sorted(changed(store, 0)) == ["a", "b", "c"]
        assert sorted(changed(store, since)) == ["a", "b", "c"]
    assert store.rebuilds == 1


def test_a_broken_mark_is_mended_without_any_record(store: Store) -> None:
    """Once: there is nothing to stamp anew, and the next walk is in order."""
    store._newest = 7
    for _ in range(2):
        assert changed(store, 0) == []
        assert store.rebuilds == 1


def test_a_record_that_the_walk_misses_is_noticed(store: Store) -> None:
    """A walk over everything counts what it meets."""
    for name in "abc":
        store.put_service(service(name))
    store._records.move_to_end(key("c"), last=False)
    stamp(store, "c", 0)

    assert sorted(changed(store, 0)) == ["a", "b", "c"]
    assert store.rebuilds == 1


def test_a_record_before_which_the_walk_ends_is_noticed(store: Store) -> None:
    """All stamps fall, and yet it has not met every record that has one."""
    for name in "abc":
        store.put_service(service(name))
    stamp(store, "b", 0)

    assert sorted(changed(store, 0)) == ["a", "b", "c"]
    assert store.rebuilds == 1


def test_two_records_with_one_stamp_are_noticed(store: Store) -> None:
    """Stamps fall strictly, also where the walk does not look at everything."""
    for name in "abc":
        store.put_service(service(name))
    stamp(store, "b", 3)

    assert sorted(changed(store, 1)) == ["a", "b", "c"]
    assert store.rebuilds == 1


# Against a model ----------------------------------------------------------------------------

NAMES = ("a", "b", "c")
SERVICES = st.builds(
    lambda name, ip, spec: service(name, ip, **spec),
    st.sampled_from(NAMES),
    st.sampled_from(["10.96.0.1", "10.96.0.2", "None"]),
    st.sampled_from([{}, DUAL, {"type": "ExternalName"}]),
)
SLICES = st.builds(
    lambda name, owner, family, last: endpoint_slice(
        *(endpoint(f"10.0.0.{i}" if family == "IPv4" else f"fd00::{i}") for i in last),
        name=name,
        service=owner,
        family=family,
    ),
    st.sampled_from(["s", "t", "u"]),
    st.sampled_from([*NAMES, ""]),
    st.sampled_from(["IPv4", "IPv6", "FQDN"]),
    st.lists(st.integers(1, 6), max_size=4),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("put_service"), SERVICES),
    st.tuples(st.just("delete_service"), st.sampled_from(NAMES)),
    st.tuples(st.just("replace_services"), st.lists(SERVICES, max_size=3)),
    st.tuples(st.just("put_slice"), SLICES),
    st.tuples(st.just("delete_slice"), st.sampled_from(["s", "t", "u"])),
    st.tuples(st.just("replace_slices"), st.lists(SLICES, max_size=3)),
    st.tuples(st.just("look"), st.none()),
)

View = dict[tuple[Key, Family], tuple[tuple[ServicePort, ...], dict[Any, tuple[Endpoint, ...]]]]


class Model:
    """What a store should know, kept in the simplest way."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.slices: dict[str, EndpointSlice] = {}

    def apply(self, operation: str, what: Any) -> None:
        match operation:
            case "put_service":
                self.services[what.metadata.name] = what
            case "delete_service":
                self.services.pop(what, None)
            case "replace_services":
                self.services = {one.metadata.name: one for one in what}
            case "put_slice":
                self.slices[what.metadata.name] = what
            case "delete_slice":
                self.slices.pop(what, None)
            case "replace_slices":
                self.slices = {one.metadata.name: one for one in what}

    def view(self) -> View:
        fresh = Store(NODE)
        fresh.replace_slices(list(self.slices.values()))
        fresh.replace_services(list(self.services.values()))
        return view_of(fresh, {record.key for record in fresh})


def view_of(store: Store, keys: set[Key]) -> View:
    """What rules can see of some Services; those without ports do not exist."""
    found: View = {}
    for one in keys:
        record = store.get(one)
        for family in Family:
            ports = record.service_ports(family) if record else ()
            if record and ports:
                found[one, family] = ports, record.endpoints(family)
    return found


@given(st.lists(OPERATIONS, max_size=25), st.sampled_from([0, 64]), st.integers(0, 4))
def test_a_reader_of_changes_knows_what_a_fresh_store_knows(
    operations: list[tuple[str, Any]], many: int, most_changes: int
) -> None:
    """Whatever happens, and whenever a reader looks, what changed since its last look and what it
    knew before make up the same as a store that was filled at once. With many endpoints that is
    made by exchanging those that changed."""
    with (
        mock.patch.object(stores, "_MANY", many),
        mock.patch.object(merging, "_MOST_CHANGES", most_changes),
    ):
        check_a_reader(operations)


def check_a_reader(operations: list[tuple[str, Any]]) -> None:
    store, model = Store(NODE), Model()
    mark, seen = 0, View()
    for operation, what in [*operations, ("look", None)]:
        if operation == "look":
            snapshot = store.snapshot(mark)
            keys = {record.key for record in snapshot.records}
            seen = {at: known for at, known in seen.items() if at[0] not in keys}
            seen |= view_of(store, keys)
            mark = snapshot.generation
            store.forget(mark)

            assert seen == model.view()
        else:
            argument = key(what) if operation.startswith("delete") else what
            before = store.generation
            change = getattr(store, operation)(argument)
            model.apply(operation, what)

            assert bool(change.families) == (store.generation > before)
    assert store.rebuilds == 0


def test_endpoints_that_are_as_they_were_are_taken_again(store: Store) -> None:
    """Of a slice, whatever else in it changed; they are not compared field by field ever after."""
    store.put_service(service())
    hints = {"forZones": [{"name": "z"}]}
    kept = endpoint("10.0.0.1", node=NODE), endpoint("10.0.0.2", hints=hints)
    store.put_slice(endpoint_slice(*kept, "10.0.0.3"))
    record = store.get(key())
    assert record is not None
    before = record.slices["web-1"].endpoints
    store.put_slice(endpoint_slice(*kept, endpoint("10.0.0.3", ready=False), "10.0.0.4"))
    after = record.slices["web-1"].endpoints

    assert [e.ip for e in after] == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    assert [one is other for one, other in zip(before, after, strict=False)] == [True, True, False]
    assert not after[2].ready


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"serving": False},
        {"terminating": True},
        {"node": NODE},
        {"hints": {"forZones": [{"name": "z"}]}},
        {"hints": {"forNodes": [{"name": "n"}]}},
    ],
)
def test_whatever_changes_of_an_endpoint_is_seen(store: Store, change: dict[str, Any]) -> None:
    """Each field, there and back."""
    store.put_service(service())
    plain, other = endpoint_slice("10.0.0.1"), endpoint_slice(endpoint("10.0.0.1", **change))
    for one in (plain, other, plain):
        assert store.put_slice(one) == FOUR
        fresh = Store(NODE)
        fresh.put_slice(one)
        assert store.get(key()).slices == fresh.get(key()).slices  # type: ignore[union-attr]


def test_another_port_is_another_endpoint(store: Store) -> None:
    """Though it has the same address."""
    store.put_service(service())
    store.put_slice(endpoint_slice("10.0.0.1"))
    moved = endpoint_slice("10.0.0.1", ports=[{"name": "http", "port": 8081}])

    assert store.put_slice(moved) == FOUR
    record = store.get(key())
    assert record is not None
    assert [e.port for e in record.endpoints(V4)["http", "tcp"]] == [8081]


def test_a_change_of_many_endpoints_keeps_the_others(store: Store) -> None:
    """Those of other slices, and of the same; none is merged anew."""
    store.put_service(service())
    some = [f"10.0.1.{number}" for number in range(1, 101)]
    store.put_slice(endpoint_slice(*some))
    store.put_slice(endpoint_slice("10.0.2.1", "10.0.2.2", name="web-2"))
    record = store.get(key())
    assert record is not None
    before = record.endpoints(V4)["http", "tcp"]
    with mock.patch.object(stores, "merge", side_effect=AssertionError):
        store.put_slice(endpoint_slice(*some[1:50], "10.0.0.7", *some[50:]))
        after = record.endpoints(V4)["http", "tcp"]

    ips = ["10.0.0.7", *some[1:], "10.0.2.1", "10.0.2.2"]
    assert [e.address for e in after] == sorted(f"{ip}:8080" for ip in ips)
    assert len(set(map(id, before)) - set(map(id, after))) == 1


def test_a_port_of_many_endpoints_gets_another_number(store: Store) -> None:
    """The endpoints of the other port are as they were."""
    many = [f"10.0.1.{number}" for number in range(1, 101)]
    for number in (8081, 8082):
        ports = [{"name": "http", "port": 8080}, {"name": "alt", "port": number}]
        store.put_slice(endpoint_slice(*many, ports=ports))
        record = store.get(key())
        assert record is not None
        assert {e.port for e in record.endpoints(V4)["http", "tcp"]} == {8080}
        assert {e.port for e in record.endpoints(V4)["alt", "tcp"]} == {number}


def test_many_endpoints_are_kept_merged_until_they_change(store: Store) -> None:
    """They are counted and compiled from one merging; a slice or a port makes it anew."""
    store.put_service(service())
    many = [f"10.0.1.{number}" for number in range(1, 101)]
    store.put_slice(endpoint_slice(*many))
    record = store.get(key())
    assert record is not None
    port = ("http", "tcp")
    first = record.endpoints(V4)[port]

    assert record.endpoint_counts(V4) == {port: 100}
    assert record.endpoints(V4)[port] is first
    store.put_slice(endpoint_slice("10.0.1.1", "10.0.2.1", name="web-2"))
    assert record.endpoint_counts(V4) == {port: 101}
    assert {e.ip for e in record.endpoints(V4)[port]} - set(many) == {"10.0.2.1"}
    store.delete_slice(key("web-2"))
    assert record.endpoints(V4)[port] == first
