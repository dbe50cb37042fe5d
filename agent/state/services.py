"""From a Service object to its service ports, one family at a time.

A part of the object that cannot be used (a bad address, an unknown protocol) is left out and
named in a ``Problem``; the rest of the Service works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Key, key_of
from agent.state.addresses import contains, parse_cidr, parse_ip, prefix_length
from agent.state.limits import MOST_PORTS, MOST_TARGETS, first
from agent.state.values import Family, ServicePort

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.cluster.objects import Service, ServicePortSpec

PROTOCOLS = {"TCP": "tcp", "UDP": "udp", "SCTP": "sctp"}
#: API default of sessionAffinityConfig.clientIP.timeoutSeconds, and its upper bound.
AFFINITY_DEFAULT = 10800
AFFINITY_MAX = 86400
#: What the API allows; anything else counts as the first, which is its default.
_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_POLICIES = ("Cluster", "Local")
_AFFINITIES = ("None", "ClientIP")
_MODES = ("VIP", "Proxy")
_IP_FAMILIES = tuple(family.value for family in Family)
_MOST_PROBLEMS = 10
_LONGEST_TEXT = 160
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Problem(msgspec.Struct, frozen=True):
    """A part of an object that was left out, for the log and a metric.

    Attributes:
        key: the object.
        text: what and why.
        exposes: traffic gets through that the object's owner wanted to keep out.
    """

    key: Key
    text: str
    exposes: bool = False


class AddressPolicy(msgspec.Struct, frozen=True):
    """Which addresses from outside of the cluster a Service may claim; None means any.

    Whoever may write a Service, or its status, can otherwise draw the traffic of this node and its
    pods to any address to endpoints of its own (CVE-2020-8554).

    Attributes:
        external: ranges for externalIPs.
        load_balancer: ranges for the addresses of load balancers.
    """

    external: tuple[str, ...] | None = None
    load_balancer: tuple[str, ...] | None = None


ANY_ADDRESS = AddressPolicy()
Report = Callable[[str], None]


def problems_of(key: Key, texts: Iterable[str]) -> tuple[Problem, ...]:
    """Problems of an object, each once; few and short, however much is wrong with it."""
    found = list(dict.fromkeys(texts))
    named, more = found[:_MOST_PROBLEMS], len(found) - _MOST_PROBLEMS
    if more > 0:
        named.append(f"and {more} more")
    short = (t if len(t) <= _LONGEST_TEXT else f"{t[:_LONGEST_TEXT]}..." for t in named)
    return tuple(Problem(key, text) for text in short)


def is_label(text: str) -> bool:
    """Whether the text is a DNS label (RFC 1123), as names of Services and ports are."""
    return _LABEL.fullmatch(text) is not None


def is_port(number: int) -> bool:
    """Whether the number is a port that can be served."""
    return 0 < number < 65536


def service_ports(
    service: Service, policy: AddressPolicy = ANY_ADDRESS
) -> tuple[dict[Family, tuple[ServicePort, ...]], tuple[Problem, ...]]:
    """Service ports of each family, in the object's order, and what was left out.

    ExternalName and headless Services have none.
    """
    key = key_of(service)
    texts: list[str] = []
    ports: dict[Family, tuple[ServicePort, ...]] = {}
    if _is_proxied(service):
        if not is_label(key.name) or not is_label(key.namespace):
            texts.append("its name or namespace is not a DNS label")
        else:
            _check_words(service, texts.append)
            for family in Family:
                ports[family] = _family_ports(service, family, policy, texts.append)
    exposed = tuple(
        Problem(key, _exposed_text(family), exposes=True)
        for family, found in ports.items()
        if found and _is_exposed(service, found[0])
    )
    return ports, problems_of(key, texts) + exposed


def _is_proxied(service: Service) -> bool:
    spec = service.spec
    return spec.cluster_ip not in {None, "", "None"} and spec.type != "ExternalName"


def _family_ports(
    service: Service, family: Family, policy: AddressPolicy, report: Report
) -> tuple[ServicePort, ...]:
    cluster_ip = _cluster_ip(service, family, report)
    if cluster_ip is None:
        return ()
    base = _base(service, family, cluster_ip, policy, report)
    found: dict[tuple[str, str], ServicePort] = {}
    for spec in first(tuple(service.spec.ports or ()), MOST_PORTS, "ports", report):
        port = _port(base, spec, report)
        if port is not None:
            if (port.port_name, port.protocol) in found:
                report(f"port {port.port_name!r} is there twice; the last one counts")
            found[port.port_name, port.protocol] = port
    return tuple(found.values())


def _check_words(service: Service, report: Report) -> None:
    """Name what is not one of the words that the API has for a field."""
    spec = service.spec
    _is_known(spec.type, _TYPES, "type", report)
    _is_known(spec.external_traffic_policy, _POLICIES, "external traffic policy", report)
    _is_known(spec.internal_traffic_policy, _POLICIES, "internal traffic policy", report)
    _is_known(spec.session_affinity, _AFFINITIES, "session affinity", report)
    for name in spec.ip_families or ():
        _is_known(name, _IP_FAMILIES, "IP family", report)
    balancer = service.status.load_balancer if service.status else None
    for entry in (balancer.ingress if balancer else None) or ():
        _is_known(entry.ip_mode, _MODES, "load balancer IP mode", report)


def _is_known(text: str | None, words: Collection[str], what: str, report: Report) -> None:
    if text and text not in words:
        report(f"{what} {text[:80]!r} is unknown")


def _cluster_ip(service: Service, family: Family, report: Report) -> str | None:
    """The cluster IP in the family; None if the Service has none in it."""
    spec = service.spec
    text: str | None = None
    if spec.ip_families and spec.cluster_ips:
        pairs = zip(spec.ip_families, spec.cluster_ips, strict=False)
        text = next((ip for name, ip in pairs if name == family.value), None)
    else:
        parsed = parse_ip(spec.cluster_ip or "")
        if parsed is None or parsed[0] is family:
            text = spec.cluster_ip
    if not text:
        return None
    parsed = parse_ip(text)
    if parsed is None or parsed[0] is not family:
        report(f"cluster IP {text!r} is not an {family.value} address")
        return None
    return parsed[1]


def _base(
    service: Service, family: Family, cluster_ip: str, policy: AddressPolicy, report: Report
) -> ServicePort:
    """What all ports of the Service share; the port itself is still 0."""
    spec = service.spec
    most = MOST_TARGETS // max(min(len(spec.ports or ()), MOST_PORTS), 1)
    external_ips = _allowed(
        _addresses(spec.external_ips or (), family, "external IP", report),
        policy.external, "external IP", report,
    )  # fmt: skip
    balanced = _allowed(
        _ingress(service, family, report), policy.load_balancer, "load balancer IP", report
    )
    external_local = spec.external_traffic_policy == "Local" and (
        spec.type in {"LoadBalancer", "NodePort"} or bool(spec.external_ips)
    )
    return ServicePort(
        service=key_of(service),
        port_name="",
        protocol="tcp",
        cluster_ip=cluster_ip,
        port=0,
        external_ips=first(external_ips, most, "external IPs", report),
        load_balancer_ips=first(balanced, most, "load balancer IPs", report),
        source_ranges=first(_source_ranges(service, family, report), most, "source ranges", report),
        affinity_seconds=_affinity(service, report),
        external_local=external_local,
        internal_local=spec.internal_traffic_policy == "Local",
        health_check_node_port=_health_check_port(service, report),
    )


def _port(base: ServicePort, spec: ServicePortSpec, report: Report) -> ServicePort | None:
    name = spec.name or ""
    protocol = PROTOCOLS.get(spec.protocol or "TCP")
    node_port = spec.node_port or 0
    if name and not is_label(name):
        report(f"port name {name[:80]!r} is not a DNS label")
    elif protocol is None:
        report(f"port {name!r} has the unknown protocol {str(spec.protocol)[:80]!r}")
    elif not is_port(spec.port):
        report(f"port {name!r} has the number {spec.port}")
    else:
        if node_port and not is_port(node_port):
            report(f"port {name!r} has the node port {node_port}")
            node_port = 0
        return msgspec.structs.replace(
            base, port_name=name, protocol=protocol, port=spec.port, node_port=node_port
        )
    return None


def _addresses(texts: Iterable[str], family: Family, what: str, report: Report) -> tuple[str, ...]:
    """The canonical addresses of the family; empty text is legal and means nothing."""
    found: list[str] = []
    for text in texts:
        parsed = parse_ip(text)
        if parsed is None:
            if text.strip():
                report(f"{what} {text[:80]!r} is not an address")
        elif parsed[0] is family:
            found.append(parsed[1])
    return tuple(found)


def _allowed(
    ips: tuple[str, ...], ranges: tuple[str, ...] | None, what: str, report: Report
) -> tuple[str, ...]:
    """Those of the addresses that the configuration lets a Service claim."""
    if ranges is None:
        return ips
    found = tuple(ip for ip in ips if any(contains(cidr, ip) for cidr in ranges))
    for ip in ips:
        if ip not in found:
            report(f"{what} {ip} is not one that the configuration allows")
    return found


def _ingress(service: Service, family: Family, report: Report) -> tuple[str, ...]:
    """Load-balancer addresses whose traffic arrives with them as destination (KEP-1860)."""
    balancer = service.status.load_balancer if service.status else None
    entries = (balancer.ingress if balancer else None) or ()
    texts = [entry.ip or "" for entry in entries if entry.ip_mode in {None, "VIP"}]
    return _addresses(texts, family, "load balancer IP", report)


def _source_ranges(service: Service, family: Family, report: Report) -> tuple[str, ...]:
    """Ranges of the family; none if one of them is everybody."""
    found: list[str] = []
    for text in service.spec.load_balancer_source_ranges or ():
        parsed = parse_cidr(text)
        if parsed is None:
            if text.strip():
                report(f"load balancer source range {text[:80]!r} is not a CIDR")
        elif parsed[0] is family:
            found.append(parsed[1])
    return () if any(prefix_length(cidr) == 0 for cidr in found) else tuple(found)


def _is_exposed(service: Service, port: ServicePort) -> bool:
    """Whether a load balancer is open to everybody although its owner wanted it restricted.

    kube-proxy keeps to the ranges that it can use, in each family by itself; with none there is no
    restriction. The rules are the same here, but it is said.
    """
    ranges = service.spec.load_balancer_source_ranges
    if not ranges or not port.load_balancer_ips or port.source_ranges:
        return False
    return all(prefix_length(found[1]) for text in ranges if (found := parse_cidr(text)))


def _exposed_text(family: Family) -> str:
    return (
        f"none of its load balancer source ranges can be used for {family.value}, so there its load"
        " balancer is open to everybody"
    )


def _affinity(service: Service, report: Report) -> int:
    spec = service.spec
    if spec.session_affinity != "ClientIP":
        return 0
    config = spec.session_affinity_config
    client_ip = config.client_ip if config else None
    seconds = client_ip.timeout_seconds if client_ip else None
    if seconds is None:
        return AFFINITY_DEFAULT
    if not 0 < seconds <= AFFINITY_MAX:
        report(f"affinity timeout of {seconds} s is not between 1 and {AFFINITY_MAX}")
        return AFFINITY_DEFAULT
    return seconds


def _health_check_port(service: Service, report: Report) -> int:
    spec = service.spec
    if spec.type != "LoadBalancer" or spec.external_traffic_policy != "Local":
        return 0
    number = spec.health_check_node_port or 0
    if number and not is_port(number):
        report(f"health check node port is {number}")
        return 0
    return number
