"""Every kind of endpoint, address, policy and origin, with real connections.

What must happen is written down from kube-proxy's documentation and its users' expectations, not
from this agent's rules:

- https://kubernetes.io/docs/reference/networking/virtual-ips/ (policies, terminating endpoints)
- https://kubernetes.io/docs/tutorials/services/source-ip/ (which source address is seen)
- https://kubernetes.io/docs/concepts/services-networking/service/ (external IPs, policies)
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from typing import TYPE_CHECKING

import pytest

from agent.demo import load
from agent.demo.testbed import CLIENT_IPS, NODE_IPS
from tests.kernel import shapes
from tests.kernel.dialer import Call, dial_all
from tests.kernel.running import BACKENDS, iptables
from tests.kernel.shapes import OTHER_NODE, endpoint, port, terminating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.demo.testbed import Testbed
    from tests.kernel.smallcluster import SmallCluster

# A cell says who answers, and whose address the endpoint sees as the source: that of the pod or
# of the client that called, or the node's (masqueraded). "refused" comes at once (ICMP port
# unreachable), "dropped" is silence. "leaves" means that the packet goes on to the network behind
# the node: rules for external addresses without endpoints are not for packets of the node itself.
#
# "draining" is an endpoint that terminates and still serves. The policy is internalTrafficPolicy
# for the cluster IP and externalTrafficPolicy for the others.
EXPECTED = """\
endpoints              policy   address   from a pod       from the node    from outside
none                   Cluster  cluster   refused          refused          refused
none                   Cluster  nodeport  refused          refused          refused
none                   Cluster  balancer  refused          leaves           refused
none                   Cluster  external  refused          leaves           refused
none                   Local    cluster   refused          refused          refused
none                   Local    nodeport  refused          refused          refused
none                   Local    balancer  refused          leaves           refused
none                   Local    external  refused          leaves           refused
local                  Cluster  cluster   pod-1 (pod)      pod-1 (node)     pod-1 (node)
local                  Cluster  nodeport  pod-1 (node)     pod-1 (node)     pod-1 (node)
local                  Cluster  balancer  pod-1 (node)     pod-1 (node)     pod-1 (node)
local                  Cluster  external  pod-1 (node)     pod-1 (node)     pod-1 (node)
local                  Local    cluster   pod-1 (pod)      pod-1 (node)     pod-1 (node)
local                  Local    nodeport  pod-1 (pod)      pod-1 (node)     pod-1 (client)
local                  Local    balancer  pod-1 (pod)      pod-1 (node)     pod-1 (client)
local                  Local    external  pod-1 (pod)      pod-1 (node)     pod-1 (client)
draining               Cluster  cluster   pod-1 (pod)      pod-1 (node)     pod-1 (node)
draining               Cluster  nodeport  pod-1 (node)     pod-1 (node)     pod-1 (node)
draining               Cluster  balancer  pod-1 (node)     pod-1 (node)     pod-1 (node)
draining               Cluster  external  pod-1 (node)     pod-1 (node)     pod-1 (node)
draining               Local    cluster   pod-1 (pod)      pod-1 (node)     pod-1 (node)
draining               Local    nodeport  pod-1 (pod)      pod-1 (node)     pod-1 (client)
draining               Local    balancer  pod-1 (pod)      pod-1 (node)     pod-1 (client)
draining               Local    external  pod-1 (pod)      pod-1 (node)     pod-1 (client)
remote                 Cluster  cluster   remote-1 (pod)   remote-1 (node)  remote-1 (node)
remote                 Cluster  nodeport  remote-1 (node)  remote-1 (node)  remote-1 (node)
remote                 Cluster  balancer  remote-1 (node)  remote-1 (node)  remote-1 (node)
remote                 Cluster  external  remote-1 (node)  remote-1 (node)  remote-1 (node)
remote                 Local    cluster   dropped          dropped          dropped
remote                 Local    nodeport  remote-1 (pod)   remote-1 (node)  dropped
remote                 Local    balancer  remote-1 (pod)   remote-1 (node)  dropped
remote                 Local    external  remote-1 (pod)   remote-1 (node)  dropped
draining and remote    Cluster  cluster   remote-1 (pod)   remote-1 (node)  remote-1 (node)
draining and remote    Cluster  nodeport  remote-1 (node)  remote-1 (node)  remote-1 (node)
draining and remote    Cluster  balancer  remote-1 (node)  remote-1 (node)  remote-1 (node)
draining and remote    Cluster  external  remote-1 (node)  remote-1 (node)  remote-1 (node)
draining and remote    Local    cluster   pod-1 (pod)      pod-1 (node)     pod-1 (node)
draining and remote    Local    nodeport  remote-1 (pod)   remote-1 (node)  pod-1 (client)
draining and remote    Local    balancer  remote-1 (pod)   remote-1 (node)  pod-1 (client)
draining and remote    Local    external  remote-1 (pod)   remote-1 (node)  pod-1 (client)
"""
ENDPOINTS = ("none", "local", "draining", "remote", "draining and remote")
POLICIES = ("Cluster", "Local")
ADDRESSES = ("cluster", "nodeport", "balancer", "external")
ORIGINS = ("pod", "node", "client")
PROTOCOLS = ("tcp", "udp")
CASES = [(state, policy) for state in ENDPOINTS for policy in POLICIES]


def virtual(kind: str, number: int, family: int) -> str:
    """An address of a Service: ``kind`` is cluster, balancer or external."""
    prefixes = {
        "cluster": ("10.96.1.", "fd00:96::1:"),
        "balancer": ("203.0.113.", "2001:db8:ba::"),
        "external": ("198.51.100.", "2001:db8:e::"),
    }
    return f"{prefixes[kind][family]}{number}"


def objects(bed: Testbed) -> list[shapes.Object]:
    """One Service of both protocols and families for each state and policy."""
    found = []
    for number, (state, policy) in enumerate(CASES, 1):
        name = f"case-{number}"
        ports = [
            port(80, name=protocol, protocol=protocol.upper(), node_port=30000 + number)
            for protocol in PROTOCOLS
        ]
        found.append(
            shapes.service(
                name,
                *(virtual("cluster", number, family) for family in (0, 1)),
                type="LoadBalancer",
                ports=ports,
                externalIPs=[virtual("external", number, family) for family in (0, 1)],
                ingress=[virtual("balancer", number, family) for family in (0, 1)],
                externalTrafficPolicy=policy,
                internalTrafficPolicy=policy,
            )
        )
        targets = [
            {"name": protocol, "port": shapes.TARGET, "protocol": protocol.upper()}
            for protocol in PROTOCOLS
        ]
        found += [
            shapes.endpoint_slice(
                name, *endpoints(bed, state, family), ports=targets,
                suffix=kind.lower(), family=kind,
            )
            for family, kind in enumerate(shapes.FAMILIES)
        ]  # fmt: skip
    return found


def endpoints(bed: Testbed, state: str, family: int) -> list[shapes.Object]:
    """The endpoints of a state in a family."""
    here, there = bed.pods[0].ips[family], bed.remote_pods[0].ips[family]
    return {
        "none": [],
        "local": [endpoint(here)],
        "draining": [terminating(here)],
        "remote": [endpoint(there, OTHER_NODE)],
        "draining and remote": [terminating(here), endpoint(there, OTHER_NODE)],
    }[state]


def show(rows: dict[tuple[str, str, str], list[str]]) -> str:
    """Rows as text, laid out like the table above."""
    head = ("endpoints", "policy", "address")
    titles = ["from a pod", "from the node", "from outside"]
    lines = [(*head, *titles), *((*key, *cells) for key, cells in rows.items())]
    return "".join(f"{a:<22} {b:<8} {c:<9} {d:<16} {e:<16} {f}\n" for a, b, c, d, e, f in lines)


def seen_by_endpoint(outcome: str, bed: Testbed, family: int) -> str:
    """The outcome in the table's words."""
    who, _, source = outcome.partition(" ")
    names = {CLIENT_IPS[family]: "client", bed.pods[1].ips[family]: "pod"}
    node = {NODE_IPS[family], ("10.64.0.1", "fd00:10:64::1")[family]}
    names |= dict.fromkeys(node, "node")
    if source:
        return f"{who} ({names.get(source, source)})"
    return "leaves" if who in {"EHOSTUNREACH", "ENETUNREACH"} else who


def calls(family: int) -> dict[str, dict[str, Call]]:
    """All connections of a family, by origin and name."""
    found: dict[str, dict[str, Call]] = {origin: {} for origin in ORIGINS}
    for origin, protocol, address in itertools.product(ORIGINS, PROTOCOLS, ADDRESSES):
        for number in range(1, len(CASES) + 1):
            name = f"{shapes.FAMILIES[family]} {protocol} {number} {address} {origin}"
            if address == "nodeport":
                found[origin][name] = Call(NODE_IPS[family], 30000 + number, protocol)
            else:
                found[origin][name] = Call(virtual(address, number, family), 80, protocol)
    return found


def measure(cluster: SmallCluster) -> dict[tuple[str, str], str]:
    """Drive all cells at once; returns the tables that come out, by family and protocol."""
    bed = cluster.bed
    places = {"pod": bed.pods[1].namespace, "node": bed.node, "client": bed.client}
    both = [calls(family) for family in (0, 1)]
    found = dial_all([(places[origin], both[0][origin] | both[1][origin]) for origin in ORIGINS])
    return {
        (kind, protocol): show(
            {
                (state, policy, address): [
                    seen_by_endpoint(
                        found[f"{kind} {protocol} {number} {address} {origin}"], bed, family
                    )
                    for origin in ORIGINS
                ]
                for number, (state, policy) in enumerate(CASES, 1)
                for address in ADDRESSES
            }
        )
        for family, kind in enumerate(shapes.FAMILIES)
        for protocol in PROTOCOLS
    }


@contextlib.contextmanager
def network_behind(bed: Testbed) -> Iterator[None]:
    """Make the network behind the node answer "unreachable" to what leaves it for external IPs.

    The client's namespace is that network; its own connections are not forwarded ones.
    """
    rules = [
        (family, ["FORWARD", "-d", network, "-j", "REJECT", "--reject-with", answer])
        for family, answer, *networks in (
            ("IPv4", "icmp-host-unreachable", "203.0.113.0/24", "198.51.100.0/24"),
            ("IPv6", "icmp6-no-route", "2001:db8:ba::/64", "2001:db8:e::/64"),
        )
        for network in networks
    ]
    forwarding = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    for family, rule in rules:
        iptables(bed.client, "nft", "-A", *rule, family=family)
    for name in forwarding:
        bed.client.write_sysctl(name, 1)
    yield
    for name in forwarding:
        bed.client.write_sysctl(name, 0)
    for family, rule in rules:
        iptables(bed.client, "nft", "-D", *rule, family=family)


@pytest.mark.parametrize("layout", ["flat", "tree"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_cell_of_the_table(
    clusters: Callable[[str, str], SmallCluster], backend: str, layout: str
) -> None:
    """Each combination of endpoints, policy, address and origin has the documented outcome.

    In both families, by TCP and UDP, whatever the layout of the rules. Behind each node port
    listens something of the node's own, which must never be what answers.
    """
    cluster = clusters(backend, layout)
    ports = [30000 + number for number in range(1, len(CASES) + 1)]
    decoy = load.start_server(cluster.bed.node, "decoy", ports=ports, protocols=PROTOCOLS)
    with decoy, cluster.putting(*objects(cluster.bed)), network_behind(cluster.bed):
        decoy.wait_ready()
        branches = "TREE" in str(cluster.agent.tables()["nat"])
        found = measure(cluster)

    assert branches is (layout == "tree")
    wrong = {
        " ".join(key): "\n".join(
            difflib.unified_diff(
                EXPECTED.split("\n"), table.split("\n"), "expected", "found", n=0, lineterm=""
            )
        )
        for key, table in found.items()
        if table != EXPECTED
    }
    assert not wrong, "\n".join(f"{key}\n{diff}" for key, diff in wrong.items())
