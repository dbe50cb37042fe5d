"""Decoded objects for tests of the pure rooms, made the way that they come from the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.cluster.objects import (
    LABEL_SERVICE_NAME,
    EndpointSlice,
    Key,
    Kind,
    Node,
    Service,
    convert,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NODE = "node-a"


def service(
    name: str = "web",
    ip: str = "10.96.0.1",
    *,
    namespace: str = "shop",
    ports: Sequence[dict[str, Any]] = ({"name": "http", "port": 80},),
    ingress: Sequence[Any] = (),
    **spec: Any,
) -> Service:
    """A Service with one TCP port ``http`` 80; ``spec`` holds further fields of its spec.

    ``ingress`` are load-balancer addresses, as text or as whole entries.
    """
    entries = [{"ip": item} if isinstance(item, str) else item for item in ingress]
    found = convert(
        Kind.SERVICE,
        {
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": list(ports), **spec},
            "status": {"loadBalancer": {"ingress": entries}} if entries else None,
        },
    )
    assert isinstance(found, Service)
    return found


def endpoint(ip: str, *, node: str | None = None, **fields: Any) -> dict[str, Any]:
    """One of a slice's endpoints; ``ready``, ``serving``, ``terminating`` are its conditions."""
    names = ("ready", "serving", "terminating")
    conditions = {name: fields.pop(name) for name in names if name in fields}
    found: dict[str, Any] = {"addresses": [ip], "conditions": conditions, **fields}
    if node:
        found["nodeName"] = node
    return found


def hints(*, zones: Sequence[str] = (), nodes: Sequence[str] = ()) -> dict[str, Any]:
    """Hints of an endpoint."""
    return {
        "forZones": [{"name": name} for name in zones],
        "forNodes": [{"name": name} for name in nodes],
    }


def endpoint_slice(
    *endpoints: str | dict[str, Any],
    service: str = "web",
    name: str = "",
    namespace: str = "shop",
    ports: Any = ({"name": "http", "port": 8080},),
    family: str = "IPv4",
    **fields: Any,
) -> EndpointSlice:
    """A slice of a Service with one TCP port ``http`` 8080; text stands for a ready endpoint."""
    found = convert(
        Kind.SLICE,
        {
            "metadata": {
                "namespace": namespace,
                "name": name or f"{service}-1",
                "labels": {LABEL_SERVICE_NAME: service},
            },
            "addressType": family,
            "ports": None if ports is None else list(ports),
            "endpoints": [endpoint(e) if isinstance(e, str) else e for e in endpoints],
            **fields,
        },
    )
    assert isinstance(found, EndpointSlice)
    return found


def node(name: str = NODE, **parts: Any) -> Node:
    """A Node; ``parts`` are ``spec``, ``status`` and fields of its metadata."""
    outer: dict[str, Any] = {p: parts.pop(p) for p in ("spec", "status") if p in parts}
    meta: dict[str, Any] = {"name": name, **parts}
    found = convert(Kind.NODE, {"metadata": meta, **outer})
    assert isinstance(found, Node)
    return found


def key(name: str = "web", namespace: str = "shop") -> Key:
    """A Service's key."""
    return Key(namespace, name)
