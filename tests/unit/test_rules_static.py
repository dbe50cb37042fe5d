from __future__ import annotations

from typing import Any

import pytest

from agent.rules.parse import canonical, read_rule
from agent.rules.static import (
    BASE_CHAINS,
    CANARY_TABLES,
    JUMPS,
    KUBELET_JUMPS,
    masquerade_mark,
    needs_localnet_guard,
    node_port_tail,
    out_of_place,
    static_chains,
)
from agent.state.values import Family, NodeView
from tests.fakes.cluster import NODE

V4, V6 = Family.V4, Family.V6


def node(family: Family = V4, **fields: Any) -> NodeView:
    return NodeView(family, NODE, **fields)


def texts(view: NodeView, table: str, chain: str) -> list[str]:
    return [rule.text() for rule in static_chains(view)[table, chain]]


def test_the_twelve_jumps() -> None:
    """Each stands in its built-in chain with kube-proxy's comment, NEW only where it says so."""
    external = '"kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES'
    portals = '"kubernetes service portals" -j KUBE-SERVICES'
    firewall = '"kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL'
    new = "-m conntrack --ctstate NEW -m comment --comment"
    health = '"kubernetes health check service ports" -j KUBE-NODEPORTS'
    forward = '"kubernetes forwarding rules" -j KUBE-FORWARD'
    post = '"kubernetes postrouting rules" -j KUBE-POSTROUTING'

    assert sorted((jump.table, jump.source, jump.rule.text()) for jump in JUMPS) == sorted(
        [
            ("filter", "INPUT", f"{new} {external}"),
            ("filter", "FORWARD", f"{new} {external}"),
            ("filter", "INPUT", f"-m comment --comment {health}"),
            ("filter", "FORWARD", f"{new} {portals}"),
            ("filter", "OUTPUT", f"{new} {portals}"),
            ("filter", "FORWARD", f"-m comment --comment {forward}"),
            ("filter", "INPUT", f"{new} {firewall}"),
            ("filter", "OUTPUT", f"{new} {firewall}"),
            ("filter", "FORWARD", f"{new} {firewall}"),
            ("nat", "OUTPUT", f"-m comment --comment {portals}"),
            ("nat", "PREROUTING", f"-m comment --comment {portals}"),
            ("nat", "POSTROUTING", f"-m comment --comment {post}"),
        ]
    )


def test_jumps_lead_to_chains_that_always_exist() -> None:
    """Nothing is jumped to that a full sync does not make."""
    for jump in JUMPS:
        target = jump.rule.text().rpartition("-j ")[2]
        assert target in BASE_CHAINS[jump.table]
    assert set(CANARY_TABLES) == {"mangle", "nat", "filter"}


@pytest.mark.parametrize("bit", [0, 14, 31])
def test_mark_and_masquerade(bit: int) -> None:
    """Exactly three rules: leave what is not marked, take the mark away, masquerade (faults 27)."""
    view = node(masquerade_bit=bit)
    mark = {0: "0x000001", 14: "0x004000", 31: "0x80000000"}[bit]

    assert masquerade_mark(view) == 2**bit
    assert texts(view, "nat", "KUBE-MARK-MASQ") == [f"-j MARK --or-mark {mark}"]
    assert texts(view, "nat", "KUBE-POSTROUTING") == [
        f"-m mark ! --mark {mark}/{mark} -j RETURN",
        f"-j MARK --xor-mark {mark}",
        (
            '-m comment --comment "kubernetes service traffic requiring SNAT"'
            " -j MASQUERADE --random-fully"
        ),
    ]


def test_random_ports_only_if_the_binary_can() -> None:
    """An old iptables gets a plain MASQUERADE."""
    plain = texts(node(random_fully=False), "nat", "KUBE-POSTROUTING")

    assert plain[2].endswith(" -j MASQUERADE")


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"drop_invalid": True}, ["-m conntrack --ctstate INVALID -j DROP"]),
        (
            {"drop_invalid": True, "count_invalid": True},
            [
                (
                    "-m conntrack --ctstate INVALID -m nfacct"
                    " --nfacct-name ct_state_invalid_dropped_pkts -j DROP"
                )
            ],
        ),
        ({"drop_invalid": False}, []),
        ({"drop_invalid": False, "count_invalid": True}, []),
    ],
)
def test_the_invalid_rule_is_first_or_absent(fields: dict[str, Any], first: list[str]) -> None:
    """It is there exactly when conntrack is strict, and counts if it can (faults 7, 39)."""
    assert texts(node(**fields), "filter", "KUBE-FORWARD") == [
        *first,
        (
            '-m comment --comment "kubernetes forwarding rules" -m mark --mark 0x004000/0x004000'
            " -j ACCEPT"
        ),
        (
            '-m comment --comment "kubernetes forwarding conntrack rule" -m conntrack'
            " --ctstate RELATED,ESTABLISHED -j ACCEPT"
        ),
    ]


def test_the_localnet_guard() -> None:
    """Only where node ports answer on 127.0.0.1, and never for IPv6 (faults 31)."""
    guard = (
        '-m comment --comment "block incoming localnet connections" -d 127.0.0.0/8'
        " ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    )

    assert texts(node(localhost_node_ports=True), "filter", "KUBE-FIREWALL") == [guard]
    assert needs_localnet_guard(node(localhost_node_ports=True))
    for view in (node(), node(V6, localhost_node_ports=True)):
        assert ("filter", "KUBE-FIREWALL") not in static_chains(view)
        assert not needs_localnet_guard(view)


LAST = (
    '-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule'
    ' in this chain"'
)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (node(localhost_node_ports=True), ["-m addrtype --dst-type LOCAL"]),
        (node(), ["-m addrtype --dst-type LOCAL ! -d 127.0.0.0/8"]),
        (node(V6), ["-m addrtype --dst-type LOCAL ! -d ::1/128"]),
        (node(V6, localhost_node_ports=True), ["-m addrtype --dst-type LOCAL ! -d ::1/128"]),
        (node(node_port_ips=("192.0.2.2", "192.0.2.3")), ["-d 192.0.2.2", "-d 192.0.2.3"]),
        (node(node_port_ips=()), []),
        (node(node_port_ips=("127.0.0.1", "192.0.2.2")), ["-d 192.0.2.2"]),
        (
            node(node_port_ips=("127.0.0.1", "192.0.2.2"), localhost_node_ports=True),
            ["-d 127.0.0.1", "-d 192.0.2.2"],
        ),
        (node(V6, node_port_ips=("::1", "2001:db8::2")), ["-d 2001:db8::2"]),
    ],
)
def test_the_way_to_node_ports(view: NodeView, expected: list[str]) -> None:
    """All local addresses, or one rule for each chosen one; loopback only where it may answer."""
    assert [rule.text() for rule in node_port_tail(view)] == [
        f"{LAST} {match} -j KUBE-NODEPORTS" for match in expected
    ]


def test_jumps_in_another_order_are_out_of_place() -> None:
    """Whatever stands between them; the kubelet's may stand anywhere."""
    mine = [jump for jump in (*JUMPS, *KUBELET_JUMPS) if jump.source == "INPUT"]
    external, health, firewall, kubelet = (canonical(jump.rule) for jump in mine)
    other = read_rule("-s 192.0.2.1/32 -j ACCEPT")

    assert out_of_place(mine, [kubelet, firewall, health, external]) == []
    assert out_of_place(mine, [firewall, other, None, health, external, kubelet]) == []
    assert out_of_place(mine, [health, firewall, external, kubelet]) == [mine[2], mine[1]]
    assert out_of_place(mine, [external, health, kubelet, firewall]) == [mine[2], mine[0]]
