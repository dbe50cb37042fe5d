"""The one thread's work: take events in, keep state, and sync each family when it is due.

Everything that the agent knows is owned here, by a single thread, so there are no locks. Each
family has its own pace and its own memory: one that fails does not hold up the other. Nothing
is written before the first whole lists of Services and of EndpointSlices are known, since a
partial view would take working rules away, nor before the Node was asked for: without its
addresses, ranges and zone, rules that an earlier process wrote right would be written wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.feed import Deleted, Rejected, Replaced, SourceFailed, Upserted
from agent.cluster.objects import EndpointSlice, Kind, Node, Service, key_of
from agent.state.node import NodeInfo, NodeSettings, node_info, node_problems, node_view
from agent.state.triggers import TriggerTimes, trigger_time
from agent.state.values import Family
from agent.sync.contest import Contest
from agent.sync.port import ReadError, RestoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from agent.cluster.feed import Event
    from agent.cluster.objects import Key, Object
    from agent.state.flows import UdpServices
    from agent.state.healthports import HealthPorts
    from agent.state.node import KernelFacts
    from agent.state.services import Problem
    from agent.state.store import Change, Store
    from agent.sync.apply import Syncer
    from agent.sync.audit import Audit
    from agent.sync.observe import Observer
    from agent.sync.pace import Pace


class SourceEndedError(Exception):
    """The source of objects failed for good; ``refused`` tells a refusal by the API server."""

    def __init__(self, failed: SourceFailed) -> None:
        self.refused = failed.refused
        super().__init__(str(failed.error))


class FactsChanged(msgspec.Struct, frozen=True):
    """Something about the kernel may have changed, such as the interfaces' addresses."""


@dataclass(frozen=True)
class Track:
    """What one family has of its own."""

    family: Family
    syncer: Syncer
    pace: Pace
    audit: Audit
    triggers: TriggerTimes
    health: HealthPorts
    udp: UdpServices


class Controller:
    """State, and what is done about it."""

    def __init__(
        self,
        *,
        store: Store,
        tracks: Sequence[Track],
        settings: NodeSettings,
        facts: Callable[[Family], KernelFacts],
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self.tracks = tracks
        self._settings = settings
        self._facts = facts
        self._observer = observer
        self._clock = clock
        self._info: NodeInfo | None = None
        self._listed: set[Kind] = set()
        self._shown: set[Family] = set()
        self._node_ips: dict[Family, list[str]] = {}
        self._swept_for: dict[Family, list[str]] = {}
        self._contests = {track.family: Contest(track.pace.check_period) for track in tracks}

    @property
    def ready(self) -> bool:
        """Whether the first lists of all kinds are complete."""
        return self._listed.issuperset(Kind)

    # Events ------------------------------------------------------------------------------

    def handle(self, event: Event | FactsChanged) -> None:
        """Take in one event.

        Raises:
            SourceEndedError: the source failed for good.
        """
        match event:
            case SourceFailed():
                raise SourceEndedError(event) from event.error
            case FactsChanged():
                self._refresh_views()
            case Rejected():
                self._reject(event)
            case Replaced(Kind.NODE) | Upserted(Kind.NODE) | Deleted(Kind.NODE):
                self._handle_node(event)
            case Replaced():
                self._replace(event)
            case Upserted(kind, obj):
                self._observer.changed(kind)
                self._accept_one(kind, key_of(obj), self._upsert(obj))
            case Deleted(kind, key):
                self._observer.changed(kind)
                self._accept_one(kind, key, self._delete(event))

    def _replace(self, event: Replaced) -> None:
        self._observer.changed(event.kind)
        if event.kind is Kind.SERVICE:
            services = [obj for obj in event.objects if isinstance(obj, Service)]
            change = self.store.replace_services(services)
        else:
            slices = [obj for obj in event.objects if isinstance(obj, EndpointSlice)]
            change = self.store.replace_slices(slices)
        self._accept(event.kind, change)
        self._list_taken(event, change.problems)

    def _list_taken(self, event: Replaced, problems: Iterable[Problem] = ()) -> None:
        """A whole list says which objects are bad; all others of its kind are not, or are gone."""
        for rejected in event.rejected:
            self._observer.rejected(rejected)
        bad = {rejected.key for rejected in event.rejected} | {one.key for one in problems}
        self._observer.relisted(event.kind, bad)
        if event.kind not in self._listed:
            self._listed.add(event.kind)
            self._observer.listed(event.kind)
            if self.ready:
                self._request(set(Family))

    def _reject(self, event: Rejected) -> None:
        """An object that cannot be used counts as absent."""
        self._observer.rejected(event)
        if event.key is not None and event.kind is not Kind.NODE:
            self._accept(event.kind, self._delete(Deleted(event.kind, event.key)))

    def _upsert(self, obj: object) -> Change:
        if isinstance(obj, EndpointSlice):
            change = self.store.put_slice(obj)
            service = self.store.service_of(key_of(obj))
            if service is not None:
                for track in self._of(change.families):
                    track.triggers.note(service, trigger_time(obj))
            return change
        if isinstance(obj, Service):
            return self.store.put_service(obj)
        raise TypeError(f"a source handed over a {type(obj).__name__}")

    def _delete(self, event: Deleted) -> Change:
        if event.kind is Kind.SERVICE:
            return self.store.delete_service(event.key)
        service = self.store.service_of(event.key)
        if service is not None:
            for track in self.tracks:
                track.triggers.drop(service)
        return self.store.delete_slice(event.key)

    def _accept_one(self, kind: Kind, key: Key, change: Change) -> None:
        self._tell_one(kind, key, change.problems)
        self._request(change.families)

    def _accept(self, kind: Kind, change: Change) -> None:
        self._tell(kind, change.problems)
        self._request(change.families)

    def _tell_one(self, kind: Kind, key: Key, problems: Sequence[Problem]) -> None:
        if not problems:
            self._observer.settled(kind, key)
        self._tell(kind, problems)

    def _tell(self, kind: Kind, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._observer.problem(kind, problem)

    def _of(self, families: Container[Family]) -> list[Track]:
        return [track for track in self.tracks if track.family in families]

    def _request(self, families: Container[Family]) -> None:
        for track in self._of(families):
            track.pace.request()
            self._observer.queued(track.family)

    # The node ----------------------------------------------------------------------------

    def _handle_node(self, event: Replaced | Upserted | Deleted) -> None:
        """Only this node matters; a list without it means that it does not exist."""
        name = self._settings.name
        match event:
            case Replaced(_, objects):
                mine = [obj for obj in objects if obj.metadata.name == name]
                self._put_node(mine[0] if mine else None)
                problems = _problems(mine[0]) if mine else ()
                self._tell(Kind.NODE, problems)
                self._list_taken(event, problems)
            case Upserted(_, obj) if obj.metadata.name == name:
                self._put_node(obj)
                self._tell_one(Kind.NODE, key_of(obj), _problems(obj))
            case Deleted(_, key) if key.name == name:
                self._put_node(None)
                self._tell_one(Kind.NODE, key, ())

    def _put_node(self, node: Object | None) -> None:
        info = node_info(node) if isinstance(node, Node) else None
        if Kind.NODE in self._listed and info == self._info:
            return
        self._info = info
        self._observer.node(info)
        self._refresh_views()

    def _refresh_views(self) -> None:
        """Recompute what rules depend on; only a real difference is a change."""
        for track in self.tracks:
            facts = self._facts(track.family)
            ips = [cidr.partition("/")[0] for cidr in facts.addresses]
            v6 = track.family is Family.V6
            self._node_ips[track.family] = [ip for ip in ips if (":" in ip) == v6]
            view = node_view(track.family, self._settings, self._info or NodeInfo(), facts)
            changed = view != track.syncer.rules.node
            if changed:
                track.syncer.set_node(self.store, view)
            if changed or track.family not in self._shown:
                self._shown.add(track.family)
                self._observer.view(view)
            if changed and self.ready:
                self._request({track.family})
            elif not track.syncer.needs_full:
                self._follow(track)

    # Work --------------------------------------------------------------------------------

    def wait_until(self) -> float | None:
        """When there is work to do, in clock seconds; None while there can be none."""
        if not self.ready:
            return None
        times = [track.pace.sync_at() for track in self.tracks]
        times += [track.pace.check_at() for track in self.tracks]
        # One that has passed has been requested, and what the pace says of it holds.
        now = self._clock()
        due = [track.syncer.due_at() for track in self.tracks]
        times += [time for time in due if time is not None and time > now]
        return min((time for time in times if time is not None), default=None)

    def step(self) -> None:
        """Do what is due: audits, then syncs."""
        if not self.ready:
            return
        for track in self.tracks:
            if track.pace.check_at() <= self._clock():
                self._check(track)
            due = track.syncer.due_at()
            if due is not None and due <= self._clock():
                track.pace.request()
            sync_at = track.pace.sync_at()
            if sync_at is not None and sync_at <= self._clock():
                self._sync(track)
        self.store.forget(min((track.syncer.generation for track in self.tracks), default=0))

    def _check(self, track: Track) -> None:
        """Compare the kernel with what it accepted; a failed sync is retried anyway."""
        track.pace.checked()
        if track.syncer.needs_full:
            return
        self._refresh_views()
        started = self._clock()
        try:
            differences = track.audit.run()
        except ReadError as error:
            self._observer.audit_failed(track.family, error)
            return
        self._observer.audited(track.family, differences, self._clock() - started)
        contest = self._contests[track.family]
        if contest.looked(self._clock(), different=bool(differences)):
            self._observer.contested(track.family, going_on=contest.going_on)
        if track.audit.learning:
            track.pace.hurry()
        if differences:
            track.syncer.needs_full = True
            self._request({track.family})

    def _sync(self, track: Track) -> None:
        full = track.pace.full_due() or track.syncer.needs_full
        track.pace.started()
        self._observer.starting(track.family)
        started = self._clock()
        try:
            outcome = track.syncer.sync(self.store, full=full)
        except (RestoreError, ReadError) as error:
            retry = track.pace.failed()
            seconds = self._clock() - started
            self._observer.failed(track.family, error, seconds, retry, full=full)
            return
        track.pace.succeeded(full=outcome.full)
        seconds = self._clock() - started
        self._observer.synced(track.syncer, outcome, seconds, track.triggers.take())
        if track.audit.learning:
            track.pace.hurry()
        self._follow(track)

    def _follow(self, track: Track) -> None:
        """What goes with accepted rules: health check ports, and the flows that they leave.

        Node ports are at this node's addresses, so flows may be stale when those alone change; but
        each pod that comes or goes changes the link-local ones, which is no reason to look.
        """
        view = track.syncer.rules.node
        if track.health.take_changed():
            self._observer.health_ports(view, track.health.ports, track.health.ready)
        ips = self._node_ips.get(track.family, [])
        lasting = [ip for ip in ips if not ip.startswith("fe80:")]
        if track.udp.take_changed() or lasting != self._swept_for.get(track.family):
            self._swept_for[track.family] = lasting
            self._observer.flows(track.family, track.udp.table(ips))


def _problems(node: Object) -> tuple[Problem, ...]:
    return node_problems(node) if isinstance(node, Node) else ()
