"""What single features of Services do to packets, on both backends and in both families."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from agent.demo.testbed import CLIENT_IPS, NODE_IPS
from tests.kernel import raw, shapes
from tests.kernel.dialer import Call, dial, dial_all
from tests.kernel.shapes import OTHER_NODE, TARGET, endpoint, endpoint_slice, port, service

if TYPE_CHECKING:
    from agent.demo.testbed import Testbed
    from tests.kernel.smallcluster import SmallCluster

FAMILIES = pytest.mark.parametrize("family", [0, 1], ids=shapes.FAMILIES)
BRIDGE_IPS = ("10.64.0.1", "fd00:10:64::1")
SOCKETS = (socket.AF_INET, socket.AF_INET6)
HOST_BITS = (32, 128)
#: Critical values of the chi-square distribution at p = 0.001, by degrees of freedom.
CRITICAL = {2: 13.816, 3: 16.266}


def cluster_ip(number: int, family: int) -> str:
    return ("10.96.2.", "fd00:96::2:")[family] + str(number)


def balancer_ip(number: int, family: int) -> str:
    return ("203.0.113.", "2001:db8:ba::")[family] + str(number)


def local_endpoints(bed: Testbed, family: int) -> list[shapes.Object]:
    return [endpoint(pod.ips[family]) for pod in bed.pods]


def chi_square(answers: dict[str, int], total: int, names: list[str]) -> float:
    expected = total / len(names)
    return sum((answers.get(name, 0) - expected) ** 2 / expected for name in names)


def split_is_fair(cluster: SmallCluster, address: str, number: int, names: list[str]) -> bool:
    tally = cluster.bed.connect(cluster.bed.client, address, number, count=3000)
    assert (tally.answered, tally.failures) == (3000, {})
    assert set(tally.answers) <= set(names)
    return chi_square(tally.answers, 3000, names) < CRITICAL[len(names) - 1]


@FAMILIES
def test_every_endpoint_gets_its_share(cluster: SmallCluster, family: int) -> None:
    """3,000 connections to the cluster IP split evenly over four pods, and to a node port.

    At p > 0.001. Chance alone fails that once in a thousand times, so a failure is tried once
    more: a bias that matters fails again.
    """
    bed = cluster.bed
    everywhere = [
        *local_endpoints(bed, family),
        endpoint(bed.remote_pods[0].ips[family], OTHER_NODE),
    ]
    names = [pod.name for pod in (*bed.pods, *bed.remote_pods)]
    ip, ip_local = cluster_ip(1, family), cluster_ip(2, family)
    with cluster.putting(
        service("split", ip),
        endpoint_slice("split", *everywhere),
        service(
            "split-local", ip_local,
            type="NodePort", ports=[port(node_port=31001)], externalTrafficPolicy="Local",
        ),
        endpoint_slice("split-local", *everywhere),
    ):  # fmt: skip
        for address, number, wanted in (
            (ip, 80, names),
            (NODE_IPS[family], 31001, names[:3]),
        ):
            assert any(split_is_fair(cluster, address, number, wanted) for _ in range(2))


@FAMILIES
def test_a_pod_reaches_itself_through_its_own_service(cluster: SmallCluster, family: int) -> None:
    """Hairpin: by the cluster IP and by a Local load balancer, and the answer finds its way."""
    pod = cluster.bed.pods[0]
    with cluster.putting(
        service(
            "hairpin", cluster_ip(3, family), type="LoadBalancer",
            ports=[port(node_port=31002)], ingress=[balancer_ip(103, family)],
            externalTrafficPolicy="Local",
        ),
        endpoint_slice("hairpin", endpoint(pod.ips[family])),
    ):  # fmt: skip
        found = dial(
            pod.namespace,
            {
                "cluster": Call(cluster_ip(3, family), 80),
                "balancer": Call(balancer_ip(103, family), 80),
                "node port": Call(NODE_IPS[family], 31002),
            },
        )

    assert found == dict.fromkeys(found, f"pod-1 {BRIDGE_IPS[family]}")
    assert len(found) == 3


def add_sources(bed: Testbed, family: int) -> list[str]:
    """Twenty more addresses of the client, which only those connections use that ask for one."""
    prefix = ("192.168.0.", "2001:db8::a")[family]
    sources = [f"{prefix}{number}" for number in range(100, 120)]
    version, bits = ("-4", "-6")[family], (24, 64)[family]
    for source in sources:
        # The kernel takes no deprecated address by itself; of IPv4's it takes the first.
        options = ["dev", "br0", *(["nodad", "preferred_lft", "0"] if family else [])]
        bed.client.run(["ip", version, "address", "replace", f"{source}/{bits}", *options])
    return sources


@FAMILIES
def test_a_client_stays_with_its_endpoint(cluster: SmallCluster, family: int) -> None:
    """Session affinity holds for each source, through cluster IP and a Local load balancer alike.

    It ends with its timeout, also when that was shortened meanwhile, and with its endpoint.
    """
    bed = cluster.bed
    sources = add_sources(bed, family)
    ip, balancer = cluster_ip(4, family), balancer_ip(104, family)

    def sticky(seconds: int) -> shapes.Object:
        config = {"clientIP": {"timeoutSeconds": seconds}}
        return service(
            "sticky", ip, type="LoadBalancer", ports=[port(node_port=31003)], ingress=[balancer],
            externalTrafficPolicy="Local",
            sessionAffinity="ClientIP", sessionAffinityConfig=config,
        )  # fmt: skip

    def ask() -> dict[str, str]:
        calls = {
            f"{name} {source}": Call(address, 80, source=source)
            for name, address in (("cluster", ip), ("balancer", balancer))
            for source in sources
        }
        return {name: outcome.split()[0] for name, outcome in dial(bed.client, calls).items()}

    with cluster.putting(sticky(60), endpoint_slice("sticky", *local_endpoints(bed, family))):
        first = ask()
        again = [ask() for _ in range(3)]
        cluster.put(sticky(1))
        time.sleep(1.2)  # with no connection meanwhile: each begins the time anew
        second = ask()
        cluster.put(sticky(60))
        left = [
            endpoint(pod.ips[family], ready=pod.name != second[f"cluster {sources[0]}"])
            for pod in bed.pods
        ]
        cluster.put(endpoint_slice("sticky", *left))
        moved = ask()

    assert set(first.values()) == {"pod-1", "pod-2", "pod-3"}
    assert again == [first] * 3
    assert second != first  # by chance once in 3**20 times
    gone = second[f"cluster {sources[0]}"]
    assert gone not in moved.values()
    stayed = {name: pod for name, pod in second.items() if pod != gone}
    assert stayed == {name: moved[name] for name in stayed}
    # One record for each source and endpoint: both ways in lead to the same pod.
    assert all(first[f"cluster {source}"] == first[f"balancer {source}"] for source in sources)


#: Who may use a load balancer whose ranges do, or do not, hold the node's address.
RANGES = {
    "node in": {"allowed": "pod-1", "client": "dropped", "pod": "dropped", "node": "pod-1"},
    "node out": {"allowed": "pod-1", "client": "dropped", "pod": "dropped", "node": "dropped"},
}


def range_objects(bed: Testbed, family: int, allowed: str) -> list[shapes.Object]:
    found = []
    for number, place in enumerate(RANGES, 105):
        ips = (allowed, NODE_IPS[family]) if place == "node in" else (allowed,)
        found += [
            service(
                f"ranges-{number}", cluster_ip(number, family), type="LoadBalancer",
                ports=[port(node_port=31000 + number)], ingress=[balancer_ip(number, family)],
                loadBalancerSourceRanges=[f" {ip}/{HOST_BITS[family]} " for ip in ips],
            ),
            endpoint_slice(f"ranges-{number}", endpoint(bed.pods[0].ips[family])),
        ]  # fmt: skip
    return found


def range_calls(who: str, family: int, source: str = "") -> dict[str, Call]:
    found = {}
    for number, place in enumerate(RANGES, 105):
        name = f"{place}, {who}, "
        found[name + "balancer"] = Call(balancer_ip(number, family), 80, source=source)
        found[name + "cluster"] = Call(cluster_ip(number, family), 80, source=source)
        found[name + "node port"] = Call(NODE_IPS[family], 31000 + number, source=source)
    return found


@FAMILIES
def test_load_balancer_source_ranges(cluster: SmallCluster, family: int) -> None:
    """Only the ranges may use the load balancer; node ports and the cluster IP are not filtered.

    The node may if its address is in a range, also where the load balancer's address is on one
    of its interfaces; pods are outside of the ranges like anybody else.
    """
    bed = cluster.bed
    allowed = add_sources(bed, family)[0]
    client_calls = range_calls("client", family, CLIENT_IPS[family])
    calls = [
        (bed.client, range_calls("allowed", family, allowed) | client_calls),
        (bed.pods[1].namespace, range_calls("pod", family)),
        (bed.node, range_calls("node", family)),
    ]
    on_node = [f"{balancer_ip(number, family)}/{HOST_BITS[family]}" for number in (105, 106)]
    with cluster.putting(*range_objects(bed, family, allowed)):
        found = dial_all(calls)
        for address in on_node:
            bed.node.run(["ip", "address", "add", address, "dev", "lo"])
        with_addresses = dial(bed.node, range_calls("node", family))
        for address in on_node:
            bed.node.run(["ip", "address", "del", address, "dev", "lo"])

    expected = {
        f"{place}, {who}, {address}": outcome if address == "balancer" else "pod-1"
        for place, row in RANGES.items()
        for who, outcome in row.items()
        for address in ("balancer", "cluster", "node port")
    }
    assert {name: outcome.split()[0] for name, outcome in found.items()} == expected
    assert {name: outcome.split()[0] for name, outcome in with_addresses.items()} == {
        name: outcome for name, outcome in expected.items() if ", node, " in name
    }


@pytest.mark.usefixtures("counters")
def test_node_ports_on_loopback(cluster: SmallCluster) -> None:
    """A node port answers on 127.0.0.1 from the node, which is counted, and never on ::1."""
    pods = cluster.bed.pods
    ips = [cluster_ip(7, family) for family in (0, 1)]
    name = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
    with cluster.putting(
        service("loopback", *ips, type="NodePort", ports=[port(node_port=31007)]),
        endpoint_slice("loopback", endpoint(pods[0].ips[0]), suffix="4"),
        endpoint_slice("loopback", endpoint(pods[0].ips[1]), suffix="6"),
    ):
        before = cluster.agent.metric(name)
        found = dial(
            cluster.bed.node,
            {"v4": Call("127.0.0.1", 31007), "v6": Call("::1", 31007)},
        )
        after = cluster.agent.metric(name)

    assert found == {"v4": "pod-1 10.64.0.1", "v6": "refused"}
    assert before is not None
    assert after == before + 1


@pytest.mark.usefixtures("counters")
@FAMILIES
def test_packets_out_of_the_window_are_dropped_and_counted(
    cluster: SmallCluster, family: int
) -> None:
    """A segment that belongs to no place in its connection never leaves the node again."""
    name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
    ip = cluster_ip(8, family)
    with cluster.putting(
        service("window", ip),
        endpoint_slice("window", endpoint(cluster.bed.pods[0].ips[family])),
    ):
        before = cluster.agent.metric(name)

        def inject() -> bytes:
            with socket.create_connection((ip, 80), 3) as connection:
                raw.send_out_of_window(connection, 7)
                connection.sendall(b"who\n")
                return connection.recv(100)

        answer = cluster.bed.client.call(inject)
        after = cluster.agent.metric(name)

    assert answer.startswith(b"pod-1 ")
    assert before is not None
    assert after == before + 7


@FAMILIES
def test_sctp_is_balanced_too(cluster: SmallCluster, family: int) -> None:
    """An SCTP association's first packet reaches the pod, and the answer seems the Service's."""
    bed, ip = cluster.bed, cluster_ip(9, family)
    known = cluster.bed.node.run(
        ["ls", "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established"], check=False
    )
    if known.returncode != 0:
        pytest.skip("this kernel cannot track SCTP associations")
    pod = bed.pods[0]
    client = bed.client.call(raw.SctpEnd, SOCKETS[family])
    server = pod.namespace.call(raw.SctpEnd, SOCKETS[family])
    try:
        with cluster.putting(
            service("sctp", ip, ports=[port(9000, protocol="SCTP")]),
            endpoint_slice(
                "sctp", endpoint(pod.ips[family]),
                ports=[{"name": "", "port": TARGET, "protocol": "SCTP"}],
            ),
        ):  # fmt: skip
            client.send_init(4321, (ip, 9000))
            kind, to, sender = server.receive()
            server.send_init_ack(to, sender)
            answer = client.receive()
    finally:
        client.close()
        server.close()

    assert (kind, to, sender[0]) == (1, TARGET, BRIDGE_IPS[family])
    assert answer == (2, 4321, (ip, 9000))
