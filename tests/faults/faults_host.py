"""What the machine can do to the agent."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from tests.faults import conntrack
from tests.faults.schedule import Breaks, Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.faults.run import Run

_HOOK = "{ type filter hook prerouting priority -150; }"


def _killed(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL at any instant, perhaps in the middle of a restore; started again later."""
    for _ in range(rng.randint(1, 2)):
        run.churn(rng)
        time.sleep(rng.uniform(0.0, 0.15))
        run.agent.stop(signal.SIGKILL)
        run.agent.launch()
        time.sleep(rng.choice([0.0, rng.uniform(0.0, 1.5)]))
    run.started()
    yield


def _away(run: Run, rng: random.Random) -> Iterator[None]:
    """No agent for a while, in which things change."""
    run.agent.stop(rng.choice([signal.SIGKILL, signal.SIGTERM]))
    yield
    run.agent.launch()
    run.started()


def _frozen(run: Run, _rng: random.Random) -> Iterator[None]:
    """The process stands still, and goes on."""
    run.agent.send(signal.SIGSTOP)
    yield
    run.agent.send(signal.SIGCONT)


def _read_only_sysctls(run: Run, _rng: random.Random) -> Iterator[None]:
    """Started where /proc/sys cannot be written."""
    run.agent.stop()
    with run.stage.tools.read_only_sysctls():
        run.agent.launch()
        run.started()
    yield


def _addresses(run: Run, rng: random.Random) -> Iterator[None]:
    """Addresses and interfaces come and go, quickly."""
    with contextlib.ExitStack() as stack:
        run.node.run(["ip", "link", "add", "faults7", "type", "bridge"])
        stack.callback(run.node.run, ["ip", "link", "del", "faults7"])
        for number in range(rng.randint(2, 8)):
            address = rng.choice([f"198.51.100.{number + 1}/24", f"2001:db8:7::{number + 1}/64"])
            verb = rng.choice(["add", "add", "del"])
            run.node.run(["ip", "address", verb, address, "dev", "faults7"], check=False)
            run.node.run(["ip", "link", "set", "faults7", rng.choice(["up", "down"])])
            time.sleep(rng.choice([0.0, 0.1]))
        yield


def _disk_full(run: Run, rng: random.Random) -> Iterator[None]:
    """Not a byte more for what the agent prints, nor for temporary files."""
    filler = run.folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << (16 if rng.random() < 0.9 else 8)))
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")
    if rng.random() < 0.5:  # started by a supervisor whose disk is full
        run.agent.stop()
        run.agent.launch()
        run.started()
    yield
    filler.unlink()


def _clock(run: Run, rng: random.Random) -> Iterator[None]:
    """The time of day jumps, both ways."""
    for _ in range(rng.randint(1, 3)):
        run.stage.clock.set(rng.choice([-1, 1]) * rng.choice([1, 60, 3600, 86_400, 40_000_000]))
        time.sleep(rng.uniform(0.0, 0.3))
    yield
    run.stage.clock.set(0)


def _conntrack_full(run: Run, rng: random.Random) -> Iterator[None]:
    """The connection table has no room: the kernel drops what is new, and nothing else."""
    if conntrack.limit() > conntrack.MOST:
        run.node.run(["nft", "add", "chain", "inet", "keeper", "full", _HOOK])
        run.node.run(["nft", "add", "rule", "inet", "keeper", "full", "ct", "state", "new", "drop"])
        yield
        # Gone already if the whole ruleset was flushed meanwhile.
        run.node.run(["nft", "delete", "chain", "inet", "keeper", "full"], check=False)
        return
    conntrack.fill(run.node)
    yield
    conntrack.empty(run.node)


FAULTS = (
    Fault("host: SIGKILL", _killed, alone=True),
    Fault("host: no agent for a while", _away, alone=True),
    Fault("host: SIGSTOP", _frozen),
    Fault("host: sysctls read-only", _read_only_sysctls, alone=True),
    Fault("host: addresses come and go", _addresses),
    Fault("host: disk full", _disk_full, alone=True),
    Fault("host: clock jumps", _clock),
    Fault("host: connection table full", _conntrack_full, Breaks.NEW, weight=0.1),
)
