"""The agent and its restores killed while a full sync runs, over live traffic.

Ten times for every day; ``make kill`` (ONENTH_KILLS=200) takes all layouts and 200 kills.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, Testbed
from tests.kernel import crowd
from tests.kernel.crowd import Callers, Outcomes
from tests.kernel.running import BACKENDS, RunningAgent, Tables, until
from tests.kernel.shapes import FAMILIES
from tests.kernel.smallcluster import answer_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.demo.namespaces import Namespace

KILLS = int(os.environ.get("ONENTH_KILLS", "10"))
#: ``auto`` is flat for the small version and a tree for the large one.
LAYOUTS = ("auto",) if KILLS < 50 else ("auto", "flat", "tree")
EACH = math.ceil(KILLS / len(LAYOUTS) / len(BACKENDS))
#: What a SIGKILL is sent to.
VICTIMS = ("both", "agent", "restore")


@dataclasses.dataclass(frozen=True)
class Version:
    """What is true while one version of the cluster is in force."""

    name: str
    outcomes: Outcomes
    tables: dict[str, Tables]
    seconds: float


def held(agent: RunningAgent) -> dict[str, Tables]:
    return {family: agent.tables(family) for family in FAMILIES}


def restores(agent: RunningAgent) -> list[int]:
    """Process id of the program that an agent runs at the moment, if it runs one.

    It lives for some milliseconds, so what was started last is looked at first.
    """
    assert agent.process is not None
    mine = agent.process.pid
    names = os.listdir("/proc")  # noqa: PTH208  in a hurry
    younger = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    return next(([pid] for pid in younger if pid > mine and parent(pid) == mine), [])


def parent(pid: int) -> int | None:
    """Who started a process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    state, number, *_ = text.rpartition(")")[2].split()
    return None if state == "Z" else int(number)


def different(found: dict[str, Tables], wanted: dict[str, Tables]) -> list[object]:
    """Chains that differ, with what they hold and what they should."""
    return [
        (family, table, chain, rules, other)
        for family in found
        for table in found[family].keys() | wanted[family].keys()
        for chain in found[family].get(table, {}).keys() | wanted[family].get(table, {}).keys()
        if (rules := found[family].get(table, {}).get(chain))
        != (other := wanted[family].get(table, {}).get(chain))
    ]


def synced(agent: RunningAgent) -> int:
    """Families whose first sync is done."""
    return len({line["family"] for line in agent.logged("synced")})


class Killing:
    """A testbed, an agent on it that is killed again and again, and callers."""

    def __init__(
        self, bed: Testbed, folder: Path, fresh: Namespace, backend: str, layout: str
    ) -> None:
        self.bed = bed
        self.manifest = folder / "manifests" / "all.json"
        self.manifest.parent.mkdir()
        self.rng = random.Random()  # noqa: S311  moments, not secrets
        flags = ["--cluster-cidr", ",".join(CLUSTER_CIDRS), "--dispatch", layout]
        flags += ["--iptables-sync-period", "5s"]

        def make(namespace: Namespace, name: str) -> RunningAgent:
            (folder / name).mkdir()
            source = self.manifest.parent
            return RunningAgent(namespace, folder / name, source, *flags, backend=backend)

        self.agent = make(bed.node, "node")
        self._fresh = fresh
        self.versions = [self._learn(name, make(fresh, f"fresh-{name}")) for name in crowd.VERSIONS]
        self.halfway = self.restores_killed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.agent.close()

    def _learn(self, name: str, agent: RunningAgent) -> Version:
        """What an agent writes where there is nothing."""
        crowd.write_objects(self.manifest, self.bed, name)
        try:
            agent.start()
            found = held(agent)
            seconds = sum(line["seconds"] for line in agent.logged("synced"))
        finally:
            agent.close()
        for program in ("iptables", "ip6tables"):
            wipe = "".join(f"*{table}\n-F\n-X\nCOMMIT\n" for table in ("filter", "nat", "mangle"))
            argv = [f"xtables-{agent.backend}-multi", f"{program}-restore"]
            self._fresh.run(argv, stdin=wipe)
        return Version(name, crowd.outcomes(self.bed, name), found, seconds)

    def kill(self, victim: str, seconds: float) -> None:
        """Start the agent, and kill so many seconds after it knows what to write."""
        self.agent.launch()
        until(lambda: self.agent.logged("first list is complete", kind="EndpointSlice"))
        time.sleep(seconds)
        while not (children := restores(self.agent)) and victim == "restore":
            if synced(self.agent) == len(FAMILIES):
                break
        assert self.agent.process is not None
        pids = {"both": [self.agent.process.pid, *children], "restore": children}
        for pid in pids.get(victim, [self.agent.process.pid]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.restores_killed += bool(children) and victim != "agent"
        until(lambda: not any(parent(pid) for pid in children))

    def check(self, callers: Callers, possible: list[Version]) -> None:
        """Every Service is as in one of these versions, and nothing that was open broke."""
        found = held(self.agent)
        for family, tables in found.items():
            for chain, rules in tables.get("nat", {}).items():
                if chain.startswith(("KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-")):
                    known = [one.tables[family]["nat"].get(chain) for one in possible]
                    assert rules in known, (family, chain, rules, known)
        callers.call_all()
        assert callers.wrong == []
        assert callers.broken() == {}
        self.halfway += all(found != one.tables for one in possible)

    def repair(self, callers: Callers, version: Version) -> None:
        """Start once more, or let it help itself: all is as a new agent writes it."""
        if self.agent.running:
            self.agent.wait_ready()
            until(
                lambda: held(self.agent) == version.tables,
                what=lambda: different(held(self.agent), version.tables),
            )
        else:
            self.agent.start()
            assert different(held(self.agent), version.tables) == []
        callers.allow(version.outcomes)
        callers.call_all()
        assert callers.wrong == []
        self.agent.stop(signal.SIGKILL)


@pytest.fixture
def nowhere(make_namespace: Callable[[], Namespace], bed: Testbed) -> Iterator[None]:
    for namespace in (bed.node, bed.client):
        answer_all(namespace)
    with crowd.lead_nowhere(bed.node, make_namespace()):
        yield


@pytest.mark.timeout(120 + 60 * EACH)
@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_any_moment(
    bed: Testbed, tmp_path: Path, namespace: Namespace, backend: str, layout: str
) -> None:
    """Every Service works as before or as after, and the next start makes the rest right.

    252 Services become 72 and 72 become 252, and in the middle of that the agent, or what it runs,
    or both get a SIGKILL. Connections that were open go on, new ones come to what the old or the
    new version says, and each Service's chains are one version's. Then the agent starts again:
    the kernel holds what an agent writes that begins with nothing. Sometimes it is not repaired,
    and another change is killed on top.
    """
    for ip in NODE_IPS:
        namespace.run(["ip", "address", "add", ip, "dev", "lo"])
    bed.serve()
    with (
        Killing(bed, tmp_path, namespace, backend, layout) as killing,
        Callers(bed.client, killing.versions[0].outcomes) as callers,
    ):
        small, large = killing.versions
        crowd.write_objects(killing.manifest, bed, small.name)
        killing.agent.start()
        callers.hold(crowd.held_targets())
        killing.repair(callers, small)
        possible = [small]
        for number in range(EACH):
            after = large if possible[-1] is small else small
            possible.append(after)
            callers.allow(*(one.outcomes for one in possible))
            crowd.write_objects(killing.manifest, bed, after.name)
            killing.kill(VICTIMS[number % 3], killing.rng.uniform(0, 1.3 * after.seconds))
            killing.check(callers, possible)
            if killing.agent.running or killing.rng.random() < 0.7 or number == EACH - 1:
                killing.repair(callers, after)
                possible = [after]

    assert callers.wrong == []
    assert killing.restores_killed >= EACH // 10
    assert killing.halfway >= EACH // 10
