"""Health check node ports of Services with externalTrafficPolicy Local, kept one by one.

A load balancer asks each node's health check port whether the node has a ready endpoint of the
Service. Terminating endpoints do not count: the balancer must stop sending before they go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.cluster.objects import Key
    from agent.state.store import Record
    from agent.state.values import Family


class HealthPorts:
    """Ports to listen on, and this node's ready endpoints behind each, in one family."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._ports: dict[Key, int] = {}
        self._ready: dict[Key, int] = {}
        self._changed = True

    @property
    def ports(self) -> dict[Key, int]:
        """Port by Service."""
        return dict(self._ports)

    @property
    def ready(self) -> dict[Key, int]:
        """Local ready endpoints by Service, for the Services in ``ports``; addresses count once."""
        return dict(self._ready)

    def take_changed(self) -> bool:
        """Whether anything is different since this was last asked; at first it is."""
        changed, self._changed = self._changed, False
        return changed

    def update(self, records: Iterable[Record]) -> None:
        """Take in records that changed."""
        for record in records:
            before = self._ports.pop(record.key, 0), self._ready.pop(record.key, 0)
            ports = record.service_ports(self._family)
            number = ports[0].health_check_node_port if ports else 0
            if number:
                self._ports[record.key] = number
                self._ready[record.key] = local_ready(record, self._family)
            after = self._ports.get(record.key, 0), self._ready.get(record.key, 0)
            self._changed |= before != after


def local_ready(record: Record, family: Family) -> int:
    """Addresses of the Service's ready endpoints on this node, whatever their ports."""
    ips = {
        endpoint.ip
        for endpoints in record.endpoints(family).values()
        for endpoint in endpoints
        if endpoint.local and endpoint.ready
    }
    return len(ips)
