"""From EndpointSlices to the endpoints of each service port.

While endpoints move between slices, or a pod network reuses an address, the same address may
stand in several entries with different conditions. Within a slice the choice is kube-proxy's:
the last entry that is not terminating, else the first. Between slices kube-proxy leaves it to
chance; here it is made by what the entries say, never by the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from agent.cluster.objects import LABEL_SERVICE_NAME, Key, key_of
from agent.state.addresses import can_be_endpoint, parse_ip
from agent.state.services import PROTOCOLS, Problem, is_label, is_port, problems_of
from agent.state.values import Endpoint, Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.cluster.objects import EndpointSlice, Named, SliceEndpoint

PortId = tuple[str, str]
_FAMILIES = {family.value: family for family in Family}
_ADDRESS = attrgetter("address")
#: With more changes than this in a slice, merging all anew costs less.
_MOST_CHANGES = 32


class SliceState(msgspec.Struct, frozen=True, gc=False):
    """What rules need of one slice: its Service, family, ports, and endpoints on the first port."""

    service: Key
    family: Family
    ports: tuple[tuple[str, str, int], ...]
    endpoints: tuple[Endpoint, ...]


def slice_state(
    endpoint_slice: EndpointSlice, node_name: str, before: SliceState | None = None
) -> tuple[SliceState | None, tuple[Problem, ...]]:
    """Digest a slice, and say what was left out.

    None for a slice of another address type than IPv4 and IPv6 (FQDN is legal and not for a
    proxy), and for one that names no Service. Endpoints that are as they were before are taken
    from there: one that changes comes with up to 999 that do not.
    """
    key = key_of(endpoint_slice)
    family = _FAMILIES.get(endpoint_slice.address_type)
    if family is None:
        legal = endpoint_slice.address_type == "FQDN"
        text = f"address type {endpoint_slice.address_type[:80]!r} is unknown"
        return None, () if legal else (Problem(key, text),)
    service = (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME)
    if not service:
        return None, (Problem(key, f"it has no label {LABEL_SERVICE_NAME}"),)
    if not is_label(service):
        return None, problems_of(key, [f"its Service is named {service[:80]!r}, no DNS label"])
    texts: list[str] = []
    ports = _ports(endpoint_slice, texts.append)
    known: dict[str, Endpoint] = {}
    if before is not None and before.family is family:
        known = {endpoint.ip: endpoint for endpoint in before.endpoints}
    reader = _Reader(family, ports[0][2] if ports else 0, node_name, known)
    state = SliceState(
        service=Key(key.namespace, service),
        family=family,
        ports=ports,
        endpoints=reader.read(endpoint_slice.endpoints or (), texts.append),
    )
    return state, problems_of(key, texts)


def _ports(
    endpoint_slice: EndpointSlice, report: Callable[[str], None]
) -> tuple[tuple[str, str, int], ...]:
    """Ports as (name, protocol, number); an absent name is the empty name."""
    found: list[tuple[str, str, int]] = []
    for port in endpoint_slice.ports or ():
        protocol = PROTOCOLS.get(port.protocol or "TCP")
        if port.name and not is_label(port.name):
            report(f"port name {port.name[:80]!r} is not a DNS label")
        elif protocol is None:
            report(f"port {port.name!r} has the unknown protocol {str(port.protocol)[:80]!r}")
        elif not port.port:
            report(f"port {port.name!r} has no number")
        elif not is_port(port.port):
            report(f"port {port.name!r} has the number {port.port}")
        else:
            found.append((port.name or "", protocol, port.port))
    return tuple(found)


class _Reader(NamedTuple):
    """Reads the endpoints of a slice, on its first port.

    Attributes:
        family: of the slice.
        port: its first one.
        node_name: this node.
        known: the slice's endpoints of before, by address; those that are the same are taken.
    """

    family: Family
    port: int
    node_name: str
    known: dict[str, Endpoint]

    def read(
        self, entries: Iterable[SliceEndpoint], report: Callable[[str], None]
    ) -> tuple[Endpoint, ...]:
        """Each address once; what is left out is reported."""
        family, known = self.family, self.known
        found: dict[str, Endpoint] = {}
        for entry in entries:
            if not entry.addresses:
                report("an endpoint has no address")
                continue
            ip = entry.addresses[0]
            if ip not in known:
                parsed = parse_ip(ip)
                if parsed is None or parsed[0] is not family:
                    report(f"endpoint address {ip[:80]!r} is not an {family.value} address")
                    continue
                ip = parsed[1]
                if not can_be_endpoint(ip):
                    report(f"endpoint address {ip} is a loopback or link-local one")
                    continue
            endpoint = self._endpoint(entry, ip)
            if ip not in found or not endpoint.terminating:
                found[ip] = endpoint
        return tuple(found.values())

    def _endpoint(self, entry: SliceEndpoint, ip: str) -> Endpoint:
        conditions, hints = entry.conditions, entry.hints
        local = bool(self.node_name) and entry.node_name == self.node_name
        ready = serving = True
        terminating = False
        if conditions is not None:
            ready, serving = conditions.ready is not False, conditions.serving is not False
            terminating = conditions.terminating is True
        zones, nodes = (_names(hints.for_zones), _names(hints.for_nodes)) if hints else ((), ())
        was = self.known.get(ip)
        if (
            was is not None
            and was.port == self.port
            and was.local is local
            and was.ready is ready
            and was.serving is serving
            and was.terminating is terminating
            and was.zones == zones
            and was.nodes == nodes
        ):
            return was
        return Endpoint(ip, self.port, local, ready, serving, terminating, zones, nodes)


def _names(hints: Iterable[Named] | None) -> tuple[str, ...]:
    return tuple([hint.name for hint in hints or ()])


def merge(slices: Iterable[SliceState], family: Family) -> dict[PortId, tuple[Endpoint, ...]]:
    """Endpoints of each (port name, protocol), sorted by ``ip:port`` text, each once."""
    entries: dict[PortId, list[Endpoint]] = {}
    for state in slices:
        if state.family is family:
            for name, protocol, number in state.ports:
                entries.setdefault((name, protocol), []).extend(_on_port(state.endpoints, number))
    return {port_id: _each_once(found) for port_id, found in entries.items()}


def exchanged(
    merged: dict[PortId, tuple[Endpoint, ...]], before: SliceState, after: SliceState
) -> dict[PortId, tuple[Endpoint, ...]] | None:
    """What ``merge`` gives when a slice is exchanged for another, from what it gave before.

    No address was in it twice. None where all slices must be merged anew.
    """
    if before.family is not after.family or before.ports != after.ports:
        return None
    gone = {endpoint.ip: endpoint for endpoint in before.endpoints}
    new: list[Endpoint] = []
    for endpoint in after.endpoints:
        if gone.get(endpoint.ip) == endpoint:
            del gone[endpoint.ip]
        else:
            new.append(endpoint)
    if len(gone) + len(new) > _MOST_CHANGES:
        return None
    merged = dict(merged)
    for name, protocol, number in after.ports:
        found = list(merged[name, protocol])
        for endpoint in _on_port(tuple(gone.values()), number):
            del found[bisect_left(found, endpoint.address, key=_ADDRESS)]
        for endpoint in _on_port(tuple(new), number):
            place = bisect_left(found, endpoint.address, key=_ADDRESS)
            if place < len(found) and found[place].address == endpoint.address:
                return None
            found.insert(place, endpoint)
        merged[name, protocol] = tuple(found)
    return merged


def _on_port(endpoints: tuple[Endpoint, ...], number: int) -> Iterable[Endpoint]:
    """A slice's endpoints, which are on its first port, on another one."""
    if endpoints and endpoints[0].port != number:
        return [replace(endpoint, port=number) for endpoint in endpoints]
    return endpoints


def _each_once(entries: list[Endpoint]) -> tuple[Endpoint, ...]:
    """Sorted by address; of several for one, what ranks highest, and of those the first."""
    known = {endpoint.address: endpoint for endpoint in reversed(entries)}
    if len(known) < len(entries):
        for endpoint in entries:
            if _rank(endpoint) > _rank(known[endpoint.address]):
                known[endpoint.address] = endpoint
    return tuple([known[address] for address in sorted(known)])


def count(slices: Iterable[SliceState], family: Family) -> dict[PortId, int]:
    """How many endpoints ``merge`` gives for each (port name, protocol)."""
    known: dict[tuple[str, str, int], set[str]] = {}
    for state in slices:
        if state.family is family:
            ips = [endpoint.ip for endpoint in state.endpoints]
            for port in state.ports:
                known.setdefault(port, set()).update(ips)
    counts: dict[PortId, int] = {}
    for (name, protocol, _), found in known.items():
        counts[name, protocol] = counts.get((name, protocol), 0) + len(found)
    return counts


def _rank(endpoint: Endpoint) -> tuple[bool | tuple[str, ...], ...]:
    """Order among entries for one address: a running pod beats the one that had its address."""
    return (
        not endpoint.terminating,
        endpoint.ready,
        endpoint.serving,
        endpoint.local,
        endpoint.zones,
        endpoint.nodes,
    )
