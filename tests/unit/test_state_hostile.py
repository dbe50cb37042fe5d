"""Objects as no honest client writes them: whatever is in them, others are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cluster.objects import (
    EndpointSlice,
    Kind,
    Node,
    Service,
    UnusableObjectError,
    convert,
)
from agent.cluster.objects import decode as decode_bytes
from agent.rules.ruleset import RuleSet
from agent.state.healthports import HealthPorts
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_info, node_view
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from tests.fakes.cluster import NODE, endpoint_slice, key, service
from tests.fakes.hostile import EVIL, NODES, SERVICES, SLICES
from tests.fakes.kernel import FakeKernel
from tests.fakes.walk import Packet, fate

if TYPE_CHECKING:
    from agent.cluster.objects import Object


def decode(kind: Kind, raw: Any) -> Object | None:
    """The object, or None for one that the source would reject by name."""
    try:
        return convert(kind, raw)
    except UnusableObjectError:
        return None


def good_one() -> tuple[Service, EndpointSlice]:
    return service("good", "10.96.0.1"), endpoint_slice("10.0.0.1", service="good")


@settings(max_examples=80)
@given(SERVICES, st.lists(SLICES, max_size=2), st.sampled_from(list(Family)))
def test_no_object_costs_another_one(
    evil: dict[str, Any], slices: list[dict[str, Any]], family: Family
) -> None:
    """Whatever stands in a Service and its slices, the kernel takes the rules at the first attempt,
    and the Service beside it is found and has its endpoint."""
    store, kernel = Store(NODE), FakeKernel(family)
    good, its_slice = good_one()
    store.put_service(good)
    store.put_slice(its_slice)
    found = decode(Kind.SERVICE, evil)
    if isinstance(found, Service):
        store.put_service(found)
    for one in slices:
        found = decode(Kind.SLICE, one)
        if isinstance(found, EndpointSlice):
            store.put_slice(found)
    syncer = Syncer(RuleSet(NodeView(family, NODE)), kernel, SyncSettings(None), lambda: 0.0)
    outcome = syncer.sync(store)
    HealthPorts(family).update(store.snapshot(0).records)

    assert outcome.set_aside == {}
    assert outcome.transactions == 1
    if family is Family.V4:
        assert fate(kernel, Packet("10.96.0.1", 80)).keys() & {"to 10.0.0.1:8080"} or taken(store)


def taken(store: Store) -> bool:
    """Whether the other Service claims the good one's address, or its endpoint's.

    One without endpoints is refused at whatever address it has, kube-proxy's rules say so too.
    """
    record = store.get(key("evil"))
    ports = record.service_ports(Family.V4) if record else ()
    return any(
        {"10.96.0.1", "10.0.0.1"} & {port.cluster_ip, *port.external_ips, *port.load_balancer_ips}
        for port in ports
    )


@settings(max_examples=60)
@given(NODES, st.sampled_from(list(Family)), st.lists(EVIL, max_size=3))
def test_no_node_object_breaks_the_standing_rules(
    raw: dict[str, Any], family: Family, addresses: list[str]
) -> None:
    """Whatever the Node says, and whatever addresses interfaces have, the kernel takes it all."""
    found = decode(Kind.NODE, raw)
    info = node_info(found) if isinstance(found, Node) else NodeInfo()
    node = node_view(
        family,
        NodeSettings(NODE, detect_mode="NodeCIDR", node_port_addresses=tuple(addresses)),
        info,
        KernelFacts(addresses=tuple(f"{text}/24" for text in addresses)),
    )
    store, kernel = Store(NODE), FakeKernel(family)
    good, its_slice = good_one()
    store.put_service(good)
    store.put_slice(its_slice)

    assert Syncer(RuleSet(node), kernel, SyncSettings(None), lambda: 0.0).sync(store).full


@pytest.mark.parametrize("digits", [20, 400, 4000])
def test_huge_numbers_are_named_in_few_words(digits: int) -> None:
    """A port of thousands of digits costs itself, and does not fill the log."""
    change = Store(NODE).put_service(decoded_service("9" * digits))

    assert change.families == {Family.V4}
    assert len(change.problems) == 1
    assert len(change.problems[0].text) < 200


def test_numbers_without_an_end_cost_their_object() -> None:
    """Python refuses to read them; the object is named."""
    with pytest.raises(UnusableObjectError, match="Service shop/evil cannot be used"):
        decoded_service("9" * 5000)


def decoded_service(port: str) -> Service:
    raw = service("evil", ports=[{"name": "a", "port": 7777777}, {"name": "b", "port": 1}])
    text = msgspec.json.encode(raw).replace(b"7777777", port.encode())
    found = decode_bytes(Kind.SERVICE, text)
    assert isinstance(found, Service)
    return found


def test_a_thousand_problems_are_named_in_few_lines() -> None:
    """Each object gets ten lines at most, and one that says how many more there were."""
    addresses = [{"addresses": [f"pod-{number}"]} for number in range(1000)]
    change = Store(NODE).put_slice(endpoint_slice(*addresses))

    assert len(change.problems) == 11
    assert change.problems[0].text == "endpoint address 'pod-0' is not an IPv4 address"
    assert change.problems[-1].text == "and 990 more"
