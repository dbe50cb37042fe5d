from __future__ import annotations

from typing import Any

import pytest

from agent.state.node import (
    KernelFacts,
    NodeInfo,
    NodeSettings,
    node_info,
    node_problems,
    node_view,
    wants_localnet,
)
from agent.state.values import DetectLocal, Family, NodeView
from tests.fakes.cluster import NODE, key, node

V4, V6 = Family.V4, Family.V6
ADDRESSES = ("127.0.0.1/8", "::1/128", "192.0.2.2/24", "2001:db8::2/64", "172.17.0.1/16")


def view(
    family: Family = V4,
    *,
    info: NodeInfo | None = None,
    facts: KernelFacts | None = None,
    **settings: Any,
) -> NodeView:
    return node_view(
        family,
        NodeSettings(NODE, **settings),
        info or NodeInfo(ips=("192.0.2.2", "2001:db8::2")),
        facts or KernelFacts(addresses=ADDRESSES),
    )


def test_what_is_used_of_a_node_object() -> None:
    """InternalIP comes before ExternalIP, ranges are canonical, and the zone is a label."""
    found = node_info(
        node(
            labels={"topology.kubernetes.io/zone": "zone-1", "kubernetes.io/hostname": NODE},
            spec={
                "podCIDR": "10.64.0.0/24",
                "podCIDRs": ["10.64.0.7/24", "FD00:10::/64"],
                "taints": [{"key": "other"}],
            },
            status={
                "addresses": [
                    {"type": "ExternalIP", "address": "198.51.100.2"},
                    {"type": "Hostname", "address": NODE},
                    {"type": "InternalIP", "address": " 192.0.2.02 "},
                    {"type": "InternalIP", "address": "nonsense"},
                    {"type": "InternalIP", "address": "2001:db8::2"},
                ]
            },
        )
    )

    assert found == NodeInfo(
        ips=("192.0.2.2", "2001:db8::2", "198.51.100.2"),
        pod_cidrs=("10.64.0.0/24", "fd00:10::/64"),
        zone="zone-1",
        hostname="node-a",
        deleting=False,
    )


@pytest.mark.parametrize("parts", [{}, {"spec": None, "status": None}, {"spec": {}, "status": {}}])
def test_an_empty_node_object(parts: dict[str, Any]) -> None:
    """Everything may be absent."""
    assert node_info(node(**parts)) == NodeInfo()


def test_an_old_node_has_one_pod_range() -> None:
    """podCIDR counts where podCIDRs is absent."""
    assert node_info(node(spec={"podCIDR": "10.64.0.0/24"})).pod_cidrs == ("10.64.0.0/24",)


def test_what_was_left_out_of_a_node_is_named() -> None:
    """Addresses and ranges that are none, in no more than 80 characters each."""
    long = "x" * 100
    found = node_problems(
        node(
            spec={"podCIDR": "10.64.0.0", "podCIDRs": ["10.64.1.0/24", "fd00::/129", long, " "]},
            status={
                "addresses": [
                    {"type": "InternalIP", "address": "192.0.2.2"},
                    {"type": "InternalIP", "address": long},
                    {"type": "ExternalIP", "address": ""},
                    {"type": "Hostname", "address": NODE},
                ]
            },
        )
    )

    assert {problem.key for problem in found} == {key(NODE, "")}
    assert [problem.text for problem in found] == [
        f"InternalIP '{'x' * 80}' is not an address",
        "ExternalIP '' is not an address",
        "pod CIDR '10.64.0.0' is not a CIDR",
        "pod CIDR 'fd00::/129' is not a CIDR",
        f"pod CIDR '{'x' * 80}' is not a CIDR",
    ]


@pytest.mark.parametrize("parts", [{}, {"spec": None, "status": None}, {"spec": {}, "status": {}}])
def test_nothing_is_wrong_with_what_is_absent(parts: dict[str, Any]) -> None:
    """A Node without addresses and ranges is no problem in itself."""
    assert node_problems(node(**parts)) == ()


@pytest.mark.parametrize(
    "parts",
    [
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}},
    ],
)
def test_a_node_that_goes_away(parts: dict[str, Any]) -> None:
    """Being deleted and being announced for deletion are the same to load balancers."""
    assert node_info(node(**parts)).deleting


def test_addresses_of_the_node_by_family() -> None:
    """The first address of each family counts, a configured one before the Node's."""
    assert view(V4).ip == "192.0.2.2"
    assert view(V6).ip == "2001:db8::2"
    assert view(V4, ips=("203.0.113.9",)).ip == "203.0.113.9"
    assert view(V6, ips=("203.0.113.9",)).ip == "2001:db8::2"
    assert view(V6, info=NodeInfo(ips=("192.0.2.2",))).ip == ""


@pytest.mark.parametrize(
    ("settings", "v4", "v6"),
    [
        ({}, (None, ""), (None, "")),
        (
            {"detect_mode": "ClusterCIDR", "cluster_cidrs": ("10.64.0.0/10", "fd00:10::/48")},
            (DetectLocal.CIDR, "10.64.0.0/10"),
            (DetectLocal.CIDR, "fd00:10::/48"),
        ),
        (
            {"detect_mode": "ClusterCIDR", "cluster_cidrs": ("fd00:10::/48",)},
            (None, ""),
            (DetectLocal.CIDR, "fd00:10::/48"),
        ),
        # No range must never become an empty -s (faults 9).
        ({"detect_mode": "ClusterCIDR", "cluster_cidrs": ("", "x")}, (None, ""), (None, "")),
        # A range that holds everything tells nobody apart, and nft refuses its negation.
        (
            {"detect_mode": "ClusterCIDR", "cluster_cidrs": ("0.0.0.0/0", "::/0", "10.0.0.0/8")},
            (DetectLocal.CIDR, "10.0.0.0/8"),
            (None, ""),
        ),
        (
            {"detect_mode": "NodeCIDR", "cluster_cidrs": ("10.64.0.0/10",)},
            (DetectLocal.CIDR, "10.64.1.0/24"),
            (None, ""),
        ),
        (
            {"detect_mode": "BridgeInterface", "bridge": "cbr0"},
            (DetectLocal.BRIDGE, "cbr0"),
            (DetectLocal.BRIDGE, "cbr0"),
        ),
        ({"detect_mode": "BridgeInterface", "prefix": "cali"}, (None, ""), (None, "")),
        (
            {"detect_mode": "InterfaceNamePrefix", "prefix": "cali"},
            (DetectLocal.PREFIX, "cali"),
            (DetectLocal.PREFIX, "cali"),
        ),
        ({"detect_mode": "InterfaceNamePrefix", "bridge": "cbr0"}, (None, ""), (None, "")),
        ({"detect_mode": ""}, (None, ""), (None, "")),
    ],
)
def test_detection_of_local_traffic(
    settings: dict[str, Any],
    v4: tuple[DetectLocal | None, str],
    v6: tuple[DetectLocal | None, str],
) -> None:
    """Each mode works per family, and a mode without its value detects nothing."""
    info = NodeInfo(pod_cidrs=("10.64.1.0/24",))
    four, six = view(V4, info=info, **settings), view(V6, info=info, **settings)

    assert (four.detect_local, four.detect_value) == v4
    assert (six.detect_local, six.detect_value) == v6


@pytest.mark.parametrize(
    ("wanted", "v4", "v6"),
    [
        ((), None, None),
        (("0.0.0.0/0",), None, None),
        (("192.0.2.0/24",), ("192.0.2.2",), None),
        (("192.0.2.0/24", "2001:db8::/64"), ("192.0.2.2",), ("2001:db8::2",)),
        (("172.16.0.0/12", "192.0.2.0/24"), ("192.0.2.2", "172.17.0.1"), None),
        (("203.0.113.0/24",), (), None),
        (("192.0.2.0/24", "0.0.0.0/0"), None, None),
        (("127.0.0.0/8",), ("127.0.0.1",), None),
        (("::1/128",), None, ("::1",)),
        (("primary",), ("192.0.2.2",), ("2001:db8::2",)),
        (("nonsense",), None, None),
    ],
)
def test_addresses_of_node_ports(
    wanted: tuple[str, ...], v4: tuple[str, ...] | None, v6: tuple[str, ...] | None
) -> None:
    """The node's addresses in the ranges; a family without a range has no restriction in it."""
    assert view(V4, node_port_addresses=wanted).node_port_ips == v4
    assert view(V6, node_port_addresses=wanted).node_port_ips == v6


def test_primary_without_an_address_is_nowhere() -> None:
    """A node without an address of the family has no node ports in it."""
    alone = NodeInfo(ips=("192.0.2.2",))

    assert view(V6, info=alone, node_port_addresses=("primary",)).node_port_ips == ()


def test_an_address_on_two_interfaces_counts_once() -> None:
    """The order is that of the interfaces."""
    facts = KernelFacts(addresses=("192.0.2.3/24", "192.0.2.2", "192.0.2.3/32", "junk"))

    assert view(facts=facts, node_port_addresses=("192.0.2.0/24",)).node_port_ips == (
        "192.0.2.3",
        "192.0.2.2",
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"localhost_node_ports": False}, False),
        ({"node_port_addresses": ("192.0.2.0/24",)}, False),
        ({"node_port_addresses": ("127.0.0.0/8",)}, True),
        ({"node_port_addresses": ("127.0.0.1/32",)}, True),
        ({"node_port_addresses": ("192.0.2.0/24", "0.0.0.0/0")}, True),
        ({"node_port_addresses": ("2001:db8::/64",)}, True),
        ({"node_port_addresses": ("primary",)}, False),
    ],
)
def test_node_ports_on_localhost(settings: dict[str, Any], *, expected: bool) -> None:
    """Only if the option is on and the ranges include loopback; never for IPv6 (faults 31)."""
    assert wants_localnet(V4, NodeSettings(NODE, **settings)) is expected
    assert view(V4, **settings).localhost_node_ports is expected
    assert not wants_localnet(V6, NodeSettings(NODE, **settings))
    assert not view(V6, **settings).localhost_node_ports


def test_node_ports_on_localhost_need_the_sysctl() -> None:
    """Without route_localnet the kernel would drop such packets; the rules do not pretend."""
    facts = KernelFacts(localnet=False, addresses=ADDRESSES)

    assert not view(facts=facts).localhost_node_ports


def test_facts_of_the_kernel_are_passed_on() -> None:
    """A liberal conntrack takes the INVALID rule away; the rest is as found."""
    strict = KernelFacts(tcp_liberal=False, random_fully=False, count_invalid=True)
    liberal = KernelFacts(tcp_liberal=True, random_fully=True, count_localhost=True)

    def flags(found: NodeView) -> tuple[bool, bool, bool, bool]:
        return found.drop_invalid, found.random_fully, found.count_invalid, found.count_localhost

    assert flags(view(facts=strict)) == (True, False, True, False)
    assert flags(view(facts=liberal)) == (False, True, False, True)


def test_settings_are_passed_on() -> None:
    """Name, zone, host name, mark and masquerade_all."""
    found = view(info=NodeInfo(zone="z", hostname="h"), masquerade_bit=31, masquerade_all=True)

    assert found.hostname == "h"
    assert (found.name, found.zone, found.masquerade_bit, found.masquerade_all) == (
        NODE,
        "z",
        31,
        True,
    )
