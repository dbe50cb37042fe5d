"""What the machine can do to the agent."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from tests.faults.schedule import Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.faults.run import Run


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


FAULTS = (
    Fault("host: SIGKILL", _killed, alone=True),
    Fault("host: no agent for a while", _away, alone=True),
    Fault("host: SIGSTOP", _frozen),
    Fault("host: sysctls read-only", _read_only_sysctls, alone=True),
    Fault("host: addresses come and go", _addresses),
)
