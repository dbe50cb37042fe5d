from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from agent.demo.testbed import CLIENT_IPS, NODE_IPS, PORT, Testbed
from agent.kernel import conntrack, deletion
from agent.kernel.conntrack import Flow
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
SERVICES = {Family.V4: "10.96.0.10", Family.V6: "fd00:10:96::10"}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A testbed with UDP servers, and which of a pair belongs to the family at hand."""

    bed: Testbed
    family: Family

    @property
    def index(self) -> int:
        return list(Family).index(self.family)

    @property
    def service(self) -> str:
        return SERVICES[self.family]

    def pod(self, number: int) -> str:
        return self.bed.pods[number].ips[self.index]

    def iptables(self, *arguments: str) -> None:
        command = "iptables" if self.family is Family.V4 else "ip6tables"
        self.bed.node.run(["xtables-nft-multi", command, *arguments])

    def lead_to(self, number: int, address: str = "", port: int = 53) -> None:
        """Send new flows to an address (the service by default) to a pod."""
        pod = self.pod(number)
        target = f"[{pod}]:{PORT}" if ":" in pod else f"{pod}:{PORT}"
        self.iptables(
            *("-t", "nat", "-I", "PREROUTING", "-d", address or self.service),
            *("-p", "udp", "--dport", str(port), "-j", "DNAT", "--to-destination", target),
        )

    def flows(self) -> list[Flow]:
        def read() -> list[Flow]:
            return sorted(conntrack.udp_flows(self.family), key=lambda flow: flow.orig_sport)

        return self.bed.node.call(read)


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Testbed(pods=2) as bed:
        bed.serve(protocols=["udp", "tcp"])
        yield Cluster(bed, request.param)


def test_flows_of_the_family_are_read(cluster: Cluster) -> None:
    """UDP entries are given with both sides of the translation; TCP entries are not."""
    cluster.lead_to(0)
    client, bed = cluster.bed.client, cluster.bed
    bed.connect(client, cluster.service, 53, protocol="udp", count=3, source_port=4000)
    bed.connect(client, cluster.pod(0), PORT)
    bed.connect(client, bed.pods[0].ips[1 - cluster.index], PORT, protocol="udp")
    found = cluster.flows()

    assert [unnumbered(flow) for flow in found] == [
        Flow(
            family=cluster.family,
            orig_src=CLIENT_IPS[cluster.index],
            orig_sport=4000 + number,
            orig_dst=cluster.service,
            orig_dport=53,
            reply_src=cluster.pod(0),
            reply_sport=PORT,
            reply_dst=CLIENT_IPS[cluster.index],
            reply_dport=4000 + number,
        )
        for number in range(3)
    ]
    assert len({flow.id for flow in found} - {0}) == 3


def test_a_deleted_flow_finds_the_new_endpoint(cluster: Cluster) -> None:
    """Steady senders stay with the old pod until their entry goes; others are left alone."""
    cluster.lead_to(0)
    client = cluster.bed.start_client(
        cluster.bed.client,
        cluster.service,
        53,
        protocol="udp",
        count=4,
        source_port=4000,
        hold=True,
    )
    first = client.tally()
    cluster.lead_to(1)
    stuck = client.ask()
    stale = [flow for flow in cluster.flows() if flow.orig_sport != 4003]
    deleted = cluster.bed.node.call(deletion.delete, stale)
    moved = client.ask()

    assert first.answers == {"pod-1": 4}
    assert stuck.answers == {"pod-1": 4}
    assert deleted == 3
    assert moved.answers == {"pod-2": 3, "pod-1": 1}
    assert [flow.reply_src for flow in cluster.flows()] == [
        cluster.pod(1),
        cluster.pod(1),
        cluster.pod(1),
        cluster.pod(0),
    ]


def test_an_entry_that_was_replaced_is_left_alone(cluster: Cluster) -> None:
    """The same sender and service, but another endpoint by now: the deletion is not for it."""
    cluster.lead_to(0)
    client = cluster.bed.start_client(
        cluster.bed.client, cluster.service, 53, protocol="udp", source_port=4000, hold=True
    )
    client.tally()
    old = cluster.flows()
    first = cluster.bed.node.call(deletion.delete, old)
    cluster.lead_to(1)
    client.ask()
    again = cluster.bed.node.call(deletion.delete, old)

    assert (first, again) == (1, 0)
    assert [flow.reply_src for flow in cluster.flows()] == [cluster.pod(1)]


def test_a_masqueraded_flow_is_deleted_too(cluster: Cluster) -> None:
    """The endpoint answers to the node, not to the client; the entry is found all the same."""
    cluster.lead_to(0)
    cluster.iptables("-t", "nat", "-A", "POSTROUTING", "-p", "udp", "-j", "MASQUERADE")
    cluster.bed.connect(
        cluster.bed.client, cluster.service, 53, protocol="udp", count=2, source_port=4000
    )
    found = cluster.flows()
    deleted = cluster.bed.node.call(deletion.delete, found[:1])

    gateway = ("10.64.0.1", "fd00:10:64::1")[cluster.index]
    assert {flow.reply_dst for flow in found} == {gateway}
    assert deleted == 1
    assert cluster.flows() == found[1:]


def test_an_untranslated_flow_is_seen_as_such(cluster: Cluster) -> None:
    """Without an endpoint the entry's answerer is the service itself; with one it can be moved."""
    cluster.lead_to(1, port=9)  # without such a rule a namespace tracks no connections
    client = cluster.bed.start_client(
        cluster.bed.client,
        cluster.service,
        53,
        protocol="udp",
        source_port=4000,
        hold=True,
        timeout=0.3,
    )
    unanswered = client.tally()
    before = [(flow.reply_src, flow.reply_sport) for flow in cluster.flows()]
    cluster.lead_to(0)
    stuck = client.ask()
    deleted = cluster.bed.node.call(deletion.delete, cluster.flows())
    moved = client.ask()

    assert unanswered.failures == {"timeout": 1}
    assert before == [(cluster.service, 53)]
    assert stuck.failures == {"timeout": 1}
    assert deleted == 1
    assert moved.answers == {"pod-1": 1}


def test_node_ports_are_told_by_their_address(cluster: Cluster) -> None:
    """A flow to a node port and one to a service with that port differ in the destination."""
    cluster.lead_to(0, NODE_IPS[cluster.index], 30123)
    cluster.lead_to(1, port=30123)
    for target in (NODE_IPS[cluster.index], cluster.service):
        cluster.bed.connect(cluster.bed.client, target, 30123, protocol="udp")

    assert {(flow.orig_dst, flow.orig_dport): flow.reply_src for flow in cluster.flows()} == {
        (NODE_IPS[cluster.index], 30123): cluster.pod(0),
        (cluster.service, 30123): cluster.pod(1),
    }


def test_zones_are_kept_apart(cluster: Cluster) -> None:
    """An entry in a zone is read with it, and deleted only with it."""
    cluster.iptables(
        *("-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "CT", "--zone", "5"),
    )
    cluster.bed.connect(
        cluster.bed.client, cluster.pod(0), PORT, protocol="udp", timeout=0.3, source_port=4000
    )
    zoned = [flow for flow in cluster.flows() if flow.zone]
    without = [structs.replace(flow, zone=0, id=0) for flow in zoned]
    unzoned = cluster.bed.node.call(deletion.delete, without)
    found = cluster.bed.node.call(deletion.delete, zoned)

    assert [flow.zone for flow in zoned] == [5]
    assert (unzoned, found) == (0, 1)


@FAMILIES
def test_the_table_is_that_of_the_callers_namespace(namespace: Namespace, family: Family) -> None:
    """An empty namespace has no entries, whatever the rest of the machine does."""
    assert namespace.call(lambda: list(conntrack.udp_flows(family))) == []


def test_many_entries_are_streamed(namespace: Namespace) -> None:
    """Ten thousand entries come complete, and each one once."""
    namespace.run(["xtables-nft-multi", "iptables", "-t", "nat", "-N", "ANY"])
    dnat = ["-p", "udp", "--dport", "1", "-j", "DNAT", "--to-destination", "127.0.0.1:9"]
    namespace.run(["xtables-nft-multi", "iptables", "-t", "nat", "-A", "OUTPUT", *dnat])
    send = (
        "import contextlib, socket\n"
        "for port in range(10000, 10500):\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    s.bind(('127.0.0.1', port))\n"
        "    for host in range(1, 21):\n"
        "        with contextlib.suppress(OSError):\n"
        "            s.sendto(b'x', (f'127.0.0.{host}', 9))\n"
        "    s.close()\n"
    )
    namespace.run(["python3", "-c", send])
    found = namespace.call(
        lambda: [(flow.orig_sport, flow.orig_dst) for flow in conntrack.udp_flows(Family.V4)]
    )

    assert len(found) == len(set(found)) == 10_000


def unnumbered(flow: Flow) -> Flow:
    """The entry without the number that the kernel gave it."""
    return structs.replace(flow, id=0)
