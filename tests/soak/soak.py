"""The run itself: an agent in its own namespace, churn, mishaps, and its vitals all the while."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agent.demo.namespaces import Namespace, owned_name
from tests.kernel.running import ROOT, Host, RunningAgent, iptables, until
from tests.kernel.shapes import NODE
from tests.soak import slope, vitals
from tests.soak.churn import Churn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.handler import Watch

_PLURALS = ("services", "endpointslices", "nodes")
_MB = 1024 * 1024
#: Share of a run that is not judged: caches fill, the allocator finds its size.
_WARM_UP = 0.2
_READINGS = 400
#: Lists of everything before anything is measured.
_SHAKES = 20
#: Growth of memory that is allowed in a run, as a part of it.
_MEMORY = 0.02


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do.

    Attributes:
        services: to begin with; churn keeps their number.
        minutes: how long; 0 if reconnects decide.
        reconnects: how often to break all connections to the API server.
        rate: changes a second.
        backend: of iptables.
        seed: of everything random.
    """

    services: int
    minutes: float
    reconnects: int
    rate: float
    backend: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Line:
    """The verdict on one value."""

    what: str
    unit: str
    scale: float
    slope: slope.Slope
    allowed: float

    @property
    def flat(self) -> bool:
        """Whether it stayed what it was."""
        return self.slope.flat(self.allowed)

    def __str__(self) -> str:
        """Read like a row of a table."""
        found = self.slope
        level, growth, error, allowed = (
            value / self.scale for value in (found.level, found.growth, found.error, self.allowed)
        )
        return (
            f"{self.what:<18} mean {level:8.2f} {self.unit:<4} growth {growth:+7.3f}"
            f" ± {error:.3f} (95 %)  allowed {allowed:.2f}  {'flat' if self.flat else 'NOT FLAT'}"
        )


class Soak:
    """One run; a context manager."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rng = random.Random(plan.seed)  # noqa: S311  (not for secrets)
        self._stack = contextlib.ExitStack()
        self._places: list[float] = []
        self._readings: list[vitals.Vitals] = []
        self._host: Host
        self._agent: RunningAgent
        self._churn: Churn
        self._said = 0.0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onenth-soak-")))
            namespace = Namespace.create(owned_name("soak"))
            stack.callback(namespace.close)
            namespace.run(["ip", "link", "set", "lo", "up"])
            self._host = stack.enter_context(Host(namespace, folder))
            self._churn = Churn(self._host.api, self._plan.services, self._rng)
            self._agent = self._host.agent(
                "--iptables-min-sync-period", "1s",
                backend=self._plan.backend,
                environment={"XTABLES_LOCKFILE": str(folder / "lock")},
                module="tests.soak.hasty",
            )  # fmt: skip
            self._agent.start(120.0)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> None:
        """Do what is planned."""
        if self._plan.reconnects:
            self._reconnect()
        else:
            self._endure()

    def lines(self) -> Iterator[Line]:
        """Judge what was read after the warm-up."""
        warm = self._places[0] + (self._places[-1] - self._places[0]) * _WARM_UP
        start = next(i for i, place in enumerate(self._places) if place >= warm)
        places, readings = self._places[start:], self._readings[start:]
        memory = max(_MB, _MEMORY * slope.measure(places, [r.resident for r in readings]).level)
        for what, unit, scale, values, allowed in (
            ("threads", "", 1.0, [one.threads for one in readings], 0.5),
            ("descriptors", "", 1.0, [one.descriptors for one in readings], 2.0),
            ("resident memory", "MB", _MB, [one.resident for one in readings], memory),
            ("of it anonymous", "MB", _MB, [one.anonymous for one in readings], memory),
        ):
            yield Line(what, unit, scale, slope.measure(places, values), allowed)

    def span(self) -> float:
        """How much of the axis is judged: hours, or reconnects."""
        return (self._places[-1] - self._places[0]) * (1 - _WARM_UP)

    # Ways to pass the time ---------------------------------------------------------------

    def _endure(self) -> None:
        self._shake()
        seconds = self._plan.minutes * 60
        started = time.monotonic()
        pause = max(seconds / _READINGS, 0.4)
        mishap = started + 20
        while (now := time.monotonic()) < started + seconds:
            if now > mishap:
                self._mishap()
                mishap = now + self._rng.uniform(20, 60)
            self._pass(pause)
            self._read((time.monotonic() - started) / 3600)

    def _shake(self) -> None:
        """Bring memory to where it will be after many mishaps, which would otherwise take hours.

        A list of everything is decoded beside the one that it replaces, and a repair reads and
        writes everything; what the allocator needs for both at once, it keeps.
        """
        for count in range(_SHAKES):
            self._churn.step()
            before, done = set(self._host.api.watches), len(self._agent.logged("synced"))
            if count % 4 == 0:
                iptables(self._host.namespace, self._plan.backend, "-t", "nat", "-F")
            self._host.api.compact()
            self._host.api.cut()
            until(functools.partial(self._connected, before), 60.0, self._agent.story)
            self._churn.step()
            self._churn.step()
            until(functools.partial(self._synced, done), 60.0, self._agent.story)
        say(
            f"after {_SHAKES} lists of everything: {vitals.read(self._pid()).resident / _MB:.2f} MB"
        )

    def _synced(self, before: int) -> bool:
        return len(self._agent.logged("synced")) > before

    def _pass(self, seconds: float) -> None:
        """Let the cluster change for a while, and look at the agent as Prometheus does."""
        for _ in range(max(round(seconds * self._plan.rate), 1)):
            self._churn.step()
            time.sleep(1 / self._plan.rate)
        for path, port in (("/metrics", 10249), ("/statusz", 10249), ("/healthz", 10256)):
            self._agent.get(path, port)

    def _reconnect(self) -> None:
        every = max(self._plan.reconnects // _READINGS, 1)
        for count in range(self._plan.reconnects):
            self._churn.step()
            before = set(self._host.api.watches)
            self._break()
            until(functools.partial(self._connected, before), 60.0, self._agent.story)
            if count % every == 0:
                self._read(count)

    def _connected(self, before: set[Watch]) -> bool:
        """Whether there is a new watch of each kind, and none of the old ones."""
        api = self._host.api
        return not before & api.watches and all(api.watching(plural) for plural in _PLURALS)

    def _break(self) -> None:
        """Lose all connections to the API server in one of several ways."""
        api = self._host.api
        way = self._rng.choice(["cut", "cut", "expired", "garbage", "half"])
        if way == "expired":
            api.compact()
        raw = {"garbage": b"\x00{]\n", "half": b'{"type":"MODIFIED","object":{"metadata":'}.get(way)
        if raw is None:
            api.cut()
            return
        for plural in _PLURALS:
            api.slip(plural, raw, then_cut=True)

    def _mishap(self) -> None:
        """What happens once in a while: a lost connection, an old version, a flushed table."""
        if self._rng.random() < 0.3:
            iptables(self._host.namespace, self._plan.backend, "-t", "nat", "-F")
        else:
            self._break()

    # Readings ----------------------------------------------------------------------------

    def _pid(self) -> int:
        process = self._agent.process
        if process is None or not self._agent.running:
            raise SystemExit(f"the agent has ended: {self._agent.story()}")
        return process.pid

    def _read(self, place: float) -> None:
        found = vitals.read(self._pid())
        self._places.append(place)
        self._readings.append(found)
        if time.monotonic() - self._said >= 60:
            self._said = time.monotonic()
            say(
                f"{place:8.3f}  threads {found.threads}  descriptors {found.descriptors}"
                f"  resident {found.resident / _MB:.2f} MB  anonymous {found.anonymous / _MB:.2f}"
                f" MB  cpu {found.cpu:.1f} s  changes {self._churn.steps}"
            )

    def verify(self) -> bool:
        """Whether the kernel holds what the API server says, whatever has happened.

        In a large cluster, chains of the past may stay for a syncPeriod.
        """
        said = ""
        for _ in range(4):
            time.sleep(35)
            said = self._differences()
            if not said:
                return True
        say(said)
        return False

    def _differences(self) -> str:
        """The end of what verify finds; empty if that is nothing."""
        argv = [
            "env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "agent", "verify",
            "--kubeconfig", str(self._host.folder / "agent-0" / "kubeconfig"),
            "--node-name", NODE, "--iptables-backend", self._plan.backend,
        ]  # fmt: skip
        done = self._host.namespace.run(argv, timeout=120, check=False)
        return "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
