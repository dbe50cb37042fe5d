# ruff: noqa: E501  rules as they are printed
"""Rules of other programs beside a Service proxy's are left alone, by every check."""

from __future__ import annotations

import pytest

from agent.inspect.compare import compare
from agent.inspect.differences import differences
from agent.inspect.packet import Host, Packet
from agent.inspect.path import End, outcomes
from agent.inspect.verify import verify
from agent.inspect.walk import walk
from agent.state.values import Family
from agent.sync.plan import Planner
from tests.fakes.dumps import Broken, rules_for, sample_store, saved, survey

#: By program and table: chains, rules in front of the proxy's jumps, and rules behind them.
OTHERS: dict[str, dict[str, tuple[str, str, str]]] = {
    "the kubelet": {
        "mangle": ("KUBE-IPTABLES-HINT KUBE-KUBELET-CANARY", "", ""),
        "nat": ("KUBE-KUBELET-CANARY", "", ""),
        "filter": (
            "KUBE-KUBELET-CANARY KUBE-FIREWALL",
            "",
            """
            -A INPUT -j KUBE-FIREWALL
            -A OUTPUT -j KUBE-FIREWALL
            -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
            """,
        ),
    },
    "an old kubelet": {
        "nat": (
            "KUBE-MARK-DROP",
            "",
            "-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000",
        ),
        "filter": (
            "KUBE-FIREWALL",
            "",
            """
            -A INPUT -j KUBE-FIREWALL
            -A OUTPUT -j KUBE-FIREWALL
            -A KUBE-FIREWALL -m comment --comment "kubernetes firewall for dropping marked packets" -m mark --mark 0x8000/0x8000 -j DROP
            -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
            """,
        ),
    },
    "docker": {
        "nat": (
            "DOCKER",
            "",
            """
            -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
            -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
            -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
            -A DOCKER ! -i docker0 -p tcp -m tcp --dport 5000 -j DNAT --to-destination 172.17.0.2:5000
            """,
        ),
        "filter": (
            "DOCKER DOCKER-USER DOCKER-FORWARD DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2",
            "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD",
            """
            -A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 5000 -j ACCEPT
            -A DOCKER-FORWARD -m set --match-set docker-ext-bridges-v4 dst -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
            -A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
            -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
            -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
            -A DOCKER-USER -j RETURN
            """,
        ),
    },
    "calico": {
        "nat": (
            "cali-PREROUTING cali-OUTPUT cali-POSTROUTING cali-fip-dnat cali-nat-outgoing",
            """
            -A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
            -A OUTPUT -m comment --comment "cali:tVnHkvAo15HuiPy0" -j cali-OUTPUT
            -A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
            """,
            """
            -A cali-PREROUTING -m comment --comment "cali:r6XmIziWUJsdOK6Z" -j cali-fip-dnat
            -A cali-POSTROUTING -m comment --comment "cali:Z-c7XtVd2Bq7s_hA" -j cali-nat-outgoing
            -A cali-nat-outgoing -m comment --comment "cali:flqWnvo8yq4ULQLa" -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE --random-fully
            """,
        ),
        "filter": (
            "cali-INPUT cali-FORWARD cali-OUTPUT cali-from-wl-dispatch",
            """
            -A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
            -A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
            -A OUTPUT -m comment --comment "cali:tVnHkvAo15HuiPy0" -j cali-OUTPUT
            """,
            """
            -A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
            -A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j MARK --set-xmark 0x0/0xe0000
            -A cali-FORWARD -i cali+ -m comment --comment "cali:8ZoYfO5HKXWbB3pk" -j cali-from-wl-dispatch
            -A cali-INPUT -p ipv4 -m comment --comment "cali:X" -m set --match-set cali40all-hosts-net src -m addrtype --dst-type LOCAL -g cali-from-wl-dispatch
            """,
        ),
    },
    "firewalld": {
        "filter": (
            "IN_public IN_public_allow",
            "",
            """
            -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT
            -A INPUT -g IN_public
            -A INPUT -m conntrack --ctstate INVALID -j DROP
            -A INPUT -j REJECT --reject-with icmp-host-prohibited
            -A IN_public -j IN_public_allow
            -A IN_public_allow -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT
            """,
        ),
    },
    "ufw": {
        "filter": (
            "ufw-before-input ufw-user-input ufw-user-limit",
            "-A INPUT -j ufw-before-input",
            """
            -A ufw-before-input -i lo -j ACCEPT
            -A ufw-before-input -j ufw-user-input
            -A ufw-user-input -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -m recent --set --name DEFAULT --mask 255.255.255.255 --rsource
            -A ufw-user-limit -m limit --limit 3/min -j LOG --log-prefix "[UFW LIMIT BLOCK] "
            -A ufw-user-limit -j REJECT --reject-with icmp-port-unreachable
            """,
        ),
    },
    "cilium": {
        "mangle": (
            "CILIUM_PRE_mangle",
            '-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_mangle" -j CILIUM_PRE_mangle',
            """
            -A CILIUM_PRE_mangle ! -o lo -m socket --transparent -m mark ! --mark 0xe00/0xf00 -m mark ! --mark 0x800/0xf00 -m comment --comment "cilium: any->pod redirect proxied traffic to host proxy" -j MARK --set-xmark 0x200/0xffffffff
            -A CILIUM_PRE_mangle -p tcp -m mark --mark 0x3920200 -m comment --comment "cilium: TPROXY to host" -j TPROXY --on-port 8338 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff
            """,
        ),
        "nat": (
            "CILIUM_PRE_nat CILIUM_POST_nat",
            '-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_nat" -j CILIUM_PRE_nat',
            """
            -A CILIUM_POST_nat -s 10.0.0.0/24 -m set --match-set cilium_node_set_v4 dst -m comment --comment "exclude traffic to cluster nodes from masquerade" -j ACCEPT
            -A CILIUM_POST_nat -m mark --mark 0xa00/0xe00 -m comment --comment "exclude proxy return traffic from masquerade" -j ACCEPT
            """,
        ),
    },
    "kube-router": {
        "filter": (
            "KUBE-ROUTER-FORWARD KUBE-NWPLCY-DEFAULT KUBE-POD-FW-IGQU5XVZQN4ZFDAF",
            '-A FORWARD -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD',
            """
            -A KUBE-ROUTER-FORWARD -d 10.64.0.9/32 -m comment --comment "rule to jump traffic destined to POD name:web namespace: shop to chain KUBE-POD-FW-IGQU5XVZQN4ZFDAF" -j KUBE-POD-FW-IGQU5XVZQN4ZFDAF
            -A KUBE-POD-FW-IGQU5XVZQN4ZFDAF -m comment --comment "rule for stateful firewall for pod" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
            """,
        ),
    },
}
ALL = "all of them at once"


def beside(*programs: str) -> str:
    """The sample's dump with the rules of other programs in it."""
    dump = Broken(saved(rules_for(sample_store())))
    for program in programs:
        for table, (chains, front, behind) in OTHERS[program].items():
            start = dump.find(rf"^\*{table}$")
            end = next(n for n in range(start, len(dump.lines)) if dump.lines[n] == "COMMIT")
            declared = {line.split()[0][1:] for line in dump.lines[start:end] if line[0] == ":"}
            new = [f":{chain} - [0:0]" for chain in chains.split() if chain not in declared]
            rules = [line.strip() for line in front.splitlines() if line.strip()]
            rest = [line.strip() for line in behind.splitlines() if line.strip()]
            first = next((n for n in range(start, end) if dump.lines[n].startswith("-A")), end)
            rest = [line for line in rest if line not in dump.lines[start:end]]
            dump.lines[end:end] = rest
            dump.lines[first:first] = [*new, *rules]
    return str(dump)


@pytest.mark.parametrize("program", [*OTHERS, ALL])
def test_rules_of_others_are_no_findings_and_stay(program: str) -> None:
    """Whether they stand in front of the proxy's jumps or behind them; and no plan touches them.

    But for the rule of a kubelet before 1.28 in the chain that it shares with the agent.
    """
    held = survey(beside(*(OTHERS if program == ALL else [program])))
    rules = rules_for(sample_store())
    changes = compare(held, rules, Planner(rules).jumps())

    assert verify(held, tcp_be_liberal=False) == []
    assert differences(held, rules, changes) == []
    shared = {"KUBE-FIREWALL"} if program in {ALL, "an old kubelet"} else set()
    assert {change.chain for change in changes} == shared


@pytest.mark.parametrize("program", [*OTHERS, ALL])
def test_a_way_through_rules_of_others_is_walked(program: str) -> None:
    """A pod's packet still reaches the three endpoints, each with a third."""
    held = survey(beside(*(OTHERS if program == ALL else [program])))
    packet = Packet(Family.V4, "tcp", "10.64.0.200", "10.96.0.1", 80, interface="cali1234")

    usual = outcomes(walk(held.tables, packet, Host(frozenset({"192.0.2.10"})))).usual

    passed = {o.endpoint: c for o, c in usual.items() if o.end is End.PASSED and o.endpoint}
    assert {*passed} == {f"{ip}:8080" for ip in ("10.64.0.1", "10.64.0.2", "10.64.1.3")}
    assert len(set(passed.values())) == 1
