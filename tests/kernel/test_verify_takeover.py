"""What looks inside, on a node that kube-proxy runs: ``plan`` there is the proof for a takeover.

Needs kube-proxy itself, as ``test_takeover`` does; ``tests/unit/test_inspect_verify.py`` has the
same for written-down states, everywhere.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, Testbed
from tests.fakes.apiserver import write_kubeconfig
from tests.kernel import test_takeover
from tests.kernel.running import BACKENDS, ROOT, serve_api, until
from tests.kernel.shapes import NODE
from tests.kernel.test_takeover import NODE_PORT, KubeProxy, put_services

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = test_takeover.pytestmark


class Node:
    """A node that kube-proxy has written, and the command line there."""

    def __init__(self, bed: Testbed, settings: list[str]) -> None:
        self.bed = bed
        self._settings = settings

    def onenth(self, *argv: str, settings: bool = True) -> tuple[int, Any]:
        """Exit status and output."""
        command = ["env", f"PYTHONPATH={ROOT}", sys.executable]
        command += ["-m", "agent", *argv, *(self._settings if settings else []), "-o", "json"]
        done = self.bed.node.run(command, check=False, timeout=60)
        assert done.returncode in {0, 1}, done.stderr
        return done.returncode, json.loads(done.stdout)

    def outcomes(self, target: str, sender: str) -> list[dict[str, Any]]:
        """What happens to the packets of the one explanation that there is."""
        status, (found,) = self.onenth("explain", target, "--from", sender)
        assert status == 0, found
        assert sum(Fraction(one["chance"]) for one in found["outcomes"]) == 1
        outcomes: list[dict[str, Any]] = found["outcomes"]
        return outcomes


@pytest.fixture(params=BACKENDS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """kube-proxy has synced both families, with its own API server."""
    with Testbed(pods=3, remote_pods=1) as bed, serve_api(bed.node) as api:
        put_services(api, bed)
        proxy = KubeProxy(bed, api, request.param, tmp_path)
        proxy.start()
        flags = ["--kubeconfig", str(write_kubeconfig(tmp_path / "kubeconfig", api))]
        flags += ["--node-name", NODE, "--cluster-cidr", ",".join(CLUSTER_CIDRS)]
        found = Node(bed, flags)
        # kube-proxy says that it has synced before its canaries are all there.
        until(lambda: found.onenth("verify")[0] == 0, 20, lambda: found.onenth("verify")[1])
        yield found
        proxy.stop()


def test_a_plan_for_kube_proxys_node_has_no_changes(node: Node) -> None:
    """In both families, with its own API server and configuration; and all is sound."""
    status, plan = node.onenth("plan")

    assert status == 0, plan
    assert not plan["changes"]
    assert {one["family"] for one in plan["families"]} == {"IPv4", "IPv6"}
    assert node.onenth("verify")[0] == 0
    assert node.onenth("verify", settings=False)[0] == 0


def test_every_target_and_sender_is_explained_there(node: Node) -> None:
    """By Service, address and number; thirds of a third, a refusal, source ranges, and why."""
    pods = {f"{pod.ips[0]}:8080" for pod in node.bed.pods}
    thirds = {
        target: {o["endpoint"]: o["chance"] for o in node.outcomes(target, sender)}
        for target, sender in (
            ("10.97.0.1:80", "pod"),
            ("10.97.0.1:80", "node"),
            (f"{NODE_IPS[0]}:{NODE_PORT}", "outside"),
            (f"127.0.0.1:{NODE_PORT}", "node"),
        )
    }
    six = node.outcomes("[fd00:97::1]:80", "pod")
    (both,) = {len(node.onenth("explain", t)[1]) for t in ("default/a", str(NODE_PORT))}
    (refused,) = node.outcomes("default/empty", "pod")
    (allowed,) = node.outcomes("203.0.113.1:80", "192.168.0.7")
    (kept_out,) = node.outcomes("203.0.113.1:80", "8.8.8.8")
    _, (empty,) = node.onenth("explain", "default/empty")

    for target, found in thirds.items():
        assert len(found) == 3, target
        assert set(found.values()) == {"1/3"}
        assert {e.rpartition(":")[0] for e in found} == {e.rpartition(":")[0] for e in pods}
    assert [one["chance"] for one in six] == ["1/3"] * 3
    assert both == 2
    assert refused["end"] == "rejected"
    assert allowed["endpoint"].startswith(node.bed.pods[0].ips[0])
    assert kept_out["end"] == "dropped"
    assert "no EndpointSlice" in empty["reasons"][0]


def test_top_counts_kube_proxys_connections(node: Node) -> None:
    """Those that its rules counted, by endpoint."""
    node.bed.serve()
    with node.bed.start_client(node.bed.client, NODE_IPS[0], NODE_PORT, count=90) as client:
        tally = client.tally()
    _, screen = node.onenth("top", "--once", "--interval", "0.1", settings=False)
    (row,) = [
        one for one in screen["rows"] if one["service"] == "default/a" and one["family"] == "IPv4"
    ]

    names = {pod.ips[0]: pod.name for pod in node.bed.pods}
    counted = {names[one["endpoint"].rpartition(":")[0]]: one["thrown"] for one in row["endpoints"]}
    assert tally.answered == 90
    assert counted == tally.answers
