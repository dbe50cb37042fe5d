"""The configuration that the agent runs with: typed, complete and immutable.

Names are those of kube-proxy's configuration file (KubeProxyConfiguration,
https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/) where it has them.
Durations are seconds. There are no defaults here: they stand in one place, ``table``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.logs import LogFormat
from agent.state.values import Family

Backend = Literal["auto", "legacy", "nft"]
DetectLocalMode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]
Dispatch = Literal["auto", "flat", "tree"]
ConnectionMetrics = Literal["off", "service", "endpoint"]
#: Where a value came from; the first wins.
Source = Literal["flag", "env", "file", "default"]

#: The only value of ``nodePortAddresses`` that is not a range: the Node's own addresses.
PRIMARY = "primary"
#: Stands for no address at all in allowedExternalIPs and allowedLoadBalancerIPs.
NONE = "none"
_UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104  compared with, not listened on


class ClientConnection(msgspec.Struct, frozen=True, rename="camel"):
    """``clientConnection``: how the API server is reached."""

    kubeconfig: str


class DetectLocal(msgspec.Struct, frozen=True, rename="camel"):
    """``detectLocal``: what ``detectLocalMode`` needs in two of its modes."""

    bridge_interface: str
    interface_name_prefix: str


class IPTables(msgspec.Struct, frozen=True, rename="camel"):
    """``iptables``; a ``min_sync_period`` of 0 means that nothing is held back."""

    backend: Backend
    masquerade_bit: int
    masquerade_all: bool
    localhost_node_ports: bool
    sync_period: float
    min_sync_period: float


class Conntrack(msgspec.Struct, frozen=True, rename="camel"):
    """``conntrack``: kernel settings. 0 leaves the kernel's value as it is.

    A ``max_per_core`` of 0 also makes ``min`` meaningless, as in kube-proxy.
    """

    max_per_core: int
    min: int
    tcp_established_timeout: float
    tcp_close_wait_timeout: float
    tcp_be_liberal: bool
    udp_timeout: float
    udp_stream_timeout: float


class MetricsSettings(msgspec.Struct, frozen=True, rename="camel"):
    """``metrics``."""

    connections: ConnectionMetrics


class Logging(msgspec.Struct, frozen=True, rename="camel"):
    """``logging``."""

    format: LogFormat
    verbosity: int


class Config(msgspec.Struct, frozen=True, rename="camel"):
    """Everything that can be configured.

    Addresses and ranges are canonical text. An empty string or tuple means "not set"; an empty
    ``healthz_bind_address`` or ``metrics_bind_address`` switches that server off; empty
    ``ip_families`` means every family that the node and its tools support.
    """

    api_server: str
    client_connection: ClientConnection
    tls_server_name: str
    api_read_timeout: float
    manifests: tuple[str, ...]
    hostname_override: str
    bind_address: str
    healthz_bind_address: str
    metrics_bind_address: str
    bind_address_hard_fail: bool
    detect_local_mode: DetectLocalMode
    detect_local: DetectLocal
    node_port_addresses: tuple[str, ...]
    iptables: IPTables
    dispatch: Dispatch
    drop_capabilities: bool
    ip_families: tuple[Family, ...]
    metrics: MetricsSettings
    conntrack: Conntrack
    logging: Logging
    node_ip: tuple[str, ...] = msgspec.field(name="nodeIP")
    cluster_cidr: tuple[str, ...] = msgspec.field(name="clusterCIDR")
    allowed_external_ips: tuple[str, ...] = msgspec.field(name="allowedExternalIPs")
    allowed_load_balancer_ips: tuple[str, ...] = msgspec.field(name="allowedLoadBalancerIPs")

    @property
    def node_ips(self) -> tuple[str, ...]:
        """Addresses of the node that the configuration dictates, at most one of each family.

        As in kube-proxy, ``bindAddress`` is such an address and nothing listens on it.
        """
        if self.node_ip:
            return self.node_ip
        return () if self.bind_address in _UNSPECIFIED else (self.bind_address,)
