"""One Service may cost a node so much and no more, and costs the others nothing."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from msgspec.structs import replace

import agent.state.store
from agent.rules.ruleset import RuleSet
from agent.state import limits
from agent.state.endpoints import slice_state
from agent.state.limits import MOST_ENDPOINTS, MOST_PORTS, bounded
from agent.state.store import Store
from agent.state.values import Family, NodeView
from tests.fakes.cluster import NODE, endpoint_slice, key, service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.state.endpoints import SliceState

POD = int(ipaddress.IPv4Address("10.128.0.0"))
CROWDED = "its Service has more than 10000 endpoints, times ports; some are unused"


def ports(count: int) -> list[dict[str, Any]]:
    return [{"name": f"p{number}", "port": number + 1} for number in range(count)]


def endpoints(first: int, count: int, **fields: Any) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"addresses": [str(ipaddress.IPv4Address(POD + n))], **fields} for n in numbers]


def store(services: int = 1, count: int = 0, node: str = NODE, **fields: Any) -> Store:
    """A Service with so many ports and endpoints, in slices of a thousand, beside a good one."""
    found = Store(node)
    found.put_service(service("big", "10.96.0.2", ports=ports(services)))
    for start in range(0, count, 1000):
        some = endpoints(start, min(1000, count - start), **fields)
        name = f"big-{start}"
        found.put_slice(endpoint_slice(*some, service="big", name=name, ports=ports(services)))
    found.put_service(service())
    found.put_slice(endpoint_slice("10.0.0.1"))
    return found


def slice_of(name: str, *entries: Any) -> SliceState:
    """What the state keeps of a slice of big."""
    state, _ = slice_state(endpoint_slice(*entries, service="big", name=name), NODE)
    assert state is not None
    return state


@contextlib.contextmanager
def few(most: int) -> Iterator[None]:
    """With no more than so many endpoints for one Service."""
    with (
        mock.patch.object(limits, "MOST_ENDPOINTS", most),
        mock.patch.object(agent.state.store, "MOST_ENDPOINTS", most),
    ):
        yield


def used(found: Store) -> dict[tuple[str, str], list[str]]:
    record = found.get(key("big"))
    assert record is not None
    return {port: [one.ip for one in ends] for port, ends in record.endpoints(Family.V4).items()}


def test_as_many_endpoints_as_there_may_be_are_all_used() -> None:
    """Ten thousand, and no problem."""
    found = store(1, MOST_ENDPOINTS)

    assert len(used(found)["p0", "tcp"]) == MOST_ENDPOINTS
    assert found.put_slice(endpoint_slice(service="big", name="none")).problems == ()


def test_more_endpoints_are_named_and_only_a_part_is_used() -> None:
    """By the Service, and by each slice that comes; until there are less."""
    found = store(1, MOST_ENDPOINTS)
    one = endpoint_slice(*endpoints(20_000, 1), service="big", name="more", ports=ports(1))
    change = found.put_slice(one)
    again = found.put_service(service("big", "10.96.0.2", ports=ports(1)))

    assert [problem.text for problem in change.problems] == [CROWDED]
    assert [(p.key, p.text) for p in again.problems] == [(key("big"), CROWDED)]
    assert len(used(found)["p0", "tcp"]) == MOST_ENDPOINTS
    found.delete_slice(key("big-0"))
    assert found.put_slice(one).problems == ()
    assert len(used(found)["p0", "tcp"]) == 9_001


def test_slices_that_go_are_counted_no_longer() -> None:
    """Each by what it had: 1 + 4 are too many, so are 4 + 1 when the first one is gone."""
    one, four = endpoints(0, 1), endpoints(0, 4)

    def problems(name: str, *entries: Any) -> int:
        slice_ = endpoint_slice(*entries, service="big", name=name, ports=ports(1))
        return len(found.put_slice(slice_).problems)

    with few(4):
        found = store()
        assert (problems("a", *one), problems("b", *four)) == (0, 1)
        found.delete_slice(key("a"))
        assert (problems("b", *four, "10.0.0.1"), problems("b", *four)) == (1, 0)
        assert problems("c", *one) == 1


def test_a_slice_that_grows_beyond_the_limit() -> None:
    """Only a part is used then, though all was before and is kept."""
    with few(100):
        found = store(1, 100)
        assert len(used(found)["p0", "tcp"]) == 100
        more = endpoint_slice(*endpoints(0, 101), service="big", name="big-0", ports=ports(1))
        found.put_slice(more)
        assert len(used(found)["p0", "tcp"]) == 100


def test_a_slice_is_told_what_is_wrong_with_it_and_that_there_are_too_many() -> None:
    """Both, by its own name."""
    with few(1):
        found = store()
        change = found.put_slice(
            endpoint_slice(*endpoints(0, 2), "x", service="big", name="s", ports=ports(1))
        )

    assert [(problem.key, problem.text) for problem in change.problems] == [
        (key("s"), "endpoint address 'x' is not an IPv4 address"),
        (key("s"), "its Service has more than 1 endpoints, times ports; some are unused"),
    ]


def test_too_many_in_one_family_are_no_problem_of_the_other() -> None:
    """Its slices are not told, and the Service is."""
    dual = service("big", ports=ports(1), ipFamilies=["IPv4", "IPv6"],
                   clusterIPs=["10.96.0.2", "fd00::a"])  # fmt: skip
    six = ["fd00::1", "fd00::2"]
    with few(1):
        found = Store(NODE)
        found.put_service(dual)
        found.put_slice(endpoint_slice(*six, service="big", name="6", family="IPv6"))
        change = found.put_slice(endpoint_slice("10.0.0.1", service="big", name="4"))

        assert change.problems == ()
        assert len(found.put_service(dual).problems) == 1


def test_an_endpoint_of_two_slices_ranks_as_the_better_one() -> None:
    """It has its place, whichever comes first, where two of three others have none."""
    good = slice_of("a", *endpoints(0, 1, nodeName=NODE), *endpoints(1, 3))
    bad = slice_of("b", *endpoints(0, 1, conditions={"ready": False}))
    with few(3):
        for slices in ([good, bad], [bad, good]):
            found = bounded(slices, Family.V4, {("http", "tcp")}, NODE)
            ips = {one.ip for state in found for one in state.endpoints}
            assert "10.128.0.0" in ips
            assert len(ips) == 2


def test_each_port_uses_the_same_part() -> None:
    """Of 20 ports with 1,000 endpoints, each gets 500, and those of others are not counted."""
    found = store(20, 1000)
    found.put_slice(
        endpoint_slice(*endpoints(0, 1000), service="big", name="odd", ports=[
            {"name": f"x{number}", "port": number + 1} for number in range(3000)
        ])
    )  # fmt: skip
    ends = used(found)

    assert ends.keys() == {(f"p{number}", "tcp") for number in range(20)}
    assert {len(ips) for ips in ends.values()} == {500}
    assert len({tuple(ips) for ips in ends.values()}) == 1


def test_what_is_on_this_node_comes_first_then_what_is_ready() -> None:
    """Policy Local must not lose its endpoints to those of other nodes."""
    found = store(1, 15_000)
    here = endpoints(50_000, 50, nodeName=NODE)
    idle = endpoints(60_000, 500, conditions={"ready": False})
    for name, some in (("here", here), ("idle", idle)):
        found.put_slice(endpoint_slice(*some, service="big", name=name, ports=ports(1)))
    ips = set(used(found)["p0", "tcp"])

    assert {one["addresses"][0] for one in here} <= ips
    assert not {one["addresses"][0] for one in idle} & ips


def test_each_node_uses_another_part_and_keeps_it() -> None:
    """So all endpoints get traffic; one that goes costs its own place only."""
    mine, other = store(1, 20_000), store(1, 20_000, node="node-b")
    first, second = set(used(mine)["p0", "tcp"]), set(used(other)["p0", "tcp"])
    found = mine.get(key("big"))
    assert found is not None
    some = [one for one in endpoints(0, 1000) if one["addresses"][0] != min(first)]
    mine.put_slice(endpoint_slice(*some, service="big", name="big-0", ports=ports(1)))
    after = set(used(mine)["p0", "tcp"])

    assert 4_500 < len(first & second) < 5_500  # half, if the choices have nothing in common
    assert len(first - after) <= 1
    assert len(after - first) <= 1


def test_which_part_a_node_uses() -> None:
    """Another than the next node, whatever the order; one that goes costs its own place only."""
    some = [endpoint_slice(*endpoints(n * 20, 20), service="big", name=f"s{n}") for n in range(4)]
    slices = [state for state in (slice_state(one, NODE)[0] for one in some) if state]

    def part(slices: list[SliceState], node: str) -> set[str]:
        found = bounded(slices, Family.V4, {("http", "tcp")}, node)
        return {one.ip for state in found for one in state.endpoints}

    with mock.patch.object(limits, "MOST_ENDPOINTS", 40):
        mine, other = part(slices, NODE), part(slices, "node-b")
        fewer = [replace(slices[0], endpoints=slices[0].endpoints[10:]), *slices[1:]]
        gone = {one.ip for one in slices[0].endpoints[:10]}

        assert len(mine) == len(other) == 40
        assert 10 < len(mine & other) < 30
        assert part(slices[::-1], NODE) == mine
        assert mine - part(fewer, NODE) == mine & gone
        assert len(part(fewer, NODE)) == 40


def test_more_ports_are_named_and_the_first_ones_work() -> None:
    """A thousand, in the object's order."""
    found = Store(NODE)
    change = found.put_service(service("big", "10.96.0.2", ports=ports(10_000)))
    record = found.get(key("big"))
    assert record is not None

    assert [p.text for p in change.problems] == ["it has 10000 ports, of which 1000 are used"]
    numbers = [port.port for port in record.service_ports(Family.V4)]
    assert numbers == list(range(1, MOST_PORTS + 1))


def test_addresses_and_ranges_are_bounded_with_the_ports() -> None:
    """Ten of each for a thousand ports; a range that is left out lets nobody in."""
    many = [f"198.51.{n // 250}.{n % 250}" for n in range(1000)]
    found = service(
        "big", "10.96.0.2", ports=ports(1000), type="LoadBalancer", ingress=many,
        externalIPs=many, loadBalancerSourceRanges=[f"{ip}/32" for ip in many],
    )  # fmt: skip
    holder = Store(NODE)
    change = holder.put_service(found)
    record = holder.get(key("big"))
    assert record is not None
    port = record.service_ports(Family.V4)[0]

    assert port.external_ips == port.load_balancer_ips == tuple(many[:10])
    assert port.source_ranges == tuple(f"{ip}/32" for ip in many[:10])
    assert [problem.text for problem in change.problems] == [
        f"it has 1000 {what}, of which 10 are used"
        for what in ("external IPs", "load balancer IPs", "source ranges")
    ]


@pytest.mark.parametrize(("services", "count"), [(1, 30_000), (10_000, 1), (1000, 2000)])
def test_a_giant_has_a_bounded_number_of_rules(services: int, count: int) -> None:
    """Whatever its shape; and the Service beside it has the rules that it has alone."""
    small, giant = Store(NODE), store(services, count)
    small.put_service(service())
    small.put_slice(endpoint_slice("10.0.0.1"))
    tables = []
    for found in (small, giant):
        rules = RuleSet(NodeView(Family.V4, NODE))
        rules.comments = False  # as in a large cluster
        rules.update(found.snapshot(0).records, found)
        tables.append(rules.tables()["nat"])
    alone, beside = tables

    # Each endpoint has a chain of two rules and one in its port's; each port has two.
    assert sum(map(len, beside.values())) < 3 * MOST_ENDPOINTS + 2 * MOST_PORTS + 20
    web = {chain for chain in alone if chain.startswith(("KUBE-SVC-", "KUBE-SEP-"))}
    assert len(web) == 2
    assert web <= beside.keys()
    portals = [rule for rule in beside["KUBE-SERVICES"] if "shop/web:" in rule]
    assert portals == [rule for rule in alone["KUBE-SERVICES"] if "shop/web:" in rule]
