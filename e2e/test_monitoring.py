from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from e2e.prometheus import INTERVAL, Prometheus, prometheus
from e2e.shell import wait_for
from e2e.traffic import connect
from hack.dashboard import TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster

PROBES = ("healthz", "livez", "readyz")
#: Series that exist only once something of that kind has happened, or where the kernel has the
#: nfacct match (the two packet counters).
MAY_BE_EMPTY = {"INVALID packets dropped"}


@pytest.fixture(scope="module", name="server")
def _server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped for long enough for rates, while something happened."""
    with prometheus(cluster, tmp_path_factory.mktemp("prometheus")) as server:
        time.sleep(2 * INTERVAL)
        web = cluster.workload("watched", 2, nodes=cluster.nodes[:2])
        service = cluster.expose(web)
        cluster.wait_programmed(service, 2)
        assert connect(web.pods()[0], next(iter(service.ips.values())), 80, 20).failures == {}
        web.scale(1)
        cluster.wait_programmed(service, 1)
        # As load balancers and kubelets do.
        for node in cluster.nodes:
            assert {cluster.agents.probe(node, probe) for probe in PROBES} == {200}
        time.sleep(3 * INTERVAL)
        yield server
        cluster.delete(service)
        cluster.delete(web)


def test_every_agent_is_scraped(cluster: Cluster, server: Prometheus) -> None:
    """Prometheus reads /metrics of each node, and finds nothing wrong with the format."""
    targets = server.get("api/v1/targets")["activeTargets"]
    assert {target["labels"]["node"] for target in targets} == set(cluster.nodes)
    assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")] * len(
        targets
    )


def test_the_alerts_are_loaded_and_quiet(server: Prometheus) -> None:
    """Every alert is evaluated without an error, and none is on while all is well."""
    groups = server.get("api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    # Those of lasting trouble have a "for": what the tests before did may still be pending.
    assert "firing" not in server.alerts().values()


def test_the_dashboards_queries_answer(server: Prometheus) -> None:
    """Every query of the dashboard answers with series, as Grafana would send it."""
    empty = []
    for panel in json.loads(TARGET.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            if not server.query(expr) and panel["title"] not in MAY_BE_EMPTY:
                empty.append((panel["title"], expr))
    assert empty == []


def test_an_agent_that_is_gone_is_noticed(cluster: Cluster, server: Prometheus) -> None:
    """Without agents, the alerts about that become pending; with them, they go away again."""
    cluster.agents.remove()
    wait_for(
        "OnenthDown and OnenthUnreachable are pending",
        server.alerts,
        accept=lambda alerts: {"OnenthDown", "OnenthUnreachable"} <= set(alerts),
        timeout=30,
    )
    cluster.agents.deploy()
    wait_for(
        "no such alert",
        server.alerts,
        accept=lambda alerts: not {"OnenthDown", "OnenthUnreachable"} & set(alerts),
        timeout=30,
    )
