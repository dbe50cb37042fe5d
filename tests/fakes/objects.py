"""Kubernetes objects for tests and for the fake API server, as plain dictionaries."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def service(
    name: str,
    ip: str = "10.96.0.1",
    *,
    port: int = 80,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Build a ClusterIP Service with one unnamed TCP port."""
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ip,
            "clusterIPs": [ip],
            "ipFamilies": ["IPv4"],
            "ports": [{"port": port, "protocol": "TCP", "targetPort": 8080}],
        },
    }


def endpoint_slice(
    name: str, *ips: str, service: str = "", namespace: str = "default"
) -> dict[str, Any]:
    """Build an IPv4 slice with one unnamed TCP port 8080 and ready endpoints."""
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service or name},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [ip], "conditions": {"ready": True, "serving": True}} for ip in ips
        ],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }


def node(name: str, ip: str = "192.0.2.10") -> dict[str, Any]:
    """Build a Node with an internal address."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
    }


def cluster(services: int, endpoints: int) -> Iterator[dict[str, Any]]:
    """Build so many Services, each with a slice of so many endpoints, all addresses distinct."""
    virtual = ipaddress.IPv4Address("10.96.0.0")
    pod = ipaddress.IPv4Address("10.128.0.0")
    for i in range(services):
        name = f"svc-{i:05d}"
        yield service(name, str(virtual + i + 1))
        ips = [str(pod + i * endpoints + j + 1) for j in range(endpoints)]
        yield endpoint_slice(f"{name}-abcde", *ips, service=name)
