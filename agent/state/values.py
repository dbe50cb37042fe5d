"""The values that state hands to rules: service ports, endpoints, and this node.

Everything here has been validated: an address is canonical text of the right family, a port
is 1 to 65535, a name is a DNS label. So nothing that reaches a rule can add an option or a
line to it.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import force_setattr

from agent.cluster.objects import Key


class Family(enum.Enum):
    """An IP family; the value is the API's name for it."""

    V4 = "IPv4"
    V6 = "IPv6"

    @property
    def host_bits(self) -> int:
        """Length of a prefix that is one address."""
        return 32 if self is Family.V4 else 128


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """One port of one Service in one family.

    Attributes:
        service: the Service.
        port_name: the port's name, empty if it has none.
        protocol: ``tcp``, ``udp`` or ``sctp``.
        cluster_ip: address.
        port: number on the cluster, external and load-balancer addresses.
        node_port: number on node addresses, 0 for none.
        external_ips: addresses, in the object's order.
        load_balancer_ips: ingress addresses in VIP mode, in the object's order.
        source_ranges: canonical CIDRs that may use the load balancer; empty means anybody.
        affinity_seconds: ClientIP session affinity timeout, 0 for no affinity.
        external_local: externalTrafficPolicy is Local (and the Service has external traffic).
        internal_local: internalTrafficPolicy is Local.
        health_check_node_port: number, 0 for none.
    """

    service: Key
    port_name: str
    protocol: str
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_seconds: int = 0
    external_local: bool = False
    internal_local: bool = False
    health_check_node_port: int = 0

    @property
    def name(self) -> str:
        """``namespace/name:port``; without the colon if the port has no name."""
        service = f"{self.service.namespace}/{self.service.name}"
        return f"{service}:{self.port_name}" if self.port_name else service

    @property
    def externally_accessible(self) -> bool:
        """Whether there is a way in other than the cluster IP."""
        return bool(self.node_port or self.load_balancer_ips or self.external_ips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Whether any traffic may go to endpoints on other nodes.

        External traffic that starts on this node does, even under a Local policy.
        """
        return not self.internal_local or self.externally_accessible

    @property
    def uses_local_endpoints(self) -> bool:
        """Whether any traffic must stay on this node."""
        return self.internal_local or (self.external_local and self.externally_accessible)


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One address and port behind a service port.

    Attributes:
        ip: canonical address.
        port: number.
        local: it is on this node.
        ready: it takes new connections.
        serving: it answers, perhaps while it terminates.
        terminating: it is shutting down.
        zones: zone hints, empty for none.
        nodes: node hints, empty for none.
        address: ``ip:port``, with brackets around an IPv6 address; follows from the two. A
            compilation asks for it four times for each endpoint.
    """

    ip: str
    port: int
    local: bool = False
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    address: str = ""

    def __post_init__(self) -> None:
        """Work out the address; ``msgspec.structs.replace`` comes here, too."""
        address = f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"
        force_setattr(self, "address", address)


class DetectLocal(enum.Enum):
    """How traffic of this node's pods is told from other traffic."""

    CIDR = "CIDR"
    BRIDGE = "BridgeInterface"
    PREFIX = "InterfaceNamePrefix"


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """What rules depend on besides Services: this node and the configuration, in one family.

    Attributes:
        family: the family.
        name: the Node's name.
        ip: the node's primary address in the family, empty if it has none.
        zone: label ``topology.kubernetes.io/zone``, empty if absent.
        hostname: label ``kubernetes.io/hostname``, likewise; no rule names it, but with another one
            everything is written anew, as for the zone.
        masquerade_bit: bit of the packet mark, 0 to 31.
        masquerade_all: masquerade everything that goes to a cluster IP.
        localhost_node_ports: node ports answer on 127.0.0.1 (IPv4 only, already resolved).
        drop_invalid: write the INVALID DROP rule.
        random_fully: MASQUERADE may use ``--random-fully``.
        count_invalid: the nfacct counter for the INVALID rule exists and can be matched.
        count_localhost: likewise for localhost node ports.
        detect_local: how to tell pods' traffic, with ``detect_value``; None for not at all.
        detect_value: a CIDR, a bridge's name or a name prefix.
        node_port_ips: addresses on which node ports answer; None for every local address.
    """

    family: Family
    name: str
    ip: str = ""
    zone: str = ""
    hostname: str = ""
    masquerade_bit: int = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = False
    drop_invalid: bool = True
    random_fully: bool = True
    count_invalid: bool = False
    count_localhost: bool = False
    detect_local: DetectLocal | None = None
    detect_value: str = ""
    node_port_ips: tuple[str, ...] | None = None
