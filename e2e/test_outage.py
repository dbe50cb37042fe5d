from __future__ import annotations

import time
from typing import TYPE_CHECKING

from e2e.shell import wait_for
from e2e.traffic import connect, load

if TYPE_CHECKING:
    import pytest

    from e2e.cluster import Cluster


def contact(cluster: Cluster, node: str) -> float:
    """Longest silence of the API server that a node's agent tells, in seconds."""
    return max(
        float(line.split()[-1])
        for line in cluster.agents.metrics(node).splitlines()
        if line.startswith("onenth_source_last_contact_seconds{")
    )


def watches(cluster: Cluster, node: str) -> dict[str, float]:
    """For each kind of object, how many watches the API server has accepted from a node."""
    return {
        line.split()[0]: float(line.split()[-1])
        for line in cluster.agents.metrics(node).splitlines()
        if line.startswith("onenth_source_watches_total{")
    }


def test_api_server_away_and_back(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """Without the API server traffic goes on and the agent stays healthy; then it catches up."""
    seconds = float(request.config.getoption("--outage-seconds"))
    web = cluster.workload("lasting", 2, nodes=cluster.nodes[:2])
    service = cluster.expose(web)
    cluster.wait_programmed(service, 2)
    ip = next(iter(service.ips.values()))
    node = cluster.nodes[0]
    before = watches(cluster, node)
    assert len(before) == 3
    first, second = map(cluster.steady, web.pods())
    with load(first, ip, 80, held=5) as one, load(second, ip, 80, held=5) as two:
        with cluster.outage():
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                assert cluster.agents.probe(node, "healthz") == 200
                time.sleep(min(5.0, seconds))
            # Not the whole time: while it ends, an API server goes on with the watches it has.
            assert contact(cluster, node) > seconds / 2
        web.scale(3)
        # It begins with 403 (no roles yet) and 410 (no history), and the agent waits after each.
        cluster.wait_programmed(service, 3)
    for report in (one.report, two.report):
        assert report["failures"] == []
        assert sum(report["held_answers"].values()) > 100
    wait_for(
        "everything is watched again",
        lambda: watches(cluster, node),
        accept=lambda now: all(now[kind] > count for kind, count in before.items()),
        timeout=60,
    )
    assert set(connect(cluster.node(node), ip, 80, 60).answers) == {p.name for p in web.pods()}
    cluster.delete(service)
    cluster.delete(web)
