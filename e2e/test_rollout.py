from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.traffic import load, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster, Workload


@pytest.fixture(scope="module", name="clients")
def _clients(cluster: Cluster) -> Iterator[Workload]:
    """A pod on each of two nodes, to connect from."""
    made = cluster.workload("callers", 2, nodes=cluster.nodes[:2])
    yield made
    cluster.delete(made)


def test_a_rolling_update_fails_no_request(cluster: Cluster, clients: Workload) -> None:
    """While every pod of a Service is replaced, no new connection of any client fails."""
    rolling = cluster.workload("rolling", 3, nodes=cluster.nodes[:2])
    service = cluster.expose(rolling)
    cluster.wait_programmed(service, 3)
    before = {pod.name for pod in rolling.pods()}
    ip = next(iter(service.ips.values()))
    first, second = clients.pods()
    with load(first, ip, 80) as one, load(second, ip, 80) as two:
        rolling.rollout()
        cluster.wait_programmed(service, 3)
    after = {pod.name for pod in rolling.pods()}
    assert not before & after
    for report in (one.report, two.report):
        assert report["failures"] == []
        # Old and new pods answered while it lasted.
        assert set(report["answers"]) >= before | after
    cluster.delete(service)
    cluster.delete(rolling)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_dns_survives_the_replacement_of_its_pods(
    cluster: Cluster, clients: Workload, family: str
) -> None:
    """A resolver that always uses one UDP port gets every answer while DNS pods are replaced.

    The connection table remembers where that port's questions went. If it went on sending them
    to a pod that is gone, the resolver would never hear again.
    """
    service, workload = cluster.dns_service()
    if family not in service.ips:
        pytest.skip(f"this cluster's DNS has no {family}")
    ip = service.ips[family]  # type: ignore[index]
    first, second = clients.pods()
    name = "kubernetes.default.svc.cluster.local"
    with resolve(first, ip, name) as one, resolve(second, ip, name) as two:
        for pod in workload.pods():
            workload.delete_pod(pod)
        cluster.wait_programmed(service, 2)
    for report in (one.report, two.report):
        assert report["failures"] == []
        assert report["answered"] > 50
        assert report["gap"] < 5
