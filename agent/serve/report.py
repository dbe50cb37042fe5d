"""What the sync thread does, as logs, metrics and health.

One canonical log line per sync says why it ran, what it did and what came of it. A fault that
lasts is one line, not one each time: objects and their problems are named once, until what is
wrong with them changes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent import logs
from agent.cluster.events import Notice
from agent.cluster.objects import Kind
from agent.serve.nodeports import FamilyChecks
from agent.sync.port import ReadError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, KeysView, Mapping, Sequence

    from agent.cluster.events import Recorder
    from agent.cluster.feed import Rejected
    from agent.cluster.objects import Key
    from agent.rules.ruleset import RuleSet
    from agent.serve.health import HealthState
    from agent.serve.metrics import Metrics
    from agent.serve.nodeports import HealthCheckPorts, PortFailure
    from agent.serve.reasons import Reasons
    from agent.state.flows import UdpTable
    from agent.state.node import NodeInfo
    from agent.state.services import Problem
    from agent.state.values import Family, NodeView
    from agent.sync.apply import Outcome, Syncer
    from agent.sync.audit import Difference

#: Differences named in one log line; the count says how many there are.
_NAMED = 10


class Reporter:
    """The ``Observer`` of ``agent.sync.observe``."""

    def __init__(
        self,
        metrics: Metrics,
        health: HealthState,
        ports: HealthCheckPorts,
        flows: Callable[[Family, UdpTable], None],
        *,
        recorder: Recorder,
        reasons: Reasons,
        node_name: str,
        watches_node: bool,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Report to these.

        Args:
            metrics: counts.
            health: what the probes answer.
            ports: health check node ports of Services.
            flows: takes the UDP flows that should be, once rules are accepted.
            recorder: makes Events for what an operator must act on.
            reasons: knows why syncs ran.
            node_name: this node.
            watches_node: whether a missing Node object means that the node is gone.
            wall: seconds since the epoch.
        """
        self._metrics = metrics
        self._health = health
        self._ports = ports
        self._flows = flows
        self._recorder = recorder
        self._reasons = reasons
        self._node_name = node_name
        self._watches_node = watches_node
        self._wall = wall
        self._log = logs.get()
        self._unusable: dict[tuple[Kind, Key | None], tuple[str, ...]] = {}
        self._lists: set[Kind] = set()
        self._waiting = {Kind.SERVICE: 0, Kind.SLICE: 0}
        self._views: dict[Family, NodeView] = {}
        self._checks = FamilyChecks(ports)
        self._known: dict[Family, RuleSet] = {}

    # Objects -----------------------------------------------------------------------------

    def changed(self, kind: Kind) -> None:
        """Count a change; one more waits for the kernel."""
        services, slices = int(kind is Kind.SERVICE), int(kind is Kind.SLICE)
        self._metrics.sync.changed(services=services, endpoints=slices)
        if kind in self._waiting:
            self._waiting[kind] += 1
            self._show_waiting()

    def rejected(self, rejected: Rejected) -> None:
        """Name an object that cannot be used at all."""
        place = (rejected.kind, rejected.key)
        if self._unusable.get(place) != (rejected.reason,):
            self._unusable[place] = (rejected.reason,)
            self._log.warning(
                "object cannot be used",
                kind=rejected.kind.value,
                object=str(rejected.key or "(no name)"),
                reason=rejected.reason,
            )
        self._count_unusable(rejected.kind)

    def problem(self, kind: Kind, problem: Problem) -> None:
        """Name a part of an object that was left out."""
        place = (kind, problem.key)
        known = self._unusable.get(place, ())
        if problem.text not in known:
            self._unusable[place] = (*known[-_NAMED:], problem.text)
            self._log.warning(
                "part of an object was left out",
                kind=kind.value,
                object=str(problem.key),
                reason=problem.text,
            )
            if problem.exposes:
                note = f"Service {problem.key}: {problem.text}"
                self._recorder.record(Notice("LoadBalancerOpen", "ReadService", note, problem.key))
        self._count_unusable(kind)

    def settled(self, kind: Kind, key: Key) -> None:
        """Nothing is wrong with the object, any more; perhaps it is gone."""
        if self._unusable.pop((kind, key), None) is not None:
            self._log.info("object is no problem any more", kind=kind.value, object=str(key))
            self._count_unusable(kind)

    def relisted(self, kind: Kind, bad: Collection[Key | None]) -> None:
        """Forget what was wrong with objects of which a whole list says nothing bad."""
        for place in [place for place in self._unusable if place[0] is kind]:
            if place[1] not in bad:
                self._log.info(
                    "object is no problem any more",
                    kind=kind.value,
                    object=str(place[1] or "(no name)"),
                )
                del self._unusable[place]
        self._count_unusable(kind)

    def _count_unusable(self, kind: Kind) -> None:
        count = sum(1 for known, _ in self._unusable if known is kind)
        self._metrics.unusable(kind, count)

    def _show_waiting(self) -> None:
        self._metrics.sync.pending(
            services=self._waiting[Kind.SERVICE], endpoints=self._waiting[Kind.SLICE]
        )

    def listed(self, kind: Kind) -> None:
        """Say that a first list is complete; with all of them, the agent may become ready."""
        self._lists.add(kind)
        self._log.info("first list is complete", kind=kind.value)
        if self._lists.issuperset(Kind):
            self._health.lists_complete()

    # The node ----------------------------------------------------------------------------

    def node(self, info: NodeInfo | None) -> None:
        """Say what the Node is; health depends on it."""
        if info is None:
            if self._watches_node:
                self._health.set_eligible(eligible=False)
                self._log.error(
                    "there is no Node of this name; without it no endpoint counts as local",
                    node=self._node_name,
                    remedy="set hostnameOverride (--node-name) to the Node's name",
                )
            else:
                self._log.warning(
                    "the manifests hold no Node of this name; its zone, addresses and pod range"
                    " (detectLocalMode NodeCIDR) are not known",
                    node=self._node_name,
                    remedy="add the Node to the manifests, or correct --node-name",
                )
            return
        self._health.set_eligible(eligible=not info.deleting)
        self._log.info(
            "node",
            node=self._node_name,
            ips=list(info.ips),
            pod_cidrs=list(info.pod_cidrs),
            zone=info.zone,
            deleting=info.deleting,
        )

    def view(self, view: NodeView) -> None:
        """Say what rules depend on."""
        before = self._views.get(view.family)
        self._views[view.family] = view
        if not view.drop_invalid and (before is None or before.drop_invalid):
            self._log.info(
                "nf_conntrack_tcp_be_liberal is set: no rule drops INVALID packets",
                family=view.family.value,
            )
        self._log.info(
            "rules depend on",
            family=view.family.value,
            node_ip=view.ip,
            detect_local=view.detect_local.value if view.detect_local else "none",
            detect_value=view.detect_value,
            node_port_ips="all" if view.node_port_ips is None else list(view.node_port_ips),
            localhost_node_ports=view.localhost_node_ports,
            drop_invalid=view.drop_invalid,
        )
        ips = [ips for known in self._views.values() if (ips := known.node_port_ips) is not None]
        self._ports.set_addresses([ip for one in ips for ip in one] if ips else None)
        self._checks.again()  # ports that are open move with the addresses

    # Syncs -------------------------------------------------------------------------------

    def queued(self, family: Family) -> None:
        """A change waits."""
        self._health.queued(family)
        self._metrics.sync.queued(family)

    def starting(self, family: Family) -> None:
        """A sync for whatever reason counts as waiting while it runs."""
        self._health.queued(family)

    def synced(
        self, syncer: Syncer, outcome: Outcome, seconds: float, triggers: Sequence[float]
    ) -> None:
        """The kernel accepted everything."""
        family = syncer.rules.node.family
        self._health.updated(family)
        self._waiting = dict.fromkeys(self._waiting, 0)
        self._show_waiting()
        sync = self._metrics.sync
        sync.synced(family, full=outcome.full, accepted=True, seconds=seconds)
        now = self._wall()
        for moment in triggers:
            sync.programmed(family, now - moment)
        self._measure(syncer, outcome)
        for key, entry in outcome.set_aside.items():
            self._log.error(
                "the kernel refused a Service; it is set aside, the others work",
                family=family.value,
                service=str(key),
                reason=entry.reason,
                refusals=entry.refusals,
            )
            note = f"The kernel refused the {family.value} rules of Service {key}: {entry.reason}"
            self._recorder.record(Notice("ServiceSetAside", "Sync", note, key))
        self._log.info(
            "synced",
            family=family.value,
            full=outcome.full,
            why=list(self._reasons.latest(family)),
            services=outcome.services,
            transactions=outcome.transactions,
            lines=sum(outcome.lines.values()),
            deleted_chains=outcome.deleted,
            seconds=round(seconds, 4),
            latency=round(max(now - min(triggers), 0.0), 3) if triggers else None,
        )
        self._checks.retry()
        if outcome.leftover is not None:
            self._log.warning(
                "stale chains could not be deleted; they do no harm and are tried again",
                family=family.value,
                error=str(outcome.leftover),
            )

    def _measure(self, syncer: Syncer, outcome: Outcome) -> None:
        family = syncer.rules.node.family
        sync = self._metrics.sync
        for table, total in syncer.rules.counts().items():
            sync.rules(family, table, total=total, written=outcome.lines.get(table, 0))
        internal, external = syncer.rules.without_local_endpoints()
        sync.no_local_endpoints(family, internal=internal, external=external)
        sync.set_aside(family, len(syncer.quarantine.entries))
        self._known[family] = syncer.rules
        known = self._known.values()
        self._metrics.state(
            services=_distinct([rules.services.keys() for rules in known]),
            endpoints=sum(rules.total_endpoints for rules in known),
        )

    def failed(
        self,
        family: Family,
        error: RestoreError | ReadError,
        seconds: float,
        retry: float,
        *,
        full: bool,
    ) -> None:
        """Nothing is lost; it is tried again."""
        self._metrics.sync.synced(family, full=full, accepted=False, seconds=seconds)
        refusal = error.refusal.value if isinstance(error, RestoreError) else "unreadable"
        self._log.error(
            "sync failed",
            family=family.value,
            full=full,
            why=list(self._reasons.latest(family)),
            refusal=refusal,
            error=str(error),
            seconds=round(seconds, 4),
            retry_seconds=round(retry, 2),
        )
        if not self._health.healthy:
            note = f"{family.value} rules have been out of date for too long: {error}"
            self._recorder.record(Notice("RulesOutOfDate", "Sync", note))

    def port_failed(self, failure: PortFailure) -> None:
        """A health check node port cannot be had. Called from the serving thread."""
        self._metrics.health_check_port_failed()
        self._log.error(
            "a health check node port cannot be listened on",
            service=str(failure.service),
            port=failure.port,
            address=failure.address or "all",
            reason=failure.reason,
        )
        note = (
            f"Health check node port {failure.port} of Service {failure.service} cannot be"
            f" listened on: {failure.reason}"
        )
        self._recorder.record(
            Notice("FailedToStartServiceHealthcheck", "Listen", note, failure.service)
        )

    def health_ports(
        self, view: NodeView, ports: Mapping[Key, int], ready: Mapping[Key, int]
    ) -> None:
        """Open, close and answer health check node ports."""
        self._checks.want(view.family, ports, ready)

    def flows(self, family: Family, table: UdpTable) -> None:
        """Hand on what UDP flows should be."""
        self._flows(family, table)

    # Audits ------------------------------------------------------------------------------

    def audited(self, family: Family, differences: Sequence[Difference], seconds: float) -> None:
        """The kernel was compared with what it accepted."""
        self._metrics.sync.audited(family, len(differences))
        self._checks.retry()
        if differences:
            self._log.warning(
                "the kernel no longer holds what it accepted; writing it again",
                family=family.value,
                differences=len(differences),
                first=[
                    f"{one.table} {one.chain}: {one.what}"
                    + (f" ({one.service})" if one.service else "")
                    for one in differences[:_NAMED]
                ],
                seconds=round(seconds, 4),
            )
            note = f"Something else changed this node's {family.value} rules; they are repaired"
            self._recorder.record(Notice("RulesChangedByOthers", "Audit", note))

    def contested(self, family: Family, *, going_on: bool) -> None:
        """Say that somebody has to look for another program, or that it is over."""
        self._metrics.sync.contested(family, going_on=going_on)
        if not going_on:
            self._log.info("nobody else writes our rules any more", family=family.value)
            return
        self._log.error(
            "another program keeps writing our rules; they are repaired each time",
            family=family.value,
            remedy="stop the other proxy of this node: a kube-proxy, or a second agent",
        )
        note = (
            f"Another program keeps writing this node's {family.value} rules of Services: a"
            " kube-proxy, or a second agent. Only one may run"
        )
        self._recorder.record(Notice("RulesContested", "Audit", note))

    def audit_failed(self, family: Family, error: ReadError) -> None:
        """The kernel could not be read."""
        self._metrics.sync.audited(family, None)
        self._log.warning(
            "the kernel's rules could not be read", family=family.value, error=str(error)
        )


def _distinct(groups: list[KeysView[Key]]) -> int:
    """How many Services there are in all; families that have none cost nothing."""
    groups.sort(key=len)
    largest = groups.pop()
    others = {key for group in groups for key in group if key not in largest}
    return len(largest) + len(others)
