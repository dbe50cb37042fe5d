"""UDP flows that outlive their endpoints: which entries go, which stay, with real senders.

Each sender keeps one socket, so its conntrack entry never times out and no new rule ever sees it:
only deleting the entry moves it. ``asks`` is one more packet on the same socket.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING

import pytest

from agent.demo.testbed import NODE_IPS
from tests.kernel import shapes
from tests.kernel.dialer import Call, dial
from tests.kernel.running import BACKENDS, until
from tests.kernel.shapes import TARGET, endpoint, port, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.demo.load import Client
    from tests.kernel.smallcluster import SmallCluster

FAMILIES = pytest.mark.parametrize("family", [0, 1], ids=shapes.FAMILIES)
SWEPT = "kubeproxy_conntrack_reconciler_deleted_entries_total"


@pytest.fixture(params=BACKENDS[:1])
def cluster(
    request: pytest.FixtureRequest, clusters: Callable[[str, str], SmallCluster]
) -> SmallCluster:
    """On one backend: flows do not depend on it."""
    return clusters(request.param, "flat")


def ip(kind: str, number: int, family: int) -> str:
    prefixes = {
        "cluster": ("10.96.3.", "fd00:96::3:"),
        "balancer": ("203.0.113.", "2001:db8:ba::"),
        "external": ("198.51.100.", "2001:db8:e::"),
    }
    return f"{prefixes[kind][family]}{200 + number}"


def udp_service(
    name: str, number: int, family: int, ports: Sequence[shapes.Object] = ()
) -> shapes.Object:
    return service(
        name, ip("cluster", number, family), type="LoadBalancer",
        ports=ports or [port(53, protocol="UDP", node_port=31100 + number)],
        ingress=[ip("balancer", number, family)],
        externalIPs=[ip("external", number, family)],
    )  # fmt: skip


def udp_slice(
    cluster: SmallCluster, name: str, family: int, *pods: int, target: int = TARGET
) -> shapes.Object:
    return shapes.endpoint_slice(
        name,
        *(endpoint(cluster.bed.pods[pod - 1].ips[family]) for pod in pods),
        ports=[{"name": "", "port": target, "protocol": "UDP"}],
        family=shapes.FAMILIES[family],
    )


def ways_in(number: int, family: int) -> dict[str, tuple[str, int]]:
    """All addresses of a Service."""
    kinds = {kind: (ip(kind, number, family), 53) for kind in ("cluster", "balancer", "external")}
    return kinds | {"node port": (NODE_IPS[family], 31100 + number)}


@contextlib.contextmanager
def senders(cluster: SmallCluster, ways: dict[str, tuple[str, int]]) -> Iterator[dict[str, Client]]:
    """One steady sender from outside to each way in; the first packet of each has been sent."""
    with contextlib.ExitStack() as stack:
        found = {
            name: stack.enter_context(
                cluster.bed.start_client(
                    cluster.bed.client, address, to, protocol="udp", hold=True, timeout=0.4
                )
            )
            for name, (address, to) in ways.items()
        }
        for client in found.values():
            client.tally()
        yield found


def asks(client: Client) -> str:
    """Who answers one more packet of a sender; empty if nobody does."""
    return "".join(client.ask().answers)


def all_ask(found: dict[str, Client]) -> dict[str, str]:
    return {name: asks(client) for name, client in found.items()}


def agree(found: dict[str, Client], wanted: dict[str, str]) -> bool:
    return all_ask(found) == wanted


@FAMILIES
def test_flows_follow_the_endpoints_on_every_way_in(cluster: SmallCluster, family: int) -> None:
    """1 -> another 1 -> 0 -> 1: every steady sender is moved, on all four kinds of address.

    With no endpoint left nobody answers, and what was sent meanwhile, untranslated, does not
    keep its sender from the next endpoint.
    """
    name = f"moving-{family}"
    everywhere = dict.fromkeys(ways_in(1, family))
    with (
        cluster.putting(udp_service(name, 1, family), udp_slice(cluster, name, family, 1)),
        senders(cluster, ways_in(1, family)) as found,
    ):
        assert all_ask(found) == dict.fromkeys(everywhere, "pod-1")
        for pods, answer in (((2,), "pod-2"), ((), ""), ((3,), "pod-3")):
            cluster.put(udp_slice(cluster, name, family, *pods))
            wanted = dict.fromkeys(everywhere, answer)
            until(functools.partial(agree, found, wanted), 10, cluster.agent.story)


@FAMILIES
def test_flows_that_are_right_survive(cluster: SmallCluster, family: int) -> None:
    """Of thirty senders to three endpoints only those of the one that left move: 3 -> 2 -> 3."""
    name = f"some-{family}"
    address = ip("cluster", 2, family)
    with (
        cluster.putting(udp_service(name, 2, family), udp_slice(cluster, name, family, 1, 2, 3)),
        cluster.bed.start_client(
            cluster.bed.client, address, 53, protocol="udp", hold=True, count=30, each=True
        ) as client,
    ):
        client.tally()
        before = sockets(client)
        cluster.put(udp_slice(cluster, name, family, 1, 2))
        until(lambda: "pod-3" not in sockets(client), 10)
        after = sockets(client)
        cluster.put(udp_slice(cluster, name, family, 1, 2, 3))
        settled = sockets(client)

    assert set(before) == {"pod-1", "pod-2", "pod-3"}
    moved = [was for was, now in zip(before, after, strict=True) if was != now]
    assert moved == ["pod-3"] * before.count("pod-3")
    assert settled == after


def sockets(client: Client) -> list[str]:
    """Who answers each socket of a client that asks its sockets in order."""
    return list(client.ask().each)


@FAMILIES
def test_a_node_port_is_not_confused_with_a_port(cluster: SmallCluster, family: int) -> None:
    """Service b's port is the number of a's node port; its flows survive what happens to a."""
    a, b = f"a-{family}", f"b-{family}"
    number = 31103
    b_service = service(b, ip("cluster", 4, family), ports=[port(number, protocol="UDP")])
    ways = {"a": (NODE_IPS[family], number), "b": (ip("cluster", 4, family), number)}
    with cluster.putting(
        udp_service(a, 3, family), udp_slice(cluster, a, family, 1),
        b_service, udp_slice(cluster, b, family, 3),
    ), senders(cluster, ways) as found:  # fmt: skip
        first = all_ask(found)
        entries = entry(cluster, ip("cluster", 4, family), number)
        cluster.put(udp_slice(cluster, a, family, 2))
        until(lambda: asks(found["a"]) == "pod-2", 10)
        survived = entry(cluster, ip("cluster", 4, family), number)
        cluster.put(udp_service(a, 3, family, ports=[port(54, protocol="UDP", node_port=31104)]))
        asks(found["a"])
        last = asks(found["b"])

    assert first == {"a": "pod-1", "b": "pod-3"}
    assert entries == survived != []
    assert last == "pod-3"


def entry(cluster: SmallCluster, address: str, number: int) -> list[str]:
    """Ids of conntrack entries that were sent to an address."""
    family = "ipv6" if ":" in address else "ipv4"
    listed = cluster.bed.node.run(
        [
            "conntrack",
            "-L",
            "-f",
            family,
            "-p",
            "udp",
            "-d",
            address,
            "--dport",
            str(number),
            "-o",
            "id",
        ]
    ).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("id=")]


@FAMILIES
def test_a_changed_target_port_moves_flows(cluster: SmallCluster, family: int) -> None:
    """The same pod on another port is another endpoint."""
    name = f"port-{family}"
    address = ip("cluster", 5, family)
    with (
        cluster.putting(
            udp_service(name, 5, family), udp_slice(cluster, name, family, 1, target=9)
        ),
        senders(cluster, {"it": (address, 53)}) as found,
    ):
        nobody = asks(found["it"])
        cluster.put(udp_slice(cluster, name, family, 1))
        until(lambda: asks(found["it"]) == "pod-1", 10)

    assert nobody == ""


@FAMILIES
def test_a_changed_port_of_the_service_ends_flows(cluster: SmallCluster, family: int) -> None:
    """Nobody answers at the old port any more, though the pod is the same."""
    name = f"renumbered-{family}"
    address = ip("cluster", 9, family)
    with (
        cluster.putting(udp_service(name, 9, family), udp_slice(cluster, name, family, 1)),
        senders(cluster, {"old": (address, 53)}) as found,
    ):
        before = asks(found["old"])
        cluster.put(udp_service(name, 9, family, ports=[port(54, protocol="UDP")]))
        until(lambda: asks(found["old"]) == "", 10, cluster.agent.story)
        fresh = dial(cluster.bed.client, {"new": Call(address, 54, "udp")})["new"].split()[0]

    assert (before, fresh) == ("pod-1", "pod-1")


def test_tcp_is_left_alone(cluster: SmallCluster) -> None:
    """A TCP connection to an endpoint that left goes on, and its entry stays."""
    pods = [endpoint(pod.ips[0]) for pod in cluster.bed.pods]
    address = ip("cluster", 6, 0)
    with (
        cluster.putting(
            service("tcp", address), shapes.endpoint_slice("tcp", pods[0]),
            udp_service("beside", 7, 0), udp_slice(cluster, "beside", 0, 1),
        ),
        cluster.bed.start_client(cluster.bed.client, address, 80, count=5, hold=True) as held,
    ):  # fmt: skip
        held.tally()
        cluster.put(shapes.endpoint_slice("tcp", pods[1]), udp_slice(cluster, "beside", 0, 2))
        time.sleep(0.3)
        answers = held.ask().answers
        fresh = cluster.bed.connect(cluster.bed.client, address, 80, count=5).answers

    assert answers == {"pod-1": 5}
    assert fresh == {"pod-2": 5}


def test_a_restart_with_nothing_changed_deletes_no_flow(cluster: SmallCluster) -> None:
    """The first sync of a new process compares flows with state, and finds all of them right.

    A flow that became wrong while no agent ran is found by it, though no event ever told.
    """
    name = "restarted"
    labels = {"ip_family": "IPv4"}
    with (
        cluster.putting(udp_service(name, 8, 0), udp_slice(cluster, name, 0, 1)),
        senders(cluster, ways_in(8, 0)) as found,
    ):
        all_ask(found)
        ids = {way: entry(cluster, *target) for way, target in ways_in(8, 0).items()}
        cluster.agent.stop()
        cluster.agent.start()
        cluster.settle()
        until(lambda: (cluster.agent.metric(f"{RECONCILED}_count", **labels) or 0) > 0)
        deleted = cluster.agent.metric(SWEPT, **labels)
        same = {way: entry(cluster, *target) for way, target in ways_in(8, 0).items()}
        cluster.agent.stop()
        cluster.api.put(udp_slice(cluster, name, 0, 2))
        cluster.agent.start()
        until(lambda: all_ask(found) == dict.fromkeys(found, "pod-2"), 10)

    assert deleted == 0
    assert all(ids.values())
    assert same == ids


RECONCILED = "kubeproxy_conntrack_reconciler_sync_duration_seconds"
