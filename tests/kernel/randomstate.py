"""Random Services and random rules of other programs, for a node of the testbed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.cluster.objects import EndpointSlice, Kind, Service, convert
from agent.demo.testbed import BRIDGE, CLUSTER_CIDRS, NODE_IPS
from agent.rules.ruleset import Layout, RuleSet
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_view
from agent.state.store import Store
from agent.state.values import Family
from agent.sync.render import render
from tests.kernel import shapes
from tests.kernel.shapes import NODE, OTHER_NODE

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from agent.demo.testbed import Pod

SERVICES = 8
#: Addresses that are no interface's, by family: cluster IPs, load balancers, external ones.
RANGES = {
    Family.V4: ("10.96.0.", "198.51.100.", "203.0.113."),
    Family.V6: ("fd00:96::", "2001:db8:1::", "2001:db8:2::"),
}
_SOURCES = ("192.168.0.0/24", "10.64.0.0/16", "2001:db8::/64", "fd00:10:64::/48", "172.16.0.0/12")


def services(rng: random.Random, pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """Services of all kinds with their slices, in both families."""
    found: list[dict[str, Any]] = []
    for number in range(SERVICES):
        name = f"s{number}"
        found.append(_service(rng, name, number))
        for index, family in enumerate(Family):
            endpoints = [
                shapes.endpoint(
                    pod.ips[index], rng.choice([NODE, NODE, OTHER_NODE]), ready=rng.random() < 0.8
                )
                for pod in pods
                if rng.random() < 0.7
            ]
            ports = [{"name": "a", "port": 8080, "protocol": "TCP"}]
            ports.append({"name": "b", "port": 8080, "protocol": "UDP"})
            found.append(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "namespace": "default",
                        "name": f"{name}-{family.value.lower()}",
                        "labels": {"kubernetes.io/service-name": name},
                    },
                    "addressType": family.value,
                    "ports": ports,
                    "endpoints": endpoints,
                }
            )
    return found


def _service(rng: random.Random, name: str, number: int) -> dict[str, Any]:
    spec: dict[str, Any] = {"type": rng.choice(["ClusterIP", "NodePort", "LoadBalancer"])}
    ports = []
    for offset, (port, protocol) in enumerate((("a", "TCP"), ("b", "UDP"))):
        ports.append({"name": port, "port": 80 + offset, "protocol": protocol, "targetPort": 8080})
        if spec["type"] != "ClusterIP":
            ports[-1]["nodePort"] = 30000 + number * 2 + offset
    if rng.random() < 0.4:
        spec["internalTrafficPolicy"] = "Local"
    if spec["type"] != "ClusterIP" and rng.random() < 0.5:
        spec["externalTrafficPolicy"] = "Local"
    if rng.random() < 0.3:
        spec["sessionAffinity"] = "ClientIP"
    if rng.random() < 0.4:
        spec["externalIPs"] = [f"{RANGES[family][2]}{number + 10}" for family in Family]
    ingress = []
    if spec["type"] == "LoadBalancer":
        ingress = [f"{RANGES[family][1]}{number + 10}" for family in Family]
        if rng.random() < 0.5:
            spec["loadBalancerSourceRanges"] = rng.sample(_SOURCES, 2)
    ips = [f"{RANGES[family][0]}{number + 10}" for family in Family]
    return shapes.service(name, *ips, ports=ports, ingress=ingress, **spec)


def rules_of(rng: random.Random, objects: Sequence[dict[str, Any]]) -> dict[Family, str]:
    """Restore input for the node, by family, with a random way of telling pods' traffic."""
    mode = rng.choice(["ClusterCIDR", "BridgeInterface", ""])
    settings = NodeSettings(
        name=NODE,
        ips=NODE_IPS,
        masquerade_bit=rng.choice([14, 7]),
        masquerade_all=rng.random() < 0.2,
        localhost_node_ports=False,
        detect_mode=mode,
        cluster_cidrs=CLUSTER_CIDRS,
        bridge=BRIDGE,
    )
    layout: Layout = "tree" if rng.random() < 0.5 else "flat"
    texts = {}
    for family in Family:
        store = Store(NODE)
        store.replace_services([_as(Kind.SERVICE, o) for o in objects if o["kind"] == "Service"])
        store.replace_slices([_as(Kind.SLICE, o) for o in objects if o["kind"] == "EndpointSlice"])
        rules = RuleSet(node_view(family, settings, NodeInfo(), KernelFacts()), layout)
        rules.update(store.snapshot(0).records, store)
        texts[family] = render(rules)
    return texts


def _as(kind: Kind, raw: dict[str, Any]) -> Any:
    found = convert(kind, raw)
    assert isinstance(found, (Service, EndpointSlice))
    return found


# Rules of others -----------------------------------------------------------------------------


def foreign(rng: random.Random, family: Family, addresses: Sequence[str]) -> str:
    """Restore input, to add behind the rest, with chains as other programs have them.

    Answers are let through first: a walk is about the first packet of a flow.
    """
    known = [one for one in addresses if (":" in one) == (family is Family.V6)]
    lines = ["*filter", ":OTHER-A - [0:0]", ":OTHER-B - [0:0]"]
    for chain in ("OTHER-A", "OTHER-B"):
        for _ in range(rng.randint(1, 5)):
            target = rng.choice(["RETURN", "ACCEPT", "DROP", "LOG", "REJECT"])
            lines.append(f"-A {chain} {_match(rng, known)} -j {target}")
    for hook in ("INPUT", "FORWARD", "OUTPUT"):
        lines.append(f"-A {hook} {_match(rng, known)} {rng.choice(['-j', '-g'])} OTHER-A")
        if rng.random() < 0.5:
            lines.append(f"-I {hook} {_match(rng, known)} -j OTHER-B")
        lines.append(f"-I {hook} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
        if family is Family.V6:  # without it, nobody finds a neighbour
            lines.append(f"-I {hook} -p ipv6-icmp -j ACCEPT")
    lines += ["COMMIT", "*mangle", ":OTHER-M - [0:0]"]
    lines.append(f"-A OTHER-M {_match(rng, known)} -j MARK --set-xmark 0x20000/0x20000")
    lines.append("-A PREROUTING -j OTHER-M")
    lines += ["COMMIT", "*nat", ":OTHER-N - [0:0]"]
    endpoint = "[fd00:10:64::11]:8080" if family is Family.V6 else "10.64.0.11:8080"
    lines.append(f"-A OTHER-N -p tcp -m tcp --dport 31000 -j DNAT --to-destination {endpoint}")
    lines.append("-A PREROUTING -m addrtype --dst-type LOCAL -j OTHER-N")
    lines.append(f"-A POSTROUTING -o eth0 {_match(rng, known)} -j MASQUERADE")
    return "\n".join([*lines, "COMMIT", ""])


def _match(rng: random.Random, addresses: Sequence[str]) -> str:
    """One or two matches of different kinds."""
    negated = rng.choice(["", "", "! "])
    kinds = {
        "source": f"{negated}-s {rng.choice(addresses)}",
        "destination": f"{negated}-d {rng.choice(addresses)}",
        "ports": rng.choice(
            [
                "-p udp",
                "-p tcp -m tcp --dport 8080",
                "-p tcp -m tcp --dport 8000:9000",
                "-p tcp -m multiport --dports 80,8080:8090",
                "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN",
            ]
        ),
        "state": rng.choice(["-m conntrack --ctstate INVALID", "-m conntrack --ctstate NEW"]),
        "type": f"-m addrtype {negated}--{rng.choice(['src', 'dst'])}-type LOCAL",
        "interface": f"-m mark {negated}--mark 0x20000/0x20000",
    }
    return " ".join(kinds[kind] for kind in rng.sample(sorted(kinds), rng.randint(1, 2)))
