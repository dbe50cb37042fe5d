from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.state.selection import Selection, Topology, select, topology
from agent.state.values import Endpoint, ServicePort
from tests.fakes.cluster import NODE, key

ZONE = "zone-1"


def port(*, internal: bool = False, external: bool = False, node_port: int = 0) -> ServicePort:
    return ServicePort(
        service=key(),
        port_name="http",
        protocol="tcp",
        cluster_ip="10.96.0.1",
        port=80,
        node_port=node_port,
        internal_local=internal,
        external_local=external,
    )


PORTS = {
    "cluster": port(),
    "cluster+np": port(node_port=30000),
    "iTP": port(internal=True),
    "iTP+np": port(internal=True, node_port=30000),
    "eTP": port(external=True, node_port=30000),
    "eTP unused": port(external=True),
    "both": port(internal=True, external=True, node_port=30000),
}


def make(text: str) -> Endpoint:
    """An endpoint from its name: where it is, how it does, and a number.

    ``L`` local or ``R`` remote; ``r`` ready, ``d`` draining (serving while it terminates), ``t``
    terminating and not serving, ``n`` not ready.
    """
    return Endpoint(
        ip=f"10.0.0.{text[2:] or '1'}",
        port=8080,
        local=text[0] == "L",
        ready=text[1] == "r",
        serving=text[1] in "rd",
        terminating=text[1] in "dt",
    )


def chosen(selection: Selection, names: list[str]) -> tuple[str, str, str, bool]:
    """Names of the chosen endpoints in each part of a selection."""
    by_ip = {make(name).ip: name for name in names}
    cluster, local, reachable = (
        " ".join(by_ip[endpoint.ip] for endpoint in part)
        for part in (selection.cluster, selection.local, selection.reachable)
    )
    return cluster, local, reachable, selection.usable


@pytest.mark.parametrize(
    ("which", "endpoints", "expected"),
    [
        # Without any endpoint, or any usable one, nothing is chosen.
        ("cluster", "", ("", "", "", False)),
        ("both", "", ("", "", "", False)),
        ("cluster", "Ln1 Rt2", ("", "", "", False)),
        ("both", "Ln1 Rt2", ("", "", "", False)),
        # Policy Cluster: ready ones wherever they are; draining ones only if no other is left.
        ("cluster", "Lr1 Rr2 Rn3 Rd4", ("Lr1 Rr2", "", "Lr1 Rr2", True)),
        ("cluster", "Rd1 Ld2 Rn3 Rt4", ("Rd1 Ld2", "", "Rd1 Ld2", True)),
        ("cluster+np", "Lr1 Rd2", ("Lr1", "", "Lr1", True)),
        ("eTP unused", "Lr1 Rr2", ("Lr1 Rr2", "", "Lr1 Rr2", True)),
        # Internal policy Local without a way in from outside: local ones, or nothing.
        ("iTP", "Lr1 Rr2", ("", "Lr1", "Lr1", True)),
        ("iTP", "Rr1", ("", "", "", True)),
        ("iTP", "Ld1 Rr2", ("", "Ld1", "Ld1", True)),
        ("iTP", "Lt1 Rd2", ("", "", "", True)),
        ("iTP", "Ld1 Lr2", ("", "Lr2", "Lr2", True)),
        # With a way in, all of them are reachable, in the order given.
        ("iTP+np", "Rr1 Lr2 Rr3", ("Rr1 Lr2 Rr3", "Lr2", "Rr1 Lr2 Rr3", True)),
        # External policy Local (faults 22): local ready, else local draining, never remote.
        ("eTP", "Lr1 Rr2", ("Lr1 Rr2", "Lr1", "Lr1 Rr2", True)),
        ("eTP", "Ld1 Rr2", ("Rr2", "Ld1", "Ld1 Rr2", True)),
        ("eTP", "Rr1", ("Rr1", "", "Rr1", True)),
        ("eTP", "Ld1 Rd2", ("Ld1 Rd2", "Ld1", "Ld1 Rd2", True)),
        ("both", "Ld1 Rr2 Ln3", ("Rr2", "Ld1", "Ld1 Rr2", True)),
        ("both", "Rd1 Ln2", ("Rd1", "", "Rd1", True)),
    ],
)
def test_policies_and_conditions(
    which: str, endpoints: str, expected: tuple[str, str, str, bool]
) -> None:
    """Each policy chooses among ready and draining endpoints as kube-proxy does."""
    names = endpoints.split()
    selection = select(PORTS[which], [make(name) for name in names], NODE, ZONE)

    assert chosen(selection, names) == expected


def test_a_ready_endpoint_may_be_terminating() -> None:
    """With publishNotReadyAddresses a terminating endpoint is called ready, and is used."""
    odd = Endpoint("10.0.0.1", 8080, ready=True, serving=False, terminating=True)

    assert select(port(), [odd], NODE, ZONE).cluster == (odd,)


def hinted(ip: int, zones: str = "", nodes: str = "", *, ready: bool = True) -> Endpoint:
    return Endpoint(
        f"10.0.0.{ip}", 8080, ready=ready, zones=tuple(zones.split()), nodes=tuple(nodes.split())
    )


@pytest.mark.parametrize(
    ("endpoints", "expected", "ips"),
    [
        # Zones: every ready endpoint has a hint, and one of them is for our zone.
        ([hinted(1, "zone-1"), hinted(2, "zone-2")], Topology.SAME_ZONE, "1"),
        ([hinted(1, "zone-2 zone-1"), hinted(2, "zone-1")], Topology.SAME_ZONE, "1 2"),
        ([hinted(1, "zone-1"), hinted(2)], Topology.ANY, "1 2"),
        ([hinted(1, "zone-2"), hinted(2, "zone-3")], Topology.ANY, "1 2"),
        # What is not ready has no say, and is not used either.
        ([hinted(1, "zone-1"), hinted(2, ready=False)], Topology.SAME_ZONE, "1"),
        ([hinted(1, "zone-2"), hinted(2, "zone-1", ready=False)], Topology.ANY, "1"),
        # Nodes come before zones, under the same conditions.
        (
            [hinted(1, "zone-1", NODE), hinted(2, "zone-1", "node-b")],
            Topology.SAME_NODE,
            "1",
        ),
        ([hinted(1, "zone-1", NODE), hinted(2, "zone-1")], Topology.SAME_ZONE, "1 2"),
        ([hinted(1, "zone-1", "node-b"), hinted(2, "zone-2", "node-b")], Topology.SAME_ZONE, "1"),
        ([hinted(1, nodes=NODE), hinted(2, nodes="node-b")], Topology.SAME_NODE, "1"),
        ([hinted(1, nodes="node-b"), hinted(2, nodes="node-c")], Topology.ANY, "1 2"),
    ],
)
def test_hints(endpoints: list[Endpoint], expected: Topology, ips: str) -> None:
    """Hints narrow the choice only when all ready endpoints have them and one is for us."""
    assert topology(endpoints, NODE, ZONE) is expected
    assert [e.ip for e in select(port(), endpoints, NODE, ZONE).cluster] == [
        f"10.0.0.{ip}" for ip in ips.split()
    ]


def test_hints_do_not_narrow_policy_local() -> None:
    """Traffic that must stay on the node goes to all its endpoints, whatever their zone."""
    here = [
        Endpoint("10.0.0.1", 80, local=True, zones=("zone-1",)),
        Endpoint("10.0.0.2", 80, local=True, zones=("zone-2",)),
    ]
    selection = select(PORTS["eTP"], here, NODE, ZONE)

    assert selection.cluster == (here[0],)
    assert selection.local == selection.reachable == tuple(here)


def test_hints_do_not_count_when_nothing_is_ready() -> None:
    """Draining endpoints are used wherever they are."""
    draining = [
        Endpoint("10.0.0.1", 80, ready=False, terminating=True, zones=("zone-1",)),
        Endpoint("10.0.0.2", 80, ready=False, terminating=True, zones=("zone-2",)),
    ]

    assert select(port(), draining, NODE, ZONE).cluster == tuple(draining)


def test_a_node_without_a_zone_takes_no_hint() -> None:
    """Hints for other zones leave everything in use."""
    endpoints = [hinted(1, "zone-1"), hinted(2, "zone-2")]

    assert topology(endpoints, NODE, "") is Topology.ANY


ENDPOINTS = st.lists(
    st.builds(
        Endpoint,
        ip=st.integers(1, 9).map("10.0.0.{}".format),
        port=st.just(80),
        local=st.booleans(),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
        zones=st.sampled_from([(), ("zone-1",), ("zone-2",)]),
        nodes=st.sampled_from([(), (NODE,), ("node-b",)]),
    ),
    max_size=6,
    unique_by=lambda endpoint: endpoint.ip,
)


@given(st.sampled_from(sorted(PORTS)), ENDPOINTS)
def test_what_every_selection_promises(which: str, endpoints: list[Endpoint]) -> None:
    """Only usable endpoints are chosen, local ones are local, and nobody else is reachable."""
    found = select(PORTS[which], endpoints, NODE, ZONE)

    assert all(e.ready or (e.serving and e.terminating) for e in found.reachable)
    assert all(e.local for e in found.local)
    assert set(found.reachable) == set(found.cluster) | set(found.local)
    assert [e for e in endpoints if e in found.reachable] == list(found.reachable)
    assert found.usable == any(e.ready or (e.serving and e.terminating) for e in endpoints)
