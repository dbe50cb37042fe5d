from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import ServicePort
from e2e.shell import run, wait_for
from e2e.traffic import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster, Service, Workload

#: Connections, and how far a share may be from 1/3 of them: five standard deviations.
COUNT, SLACK = 900, 71
FAMILIES = pytest.mark.parametrize("family", ["IPv4", "IPv6"])
PROTOCOLS = pytest.mark.parametrize("protocol", ["tcp", "udp"])


@pytest.fixture(scope="module", name="web")
def _web(cluster: Cluster) -> Iterator[Workload]:
    """Three pods, on both nodes."""
    made = cluster.workload("web", 3, nodes=cluster.nodes[:2])
    yield made
    cluster.delete(made)


@pytest.fixture(scope="module", name="service")
def _service(cluster: Cluster, web: Workload) -> Iterator[Service]:
    """Their Service, with a node port, for TCP and UDP."""
    ports = (ServicePort(80, name="tcp"), ServicePort(81, protocol="UDP", name="udp"))
    made = cluster.expose(web, ports, kind="NodePort")
    cluster.wait_programmed(made, 3)
    yield made
    cluster.delete(made)


def address(service: Service, family: str) -> str:
    """The Service's address; skips a family that the cluster has not."""
    if family not in service.ips:
        pytest.skip(f"this cluster has no {family}")
    return service.ips[family]  # type: ignore[index]


def fair(answers: dict[str, int], web: Workload) -> bool:
    """Whether three pods got a third each."""
    return set(answers) == {pod.name for pod in web.pods()} and all(
        abs(count - COUNT / 3) <= SLACK for count in answers.values()
    )


@FAMILIES
@PROTOCOLS
def test_cluster_ip_from_a_pod(
    cluster: Cluster, web: Workload, service: Service, family: str, protocol: str
) -> None:
    """A pod's connections to a ClusterIP reach the pods of both nodes, a third each."""
    assert {pod.node for pod in web.pods()} == set(cluster.nodes[:2])
    port = 80 if protocol == "tcp" else 81
    for client in {pod.node: pod for pod in web.pods()}.values():
        tally = connect(client, address(service, family), port, COUNT, protocol=protocol)
        assert tally.failures == {}
        assert fair(dict(tally.answers), web), tally.answers


@FAMILIES
def test_a_pod_reaches_itself_through_its_service(
    web: Workload, service: Service, family: str
) -> None:
    """Hairpin: a pod's connection that the Service sends back to the same pod comes about."""
    pod = web.pods()[0]
    tally = connect(pod, address(service, family), 80, 60)
    assert tally.failures == {}
    assert tally.answers.get(pod.name, 0) > 0


@FAMILIES
def test_cluster_ip_from_a_node(
    cluster: Cluster, web: Workload, service: Service, family: str
) -> None:
    """A node's own connections to a ClusterIP reach pods of both nodes, a third each."""
    for name in cluster.nodes[:2]:
        tally = connect(cluster.node(name), address(service, family), 80, COUNT)
        assert tally.failures == {}
        assert fair(dict(tally.answers), web), tally.answers


@FAMILIES
@PROTOCOLS
def test_node_port_from_outside(
    cluster: Cluster, web: Workload, service: Service, family: str, protocol: str
) -> None:
    """From outside, the node port of every node leads to the pods of all nodes."""
    address(service, family)
    port = service.node_ports[80 if protocol == "tcp" else 81]
    for name in cluster.nodes[:2]:
        ip = cluster.node(name).ips[family]  # type: ignore[index]
        tally = connect(cluster.outside, ip, port, COUNT, protocol=protocol)
        assert tally.failures == {}
        assert fair(dict(tally.answers), web), tally.answers


def test_the_api_server_answers_through_its_service(cluster: Cluster, web: Workload) -> None:
    """A pod finds the API server at its ClusterIP: nothing but our rules leads there."""
    ip = cluster.api_service()
    if not ip:
        pytest.skip("this cluster has no Service for its API server")
    program = (
        "import ssl, socket;"
        "context = ssl._create_unverified_context();"
        f"raw = socket.create_connection(('{ip}', 443), 5);"
        "print(context.wrap_socket(raw).version())"
    )
    for pod in web.pods():
        assert run(*pod.command("-c", program)).stdout.startswith("TLS")
    assert ssl.HAS_TLSv1_3


def test_the_agent_finds_its_own_rules_sound(
    cluster: Cluster, web: Workload, service: Service
) -> None:
    """``onenth verify`` in the agent's container: right by themselves and by the API's objects."""
    assert service.name == web.name
    for node in cluster.nodes:
        done = run(*cluster.agents.command(node, "onenth", "verify"), check=False)
        assert "compared with the API server" in done.stdout
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "sound"), done.stdout


def test_the_agent_explains_a_service(cluster: Cluster, service: Service) -> None:
    """``onenth explain`` in the agent's container names each endpoint's exact chance."""
    command = cluster.agents.command(
        cluster.nodes[0], "onenth", "explain", f"{service.namespace}/{service.name}:tcp"
    )
    done = run(*command, check=False)
    assert done.stdout.count("1/3") >= 3, done.stdout + done.stderr


def test_a_service_without_endpoints_refuses_at_once(cluster: Cluster) -> None:
    """Without a pod a connection is refused, not left to a timeout; with one it works."""
    empty = cluster.workload("empty", 1)
    service = cluster.expose(empty)
    cluster.wait_programmed(service, 1)
    client = cluster.node(cluster.nodes[0])
    ip = next(iter(service.ips.values()))
    assert connect(client, ip, 80, 5).answered == 5
    empty.scale(0)
    wait_for(
        "refused without endpoints",
        lambda: connect(client, ip, 80, 5).failures,
        accept=lambda failures: failures == {"refused": 5},
    )
    cluster.delete(service)
    cluster.delete(empty)


def test_affinity_keeps_a_client_on_one_pod(cluster: Cluster, web: Workload) -> None:
    """With sessionAffinity ClientIP all connections of a client reach the same pod."""
    sticky = cluster.workload("sticky", 3, nodes=cluster.nodes[:2])
    service = cluster.expose(
        sticky,
        kind="NodePort",
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 120}},
    )
    cluster.wait_programmed(service, 3)
    for ip in service.ips.values():
        for client in (*web.pods(), cluster.node(cluster.nodes[0])):
            tally = connect(client, ip, 80, 100)
            assert tally.failures == {}
            assert len(tally.answers) == 1
    cluster.delete(service)
    cluster.delete(sticky)
