"""This node, as rules see it: from configuration, the Node object and the interfaces.

Everything is decided per family, since a node may have one family's addresses, ranges and
detectors and not the other's.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import LABEL_HOSTNAME, LABEL_ZONE, Node, key_of
from agent.state.addresses import contains, parse_cidr, parse_ip, prefix_length
from agent.state.services import Problem, problems_of
from agent.state.values import DetectLocal, Family, NodeView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Taint by which the cluster autoscaler announces that it will delete the node.
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
PRIMARY = "primary"
_IP_TYPES = ("InternalIP", "ExternalIP")
_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


class NodeSettings(msgspec.Struct, frozen=True):
    """What the configuration says about rules, in both families.

    Attributes:
        name: this Node's name.
        ips: addresses that override those of the Node object.
        masquerade_bit: bit of the packet mark.
        masquerade_all: masquerade all traffic to cluster IPs.
        localhost_node_ports: node ports may answer on 127.0.0.1.
        detect_mode: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix, or empty.
        cluster_cidrs: ranges for mode ClusterCIDR.
        bridge: interface for mode BridgeInterface.
        prefix: prefix for mode InterfaceNamePrefix.
        node_port_addresses: CIDRs, or ``primary``; empty for all addresses.
    """

    name: str
    ips: tuple[str, ...] = ()
    masquerade_bit: int = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    detect_mode: str = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    bridge: str = ""
    prefix: str = ""
    node_port_addresses: tuple[str, ...] = ()


class KernelFacts(msgspec.Struct, frozen=True):
    """What was found out about the kernel and its tools, in one family.

    Attributes:
        tcp_liberal: ``nf_conntrack_tcp_be_liberal`` was read and is not 0.
        random_fully: MASQUERADE takes ``--random-fully``.
        count_invalid: the nfacct counter of the INVALID rule exists and can be matched.
        count_localhost: likewise for localhost node ports.
        localnet: packets from 127.0.0.1 can be routed (sysctl ``route_localnet``).
        addresses: this node's interface addresses, as CIDRs.
    """

    tcp_liberal: bool = False
    random_fully: bool = True
    count_invalid: bool = False
    count_localhost: bool = False
    localnet: bool = True
    addresses: tuple[str, ...] = ()


class NodeInfo(msgspec.Struct, frozen=True):
    """What the agent uses of the Node object.

    Attributes:
        ips: InternalIP addresses, then ExternalIP ones.
        pod_cidrs: ranges of this node's pods.
        zone: its zone, empty if unknown.
        hostname: its label of that name, empty if absent.
        deleting: it is being deleted, or the autoscaler has announced that.
    """

    ips: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()
    zone: str = ""
    hostname: str = ""
    deleting: bool = False


def node_info(node: Node) -> NodeInfo:
    """Digest a Node object; addresses and ranges that are none are left out."""
    addresses = (node.status.addresses if node.status else None) or ()
    spec = node.spec
    cidrs = ((spec.pod_cidrs or [spec.pod_cidr or ""]) if spec else None) or ()
    texts = [a.address for kind in _IP_TYPES for a in addresses if a.type == kind]
    taints = (spec.taints if spec else None) or ()
    labels = node.metadata.labels or {}
    return NodeInfo(
        ips=tuple(parsed[1] for text in texts if (parsed := parse_ip(text))),
        pod_cidrs=tuple(parsed[1] for text in cidrs if (parsed := parse_cidr(text))),
        zone=labels.get(LABEL_ZONE, ""),
        hostname=labels.get(LABEL_HOSTNAME, ""),
        deleting=bool(node.metadata.deletion_timestamp)
        or any(taint.key == TO_BE_DELETED for taint in taints),
    )


def node_problems(node: Node) -> tuple[Problem, ...]:
    """What ``node_info`` left out."""
    addresses = (node.status.addresses if node.status else None) or ()
    cidrs = [node.spec.pod_cidr or "", *(node.spec.pod_cidrs or ())] if node.spec else []
    texts = [
        f"{one.type} {one.address[:80]!r} is not an address"
        for one in addresses
        if one.type in _IP_TYPES and not parse_ip(one.address)
    ]
    texts += [
        f"pod CIDR {text[:80]!r} is not a CIDR"
        for text in cidrs
        if text.strip() and not parse_cidr(text)
    ]
    return problems_of(key_of(node), texts)


def node_view(
    family: Family, settings: NodeSettings, info: NodeInfo, facts: KernelFacts
) -> NodeView:
    """Put together what rules of one family depend on."""
    ip = first_of_family(family, (*settings.ips, *info.ips))
    detect, value = _detector(family, settings, info)
    wanted = _node_port_ranges(family, settings, ip)
    localhost = facts.localnet and wants_localnet(family, settings)
    return NodeView(
        family=family,
        name=settings.name,
        ip=ip,
        zone=info.zone,
        hostname=info.hostname,
        masquerade_bit=settings.masquerade_bit,
        masquerade_all=settings.masquerade_all,
        localhost_node_ports=localhost,
        drop_invalid=not facts.tcp_liberal,
        random_fully=facts.random_fully,
        count_invalid=facts.count_invalid,
        count_localhost=facts.count_localhost,
        detect_local=detect,
        detect_value=value,
        node_port_ips=None if wanted is None else _matching(wanted, facts.addresses),
    )


def wants_localnet(family: Family, settings: NodeSettings) -> bool:
    """Whether node ports should answer on 127.0.0.1, which takes ``route_localnet``.

    The addresses of node ports must include it; ``primary`` does not. Never for IPv6, where
    ::1 cannot be routed.
    """
    if family is not Family.V4 or not settings.localhost_node_ports:
        return False
    wanted = _node_port_ranges(family, settings, "")
    return wanted is None or any(_holds_loopback(cidr) for cidr in wanted)


def first_of_family(family: Family, texts: Iterable[str]) -> str:
    """The first address of the family, canonical; empty if there is none."""
    for text in texts:
        parsed = parse_ip(text)
        if parsed is not None and parsed[0] is family:
            return parsed[1]
    return ""


def _detector(
    family: Family, settings: NodeSettings, info: NodeInfo
) -> tuple[DetectLocal | None, str]:
    match settings.detect_mode:
        case "ClusterCIDR":
            return _by_cidr(family, settings.cluster_cidrs)
        case "NodeCIDR":
            return _by_cidr(family, info.pod_cidrs)
        case "BridgeInterface" if settings.bridge:
            return DetectLocal.BRIDGE, settings.bridge
        case "InterfaceNamePrefix" if settings.prefix:
            return DetectLocal.PREFIX, settings.prefix
    return None, ""


def _by_cidr(family: Family, cidrs: Iterable[str]) -> tuple[DetectLocal | None, str]:
    """The first range of the family; one that holds everything tells nobody apart.

    iptables-nft even refuses the negation of such a range, and with it all rules.
    """
    for text in cidrs:
        parsed = parse_cidr(text)
        if parsed is not None and parsed[0] is family and prefix_length(parsed[1]):
            return DetectLocal.CIDR, parsed[1]
    return None, ""


def _node_port_ranges(family: Family, settings: NodeSettings, ip: str) -> tuple[str, ...] | None:
    """Ranges of addresses on which node ports answer; None for all.

    Without a range of the family there is no restriction in it, as in kube-proxy.
    """
    if PRIMARY in settings.node_port_addresses:
        return (f"{ip}/{family.host_bits}",) if ip else ()
    found: list[str] = []
    for text in settings.node_port_addresses:
        parsed = parse_cidr(text)
        if parsed is not None and parsed[0] is family:
            found.append(parsed[1])
    if not found or any(prefix_length(cidr) == 0 for cidr in found):
        return None
    return tuple(found)


def _holds_loopback(cidr: str) -> bool:
    return ipaddress.ip_network(cidr).overlaps(_LOOPBACK)


def _matching(cidrs: Sequence[str], addresses: Iterable[str]) -> tuple[str, ...]:
    """The node's addresses in the ranges, each once, in the order of the interfaces."""
    found: dict[str, None] = {}
    for text in addresses:
        parsed = parse_ip(text.partition("/")[0])
        if parsed is not None and any(contains(cidr, parsed[1]) for cidr in cidrs):
            found[parsed[1]] = None
    return tuple(found)
