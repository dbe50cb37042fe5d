"""The real daemon in a namespace, on the fake API server in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from agent.kernel.detect import Backend
from bench import objects
from bench.bed import Bed
from tests.kernel.running import ROOT, RunningAgent

#: The default of minSyncPeriod, in seconds; changes that are further apart have a sync each.
MIN_SYNC_PERIOD = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 180.0


class Cluster:
    """A made-up cluster's API server in a namespace, and the daemon on it once somebody asks."""

    def __init__(self, services: int, endpoints: int) -> None:
        """Start the server, and do not wait for it."""
        self._stack = contextlib.ExitStack()
        self.bed = self._stack.enter_context(Bed(Backend.NFT))
        argv = [sys.executable, "-m", "bench.server"]
        self._kubeconfig = self.bed.folder / "kubeconfig"
        argv += [str(services), str(endpoints), str(self._kubeconfig)]
        server = self.bed.namespace.popen(
            argv, cwd=ROOT, env=self.bed.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._server = self._stack.enter_context(server)
        self._stack.callback(server.kill)
        self._agent: RunningAgent | None = None

    @functools.cached_property
    def url(self) -> str:
        """The server's address; it serves."""
        line = self._server.stdout.readline() if self._server.stdout else ""
        if not line:
            raise RuntimeError("the API server has ended")
        return line.strip()

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig for the server, which serves."""
        if not self.url:
            raise RuntimeError("the API server has no address")
        return self._kubeconfig

    def launch(self) -> RunningAgent:
        """Start the daemon, and do not wait for it."""
        if self._agent is None:
            self._agent = self._made()
            self._stack.callback(self._agent.close)
            self._agent.launch()
        return self._agent

    def agent(self) -> RunningAgent:
        """The daemon, from when its first sync is accepted."""
        agent = self.launch()
        agent.wait_ready(_START_SECONDS)
        return agent

    def restart(self) -> RunningAgent:
        """Another daemon in place of the one that runs."""
        if self._agent is not None:
            self._agent.close()
        self._agent = None
        return self.agent()

    def _made(self) -> RunningAgent:
        folder = self.bed.folder / "agent"
        folder.mkdir(exist_ok=True)
        return RunningAgent(
            self.bed.namespace,
            folder,
            None,
            *("--kubeconfig", str(self.kubeconfig), "--cluster-cidr", objects.CLUSTER_CIDR),
            *("--iptables-min-sync-period", f"{MIN_SYNC_PERIOD:g}s"),
            backend=self.bed.backend.value,
            environment=self.bed.environment,
            node=objects.NODE,
        )

    def close(self) -> None:
        """End all."""
        self._stack.close()


class Clusters:
    """Clusters by their size, for all that measure in them; a context manager."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Cluster] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, services: int, endpoints: int) -> Cluster:
        """The one with so many Services of so many endpoints."""
        size = services, endpoints
        if size not in self._made:
            self._made[size] = Cluster(services, endpoints)
        return self._made[size]

    def close(self) -> None:
        """End them; whoever asks afterwards gets new ones."""
        for cluster in self._made.values():
            cluster.close()
        self._made.clear()


def pid_of(agent: RunningAgent) -> int:
    """Its process id."""
    if agent.process is None:
        raise RuntimeError("the agent was not started")
    return agent.process.pid


def resident(agent: RunningAgent) -> float:
    """Resident memory in MB of 2^20 bytes."""
    return _status(agent, "VmRSS")


def peak(agent: RunningAgent) -> float:
    """The most that was ever resident, in MB of 2^20 bytes."""
    return _status(agent, "VmHWM")


def _status(agent: RunningAgent, name: str) -> float:
    text = Path(f"/proc/{pid_of(agent)}/status").read_text("ascii")
    line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def cpu(agent: RunningAgent) -> float:
    """Seconds that it and its children that ended have computed so far (proc(5))."""
    text = Path(f"/proc/{pid_of(agent)}/stat").read_text("utf-8")
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


class Writer:
    """Replaces slices in the API server, over one connection, from inside of the namespace."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port or 80)

    def put(self, endpoint_slice: objects.Object) -> None:
        """Replace one.

        Raises:
            RuntimeError: the server refused.
        """
        meta = endpoint_slice["metadata"]
        path = (
            f"/apis/discovery.k8s.io/v1/namespaces/{meta['namespace']}"
            f"/endpointslices/{meta['name']}"
        )
        self._connection.request("PUT", path, json.dumps(endpoint_slice))
        with self._connection.getresponse() as answer:
            answer.read()
            if answer.status != http.client.OK:
                raise RuntimeError(f"PUT {path} was answered with {answer.status}")

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
