from __future__ import annotations

from typing import Any

import pytest

from agent.state.healthports import HealthPorts
from agent.state.store import Store
from agent.state.values import Family
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, key, service

LOCAL: dict[str, Any] = {
    "type": "LoadBalancer",
    "externalTrafficPolicy": "Local",
    "healthCheckNodePort": 30999,
}


class World:
    """A cluster and its health check node ports."""

    def __init__(self) -> None:
        self.store = Store(NODE)
        self.ports = HealthPorts(Family.V4)
        self.seen = 0

    def look(self) -> World:
        snapshot = self.store.snapshot(self.seen)
        self.seen = snapshot.generation
        self.ports.update(snapshot.records)
        return self


@pytest.fixture
def world() -> World:
    found = World()
    found.store.put_service(service(**LOCAL))
    found.store.put_slice(endpoint_slice(endpoint("10.0.0.1", node=NODE)))
    return found.look()


def test_a_port_and_the_endpoints_behind_it(world: World) -> None:
    """The port of the Service, and this node's ready endpoints."""
    assert world.ports.ports == {key(): 30999}
    assert world.ports.ready == {key(): 1}


@pytest.mark.parametrize(
    ("endpoints", "count"),
    [
        ([], 0),
        ([endpoint("10.0.0.1", node="node-b")], 0),
        ([endpoint("10.0.0.1", node=NODE, ready=False, terminating=True)], 0),
        ([endpoint("10.0.0.1", node=NODE), endpoint("10.0.0.2", node=NODE), "10.0.0.3"], 2),
        ([endpoint("10.0.0.1", node=NODE, ready=True, serving=False)], 1),
    ],
)
def test_only_local_ready_endpoints_count(world: World, endpoints: list[Any], count: int) -> None:
    """Not those elsewhere, nor those that terminate; zero keeps the port open (faults 22, 23)."""
    world.store.put_slice(endpoint_slice(*endpoints))
    world.look()

    assert world.ports.ports == {key(): 30999}
    assert world.ports.ready == {key(): count}


def test_an_address_with_several_ports_counts_once(world: World) -> None:
    """The balancer asks how many pods there are."""
    ports = [{"name": "http", "port": 80}, {"name": "alt", "port": 81}]
    world.store.put_service(service(**LOCAL | {"ports": ports}))
    world.store.put_slice(endpoint_slice(endpoint("10.0.0.1", node=NODE), ports=ports))
    world.look()

    assert world.ports.ready == {key(): 1}


@pytest.mark.parametrize("change", ["deleted", "policy", "type", "no port"])
def test_a_port_closes(world: World, change: str) -> None:
    """When the Service goes, or needs it no longer (faults 23)."""
    other: dict[str, dict[str, Any]] = {
        "policy": {"externalTrafficPolicy": "Cluster"},
        "type": {"type": "NodePort"},
        "no port": {"healthCheckNodePort": 0},
    }
    if change == "deleted":
        world.store.delete_service(key())
    else:
        world.store.put_service(service(**LOCAL | other[change]))
    world.look()

    assert (world.ports.ports, world.ports.ready) == ({}, {})


def test_a_port_changes(world: World) -> None:
    """The old one is not kept."""
    world.store.put_service(service(**LOCAL | {"healthCheckNodePort": 31000}))
    world.look()

    assert world.ports.ports == {key(): 31000}


def test_changes_are_told_once(world: World) -> None:
    """At first, and whenever a port or a count is different; not for anything else."""
    assert HealthPorts(Family.V4).take_changed()
    assert world.ports.take_changed()
    assert not world.ports.take_changed()
    world.store.put_service(service("plain", "10.96.0.2"))
    world.look()
    assert not world.ports.take_changed()
    world.store.put_slice(endpoint_slice(endpoint("10.0.0.2", node=NODE)))
    world.look()
    assert not world.ports.take_changed()
    world.store.put_slice(endpoint_slice())
    world.look()
    assert world.ports.take_changed()
    world.store.put_service(service("plain", "10.96.0.3"))
    world.store.put_slice(endpoint_slice(endpoint("10.0.0.1", node=NODE)))
    world.look()
    assert world.ports.take_changed()
