"""Why a Service has no endpoint here: what its EndpointSlices say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.wrap import counted
from agent.state.selection import Topology, select, topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.state.store import Record
    from agent.state.values import Endpoint, NodeView, ServicePort


def reasons(record: Record | None, port: ServicePort | None, node: NodeView) -> list[str]:
    """Sentences about the endpoints of a service port; none if it has usable ones.

    Args:
        record: what is known of the Service, None if nothing is.
        port: its port in the family, None if it has none of that name.
        node: this node.
    """
    if record is None or not any(record.ports.values()):
        return ["there is no such Service, or none that a proxy serves (headless, ExternalName)"]
    if port is None:
        return [f"the Service has no such port in {node.family.value}"]
    return list(_of_port(record, port, node))


def _of_port(record: Record, port: ServicePort, node: NodeView) -> Iterator[str]:
    family = node.family.value
    slices = [one for one in record.slices.values() if one.family is node.family]
    if not record.slices:
        yield "there is no EndpointSlice for it: its selector matches no pod, or it has none"
        return
    if not slices:
        yield f"its EndpointSlices are not for {family}"
        return
    mine = record.endpoints(node.family).get((port.port_name, port.protocol), ())
    if not mine:
        yield from _without_port(record, port, node)
        return
    selection = select(port, mine, node.name, node.zone)
    if not selection.usable:
        yield from _unusable(mine)
    elif (port.internal_local or port.external_local) and not selection.local:
        yield from _not_local(port, mine, node)
    elif not selection.cluster and port.uses_cluster_endpoints:
        yield from _narrowed(mine, node)


def _without_port(record: Record, port: ServicePort, node: NodeView) -> Iterator[str]:
    """The slices have no endpoints, or other ports."""
    ports: set[str] = set()
    addresses = 0
    for one in record.slices.values():
        if one.family is node.family:
            addresses += len(one.endpoints)
            ports |= {f"{name or '(no name)'}/{protocol}" for name, protocol, _ in one.ports}
    if not addresses:
        yield "its EndpointSlices hold no endpoint: no pod is selected, or all are scaled away"
        return
    wanted = f"{port.port_name or '(no name)'}/{port.protocol}"
    have = ", ".join(sorted(ports)) or "none"
    whose = "its only endpoint has" if addresses == 1 else f"its {addresses} endpoints have"
    yield f"{whose} no port {wanted}, but {have}"


def _unusable(endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """No endpoint takes new connections on any node."""
    waiting = sum(not e.ready and not e.terminating for e in endpoints)
    leaving = sum(e.terminating and not e.serving for e in endpoints)
    if waiting:
        yield f"{counted(waiting, 'endpoint is', 'endpoints are')} not ready"
    if leaving:
        endpoints_are = counted(leaving, "endpoint is", "endpoints are")
        yield f"{endpoints_are} terminating, and no longer serving"


def _not_local(port: ServicePort, endpoints: Sequence[Endpoint], node: NodeView) -> Iterator[str]:
    """A Local policy, and nothing on this node."""
    policy = "internalTrafficPolicy" if port.internal_local else "externalTrafficPolicy"
    here = [endpoint for endpoint in endpoints if endpoint.local]
    if not here:
        many = len(endpoints)
        where = "its only endpoint is not" if many == 1 else f"none of its {many} endpoints is"
        yield f"{policy} is Local, and {where} on {node.name}"
        return
    waiting = sum(not e.ready and not e.terminating for e in here)
    leaving = sum(e.terminating and not e.serving for e in here)
    yield (
        f"{policy} is Local; on {node.name}, {waiting} not ready,"
        f" {leaving} terminating and no longer serving"
    )


def _narrowed(endpoints: Sequence[Endpoint], node: NodeView) -> Iterator[str]:
    """Topology hints leave nothing."""
    found = topology(endpoints, node.name, node.zone)
    if found is not Topology.ANY:
        yield f"topology hints allow only endpoints of the {found.value}, and none of them is ready"
