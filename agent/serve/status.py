"""What the agent is doing and why, as values: for ``/statusz`` and ``onenth status``.

``StatusRecorder`` stands in front of the reporter and sees all that the sync thread tells. What it
remembers is bounded, and what others read is a copy.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from agent.cluster.objects import Kind
from agent.serve.statusvalues import (
    AsideService,
    AuditEvent,
    Facts,
    FamilyStatus,
    StatusSnapshot,
    SyncEvent,
    Unusable,
)
from agent.sync.port import RestoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from agent.cluster.feed import Rejected
    from agent.cluster.objects import Key
    from agent.serve.reasons import Reasons
    from agent.state.flows import UdpTable
    from agent.state.node import NodeInfo
    from agent.state.services import Problem
    from agent.state.values import Family, NodeView
    from agent.sync.apply import Outcome, Syncer
    from agent.sync.audit import Difference
    from agent.sync.observe import Observer
    from agent.sync.port import ReadError
    from agent.sync.setaside import SetAside

#: Events of each kind that are remembered, and objects that are named.
_EVENTS = 20
_NAMED = 100
_FIRST = 3
_LONGEST = 500


class _FamilyRecord:
    """What is remembered of a family."""

    def __init__(self) -> None:
        self.view: NodeView | None = None
        self.waiting_since: float | None = None
        self.failures = 0
        self.services = self.endpoints = 0
        self.rules: dict[str, int] = {}
        self.tree = False
        self.set_aside: dict[Key, SetAside] = {}
        self.last_sync = self.last_audit = ""
        self.contested = False


class StatusRecorder:
    """An ``Observer`` that remembers, and tells the next one.

    Any thread may ask for a snapshot.
    """

    def __init__(
        self,
        inner: Observer,
        facts: Facts,
        families: Collection[Family],
        reasons: Reasons,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Remember nothing yet.

        Args:
            inner: who is told everything as well.
            facts: what does not change.
            families: those that are served.
            reasons: learns why syncs run.
            monotonic: the clock of the sync thread.
            wall: seconds since 1970.
        """
        self._inner = inner
        self._facts = facts
        self._reasons = reasons
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        self._started = wall()
        self._families = {family: _FamilyRecord() for family in families}
        self._queue: Counter[Kind] = Counter()
        self._lists: list[Kind] = []
        self._syncs: deque[SyncEvent] = deque(maxlen=_EVENTS)
        self._audits: deque[AuditEvent] = deque(maxlen=_EVENTS)
        self._unusable: dict[tuple[Kind, Key | None], tuple[str, ...]] = {}
        self._counters: Counter[str] = Counter()

    # Objects -----------------------------------------------------------------------------

    def changed(self, kind: Kind) -> None:
        """Count what will be a reason for the next sync."""
        with self._lock:
            self._queue[kind] += 1
            self._counters[f"changes of {kind.value}s"] += 1
            self._reasons.note(f"{kind.value} changed")
        self._inner.changed(kind)

    def rejected(self, rejected: Rejected) -> None:
        """Remember an object that cannot be used."""
        with self._lock:
            self._unusable[rejected.kind, rejected.key] = (rejected.reason[:_LONGEST],)
        self._inner.rejected(rejected)

    def problem(self, kind: Kind, problem: Problem) -> None:
        """Remember a part of an object that was left out."""
        with self._lock:
            known = self._unusable.get((kind, problem.key), ())
            text = problem.text[:_LONGEST]
            if text not in known:
                self._unusable[kind, problem.key] = (*known[-_EVENTS:], text)
        self._inner.problem(kind, problem)

    def settled(self, kind: Kind, key: Key) -> None:
        """Forget an object's problems."""
        with self._lock:
            self._unusable.pop((kind, key), None)
        self._inner.settled(kind, key)

    def relisted(self, kind: Kind, bad: Collection[Key | None]) -> None:
        """Forget the problems of all other objects of a kind."""
        with self._lock:
            for place in [p for p in self._unusable if p[0] is kind and p[1] not in bad]:
                del self._unusable[place]
        self._inner.relisted(kind, bad)

    def listed(self, kind: Kind) -> None:
        """Remember that a first list is complete."""
        with self._lock:
            self._lists.append(kind)
            self._reasons.note("first lists")
        self._inner.listed(kind)

    def node(self, info: NodeInfo | None) -> None:
        """Pass on."""
        self._inner.node(info)

    def view(self, view: NodeView) -> None:
        """Remember what rules depend on."""
        with self._lock:
            record = self._families[view.family]
            record.view = view
            self._reasons.note("the node changed", view.family)
        self._inner.view(view)

    # Syncs -------------------------------------------------------------------------------

    def queued(self, family: Family) -> None:
        """Remember since when something waits."""
        with self._lock:
            record = self._families[family]
            if record.waiting_since is None:
                record.waiting_since = self._monotonic()
        self._inner.queued(family)

    def starting(self, family: Family) -> None:
        """Pass on."""
        self._inner.starting(family)

    def synced(
        self, syncer: Syncer, outcome: Outcome, seconds: float, triggers: Sequence[float]
    ) -> None:
        """Remember a sync that the kernel accepted."""
        rules = syncer.rules
        family = rules.node.family
        now = self._wall()
        with self._lock:
            record = self._families[family]
            record.services, record.endpoints = len(rules.services), rules.total_endpoints
            record.rules, record.tree = rules.counts(), rules.tree
            record.view = rules.node
            record.set_aside = syncer.quarantine.entries
            record.last_sync = _rfc3339(now)
            record.waiting_since, record.failures = None, 0
            self._queue.clear()
            self._counters["syncs"] += 1
            self._syncs.appendleft(
                SyncEvent(
                    record.last_sync,
                    family.value,
                    outcome.full,
                    self._reasons.take(family, full=outcome.full),
                    accepted=True,
                    seconds=round(seconds, 4),
                    services=outcome.services,
                    transactions=outcome.transactions,
                    lines=sum(outcome.lines.values()),
                    deleted_chains=outcome.deleted,
                    latency=round(max(now - min(triggers), 0.0), 3) if triggers else None,
                )
            )
        self._inner.synced(syncer, outcome, seconds, triggers)

    def failed(
        self,
        family: Family,
        error: RestoreError | ReadError,
        seconds: float,
        retry: float,
        *,
        full: bool,
    ) -> None:
        """Remember a sync that failed."""
        refusal = error.refusal.value if isinstance(error, RestoreError) else "unreadable"
        with self._lock:
            record = self._families[family]
            record.failures += 1
            self._counters["failed syncs"] += 1
            self._syncs.appendleft(
                SyncEvent(
                    _rfc3339(self._wall()),
                    family.value,
                    full,
                    self._reasons.take(family, full=full),
                    accepted=False,
                    seconds=round(seconds, 4),
                    error=f"{refusal}: {error}"[:_LONGEST],
                    retry_seconds=round(retry, 2),
                )
            )
            self._reasons.note("the last sync failed", family)
        self._inner.failed(family, error, seconds, retry, full=full)

    def health_ports(
        self, view: NodeView, ports: Mapping[Key, int], ready: Mapping[Key, int]
    ) -> None:
        """Pass on."""
        self._inner.health_ports(view, ports, ready)

    def flows(self, family: Family, table: UdpTable) -> None:
        """Pass on."""
        self._inner.flows(family, table)

    # Audits ------------------------------------------------------------------------------

    def audited(self, family: Family, differences: Sequence[Difference], seconds: float) -> None:
        """Remember a comparison."""
        with self._lock:
            record = self._families[family]
            record.last_audit = _rfc3339(self._wall())
            self._counters["audits"] += 1
            self._counters["audit differences"] += len(differences)
            if differences:
                self._reasons.note("the kernel had lost something", family)
            first = tuple(f"{d.table} {d.chain}: {d.what}" for d in differences[:_FIRST])
            event = AuditEvent(record.last_audit, family.value, len(differences), first)
            self._audits.appendleft(event)
        self._inner.audited(family, differences, seconds)

    def contested(self, family: Family, *, going_on: bool) -> None:
        """Remember whether somebody else keeps writing our rules."""
        with self._lock:
            self._families[family].contested = going_on
        self._inner.contested(family, going_on=going_on)

    def audit_failed(self, family: Family, error: ReadError) -> None:
        """Remember a comparison that failed."""
        with self._lock:
            self._counters["failed audits"] += 1
            at = _rfc3339(self._wall())
            self._audits.appendleft(AuditEvent(at, family.value, None, error=str(error)[:_LONGEST]))
        self._inner.audit_failed(family, error)

    # Reading -----------------------------------------------------------------------------

    def snapshot(self) -> StatusSnapshot:
        """All of it now."""
        with self._lock:
            now = self._wall()
            return StatusSnapshot(
                facts=self._facts,
                at=_rfc3339(now),
                started=_rfc3339(self._started),
                uptime_seconds=round(now - self._started, 1),
                lists=tuple(kind.value for kind in self._lists),
                queue={kind.value: self._queue[kind] for kind in (Kind.SERVICE, Kind.SLICE)},
                families=tuple(self._family(*item) for item in self._families.items()),
                syncs=tuple(self._syncs),
                audits=tuple(self._audits),
                unusable=self._unusable_objects(),
                counters=dict(sorted(self._counters.items())),
            )

    def _family(self, family: Family, record: _FamilyRecord) -> FamilyStatus:
        now = self._monotonic()
        view = record.view
        waiting = None if record.waiting_since is None else round(now - record.waiting_since, 1)
        detect = (
            f"{view.detect_local.value} {view.detect_value}" if view and view.detect_local else ""
        )
        aside = sorted(record.set_aside.items())[:_NAMED]
        return FamilyStatus(
            family=family.value,
            synced=bool(record.last_sync),
            services=record.services,
            endpoints=record.endpoints,
            rules=dict(record.rules),
            dispatch="tree" if record.tree else "flat",
            node_ip=view.ip if view else "",
            detect_local=detect,
            waiting_seconds=waiting,
            failures=record.failures,
            set_aside=tuple(
                AsideService(
                    str(key), one.reason[:_LONGEST], one.refusals, round(max(one.until - now, 0), 1)
                )
                for key, one in aside
            ),
            last_sync=record.last_sync,
            last_audit=record.last_audit,
            contested=record.contested,
        )

    def _unusable_objects(self) -> tuple[Unusable, ...]:
        items = list(self._unusable.items())[:_NAMED]
        return tuple(
            Unusable(kind.value, str(key or "(no name)"), reasons) for (kind, key), reasons in items
        )


def _rfc3339(moment: float) -> str:
    """A moment in UTC, to the second."""
    when = dt.datetime.fromtimestamp(moment, dt.UTC)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
