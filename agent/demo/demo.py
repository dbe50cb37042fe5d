"""The demo: a whole small cluster on one machine, and the real agent in the middle of it.

It makes a node, three pods and a client in network namespaces, starts ``onenth run`` in the
node's namespace on manifests from a folder, and shows with real connections what the agent
promises. Everything that is shown is also checked; ``run`` tells whether all of it held.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from agent.config.table import ENV_PREFIX
from agent.demo import testbed
from agent.demo.show import Report
from agent.demo.testbed import Testbed
from agent.inspect.wrap import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from agent.demo.load import Tally
    from agent.demo.testbed import Pod

CLUSTER_IP = "10.96.0.10"
PORT = 80
NODE_PORT = 30080
CONNECTIONS = 3000
#: A fair lottery fails a test at this level once in a thousand runs.
P_MIN = 0.001
_NODE = "demo-node"
_METRICS = (
    "kubeproxy_sync_proxy_rules_duration_seconds_count",
    "kubeproxy_sync_proxy_rules_iptables_total",
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
    "onenth_iptables_backend_info",
)


class DemoError(Exception):
    """The demo could not be run; that is not the same as a claim that did not hold."""


def run(backend: str, console: Console, *, connections: int = CONNECTIONS) -> list[str]:
    """Run the demo and take everything down.

    Args:
        backend: ``legacy`` or ``nft``.
        console: where to print.
        connections: to the cluster IP, to the node port, and to the cluster IP while a pod leaves
            and after that.

    Returns:
        The claims that did not hold.

    Raises:
        DemoError: the agent or the network could not be brought up.
        NamespaceError: likewise.
    """
    report = Report(console)
    with tempfile.TemporaryDirectory(prefix="onenth-demo-") as folder, Testbed(pods=3) as bed:
        _Demo(bed, Path(folder), backend, report).run(connections)
    report.line("")
    report.line("Everything has been taken down again.")
    return report.failed


class _Demo:
    """One run, while the testbed stands."""

    def __init__(self, bed: Testbed, folder: Path, backend: str, report: Report) -> None:
        self.bed = bed
        self.folder = folder
        self.backend = backend
        self.report = report
        self.log = folder / "agent.log"
        self.manifests = folder / "manifests"

    def run(self, connections: int) -> None:
        pods = self.bed.pods
        self.report.heading("A node, three pods with servers and a client, in network namespaces")
        for pod in pods:
            self.report.line(f"  {pod.name}  {pod.ips[0]}:{testbed.PORT}")
        self.bed.serve()
        self.manifests.mkdir()
        self._write("service.yaml", [_service(), _node()])
        self._write_endpoints(pods)
        self._start_agent()
        self._show_split(pods, CLUSTER_IP, PORT, f"cluster IP {CLUSTER_IP}:{PORT}", connections)
        node = testbed.NODE_IPS[0]
        self._show_split(pods, node, NODE_PORT, f"node port {node}:{NODE_PORT}", connections)
        self._show_removal(pods, connections)
        self._show_metrics()
        self._stop_agent()

    # The agent ---------------------------------------------------------------------------

    def _start_agent(self) -> None:
        argv = [sys.executable, "-m", "agent", "run", "--manifests", str(self.manifests)]
        argv += ["--hostname-override", _NODE, "--iptables-backend", self.backend]
        argv += ["--cluster-cidr", ",".join(testbed.CLUSTER_CIDRS), "--conntrack-max-per-core", "0"]
        argv += ["--iptables-min-sync-period", "100ms", "--log-format", "json"]
        # What a user has set for his own agent is not for this one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ENV_PREFIX)}
        environment["XTABLES_LOCKFILE"] = str(self.folder / "xtables.lock")
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        self.report.heading(f"The agent starts in the node's namespace, backend {self.backend}")
        started = time.monotonic()
        with self.log.open("w", encoding="utf-8") as log:
            self.agent = self.bed.start(
                self.bed.node, argv, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self._wait("the agent is not ready", lambda: self._get(10256, "/readyz") is not None)
        self.report.line(f"  ready after {time.monotonic() - started:.1f} s")

    def _stop_agent(self) -> None:
        self.report.heading("SIGTERM: the agent leaves, the rules stay")
        self.agent.send_signal(signal.SIGTERM)
        status = self.agent.wait(10)
        self.report.check("the agent ends with status 0", held=status == 0)
        tally = self.bed.connect(self.bed.client, CLUSTER_IP, PORT, count=100)
        self.report.check(
            f"{tally.answered} of 100 new connections are served", held=tally.answered == 100
        )

    def _wait(self, what: str, done: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until something is true.

        Raises:
            DemoError: it did not come true, or the agent ended.
        """
        deadline = time.monotonic() + seconds
        while not done():
            if self.agent.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(encoding="utf-8").splitlines()[-5:]
                raise DemoError("\n".join([f"{what}; the end of its log:", *tail]))
            time.sleep(0.05)

    def _get(self, port: int, path: str) -> str | None:
        """Ask the agent over HTTP; None if it does not answer with 200."""
        return self.bed.node.call(_fetch, f"http://127.0.0.1:{port}{path}")

    # What is shown -----------------------------------------------------------------------

    def _show_split(
        self, pods: Sequence[Pod], address: str, port: int, what: str, count: int
    ) -> None:
        self.report.heading(f"{counted(count, 'connection')} from the client to the {what}")
        tally = self.bed.connect(self.bed.client, address, port, count=count)
        self._check_split(pods, tally, count)

    def _check_split(self, pods: Sequence[Pod], tally: Tally, count: int) -> None:
        chance = self.report.split(tally.answers, [pod.name for pod in pods])
        self.report.check(
            f"{tally.answered:,} of {counted(count, 'connection')} were answered",
            held=tally.answered == count,
        )
        self.report.check(f"the split is fair (p > {P_MIN})", held=chance > P_MIN)

    def _show_removal(self, pods: Sequence[Pod], count: int) -> None:
        gone, left = pods[-1], pods[:-1]
        self.report.heading(f"{gone.name} leaves the Service while connections run")
        held = self.bed.start_client(self.bed.client, CLUSTER_IP, PORT, count=90, hold=True)
        before = held.tally()
        stream = self.bed.start_client(
            self.bed.client, CLUSTER_IP, PORT, count=count, concurrency=8, interval=0.002
        )
        self._write_endpoints(left)
        self._wait("the removal is not in the kernel", lambda: not self._has_rule(gone))
        running = stream.tally()
        self.report.check(
            f"{running.answered:,} of {counted(count, 'connection')} opened then were answered",
            held=running.answered == count,
        )
        self.report.line(f"  and {counted(count, 'connection')} after that:")
        tally = self.bed.connect(self.bed.client, CLUSTER_IP, PORT, count=count)
        self._check_split(left, tally, count)
        self.report.check(
            f"no new connection went to {gone.name}", held=gone.name not in tally.answers
        )
        after = held.ask()
        self.report.check(
            f"all {before.answered} connections from before still talk to the same pods"
            f" ({before.answers.get(gone.name, 0)} of them to {gone.name})",
            held=after.answers == before.answers and after.failed == 0 and before.answered == 90,
        )
        held.close()

    def _has_rule(self, pod: Pod) -> bool:
        tool = "iptables-legacy" if self.backend == "legacy" else "iptables-nft"
        found = self.bed.node.run([f"{tool}-save", "-t", "nat"])
        return f"--to-destination {pod.ips[0]}:" in found.stdout

    def _show_metrics(self) -> None:
        self.report.heading("Some of /metrics")
        lines = [
            line
            for line in (self._get(10249, "/metrics") or "").splitlines()
            if line.startswith(_METRICS)
        ]
        for line in lines:
            self.report.line(f"  {line}")
        failures = [line for line in lines if "restore_failures" in line]
        self.report.check(
            "no restore failed",
            held=bool(failures) and all(line.endswith(" 0.0") for line in failures),
        )

    # Manifests ---------------------------------------------------------------------------

    def _write_endpoints(self, pods: Sequence[Pod]) -> None:
        self._write("endpoints.yaml", [_slice(pods)])

    def _write(self, name: str, objects: Sequence[object]) -> None:
        """Replace a manifest in one step, so that the agent never reads half of it."""
        new = self.folder / f"{name}.new"
        new.write_text(yaml.safe_dump_all(objects, sort_keys=False), encoding="utf-8")
        new.replace(self.manifests / name)


def _fetch(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  http to loopback
            body: bytes = answer.read()
    except (urllib.error.URLError, OSError):
        return None
    return body.decode()


def _service() -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "demo", "name": "web"},
        "spec": {
            "type": "NodePort",
            "clusterIP": CLUSTER_IP,
            "clusterIPs": [CLUSTER_IP],
            "ipFamilies": ["IPv4"],
            "ports": [
                {"name": "http", "port": PORT, "targetPort": testbed.PORT, "nodePort": NODE_PORT}
            ],
        },
    }


def _slice(pods: Sequence[Pod]) -> dict[str, object]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "demo",
            "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": testbed.PORT}],
        "endpoints": [
            {"addresses": [pod.ips[0]], "conditions": {"ready": True}, "nodeName": _NODE}
            for pod in pods
        ],
    }


def _node() -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _NODE, "labels": {"kubernetes.io/hostname": _NODE}},
        "status": {"addresses": [{"type": "InternalIP", "address": testbed.NODE_IPS[0]}]},
    }
