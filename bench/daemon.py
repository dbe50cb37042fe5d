"""The real daemon in a namespace, on the fake API server in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench import objects
from tests.kernel.running import ROOT, RunningAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.bed import Bed

_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 180.0


@contextlib.contextmanager
def api_server(bed: Bed, services: int, endpoints: int) -> Iterator[str]:
    """The fake API server with the made-up cluster; gives its address.

    A kubeconfig for it is in the bed's folder.
    """
    argv = [sys.executable, "-m", "bench.server"]
    argv += [str(services), str(endpoints), str(kubeconfig(bed))]
    server = bed.namespace.popen(
        argv, cwd=ROOT, env=bed.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with server:
        try:
            if server.stdout is None:
                raise RuntimeError("the API server has no output")
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def kubeconfig(bed: Bed) -> Path:
    """Where the kubeconfig is."""
    return bed.folder / "kubeconfig"


@contextlib.contextmanager
def daemon(bed: Bed, *flags: str) -> Iterator[RunningAgent]:
    """The daemon, from when its first sync is accepted."""
    folder = bed.folder / "agent"
    folder.mkdir(exist_ok=True)
    agent = RunningAgent(
        bed.namespace,
        folder,
        None,
        *("--kubeconfig", str(kubeconfig(bed)), "--cluster-cidr", objects.CLUSTER_CIDR),
        *flags,
        backend=bed.backend.value,
        environment=bed.environment,
        node=objects.NODE,
    )
    try:
        agent.start(_START_SECONDS)
        yield agent
    finally:
        agent.close()


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
