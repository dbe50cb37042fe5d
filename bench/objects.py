"""A made-up cluster with objects as a real API server serves them, none of whose fields is small.

What the agent does not read (managed fields, owners, references to pods) is there all the same:
it has to be received and skipped.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import TYPE_CHECKING, Any

import msgspec

from agent.cluster.objects import EndpointSlice, Kind, Service, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Object = dict[str, Any]

NODE = "node-1"
NODE_IP = "192.0.2.10"
#: Pods' addresses; the agent is told so.
CLUSTER_CIDR = "10.128.0.0/9"
#: A Service takes its turn among so many namespaces.
NAMESPACES = 40
#: Where a flow to a Service goes to.
PORT, TARGET_PORT = 80, 8080

_FIRST_IP = ipaddress.IPv4Address("10.64.0.1")
_FIRST_POD = ipaddress.IPv4Address("10.128.0.1")
_TIME = "2026-05-04T10:11:12Z"


def namespace(number: int) -> str:
    """Namespace of a Service."""
    return f"team-{number % NAMESPACES}"


def name(number: int) -> str:
    """Name of a Service."""
    return f"service-{number:05d}"


def cluster_ip(number: int) -> str:
    """Cluster IP of a Service."""
    return str(_FIRST_IP + number)


def pod_ip(number: int) -> str:
    """Address of a pod."""
    return str(_FIRST_POD + number)


def service(number: int, *, node_port: int = 0, protocol: str = "TCP") -> Object:
    """A ClusterIP Service with one port, or one with a node port."""
    ip = cluster_ip(number)
    port: Object = {"name": "http", "port": PORT, "protocol": protocol, "targetPort": TARGET_PORT}
    spec = {"type": "ClusterIP"}
    if node_port:
        port["nodePort"], spec["type"] = node_port, "NodePort"
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": _metadata(name(number), namespace(number), {"app": name(number)}, "helm"),
        "spec": spec
        | {
            "clusterIP": ip,
            "clusterIPs": [ip],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [port],
            "selector": {"app.kubernetes.io/name": name(number)},
            "sessionAffinity": "None",
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(
    number: int,
    pods: Iterable[int],
    *,
    changed: str = _TIME,
    protocol: str = "TCP",
    part: int = 0,
) -> Object:
    """The slice of a Service (the ``part``-th) with these pods, as of a change at ``changed``."""
    of = name(number)
    meta = _metadata(
        f"{of}-x7k{part}p",
        namespace(number),
        {
            "kubernetes.io/service-name": of,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        },
        "kube-controller-manager",
    )
    meta["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": changed}
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": meta,
        "addressType": "IPv4",
        "endpoints": [_endpoint(of, namespace(number), pod) for pod in pods],
        "ports": [{"name": "http", "port": TARGET_PORT, "protocol": protocol}],
    }


def pods_of(number: int, endpoints: int) -> range:
    """The pods behind a Service; no two Services share one."""
    return range(number * endpoints, (number + 1) * endpoints)


def node() -> Object:
    """The Node that the agent runs on."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
        "spec": {"podCIDR": "10.128.0.0/24"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}]},
    }


def cluster(services: int, endpoints: int) -> Iterator[Object]:
    """So many Services, each with a slice of so many endpoints."""
    for number in range(services):
        yield service(number)
        yield endpoint_slice(number, pods_of(number, endpoints))


def decoded_service(obj: Object) -> Service:
    """As it comes out of a watch."""
    found = decode(Kind.SERVICE, msgspec.json.encode(obj))
    if not isinstance(found, Service):
        raise TypeError(found)
    return found


def decoded_slice(obj: Object) -> EndpointSlice:
    """As it comes out of a watch."""
    found = decode(Kind.SLICE, msgspec.json.encode(obj))
    if not isinstance(found, EndpointSlice):
        raise TypeError(found)
    return found


@functools.lru_cache(maxsize=2)
def decoded(
    services: int, endpoints: int, protocol: str = "TCP"
) -> tuple[tuple[Service, ...], tuple[EndpointSlice, ...]]:
    """The made-up cluster as it comes out of lists; kept, since it takes seconds to make."""
    numbers = range(services)
    pods = (pods_of(number, endpoints) for number in numbers)
    slices = (
        endpoint_slice(n, some, protocol=protocol) for n, some in zip(numbers, pods, strict=True)
    )
    return (
        tuple(decoded_service(service(n, protocol=protocol)) for n in numbers),
        tuple(map(decoded_slice, slices)),
    )


def _metadata(called: str, inside: str, labels: dict[str, str], manager: str) -> Object:
    return {
        "name": called,
        "namespace": inside,
        "uid": f"0b3d9c6e-52b1-4f0a-9d1e-{abs(hash(called)) % 16**12:012x}",
        "creationTimestamp": _TIME,
        "generation": 3,
        "labels": labels
        | {"app.kubernetes.io/name": called, "app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": called},
        "managedFields": [
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": _TIME,
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:name": {}}},
                    "f:spec": {"f:ports": {".": {}, 'k:{"port":80}': {".": {}, "f:port": {}}}},
                },
            }
        ],
    }


def _endpoint(of: str, inside: str, pod: int) -> Object:
    return {
        "addresses": [pod_ip(pod)],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": f"node-{pod % 100 + 2}",
        "zone": f"zone-{pod % 3}",
        "targetRef": {
            "kind": "Pod",
            "namespace": inside,
            "name": f"{of}-6d4cf56db6-{pod:05x}",
            "uid": f"7f1c2a44-9e0b-4c4e-8a57-{pod:012x}",
        },
    }
