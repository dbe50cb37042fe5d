"""The fields of Service, EndpointSlice and Node that the agent reads, as slim structs.

Decoding is where untrusted input becomes typed: a field that is absent or null becomes its
empty value (the API allows ``endpoints: null`` and ``ports: null``, and real clusters hold
such objects), a field that the agent does not read is skipped unseen, and a field of the
wrong type makes that one object unusable, never the list that it came in.

Field meanings: https://kubernetes.io/docs/reference/kubernetes-api/ (Service v1,
EndpointSlice discovery.k8s.io/v1, Node v1).
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

#: The label by which a slice names its Service.
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
#: Objects with either label are another proxy's, or nobody's, and are treated as absent.
LABEL_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
LABEL_HEADLESS = "service.kubernetes.io/headless"
LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_HOSTNAME = "kubernetes.io/hostname"
ANNOTATION_TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"

#: What the watches ask the API server for; ``is_ours`` is the same for objects from files. The
#: controllers mark the slices of a headless Service; on a Service that label is somebody's own.
SERVICE_SELECTOR = f"!{LABEL_PROXY_NAME}"
SLICE_SELECTOR = f"!{LABEL_PROXY_NAME},!{LABEL_HEADLESS}"


class Kind(enum.Enum):
    """A kind of object that the agent watches; the value is the API's name for it."""

    SERVICE = "Service"
    SLICE = "EndpointSlice"
    NODE = "Node"


class Key(msgspec.Struct, frozen=True, order=True, gc=False):
    """Namespace and name; the namespace of a Node is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of everything decoded: immutable, camelCase on the wire, unknown fields skipped."""


class Meta(Struct, frozen=True):
    """``metadata``."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class ServicePortSpec(Struct, frozen=True):
    """One of ``spec.ports`` of a Service; ``node_port`` 0 or null is none."""

    port: int = 0
    name: str | None = None
    protocol: str | None = None
    node_port: int | None = None


class ClientIPConfig(Struct, frozen=True):
    """``sessionAffinityConfig.clientIP``."""

    timeout_seconds: int | None = None


class AffinityConfig(Struct, frozen=True):
    """``sessionAffinityConfig``."""

    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Struct, frozen=True):
    """``spec`` of a Service."""

    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = msgspec.field(default=None, name="clusterIPs")
    ip_families: list[str] | None = None
    ports: list[ServicePortSpec] | None = None
    external_ips: list[str] | None = msgspec.field(default=None, name="externalIPs")
    load_balancer_source_ranges: list[str] | None = None
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    health_check_node_port: int | None = None
    session_affinity: str | None = None
    session_affinity_config: AffinityConfig | None = None


class Ingress(Struct, frozen=True):
    """One of ``status.loadBalancer.ingress``."""

    ip: str | None = None
    ip_mode: str | None = None


class LoadBalancerStatus(Struct, frozen=True):
    """``status.loadBalancer``."""

    ingress: list[Ingress] | None = None


class ServiceStatus(Struct, frozen=True):
    """``status`` of a Service."""

    load_balancer: LoadBalancerStatus | None = None


class Service(Struct, frozen=True):
    """A Service."""

    metadata: Meta = Meta()
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus | None = None


class Conditions(Struct, frozen=True):
    """``conditions`` of an endpoint. Null ``ready`` or ``serving`` means yes (API reference)."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Named(Struct, frozen=True):
    """A hint's node or zone."""

    name: str = ""


class Hints(Struct, frozen=True):
    """Topology hints of an endpoint (KEP-2433, KEP-3015)."""

    for_zones: list[Named] | None = None
    for_nodes: list[Named] | None = None


class SliceEndpoint(Struct, frozen=True):
    """One of ``endpoints``; only the first address is used, as the API defines."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    node_name: str | None = None
    hints: Hints | None = None


class SlicePort(Struct, frozen=True):
    """One of ``ports`` of a slice; a port without a number is legal and cannot be served."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True):
    """An EndpointSlice."""

    metadata: Meta = Meta()
    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class Taint(Struct, frozen=True):
    """A taint of a Node."""

    key: str = ""


class NodeSpec(Struct, frozen=True):
    """``spec`` of a Node."""

    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None


class NodeAddress(Struct, frozen=True):
    """One of ``status.addresses``."""

    type: str = ""
    address: str = ""


class NodeStatus(Struct, frozen=True):
    """``status`` of a Node."""

    addresses: list[NodeAddress] | None = None


class Node(Struct, frozen=True):
    """A Node."""

    metadata: Meta = Meta()
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


Object = Service | EndpointSlice | Node
KIND_TYPES: dict[Kind, type[Any]] = {
    Kind.SERVICE: Service,
    Kind.SLICE: EndpointSlice,
    Kind.NODE: Node,
}
_DECODERS = {kind: msgspec.json.Decoder(cls) for kind, cls in KIND_TYPES.items()}
_IDENTITY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_META = msgspec.json.Decoder(dict[str, Any])


class UnusableObjectError(ValueError):
    """An object whose fields do not have the API's types. Names the object where it can."""

    def __init__(self, kind: Kind, key: Key | None, reason: str) -> None:
        self.kind = kind
        self.key = key
        self.reason = reason
        super().__init__(f"{kind.value} {key or '(no name)'} cannot be used: {reason}")


def decode(kind: Kind, raw: bytes | msgspec.Raw) -> Object:
    """Decode one object from its JSON bytes.

    Raises:
        UnusableObjectError: a field has another type than the API gives it, or there is no name.
    """
    try:
        obj: Object = _DECODERS[kind].decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnusableObjectError(kind, _identify(raw), str(error)) from error
    if not obj.metadata.name:
        raise UnusableObjectError(kind, None, "metadata.name is empty")
    return obj


def convert(kind: Kind, obj: object) -> Object:
    """Turn a parsed YAML or JSON document into a typed object; errors as ``decode``.

    YAML can say what JSON cannot: numbers of any size, keys of any type, a list within itself.
    """
    try:
        raw = msgspec.json.encode(obj, enc_hook=str)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        meta = obj.get("metadata") if isinstance(obj, dict) else None
        raise UnusableObjectError(kind, _key_in(meta), f"it is not JSON: {error}") from error
    return decode(kind, raw)


def key_of(obj: Object) -> Key:
    """Namespace and name of an object."""
    return Key(obj.metadata.namespace, obj.metadata.name)


def is_ours(obj: Object) -> bool:
    """Whether the object is this proxy's: not labelled for another one, no headless slice."""
    labels = obj.metadata.labels or {}
    headless = isinstance(obj, EndpointSlice) and LABEL_HEADLESS in labels
    return LABEL_PROXY_NAME not in labels and not headless


def _identify(raw: bytes | msgspec.Raw) -> Key | None:
    """Namespace and name of an object that does not decode, if they can be read."""
    try:
        return _key_in(_META.decode(_IDENTITY.decode(raw)["metadata"]))
    except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
        return None


def _key_in(meta: object) -> Key | None:
    if not isinstance(meta, dict):
        return None
    name, namespace = meta.get("name"), meta.get("namespace", "")
    if isinstance(name, str) and isinstance(namespace, str):
        return Key(namespace, name)
    return None
