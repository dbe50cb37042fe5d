"""Which UDP flows should still go where they go, told from the present state alone.

UDP has no connection that ends, so a steady sender keeps its conntrack entry alive for ever: to
a pod that is gone, or untranslated from the time when there was no endpoint. New rules do not
touch it, since only the first packet of a flow meets them. So entries are compared with what
the Services say now. Nothing is remembered of events: a restart, or a failure, loses nothing.

An entry is stale if it was sent to a Service's address and is not answered by one of its
present endpoints (ready or serving ones, whatever the policies choose: a flow that works is left
alone, as TCP connections are). A Service without endpoints leaves no entry right. An entry for a
port that the Service has no longer is stale if it was translated; but only at a cluster IP, since
at other addresses it may be somebody else who translates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.cluster.objects import Key
    from agent.state.store import Record
    from agent.state.values import Endpoint, Family, ServicePort

Address = tuple[str, int]


class UdpFlow(msgspec.Struct, frozen=True, gc=False):
    """What matters of a conntrack entry: where it was sent, and who answers."""

    destination: Address
    answered_by: Address


class UdpTable(msgspec.Struct, frozen=True):
    """The present endpoints behind each address of a UDP service port, in one family.

    Attributes:
        addresses: by (address, port): cluster, external and load-balancer addresses.
        node_ports: by number, for packets to one of ``node_ips``.
        node_ips: this node's addresses.
        cluster_ips: of all Services, whatever their protocols.
    """

    addresses: dict[Address, frozenset[Address]]
    node_ports: dict[int, frozenset[Address]]
    node_ips: frozenset[str]
    cluster_ips: frozenset[str]

    def is_stale(self, flow: UdpFlow) -> bool:
        """Whether the entry keeps packets from where they should go."""
        ip, port = flow.destination
        endpoints = self.addresses.get(flow.destination)
        if endpoints is None and ip in self.node_ips:
            endpoints = self.node_ports.get(port)
        if endpoints is None:
            return ip in self.cluster_ips and flow.answered_by != flow.destination
        return flow.answered_by not in endpoints

    def __bool__(self) -> bool:
        return bool(self.cluster_ips)  # which every Service with an address has


class UdpServices:
    """Keeps what ``UdpTable`` is made of, Service by Service."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._services: dict[Key, list[tuple[ServicePort, frozenset[Address]]]] = {}
        self._cluster_ips: dict[Key, str] = {}
        self._changed = True

    def take_changed(self) -> bool:
        """Whether anything may be different since this was last asked; at first it may."""
        changed, self._changed = self._changed, False
        return changed

    def update(self, records: Iterable[Record]) -> None:
        """Take in records that changed."""
        for record in records:
            self._cluster_ips.pop(record.key, None)
            everything = record.service_ports(self._family)
            if everything:
                self._cluster_ips[record.key] = everything[0].cluster_ip
            ports = [port for port in everything if port.protocol == "udp"]
            self._changed |= self._services.pop(record.key, None) is not None or bool(ports)
            if ports:
                endpoints = record.endpoints(self._family)
                self._services[record.key] = [
                    (port, _in_use(endpoints.get((port.port_name, "udp"), ()))) for port in ports
                ]

    def table(self, node_ips: Collection[str]) -> UdpTable:
        """The table as of now."""
        addresses: dict[Address, frozenset[Address]] = {}
        node_ports: dict[int, frozenset[Address]] = {}
        for _, ports in sorted(self._services.items()):
            for port, endpoints in ports:
                for ip in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
                    addresses.setdefault((ip, port.port), endpoints)
                if port.node_port:
                    node_ports.setdefault(port.node_port, endpoints)
        cluster_ips = frozenset(self._cluster_ips.values())
        return UdpTable(addresses, node_ports, frozenset(node_ips), cluster_ips)


def _in_use(endpoints: Iterable[Endpoint]) -> frozenset[Address]:
    """Those that rules may send to (ready, even if a pod does not serve) or may have sent to."""
    return frozenset((e.ip, e.port) for e in endpoints if e.serving or e.ready)
