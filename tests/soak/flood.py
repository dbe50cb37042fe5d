"""``python -m tests.soak.flood``: how long a sync takes while every port of the agent is flooded.

Quiet phases and flooded ones take turns, so that what else goes on on the machine meets both.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.demo.namespaces import Namespace, owned_name, sweep
from tests.kernel import shapes
from tests.kernel.running import ROOT, Host, environment, until
from tests.soak import vitals
from tests.soak.churn import Churn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kernel.running import RunningAgent

#: Where the agent listens, and what is asked for there.
PORTS = ((10249, "/metrics"), (10256, "/healthz"), (30500, "/"))
MOST = 2.0
_SYNCS = 12
_ROUNDS = 4
#: Of three servers: 128 connections each, as many that are just being closed, and some new ones.
_DESCRIPTORS = 3 * 3 * 128
_MEGABYTES = 32.0
_NUMBERS = itertools.cycle(range(2, 250))


@contextlib.contextmanager
def flooded(namespace: Namespace, *, idle: bool) -> Iterator[None]:
    """Flood meanwhile; print how much of it came through."""
    started = [
        namespace.popen(
            [
                sys.executable, "-m", "tests.soak.flooder",
                "127.0.0.1", str(port), "" if idle else path, "300" if idle else "64",
            ],
            env=environment(), stdout=subprocess.PIPE, cwd=ROOT,
        )
        for port, path in PORTS
    ]  # fmt: skip
    try:
        time.sleep(1.5)
        yield
    finally:
        for process in started:
            process.kill()
        for process, (port, _) in zip(started, PORTS, strict=True):
            out, _err = process.communicate()
            counts = [int(line) for line in out.split()]
            say(f"    port {port}: {statistics.fmean(counts or [0]):.0f} exchanges a second")


def measure(host: Host, agent: RunningAgent) -> list[float]:
    """Seconds from a change at the API server to its acceptance by the kernel."""
    found = []
    for _ in range(_SYNCS):
        before = len(agent.logged("synced", family="IPv4"))
        host.api.put(shapes.endpoint_slice("probe", shapes.endpoint(f"10.99.0.{next(_NUMBERS)}")))
        started = time.monotonic()
        until(functools.partial(_synced, agent, before), 30.0, agent.story)
        found.append(time.monotonic() - started)
    return found


def _synced(agent: RunningAgent, before: int) -> bool:
    return len(agent.logged("synced", family="IPv4")) > before


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def running(services: int, backend: str) -> Iterator[tuple[Host, RunningAgent]]:
    """An agent with so many Services, and one of them with the health check node port."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onenth-flood-")))
        namespace = Namespace.create(owned_name("flood"))
        stack.callback(namespace.close)
        namespace.run(["ip", "link", "set", "lo", "up"])
        host = stack.enter_context(Host(namespace, folder))
        Churn(host.api, services, random.Random(1))  # noqa: S311  (not for secrets)
        host.api.put(
            shapes.service(
                "probe", "10.96.200.1", ports=[shapes.port(80, node_port=30400)],
                type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=PORTS[2][0],
            ),
            shapes.endpoint_slice("probe", shapes.endpoint("10.99.0.1")),
        )  # fmt: skip
        lock = {"XTABLES_LOCKFILE": str(folder / "lock")}
        yield host, host.agent(backend=backend, environment=lock).start(60)


def compare(host: Host, agent: RunningAgent) -> bool:
    """Measure, print, and judge."""
    found: dict[str, list[float]] = {"quiet": [], "requests": [], "idle": []}
    assert agent.process is not None
    before = vitals.read(agent.process.pid)
    worst = before
    for _ in range(_ROUNDS):
        found["quiet"] += measure(host, agent)
        for kind in ("requests", "idle"):
            with flooded(host.namespace, idle=kind == "idle"):
                found[kind] += measure(host, agent)
                worst = worst.worse(vitals.read(agent.process.pid))
    usual = {kind: statistics.median(values) for kind, values in found.items()}
    for kind, seconds in usual.items():
        ratio = seconds / usual["quiet"]
        say(f"{kind:<9} {seconds * 1000:6.1f} ms from a change to the kernel, {ratio:.2f} times")
    grown = (worst.resident - before.resident) / 2**20
    say(
        f"threads {before.threads} -> {worst.threads}, descriptors {before.descriptors} ->"
        f" {worst.descriptors}, resident memory +{grown:.1f} MB"
    )
    return (
        max(usual.values()) <= MOST * usual["quiet"]
        and worst.threads <= before.threads
        and worst.descriptors <= before.descriptors + _DESCRIPTORS
        and grown <= _MEGABYTES
    )


def main() -> int:
    """Run, print the ratio; status 1 if it is above two, or if anything else has no bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.flood", description=__doc__)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--backend", choices=("nft", "legacy"), default="nft")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and leave nothing behind
    sweep()
    with running(args.services, args.backend) as (host, agent):
        fine = compare(host, agent)
    say("within bounds" if fine else "NOT within bounds")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
