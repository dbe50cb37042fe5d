"""Objects as an API server holds them, with everything that a packet can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Name of the node that the agent runs on, and of the other one.
NODE = "node-1"
OTHER_NODE = "node-2"
FAMILIES = ("IPv4", "IPv6")
#: Where pods listen.
TARGET = 8080

Object = dict[str, Any]


def port(
    number: int = 80,
    *,
    node_port: int = 0,
    name: str = "",
    protocol: str = "TCP",
    target: int = TARGET,
) -> Object:
    """A port of a Service."""
    found: Object = {"name": name, "port": number, "protocol": protocol, "targetPort": target}
    return found | ({"nodePort": node_port} if node_port else {})


def service(
    name: str,
    *ips: str,
    ports: Sequence[Object] = (),
    ingress: Sequence[str | Object] = (),
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Service on these cluster IPs, with port 80 unless told otherwise."""
    found: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name, "labels": labels or {}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ips[0],
            "clusterIPs": list(ips),
            "ipFamilies": [family_of(ip) for ip in ips],
            "ports": list(ports) or [port()],
            **spec,
        },
    }
    if ingress:
        entries = [{"ip": one} if isinstance(one, str) else one for one in ingress]
        found["status"] = {"loadBalancer": {"ingress": entries}}
    return found


def endpoint(
    ip: str,
    node: str | None = NODE,
    *,
    ready: bool = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    **more: Any,
) -> Object:
    """An endpoint of a slice."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    return {
        "addresses": [ip],
        "conditions": {key: value for key, value in conditions.items() if value is not None},
        **({"nodeName": node} if node else {}),
        **more,
    }


def terminating(ip: str, node: str | None = NODE) -> Object:
    """An endpoint that is going away and still serves."""
    return endpoint(ip, node, ready=False, serving=True, terminating=True)


def endpoint_slice(
    of: str,
    *endpoints: Object,
    ports: Sequence[Object] | None = (),
    suffix: str = "1",
    family: str = "",
    labels: dict[str, str] | None = None,
) -> Object:
    """A slice of a Service; the family is that of the first endpoint unless it is given."""
    if ports is not None and not ports:
        ports = [{"name": "", "port": TARGET, "protocol": "TCP"}]
    found = family or (family_of(endpoints[0]["addresses"][0]) if endpoints else "IPv4")
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": f"{of}-{suffix}",
            "labels": {"kubernetes.io/service-name": of, **(labels or {})},
        },
        "addressType": found,
        "ports": None if ports is None else list(ports),
        "endpoints": list(endpoints),
    }


def node(
    *ips: str,
    name: str = NODE,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {"addresses": [{"type": "InternalIP", "address": ip} for ip in ips]},
    }


def family_of(ip: str) -> str:
    """The family of an address."""
    return "IPv6" if ":" in ip else "IPv4"
