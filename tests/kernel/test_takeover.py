"""From a real kube-proxy to this agent and back, under running connections.

Needs kube-proxy itself (1.36), which is in no package of the reference systems: the variable
ONENTH_KUBE_PROXY names the program. Otherwise the recorded states of ``tests/parity`` stand in.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, REMOTE_NODE_IPS, Testbed
from agent.rules.parse import canonical, parse_rule
from tests.fakes.apiserver import write_kubeconfig
from tests.fakes.objects import cluster as crowd
from tests.given import given
from tests.kernel import shapes
from tests.kernel.dialer import Call, dial
from tests.kernel.running import BACKENDS, RunningAgent, Tables, fetch, serve_api, tables, until
from tests.kernel.shapes import NODE, OTHER_NODE, endpoint, endpoint_slice, port, service
from tests.parity.case import UNORDERED

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from agent.demo.load import Client
    from tests.fakes.apiserver import FakeAPIServer

PROGRAM = given("ONENTH_KUBE_PROXY")
pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="ONENTH_KUBE_PROXY does not name a kube-proxy program"),
    pytest.mark.timeout(180),
]
A, B, LOCAL, UDP = "10.97.0.1", "fd00:97::1", "10.97.0.2", "10.97.0.3"
NODE_PORT = 30001


class KubeProxy:
    """The real one, on a testbed's node."""

    def __init__(self, bed: Testbed, api: FakeAPIServer, backend: str, folder: Path) -> None:
        self._bed = bed
        self._folder = folder
        for name in ("iptables", "ip6tables"):
            for verb in ("", "-save", "-restore"):
                found = shutil.which(f"xtables-{backend}-multi", path="/usr/sbin:/sbin")
                assert found
                (folder / f"{name}{verb}").symlink_to(found)
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": NODE,
            "clusterCIDR": ",".join(CLUSTER_CIDRS),
            "clientConnection": {
                "kubeconfig": str(write_kubeconfig(folder / "kubeconfig", api)),
                "contentType": "application/json",
            },
            "iptables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it has synced both families."""
        with (self._folder / "log").open("w") as log:
            self._process = self._bed.start(
                self._bed.node,
                [PROGRAM, "--config", str(self._folder / "config.yaml"), "--v=2"],
                env=os.environ | {"PATH": f"{self._folder}:{os.environ['PATH']}"},
                stdout=log,
                stderr=log,
            )
        until(self._synced, 40, lambda: (self._folder / "log").read_text("utf-8")[-3000:])

    def _synced(self) -> bool:
        text = fetch(self._bed.node, "http://127.0.0.1:10249/metrics").body
        counts = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("kubeproxy_sync_full_proxy_rules_duration_seconds_count")
        ]
        return len(counts) == 2 and all(counts)

    def stop(self) -> None:
        """Stop it; its rules stay."""
        assert self._process
        self._process.terminate()
        self._process.wait(10)


def put_services(api: FakeAPIServer, bed: Testbed) -> None:
    """Something of every kind."""
    pods = bed.pods
    api.put(
        shapes.node(*NODE_IPS),
        shapes.node(*REMOTE_NODE_IPS, name=OTHER_NODE),
        service("a", A, B, type="NodePort", ports=[port(node_port=NODE_PORT)]),
        endpoint_slice("a", *(endpoint(pod.ips[0]) for pod in pods), suffix="4"),
        endpoint_slice("a", *(endpoint(pod.ips[1]) for pod in pods), suffix="6"),
        service(
            "local", LOCAL, type="LoadBalancer", ports=[port(node_port=30002)],
            externalTrafficPolicy="Local", ingress=["203.0.113.1"], externalIPs=["198.51.100.1"],
            loadBalancerSourceRanges=["192.168.0.0/24"], sessionAffinity="ClientIP",
            sessionAffinityConfig={"clientIP": {"timeoutSeconds": 100}},
        ),
        endpoint_slice("local", endpoint(pods[0].ips[0]),
                       endpoint(bed.remote_pods[0].ips[0], OTHER_NODE)),
        service("udp", UDP, ports=[port(53, protocol="UDP")]),
        endpoint_slice("udp", endpoint(pods[0].ips[0]),
                       ports=[{"name": "", "port": shapes.TARGET, "protocol": "UDP"}]),
        service("empty", "10.97.0.4", type="NodePort", ports=[port(node_port=30004)]),
    )  # fmt: skip


def meaning(found: Tables) -> dict[str, list[str]]:
    """All rules in one form, chain by chain."""
    shown = {}
    for table in ("filter", "nat"):
        for chain, rules in found[table].items():
            texts = [repr(canonical(parse_rule(rule))) for rule in rules]
            shown[f"{table} {chain}"] = sorted(texts) if chain in UNORDERED else texts
    return shown


@contextlib.contextmanager
def connections(bed: Testbed) -> Iterator[tuple[Client, Client]]:
    """Held ones, and a stream of new ones that takes at least twelve seconds."""
    with (
        bed.start_client(bed.client, A, 80, count=90, hold=True) as held,
        bed.start_client(bed.client, NODE_IPS[0], NODE_PORT, count=5000, concurrency=8,
                         interval=0.02) as stream,
    ):  # fmt: skip
        assert held.tally().answered == 90
        yield held, stream


@pytest.mark.parametrize("crowded", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_take_over_and_hand_back(tmp_path: Path, backend: str, *, crowded: bool) -> None:
    """No established connection breaks and no new one fails, there and back.

    With few Services the rules are the same ones all the time; with many this agent lays them
    out in another way, and those of kube-proxy are afterwards what they were before.
    """
    with Testbed(pods=3, remote_pods=1) as bed, serve_api(bed.node) as api:
        bed.serve(protocols=["tcp", "udp"])
        put_services(api, bed)
        if crowded:
            api.put(*crowd(250, 3))
        proxy = KubeProxy(bed, api, backend, tmp_path)
        flags = ("--cluster-cidr", ",".join(CLUSTER_CIDRS))
        agent = RunningAgent(bed.node, tmp_path, api, *flags, backend=backend)
        seen = []

        def look() -> None:
            seen.append({f: meaning(tables(bed.node, backend, f)) for f in shapes.FAMILIES})

        proxy.start()
        with connections(bed) as (held, stream):
            began = time.monotonic()
            look()
            proxy.stop()
            agent.start()
            look()
            taken = held.ask()
            agent.stop()
            proxy.start()
            look()
            proxy.stop()
            agent.start()
            changes = time.monotonic() - began
            last, fresh = held.ask(), stream.tally()
            udp = dial(bed.client, {"udp": Call(UDP, 53, "udp")})["udp"].split()[0]
        agent.stop()

    assert (taken.answered, taken.failures) == (90, {})
    assert last.answers == taken.answers
    assert (fresh.answered, fresh.failures) == (5000, {})
    assert fresh.seconds > changes  # it went on all the time
    assert udp == "pod-1"
    kube_proxy, ours, again = seen
    assert ("TREE" in str(ours)) is crowded
    for family in shapes.FAMILIES:
        assert crowded or ours[family] == kube_proxy[family]
        assert again[family] == kube_proxy[family]


@pytest.mark.parametrize("backend", BACKENDS)
def test_hand_back_what_kube_proxy_does_not_know(tmp_path: Path, backend: str) -> None:
    """kube-proxy gets rid of the branches of a tree, so it can delete the chains behind them.

    A chain that something jumps to cannot be deleted, and kube-proxy's whole sync would fail.
    """
    with Testbed(pods=1) as bed, serve_api(bed.node) as api:
        api.put(shapes.node(*NODE_IPS), *crowd(60, 2))
        flags = ("--cluster-cidr", ",".join(CLUSTER_CIDRS), "--dispatch", "tree")
        agent = RunningAgent(bed.node, tmp_path, api, *flags, backend=backend).start()
        ours = agent.tables()["nat"]
        agent.stop()
        proxy = KubeProxy(bed, api, backend, tmp_path)
        proxy.start()
        theirs = agent.tables()["nat"]
        api.delete("Service", "svc-00003")
        agent.wait_rules("10.96.0.4/32", gone=True)
        proxy.stop()

    branches = [chain for chain in ours if "TREE" in chain]
    assert len(branches) > 3
    assert [chain for chain in theirs if "TREE" in chain] == []
    assert "10.96.0.4/32" in str(theirs["KUBE-SERVICES"])
