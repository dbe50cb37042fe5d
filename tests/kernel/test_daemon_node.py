"""What depends on the node: addresses of node ports, loopback, sysctls, rules of predecessors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.demo.testbed import CLIENT_IPS, NODE_IPS, Testbed
from tests.kernel import shapes
from tests.kernel.dialer import Call, dial
from tests.kernel.running import BACKENDS, HOST_IPS, Host, RunningAgent, serve_api, until
from tests.kernel.shapes import endpoint, endpoint_slice, port, service
from tests.kernel.test_faults_tables import restore

if TYPE_CHECKING:
    from pathlib import Path

A, POD, NODE_PORT = "10.96.0.1", "10.0.0.1", 30001
ROUTE_LOCALNET = "/proc/sys/net/ipv4/conf/all/route_localnet"


def put_one(host: Host) -> None:
    ips = [A, "fd00:96::1"]
    host.api.put(
        service("a", *ips, type="NodePort", ports=[port(node_port=NODE_PORT)]),
        endpoint_slice("a", endpoint(POD), suffix="4"),
        endpoint_slice("a", endpoint("fd00::1"), suffix="6"),
    )


def node_port_rules(agent: RunningAgent, family: str = "IPv4") -> list[str]:
    """The rules that lead to node ports, without their comment."""
    rules = agent.tables(family)["nat"]["KUBE-SERVICES"]
    return [
        " ".join(word for word in rule.split('"')[::2]).replace("-m comment --comment ", "").strip()
        for rule in rules
        if rule.endswith("-j KUBE-NODEPORTS")
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_node_ports_follow_the_addresses_of_the_interfaces(host: Host, backend: str) -> None:
    """Addresses in the ranges lead to node ports, as they come and go, each family by itself."""
    put_one(host)
    host.namespace.run(["ip", "address", "add", "198.51.100.1/24", "dev", "lo"])
    agent = host.agent("--nodeport-addresses", "192.0.2.0/24", backend=backend).start()

    def destinations() -> list[str]:
        return [rule.split()[1] for rule in node_port_rules(agent)]

    at_start = destinations()
    other_family = node_port_rules(agent, "IPv6")
    host.namespace.run(["ip", "address", "add", "192.0.2.77/24", "dev", "lo"])
    until(lambda: sorted(destinations()) == ["192.0.2.10/32", "192.0.2.77/32"], 5, agent.story)
    host.namespace.run(["ip", "address", "del", "192.0.2.10/32", "dev", "lo"])
    until(lambda: destinations() == ["192.0.2.77/32"], 5, agent.story)

    assert at_start == ["192.0.2.10/32"]
    assert len(other_family) == 1  # no range of its own: every local address but ::1
    assert "! -d ::1/128" in other_family[0]
    assert "--dst-type LOCAL" in other_family[0]


def test_primary_means_the_addresses_of_the_node_object(host: Host) -> None:
    """``primary`` follows the Node's addresses, and never is loopback."""
    put_one(host)
    host.namespace.run(["ip", "address", "add", "192.0.2.77/24", "dev", "lo"])
    agent = host.agent("--nodeport-addresses", "primary").start()
    at_start = node_port_rules(agent), node_port_rules(agent, "IPv6")
    host.api.put(shapes.node("192.0.2.77", HOST_IPS[1]))
    until(lambda: "192.0.2.77/32" in str(node_port_rules(agent)), 5, agent.story)

    assert [[rule.split()[1] for rule in rules] for rules in at_start] == [
        ["192.0.2.10/32"],
        ["2001:db8::10/128"],
    ]
    assert len(node_port_rules(agent)) == 1


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ((), True),
        (("--nodeport-addresses", "127.0.0.0/8"), True),
        (("--nodeport-addresses", "192.0.2.0/24"), False),
        (("--nodeport-addresses", "primary"), False),
        (("--iptables-localhost-nodeports=false",), False),
        (("--iptables-localhost-nodeports=false", "--nodeport-addresses", "127.0.0.0/8"), False),
    ],
)
def test_route_localnet_only_where_it_is_needed(
    host: Host, flags: tuple[str, ...], *, needed: bool
) -> None:
    """The sysctl and the rule that guards it come together, for IPv4 alone."""
    put_one(host)
    agent = host.agent(*flags).start()
    firewall = agent.tables()["filter"].get("KUBE-FIREWALL")
    jumps = [
        chain
        for chain in ("INPUT", "OUTPUT")
        if "-j KUBE-FIREWALL" in str(agent.tables()["filter"][chain])
    ]

    assert host.namespace.run(["cat", ROUTE_LOCALNET]).stdout.strip() == str(int(needed))
    assert (firewall is not None) is needed
    assert jumps == (["INPUT", "OUTPUT"] if needed else [])
    assert "KUBE-FIREWALL" not in str(agent.tables("IPv6"))
    if firewall is not None:
        (rule,) = firewall
        assert "! -s 127.0.0.0/8" in rule
        assert " -d 127.0.0.0/8" in rule
        assert "! --ctstate RELATED,ESTABLISHED,DNAT" in rule
        assert rule.endswith("-j DROP")


def test_the_guard_stays_as_long_as_route_localnet(host: Host) -> None:
    """Neither is taken back when localhost is no longer wanted: others may use it by now."""
    put_one(host)
    agent = host.agent().start()
    guarded = agent.tables()["filter"]
    agent.stop()
    agent = host.agent("--iptables-localhost-nodeports=false").start()
    after = agent.tables()

    assert "! -d 127.0.0.0/8" in after["nat"]["KUBE-SERVICES"][-1]
    assert host.namespace.run(["cat", ROUTE_LOCALNET]).stdout.strip() == "1"
    for chain in ("KUBE-FIREWALL", "INPUT", "OUTPUT"):
        assert after["filter"][chain] == guarded[chain]


@pytest.mark.parametrize("backend", BACKENDS)
def test_neighbours_do_not_reach_what_listens_on_loopback(tmp_path: Path, backend: str) -> None:
    """route_localnet lets a neighbour's packets in; the guard drops them (CVE-2020-8558).

    The same packets get an answer before the agent has started, so they really arrive.
    """
    with Testbed(pods=1) as bed, serve_api(bed.node) as api:
        bed.serve()
        api.put(
            shapes.node(*NODE_IPS),
            service("a", A, type="NodePort", ports=[port(node_port=NODE_PORT)]),
            endpoint_slice("a", endpoint(bed.pods[0].ips[0])),
        )
        server = bed.start(
            bed.node, ["python3", "-m", "http.server", "--bind", "127.0.0.1", "9999"],
            stdout=-3, stderr=-3,
        )  # fmt: skip
        neighbour(bed)
        bed.node.write_sysctl("net/ipv4/conf/all/route_localnet", 1)
        attack = {"loopback": Call("127.0.0.1", 9999, source=CLIENT_IPS[0])}
        until(lambda: dial(bed.client, attack)["loopback"] != "refused")
        before = dial(bed.client, attack)["loopback"]
        agent = RunningAgent(bed.node, tmp_path, api, backend=backend).start()
        after = dial(bed.client, attack)["loopback"]
        own = dial(bed.node, {"own": Call("127.0.0.1", NODE_PORT)})["own"]
        agent.stop()
        server.kill()

    assert before.startswith(("<!DOCTYPE", "HTTP", "reset"))  # whatever it says, it answers
    assert after == "dropped"
    assert own == "pod-1 10.64.0.1"


def neighbour(bed: Testbed) -> None:
    """Let the client send packets for 127.0.0.1 to the node."""
    bed.client.write_sysctl("net/ipv4/conf/all/route_localnet", 1)
    for route in (["127.0.0.0/8"], ["127.0.0.1"], ["127.255.255.255"]):
        command = ["ip", "route", "del", "table", "local", *route, "dev", "lo"]
        bed.client.run(command, check=False)
    bed.client.run(["ip", "address", "flush", "dev", "lo"])
    bed.client.run(["ip", "route", "add", "127.0.0.1/32", "via", NODE_IPS[0]])


#: As an older kube-proxy left it: another way to clear the mark, and a rule too many.
PREDECESSOR = (
    ":KUBE-SERVICES - [0:0]", ":KUBE-POSTROUTING - [0:0]", ":KUBE-MARK-MASQ - [0:0]",
    ":KUBE-MARK-DROP - [0:0]", ":KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]",
    "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
    "-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000",
    "-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE",
    "-A KUBE-SERVICES -d 10.96.0.99/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA",
    '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rule_of_a_predecessor_is_left_in_chains_of_ours(host: Host, backend: str) -> None:
    """After the first sync the masquerade chains hold exactly three rules and one, in order.

    Stale Service chains are gone; a chain that is not ours any more (KUBE-MARK-DROP) is the
    kubelet's and stays; the jump that was there is not doubled.
    """
    put_one(host)
    restore(host.namespace, backend, "nat", *PREDECESSOR)
    agent = host.agent(backend=backend).start()
    nat = agent.tables()["nat"]
    first, second, third = nat["KUBE-POSTROUTING"]

    assert first == "-m mark ! --mark 0x4000/0x4000 -j RETURN"
    assert second == "-j MARK --set-xmark 0x4000/0x0"  # xor
    assert third.endswith("-j MASQUERADE --random-fully")
    assert nat["KUBE-MARK-MASQ"] == ["-j MARK --set-xmark 0x4000/0x4000"]
    assert "KUBE-SVC-AAAAAAAAAAAAAAAA" not in nat
    assert "10.96.0.99" not in str(nat)
    assert nat["KUBE-MARK-DROP"] == ["-j MARK --set-xmark 0x8000/0x8000"]
    assert str(nat["POSTROUTING"]).count("KUBE-POSTROUTING") == 1


def test_node_ports_that_connections_may_take(host: Host) -> None:
    """Said once at the start, however many Services have node ports."""
    put_one(host)
    host.namespace.write_sysctl("net/ipv4/ip_local_port_range", "20000 40000")
    agent = host.agent().start()
    lines = [line for line in agent.logs() if "may take node ports" in line["event"]]

    assert [(line["level"], line["ports"], line["first"]) for line in lines] == [
        ("warning", 2768, 30000)
    ]


@pytest.mark.parametrize("writable", [True, False], ids=["writable", "read-only"])
def test_conntrack_settings(host: Host, *, writable: bool) -> None:
    """Timeouts are applied where they may be, and a refusal is a warning, never the end."""
    put_one(host)
    name = "net/netfilter/nf_conntrack_tcp_timeout_established"
    read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && "
    script = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    prefix = [] if writable else [*script, read_only + 'exec "$@"', "sh"]
    agent = host.agent(
        "--conntrack-tcp-timeout-established", "7h", "--iptables-localhost-nodeports=false",
        prefix=prefix,
    ).start()  # fmt: skip
    value = host.namespace.run(["cat", f"/proc/sys/{name}"]).stdout.strip()
    refused = agent.logged("a kernel setting could not be changed", name=name)

    assert value == (str(7 * 3600) if writable else "432000")
    assert len(refused) == int(not writable)
    assert f"{POD}:8080" in str(agent.tables()["nat"])
