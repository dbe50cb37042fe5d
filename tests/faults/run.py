"""One run: a live agent, and what faults do to it, watched by the oracle after every step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import time
import traceback
from typing import TYPE_CHECKING, Any, Self

import yaml

from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, REMOTE_NODE_IPS
from agent.state.node import NodeSettings
from agent.state.values import Family
from tests.faults import cast
from tests.faults.agent import READ_TIMEOUT
from tests.faults.oracle import FOREIGN, LEFT_OVER, Settings, clean, differences, ours
from tests.faults.schedule import Breaks
from tests.faults.traffic import INTERVAL
from tests.kernel import shapes
from tests.kernel.running import RunningAgent, iptables, serve_api, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.faults.schedule import Fault, Schedule, Step
    from tests.faults.stage import Stage

#: Seconds between two looks of the agent at the kernel.
PERIOD = 1
#: Seconds until everything must be right again.
PATIENCE = 30.0
TOKEN = "a-token"  # noqa: S105  of the fake API server
_BOOKMARKS = 0.5
_FAMILIES = (Family.V4, Family.V6)


class Missed(Exception):  # noqa: N818  the machine's word for what it looks for
    """Something that was promised did not hold."""


class Live(RunningAgent):
    """The agent of a run; its log goes on when it is started again."""

    def launch(self, *, mode: str = "a") -> RunningAgent:
        """Start it."""
        return super().launch(mode=mode)

    def logs(self) -> list[dict[str, Any]]:
        """Its log so far; a line that a full disk has cut is left out."""
        found = []
        for line in self._out.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found


class Run:
    """A context manager: everything from the first rule to the last.

    Attributes:
        stage: where it takes place.
        schedule: what happens.
        api: the API server.
        agent: the agent.
        folder: a small file system, for what the agent prints.
        backend: of iptables.
        families: that the agent serves.
        counters: whether the agent could use nfacct counters when it started.
        afterwards: what faults leave to be tidied up once everything is right again.
    """

    def __init__(
        self, stage: Stage, schedule: Schedule, *, way: str = "", patience: float = PATIENCE
    ) -> None:
        self.stage = stage
        self.schedule = schedule
        self.backend = schedule.backend
        self.families = tuple(_FAMILIES[n] for n in schedule.families)
        self.node = stage.bed.node
        self.counters = True
        self.afterwards: list[Callable[[], None]] = []
        self.folder: Path = stage.folder / f"run-{schedule.seed}"
        self._present: set[str] = set()
        self._way = way
        self._patience = patience
        self._clock = any("clock" in name for step in schedule.steps for name in step.faults)
        self._stack = contextlib.ExitStack()
        self._since = 0.0

    # Beginning ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder.mkdir()
            stack.callback(shutil.rmtree, self.folder)
            clean(self.node)
            self._plant()
            certificates = self.stage.certificates
            self.api = stack.enter_context(
                serve_api(
                    self.node,
                    bookmark_seconds=_BOOKMARKS,
                    token=TOKEN,
                    tls=certificates.first if self.schedule.tls else None,
                )
            )
            self.api.put(
                shapes.node(*NODE_IPS),
                shapes.node(*REMOTE_NODE_IPS, name=shapes.OTHER_NODE),
                *cast.untouched(self.stage.pods),
            )
            self.settings = Settings(
                self.backend,
                self.schedule.layout,
                self.families,
                NodeSettings(name=shapes.NODE, cluster_cidrs=CLUSTER_CIDRS),
            )
            self.agent = self.make_agent("agent")
            stack.callback(self.agent.close)
            self.agent.start()
            self.settle()
            chosen = list(cast.targets(self.stage.pods, self.schedule.families))
            self.stage.traffic.start(chosen)
            stack.callback(self.stage.traffic.stop)
            self._since = time.monotonic()
            self._held = sum(target.held for target in chosen)
            self.judge(Breaks.NOTHING)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def make_agent(self, name: str, *flags: str, **options: Any) -> Live:
        """An agent with the settings of this run; another one has flags that win."""
        folder = self.folder / name
        folder.mkdir()
        token = folder / "token"
        token.write_text(self.api.token or TOKEN)  # one may have expired by now
        named = ",".join(family.value for family in self.families)
        arguments = [
            *("--kubeconfig", str(self._kubeconfig(folder, token))),
            *("--cluster-cidr", ",".join(CLUSTER_CIDRS)),
            *("--dispatch", self.schedule.layout),
            *("--iptables-sync-period", f"{PERIOD}s"),
            *("--api-read-timeout", f"{READ_TIMEOUT:g}s"),
            *("--ip-families", named if len(self.families) == 1 else "auto"),
        ]
        environment = {
            "FAULTS_BREAK": self._way,
            "TMPDIR": str(self.folder),
            "XTABLES_LOCKFILE": os.environ["XTABLES_LOCKFILE"],
            **(self.stage.clock.environment() if self._clock else {}),
        }
        options.setdefault("prefix", self.stage.tools.prefix)
        return Live(
            self.node,
            folder,
            None,
            *arguments,
            *flags,
            backend=self.backend,
            module="tests.faults.agent",
            environment=environment | options.pop("environment", {}),
            **options,
        )

    def _kubeconfig(self, folder: Path, token: Path) -> Path:
        cluster = {"server": self.api.url}
        if self.schedule.tls:
            cluster["certificate-authority"] = str(self.stage.certificates.authority)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "fake", "user": {"tokenFile": str(token)}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config), "utf-8")
        return path

    def keep_tracking(self) -> None:
        """As on any node, somebody else needs connections to be tracked.

        The kernel stops doing that with the last rule that does, and what is not tracked is not
        translated either.
        """
        hook = "type filter hook prerouting priority -300;"
        for command in (
            "add table inet keeper",
            f"add chain inet keeper tracked {{ {hook} }}",
            "add rule inet keeper tracked ct state invalid counter",
        ):
            self.node.run(["nft", command])

    def _plant(self) -> None:
        """Rules of somebody else, who must not notice anything."""
        self.planted = True
        self.keep_tracking()
        for family in self.families:
            for table, chain in (("nat", "POSTROUTING"), ("filter", "FORWARD")):
                for rule in (
                    ("-N", FOREIGN),
                    ("-A", FOREIGN, "-j", "RETURN"),
                    ("-A", chain, "-m", "comment", "--comment", FOREIGN, "-j", FOREIGN),
                ):
                    self.iptables("-t", table, *rule, family=family)

    # What faults use ---------------------------------------------------------------------

    def iptables(self, *argv: str, family: Family) -> str:
        """A command of the run's backend on the node, as another tool gives it."""
        return iptables(self.node, self.backend, *argv, family=family.value)

    def restore(self, family: Family, text: str, *options: str) -> None:
        """Restore input as another tool does."""
        name = "iptables-restore" if family is Family.V4 else "ip6tables-restore"
        self.node.run([f"xtables-{self.backend}-multi", name, "-w", *options], stdin=text)

    def held(self, family: Family) -> dict[str, dict[str, list[str]]]:
        """What the kernel holds."""
        return tables(self.node, self.backend, family.value)

    def churn(self, rng: random.Random) -> None:
        """Change some of the Services that nobody connects to."""
        put, gone = cast.churn(rng, self._present)
        for kind, name in gone:
            self.api.delete(kind, name)
        self.api.put(*put)

    def started(self) -> None:
        """The agent was started again, and can do what it could at first."""
        self.agent.wait_ready(self._patience)

    # Judging -----------------------------------------------------------------------------

    def play(self, step: Step, catalogue: dict[str, Fault]) -> None:
        """One step, and what it may and may not do.

        Raises:
            Missed: a promise did not hold.
        """
        faults = [catalogue[name] for name in step.faults]
        rng = random.Random(step.seed)
        lines = len(self.agent.logs())
        with contextlib.ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault.during(self, random.Random(rng.random())))
            self.churn(rng)
            time.sleep(step.seconds)
            if len(faults) == 1 and faults[0].says:
                self._wait_said(faults[0].says, lines)
        self.settle()
        while self.afterwards:
            self.afterwards.pop()()
            self.settle()
        self.judge(
            max(fault.breaks for fault in faults),
            faults[0].touches if len(faults) == 1 else "",
        )

    def _wait_said(self, events: Sequence[str], lines: int) -> None:
        """Wait until the agent has logged one of these, after so many lines."""
        end = time.monotonic() + self._patience
        while not any(line.get("event") in events for line in self.agent.logs()[lines:]):
            if time.monotonic() > end:
                raise Missed(f"the agent did not say any of {events}")
            time.sleep(0.1)

    def settle(self) -> None:
        """Wait until the kernel holds what a fresh agent would write.

        Raises:
            Missed: it does not come to that.
        """
        wanted = self.stage.oracle.expected(self.settings, self.api, counters=self.counters)
        end = time.monotonic() + self._patience
        while found := self._differences(wanted, left_over=bool(self.afterwards)):
            if time.monotonic() > end:
                lines = "\n  ".join(found[:12])
                raise Missed(f"after {self._patience:g} s the kernel is not right:\n  {lines}")
            if not self.agent.running:
                raise Missed(f"the agent ended by itself, with {self.agent.wait(1)}")
            time.sleep(0.1)

    def _differences(self, wanted: dict[Family, Any], *, left_over: bool) -> list[str]:
        """What is wrong; chains may be left over while chains of others jump to them."""
        return [
            f"{family.value} {line}"
            for family, should in wanted.items()
            for line in differences(should, ours(self.held(family)))
            if not (left_over and line.endswith(LEFT_OVER))
        ]

    def judge(self, breaks: Breaks, touched: str = "") -> None:
        """Look at the traffic since the last time, and at the agent.

        Args:
            breaks: what may have failed.
            touched: of which Service alone; empty for all.

        Raises:
            Missed: a connection failed that must not fail, or the agent is not well.
        """
        now = time.monotonic()
        time.sleep(INTERVAL + 0.05)
        report = self.stage.traffic.report(self._since)
        since, self._since = self._since, now
        bad = [
            one
            for one in report.failures
            if breaks is Breaks.NOTHING or one.at >= now or not one.target.startswith(touched)
        ]
        if bad:
            shown = ", ".join(f"{one.target}: {one.outcome} at {one.at - since:.2f}" for one in bad)
            raise Missed(f"{len(bad)} of {report.tried} connections failed: {shown[:1500]}")
        if report.broken and breaks is not Breaks.HELD:
            raise Missed(f"held connections broke: {report.broken}")
        if not self.agent.running:
            raise Missed(f"the agent ended by itself, with {self.agent.wait(1)}")

    def finish(self) -> None:
        """The last look: what has to be so at the end of every run.

        Raises:
            Missed: it is not.
        """
        end = time.monotonic() + self._patience
        while (health := self.agent.get("/healthz")).status != 200:
            if time.monotonic() > end:
                raise Missed(f"/healthz says {health.status} at the end: {health.body}")
            time.sleep(0.1)
        if "Traceback" in (said := self.agent.stderr()):
            raise Missed(f"a traceback: {said[-3000:]}")
        if self.api.crashes:
            raise Missed(f"the fake API server failed: {self.api.crashes}")
        for family in self.families if self.planted else ():
            held = self.held(family)
            for table, chain in (("nat", "POSTROUTING"), ("filter", "FORWARD")):
                lacks = not any(FOREIGN in rule for rule in held[table][chain])
                if lacks or held[table].get(FOREIGN) != ["-j RETURN"]:
                    raise Missed(f"rules of others in {family.value} {table} are gone")


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended; ``missed`` is empty if nothing was missed."""

    schedule: Schedule
    seconds: float
    missed: str = ""
    story: str = ""


def play(
    stage: Stage, schedule: Schedule, catalogue: dict[str, Fault], way: str, patience: float
) -> Result:
    """A whole run."""
    began = time.monotonic()
    done: Sequence[Step] = ()
    run = Run(stage, schedule, way=way, patience=patience)
    missed = story = ""
    try:
        with run:
            try:
                for number, step in enumerate(schedule.steps, 1):
                    done = schedule.steps[:number]
                    run.play(step, catalogue)
                run.finish()
            except BaseException:
                story = run.agent.story()
                raise
    except Exception as error:  # noqa: BLE001  whatever it was, the run did not go well
        at = f"step {len(done)}: {done[-1]}" if done else "the start"
        told = error if isinstance(error, Missed) else traceback.format_exc()
        missed = f"{at}\n{told}"
    return Result(schedule, time.monotonic() - began, missed, story)
