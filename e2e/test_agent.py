from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from e2e.manifests import SYNC_PERIOD
from e2e.rules import endpoints_of, save
from e2e.shell import run, wait_for
from e2e.traffic import connect, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster, Service, Workload


@pytest.fixture(scope="module", name="web")
def _web(cluster: Cluster) -> Iterator[Workload]:
    """Four pods on two nodes; the first two are also the clients."""
    made = cluster.workload("steady", 4, nodes=cluster.nodes[:2])
    yield made
    cluster.delete(made)


@pytest.fixture(scope="module", name="service")
def _service(cluster: Cluster, web: Workload) -> Iterator[Service]:
    made = cluster.expose(web, kind="NodePort")
    cluster.wait_programmed(made, 4)
    yield made
    cluster.delete(made)


def flawless(*loads: object) -> None:
    """No connection failed, new or held, and there were many of both."""
    for one in loads:
        report = one.report  # type: ignore[attr-defined]
        assert report["failures"] == []
        assert sum(report["answers"].values()) > 20
        assert sum(report["held_answers"].values()) > 20


def differences(cluster: Cluster, node: str) -> float:
    """How many chains of a node's IPv4 rules the agent has found changed by others, so far."""
    return sum(
        float(line.split()[-1])
        for line in cluster.agents.metrics(node).splitlines()
        if line.startswith("onenth_audit_differences_total{") and 'ip_family="IPv4"' in line
    )


def not_ours(saved: str) -> str:
    """Of a saved table, the chains and rules that are not a Service proxy's."""
    kept = [line for line in saved.splitlines() if "KUBE-" not in line and not line.startswith("#")]
    return "\n".join([*kept, ""])


def test_killed_under_load(cluster: Cluster, web: Workload, service: Service) -> None:
    """SIGKILL of each node's agent breaks no connection, and it comes back ready."""
    ip = next(iter(service.ips.values()))
    first, second = web.pods()[:2]
    with load(first, ip, 80, held=5) as one, load(second, ip, 80, held=5) as two:
        for node in cluster.nodes[:2]:
            cluster.agents.kill(node)
            wait_for(
                f"agent on {node} is back",
                lambda node=node: cluster.agents.probe(node, "readyz") == 200,  # type: ignore[misc]
                interval=0.5,
            )
        time.sleep(1)
    flawless(one, two)


def test_restarted_under_load(cluster: Cluster, web: Workload, service: Service) -> None:
    """A rolling restart of all agents breaks no connection, and changes no Service rule."""
    ip = next(iter(service.ips.values()))
    node = cluster.nodes[0]
    first, second = web.pods()[:2]
    before = sorted(line for line in save(cluster, node, "IPv4").splitlines() if "-A KUBE" in line)
    with load(first, ip, 80, held=5) as one, load(second, ip, 80, held=5) as two:
        cluster.agents.restart()
        time.sleep(1)
    flawless(one, two)
    after = sorted(line for line in save(cluster, node, "IPv4").splitlines() if "-A KUBE" in line)
    assert after == before


def test_upgraded_under_load(cluster: Cluster, web: Workload, service: Service) -> None:
    """An upgrade to another image and back breaks no connection."""
    ip = next(iter(service.ips.values()))
    first, second = web.pods()[:2]
    old = cluster.agents.images()
    with load(first, ip, 80, held=5) as one, load(second, ip, 80, held=5) as two:
        cluster.agents.upgrade()
        new = cluster.agents.images()
        time.sleep(1)
    assert len(new) == 1
    assert new != old
    flawless(one, two)
    cluster.agents.upgrade()
    assert cluster.agents.images() == old


def test_flushed_behind_its_back(cluster: Cluster, web: Workload, service: Service) -> None:
    """A firewall's reload flushes a node's nat and filter tables: our rules come back.

    The agent looks at least once in each syncPeriod. Rules that are not ours are put back, as
    the firewall would: in kind they are what names are resolved by.
    """
    node = cluster.nodes[1]
    place = cluster.node(node)
    program = f"xtables-{cluster.backend(node)}-multi"
    ip = next(iter(service.ips.values()))
    before = differences(cluster, node)
    began = time.monotonic()
    for table in ("nat", "filter"):
        foreign = not_ours(save(cluster, node, "IPv4", table=table))
        # At one go: a repair in between would keep -X from its work.
        steps = (f"iptables --wait 10 -t {table} -F", f"iptables --wait 10 -t {table} -X",
                 "iptables-restore --noflush --wait 10")  # fmt: skip
        script = " && ".join(f"{program} {step}" for step in steps)
        run(*place.prefix, "sh", "-c", script, stdin=foreign)
    # The rules may be back before anybody can look: that they were gone, the agent tells.
    wait_for(
        "the loss is noticed",
        lambda: differences(cluster, node) - before,
        accept=lambda missing: missing > 4,
        timeout=3 * SYNC_PERIOD,
    )
    wait_for(
        "the rules are back",
        lambda: endpoints_of(cluster, service, node, "IPv4"),
        accept=lambda counts: counts == [4],
        timeout=3 * SYNC_PERIOD,
    )
    assert time.monotonic() - began < 2 * SYNC_PERIOD
    tally = connect(place, ip, 80, 40)
    assert tally.failures == {}
    assert set(tally.answers) == {pod.name for pod in web.pods()}


def test_one_rule_changed_behind_its_back(
    cluster: Cluster, web: Workload, service: Service
) -> None:
    """One endpoint's chain is emptied by somebody else: it is whole again soon, and said so."""
    node = cluster.nodes[0]
    place = cluster.node(node)
    program = f"xtables-{cluster.backend(node)}-multi"
    text = save(cluster, node, "IPv4")
    pod = web.pods()[0]
    (chain,) = {
        line.split()[1]
        for line in text.splitlines()
        if f"--to-destination {pod.ips['IPv4']}:8080" in line and "-p tcp" in line
        and line.startswith("-A KUBE-SEP-")
    }  # fmt: skip
    before = differences(cluster, node)
    run(*place.prefix, program, "iptables", "--wait", "10", "-t", "nat", "-F", chain)
    wait_for(
        "the difference is told",
        lambda: differences(cluster, node) > before,
        timeout=6 * SYNC_PERIOD,
        interval=0.5,
    )
    wait_for(
        "the chain is whole",
        lambda: f"-A {chain} " in save(cluster, node, "IPv4"),
        timeout=6 * SYNC_PERIOD,
        interval=0.5,
    )
    assert connect(place, next(iter(service.ips.values())), 80, 40).failures == {}
