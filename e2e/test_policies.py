from __future__ import annotations

import functools
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from e2e.shell import wait_for
from e2e.traffic import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster, Family, Workload

FAMILIES = pytest.mark.parametrize("family", ["IPv4", "IPv6"])


@pytest.fixture(scope="module", name="local")
def _local(cluster: Cluster) -> Iterator[Workload]:
    """Two pods, both on the first node."""
    made = cluster.workload("local", 2, nodes=cluster.nodes[:1])
    yield made
    cluster.delete(made)


@pytest.fixture(scope="module", name="clients")
def _clients(cluster: Cluster) -> Iterator[Workload]:
    """A pod on each of two nodes, to connect from."""
    made = cluster.workload("clients", 2, nodes=cluster.nodes[:2])
    yield made
    cluster.delete(made)


def need(cluster: Cluster, family: str) -> Family:
    if family not in cluster.families:
        pytest.skip(f"this cluster has no {family}")
    return family  # type: ignore[return-value]


@FAMILIES
def test_internal_traffic_policy_local(
    cluster: Cluster, local: Workload, clients: Workload, family: str
) -> None:
    """Inside, Local leads to pods of the client's own node, and nowhere from another node."""
    need(cluster, family)
    service = cluster.expose(local, internalTrafficPolicy="Local")
    ip = service.ips[family]  # type: ignore[index]
    near, far = sorted(clients.pods(), key=lambda pod: pod.node != cluster.nodes[0])
    names = {pod.name for pod in local.pods()}
    for client in (near, cluster.node(cluster.nodes[0])):
        wait_for(
            f"pods of the same node answer {client.name}",
            lambda client=client: set(connect(client, ip, 80, 60).answers),  # type: ignore[misc]
            accept=lambda found: found == names,
        )
    for client in (far, cluster.node(cluster.nodes[1])):
        tally = connect(client, ip, 80, 3, timeout=1)
        assert tally.answered == 0
    cluster.delete(service)


@FAMILIES
def test_external_traffic_policy_local(cluster: Cluster, local: Workload, family: str) -> None:
    """From outside, Local keeps the client's address, and a node without a pod drops."""
    which = need(cluster, family)
    service = cluster.expose(local, kind="NodePort", externalTrafficPolicy="Local")
    port = service.node_ports[80]
    with_pods, without = (cluster.node(name).ips[which] for name in cluster.nodes[:2])
    wait_for(
        "both pods answer on their node",
        lambda: set(connect(cluster.outside, with_pods, port, 60).answers),
        accept=lambda found: found == {pod.name for pod in local.pods()},
    )
    tally = connect(cluster.outside, with_pods, port, 60)
    assert tally.failures == {}
    assert set(tally.peers) == {cluster.outside.ips[which]}
    # Before the other node has the rule, it refuses.
    wait_for(
        "the node without a pod drops",
        lambda: connect(cluster.outside, without, port, 3, timeout=1).failures,
        accept=lambda failures: failures == {"timeout": 3},
        timeout=20,
    )
    cluster.delete(service)


@FAMILIES
def test_external_traffic_policy_cluster_hides_the_client(
    cluster: Cluster, local: Workload, family: str
) -> None:
    """From outside, Cluster works on every node, and pods see a node's address."""
    which = need(cluster, family)
    service = cluster.expose(local, kind="NodePort")
    cluster.wait_programmed(service, 2)
    for name in cluster.nodes[:2]:
        ip = cluster.node(name).ips[which]
        tally = connect(cluster.outside, ip, service.node_ports[80], 40)
        assert tally.answered == 40
        assert cluster.outside.ips[which] not in tally.peers
    cluster.delete(service)


def health(cluster: Cluster, node: str, port: int) -> tuple[int, int]:
    """Status and local endpoints that a health check node port tells."""
    url = f"http://{cluster.node(node).ips['IPv4']}:{port}/"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.load(answer)["localEndpoints"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["localEndpoints"]


def test_health_check_node_port(cluster: Cluster, local: Workload) -> None:
    """A load balancer learns which nodes have a pod: 200 with their number, else 503."""
    need(cluster, "IPv4")
    service = cluster.expose(local, kind="LoadBalancer", externalTrafficPolicy="Local")
    assert service.health_check_node_port
    port = service.health_check_node_port
    for node, expected in zip(cluster.nodes[:2], ((200, 2), (503, 0)), strict=True):
        wait_for(
            f"the health check node port of {node}",
            functools.partial(health, cluster, node, port),
            accept=expected.__eq__,
        )
    cluster.delete(service)
