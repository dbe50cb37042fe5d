from __future__ import annotations

from typing import Any

import pytest

from agent.state.flows import UdpFlow, UdpServices
from agent.state.store import Store
from agent.state.values import Family
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, key, service

DNS: dict[str, Any] = {"name": "dns", "protocol": "UDP", "port": 53}
OFFERED = [{"name": "dns", "protocol": "UDP", "port": 5353}]
NODE_IP = "192.0.2.2"


class World:
    """A cluster, and what is known of its UDP flows."""

    def __init__(self, family: Family = Family.V4) -> None:
        self.store = Store(NODE)
        self.flows = UdpServices(family)
        self.seen = 0

    def put(self, *endpoints: Any, name: str = "web", ip: str = "10.96.0.1", **spec: Any) -> World:
        self.store.put_service(service(name, ip, **({"ports": [DNS]} | spec)))
        self.store.put_slice(endpoint_slice(*endpoints, service=name, ports=OFFERED))
        return self.look()

    def look(self) -> World:
        snapshot = self.store.snapshot(self.seen)
        self.seen = snapshot.generation
        self.flows.update(snapshot.records)
        return self

    def stale(self, to: str, port: int, by: str, by_port: int = 5353) -> bool:
        return self.flows.table([NODE_IP]).is_stale(UdpFlow((to, port), (by, by_port)))


def test_a_flow_to_a_present_endpoint_is_right() -> None:
    """Also when there are others, and when it is the only one."""
    world = World().put("10.0.0.1", "10.0.0.2")

    assert not world.stale("10.96.0.1", 53, "10.0.0.1")
    assert not world.stale("10.96.0.1", 53, "10.0.0.2")


def test_a_flow_to_an_endpoint_that_is_gone_is_stale() -> None:
    """From two endpoints to one, and to other ones (faults 36)."""
    world = World().put("10.0.0.1", "10.0.0.2")
    world.put("10.0.0.2")

    assert world.stale("10.96.0.1", 53, "10.0.0.1")
    assert not world.stale("10.96.0.1", 53, "10.0.0.2")
    world.put("10.0.0.3")
    assert world.stale("10.96.0.1", 53, "10.0.0.2")


def test_without_endpoints_every_flow_is_stale() -> None:
    """An empty set means all, not none (faults 36)."""
    world = World().put("10.0.0.1")
    world.put()

    assert world.stale("10.96.0.1", 53, "10.0.0.1")
    assert world.stale("10.96.0.1", 53, "10.96.0.1", 53)


def test_a_port_that_no_slice_offers_has_no_endpoints() -> None:
    """Nor has a Service without slices."""
    world = World()
    world.store.put_service(service(ports=[DNS]))
    assert world.look().stale("10.96.0.1", 53, "10.0.0.1")
    world.store.put_slice(endpoint_slice("10.0.0.1", ports=[{"name": "other", "port": 5353}]))
    assert world.look().stale("10.96.0.1", 53, "10.0.0.1")


def test_an_untranslated_flow_is_stale_once_there_is_an_endpoint() -> None:
    """The answer comes from the Service's own address then (faults 36)."""
    world = World().put("10.0.0.1")

    assert world.stale("10.96.0.1", 53, "10.96.0.1", 53)


def test_a_changed_port_of_an_endpoint_makes_flows_stale() -> None:
    """The address alone is not enough (faults 37)."""
    world = World().put("10.0.0.1")

    assert world.stale("10.96.0.1", 53, "10.0.0.1", 5354)


def test_all_addresses_of_a_service() -> None:
    """Cluster, external and load-balancer addresses are looked at alike (faults 37)."""
    world = World().put(
        "10.0.0.1", type="LoadBalancer", externalIPs=["198.51.100.1"], ingress=["203.0.113.1"]
    )

    for address in ("10.96.0.1", "198.51.100.1", "203.0.113.1"):
        assert world.stale(address, 53, "10.0.0.9")
        assert not world.stale(address, 53, "10.0.0.1")


def test_a_node_port_is_only_on_the_nodes_addresses() -> None:
    """A Service whose port equals another's node port keeps its flows (faults 37)."""
    world = World().put("10.0.0.1", type="NodePort", ports=[DNS | {"nodePort": 30123}])
    world.put("10.0.0.2", name="b", ip="10.96.0.2", ports=[DNS | {"port": 30123}])

    assert world.stale(NODE_IP, 30123, "10.0.0.9")
    assert not world.stale(NODE_IP, 30123, "10.0.0.1")
    assert not world.stale("192.0.2.3", 30123, "10.0.0.9")
    assert not world.stale("10.96.0.2", 30123, "10.0.0.2")


def test_what_is_no_services_is_left_alone() -> None:
    """Other addresses, and the flows of Services that are gone."""
    world = World().put("10.0.0.1")

    assert not world.stale("10.96.0.9", 53, "10.0.0.9")
    assert not world.stale(NODE_IP, 53, "10.0.0.9")
    world.store.delete_service(key())
    world.look()
    assert not world.stale("10.96.0.1", 53, "10.0.0.1")


@pytest.mark.parametrize("now", [{"port": 54}, {"protocol": "TCP"}])
def test_a_flow_to_a_port_that_the_service_has_no_longer(now: dict[str, Any]) -> None:
    """At the cluster IP it is stale, if it was translated (faults 37).

    Elsewhere it may be somebody else who translates, and an untranslated flow keeps nobody from
    anything.
    """
    spec: dict[str, Any] = {"type": "NodePort", "externalIPs": ["198.51.100.1"]}
    world = World().put("10.0.0.1", ports=[DNS | {"nodePort": 30123}], **spec)
    world.flows.take_changed()
    world.put("10.0.0.1", ports=[DNS | {"nodePort": 30124} | now], **spec)

    assert world.flows.take_changed()
    assert world.stale("10.96.0.1", 53, "10.0.0.1")
    assert not world.stale("10.96.0.1", 53, "10.96.0.1", 53)
    assert not world.stale("198.51.100.1", 53, "10.0.0.1")
    assert not world.stale(NODE_IP, 30123, "10.0.0.1")


def test_tcp_is_left_alone() -> None:
    """A TCP port of the same number has no flows here."""
    world = World().put("10.0.0.1", ports=[DNS | {"protocol": "TCP"}])
    table = world.flows.table([NODE_IP])

    assert (table.addresses, table.node_ports) == ({}, {})
    assert table  # a flow to its UDP port of old is stale
    assert not World().flows.table([NODE_IP])
    assert not world.stale("10.96.0.1", 53, "10.96.0.1", 53)


@pytest.mark.parametrize(
    ("conditions", "right"),
    [
        ({}, True),
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": False, "serving": True}, True),
        # publishNotReadyAddresses: rules send to it, so its flows must live.
        ({"ready": True, "serving": False}, True),
        ({"ready": False, "serving": False}, False),
        ({"ready": False, "serving": False, "terminating": True}, False),
    ],
)
def test_which_endpoints_may_keep_their_flows(conditions: dict[str, Any], *, right: bool) -> None:
    """Those that are ready or still serve; policies have no say, as for TCP connections."""
    world = World().put(endpoint("10.0.0.1", **conditions), internalTrafficPolicy="Local")

    assert world.stale("10.96.0.1", 53, "10.0.0.1") is not right


def test_changes_are_told_once() -> None:
    """At first there may be something to do, and after each change that touches UDP."""
    world = World()
    assert world.flows.take_changed()
    assert not world.flows.take_changed()
    world.put("10.0.0.1", ports=[DNS | {"protocol": "TCP"}])
    assert not world.flows.take_changed()
    world.put("10.0.0.1")
    assert world.flows.take_changed()
    world.store.delete_service(key())
    world.look()
    assert world.flows.take_changed()
    world.store.put_service(service("a", "10.96.0.2"))
    world.put("10.0.0.1", name="b")
    assert world.flows.take_changed()


def test_families_are_apart() -> None:
    """An IPv6 table knows IPv6 Services."""
    world = World(Family.V6)
    world.store.put_service(service("a", "fd00:10:96::1", ports=[DNS]))
    world.store.put_slice(endpoint_slice("fd00::1", service="a", ports=OFFERED, family="IPv6"))
    world.store.put_service(service("b", "10.96.0.1", ports=[DNS]))
    world.look()

    assert not world.stale("fd00:10:96::1", 53, "fd00::1")
    assert world.stale("fd00:10:96::1", 53, "fd00::2")
    assert not world.stale("10.96.0.1", 53, "10.0.0.9")


def test_two_services_with_one_address() -> None:
    """Both claim it; which one counts does not depend on the order in which they came."""
    found = []
    for order in (("a", "b"), ("b", "a")):
        world = World()
        for name in order:
            world.put(f"10.0.0.{1 if name == 'a' else 2}", name=name)
        found.append(world.flows.table([]).addresses)

    assert found[0] == found[1] == {("10.96.0.1", 53): frozenset({("10.0.0.1", 5353)})}
