"""Which endpoints a service port uses on this node, by its policies and by hints.

Sources: traffic policies and terminating endpoints KEP-1669, KEP-1672 and KEP-2086; hints
KEP-2433 (zones) and KEP-3015 (nodes).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from agent.state.values import Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.state.values import ServicePort


class Selection(msgspec.Struct, frozen=True, gc=False):
    """The outcome.

    Attributes:
        cluster: for traffic under policy Cluster, on any node.
        local: for traffic under policy Local, on this node.
        reachable: those that need a chain on this node: the union of both.
        usable: whether there is a usable endpoint on any node; without one, traffic is rejected,
            and without a local one it is dropped.
    """

    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()
    reachable: tuple[Endpoint, ...] = ()
    usable: bool = False


class Topology(enum.Enum):
    """How hints narrow the choice."""

    ANY = "any"
    SAME_NODE = "same node"
    SAME_ZONE = "same zone"


def select(
    port: ServicePort, endpoints: Sequence[Endpoint], node_name: str, zone: str
) -> Selection:
    """Choose among all endpoints of a service port, given in the order to keep."""
    if not endpoints:
        return Selection()
    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()
    usable = False
    if port.uses_cluster_endpoints:
        cluster = _cluster(endpoints, node_name, zone)
        usable = bool(cluster)
    if not port.uses_local_endpoints:
        return Selection(cluster, (), cluster, usable)
    local = _ready_or_draining([endpoint for endpoint in endpoints if endpoint.local])
    usable = bool(_ready_or_draining(endpoints))
    if not cluster:
        return Selection((), local, local, usable)
    chosen = set(map(id, cluster)) | set(map(id, local))
    reachable = tuple(endpoint for endpoint in endpoints if id(endpoint) in chosen)
    return Selection(cluster, local, reachable, usable)


def _ready_or_draining(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The ready ones; if there are none, those that still serve while they terminate."""
    chosen = [endpoint for endpoint in endpoints if endpoint.ready]
    if len(chosen) == len(endpoints):
        return tuple(endpoints)
    if not chosen:
        chosen = [endpoint for endpoint in endpoints if endpoint.serving and endpoint.terminating]
    return tuple(chosen)


def _cluster(endpoints: Sequence[Endpoint], node_name: str, zone: str) -> tuple[Endpoint, ...]:
    candidates = _ready_or_draining(endpoints)
    match topology(endpoints, node_name, zone):
        case Topology.SAME_NODE:
            return tuple(endpoint for endpoint in candidates if node_name in endpoint.nodes)
        case Topology.SAME_ZONE:
            return tuple(endpoint for endpoint in candidates if zone in endpoint.zones)
        case Topology.ANY:
            return candidates


def topology(endpoints: Sequence[Endpoint], node_name: str, zone: str) -> Topology:
    """Hints count only if every ready endpoint has them and one of them is for us."""

    def ready() -> Iterator[Endpoint]:
        return (endpoint for endpoint in endpoints if endpoint.ready)

    if all(e.nodes for e in ready()) and any(node_name in e.nodes for e in ready()):
        return Topology.SAME_NODE
    if all(e.zones for e in ready()) and any(zone in e.zones for e in ready()):
        return Topology.SAME_ZONE
    return Topology.ANY
