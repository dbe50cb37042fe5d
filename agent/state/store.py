"""The store of Services and their slices, stamped with generations.

Every accepted change of a Service (its own object, or one of its slices) stamps the Service's
record with the next number of one counter that is never reused, and moves the record to the
front of a list. So the list is ordered by recency, and a snapshot walks it from the front and
stops at the first record that is not newer than the last snapshot: its cost follows what
changed, not what exists. Readers keep the generation up to which they have *succeeded*; a
change is thereby never lost by a failure, it is simply still in front of that mark.

A change that cannot change a rule (labels, annotations, status that is not read, slices of a
Service that does not exist) is not accepted, and stamps nothing.

The walk checks itself: the newest record must stand in front, stamps must fall strictly from
there on, and a walk over everything must meet every stamped record. A failed check means a
fault in this module; the order is then rebuilt by stamping all records anew and the fault is
counted, since a proxy that goes on with a lost change is the worst outcome.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Key, key_of
from agent.state.endpoints import PortId, SliceState, count, exchanged, merge, slice_state
from agent.state.limits import MOST_ENDPOINTS, bounded, entries
from agent.state.services import ANY_ADDRESS, AddressPolicy, Problem, service_ports
from agent.state.values import Endpoint, Family, ServicePort

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.cluster.objects import EndpointSlice, Service

FamilyPorts = dict[Family, tuple[ServicePort, ...]]
Endpoints = dict[PortId, tuple[Endpoint, ...]]
#: A record with more endpoints than this keeps them merged: they are counted, and then compiled.
_MANY = 64


class Record:
    """All that is known of one Service; without ports it is a Service that does not exist."""

    __slots__ = (
        *("key", "ports", "slices", "stamp"),
        *("_bounded", "_entries", "_merged", "_node_name"),
    )

    def __init__(self, key: Key, node_name: str) -> None:
        self.key = key
        self.stamp = 0
        self.ports: FamilyPorts = {}
        self.slices: dict[str, SliceState] = {}
        self._node_name = node_name
        self._bounded: dict[Family, list[SliceState]] = {}
        self._entries = dict.fromkeys(Family, 0)
        self._merged: dict[Family, Endpoints] = {}  # kept if there are many

    def service_ports(self, family: Family) -> tuple[ServicePort, ...]:
        """Its ports in the family."""
        return self.ports.get(family, ())

    def endpoints(self, family: Family) -> Endpoints:
        """Its merged endpoints in the family."""
        found = self._merged.get(family)
        if found is None:
            found = merge(self._used(family), family)
            if self._entries[family] > _MANY:
                self._merged[family] = found
        return found

    def endpoint_counts(self, family: Family) -> dict[PortId, int]:
        """How many there are of each; of few this costs much less than merging them."""
        if self._entries[family] > _MANY:
            return {port_id: len(found) for port_id, found in self.endpoints(family).items()}
        return count(self._used(family), family)

    def set_slice(self, name: str, state: SliceState | None) -> None:
        """Put a slice, or take it away."""
        before = self.slices.pop(name, None)
        merged = None if before is None or state is None else self._exchanged(before, state)
        if before is not None:
            self._entries[before.family] -= entries(before)
        if state is not None:
            self.slices[name] = state
            self._entries[state.family] += entries(state)
        self._bounded.clear()
        self._merged.clear()
        if state is not None and merged is not None:
            self._merged[state.family] = merged

    def _exchanged(self, before: SliceState, after: SliceState) -> Endpoints | None:
        """What is kept merged, with one slice in place of another; None to merge all anew."""
        known = self._merged.get(before.family)
        total = self._entries[before.family]
        if known is None or total + entries(after) - entries(before) > MOST_ENDPOINTS:
            return None
        if total != sum(map(len, known.values())):  # an address is in it twice, or a part is unused
            return None
        return exchanged(known, before, after)

    def set_ports(self, ports: FamilyPorts) -> None:
        """Replace its ports."""
        self.ports = ports
        self._bounded.clear()
        self._merged.clear()

    def crowded(self, families: Iterable[Family]) -> bool:
        """Whether it has more endpoints in one of the families than are used."""
        return any(self._entries[f] > MOST_ENDPOINTS and self.ports.get(f) for f in families)

    def _wanted(self, family: Family) -> set[PortId]:
        return {(port.port_name, port.protocol) for port in self.service_ports(family)}

    def _used(self, family: Family) -> list[SliceState]:
        """Its slices by name, as far as they are used; made once for all who ask."""
        found = self._bounded.get(family)
        if found is None:
            slices = (self.slices[name] for name in sorted(self.slices))
            wanted = self._wanted(family)
            found = self._bounded[family] = bounded(slices, family, wanted, self._node_name)
        return found


class Change(msgspec.Struct, frozen=True):
    """What one event did.

    Attributes:
        families: those in which a rule may change; empty if the event changed nothing.
        problems: what was left out of the object.
    """

    families: frozenset[Family] = frozenset()
    problems: tuple[Problem, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """Records changed after a generation, newest first, as of ``generation``."""

    generation: int
    records: tuple[Record, ...]


class Store:
    """Services and slices of the cluster, as this node sees them. Owned by one thread."""

    def __init__(self, node_name: str, policy: AddressPolicy = ANY_ADDRESS) -> None:
        self.node_name = node_name
        self._policy = policy
        self.generation = 0
        self.rebuilds = 0
        self._records: OrderedDict[Key, Record] = OrderedDict()
        self._slices: dict[Key, Key] = {}  # slice -> Service, since its label may change
        self._stamped = 0  # records with a stamp
        self._newest = 0  # the highest stamp that a record has
        self._gone: set[Key] = set()  # records of Services that do not exist

    def __iter__(self) -> Iterator[Record]:
        """All records, newest first."""
        return reversed(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> Record | None:
        """The record of a Service, if anything is known of it."""
        return self._records.get(key)

    def service_of(self, endpoint_slice: Key) -> Key | None:
        """The Service that a known slice belongs to."""
        return self._slices.get(endpoint_slice)

    # Changes ---------------------------------------------------------------------------

    def put_service(self, service: Service) -> Change:
        """Accept a Service that was added or changed."""
        ports, problems = service_ports(service, self._policy)
        families = self._set_ports(key_of(service), ports)
        return Change(families, problems + self._crowding(key_of(service), key_of(service)))

    def delete_service(self, key: Key) -> Change:
        """Accept that a Service is gone; unknown ones are no change."""
        return Change(self._set_ports(key, {}))

    def replace_services(self, services: Collection[Service]) -> Change:
        """Accept a whole list: what it lacks is deleted."""
        changes = [self.put_service(service) for service in services]
        listed = {key_of(service) for service in services}
        gone = [key for key, record in self._records.items() if record.ports and key not in listed]
        return _join(changes + [self.delete_service(key) for key in gone])

    def put_slice(self, endpoint_slice: EndpointSlice) -> Change:
        """Accept a slice that was added or changed; it may have moved to another Service."""
        key = key_of(endpoint_slice)
        left = self._slices.get(key)
        before = None if left is None else self._records[left].slices.get(key.name)
        state, problems = slice_state(endpoint_slice, self.node_name, before)
        families = frozenset[Family]()
        if left is not None and (state is None or state.service != left):
            families |= self.delete_slice(key).families
        if state is not None:
            # What a list says again is not kept anew: so nothing of an equal list stays behind.
            self._slices.setdefault(key, state.service)
            families |= self._set_slice(state.service, key.name, state)
            problems += self._crowding(state.service, key, state.family)
        return Change(families, problems)

    def delete_slice(self, key: Key) -> Change:
        """Accept that a slice is gone; unknown ones are no change."""
        service = self._slices.pop(key, None)
        return Change() if service is None else Change(self._set_slice(service, key.name, None))

    def replace_slices(self, slices: Collection[EndpointSlice]) -> Change:
        """Accept a whole list: what it lacks is deleted."""
        changes = [self.put_slice(endpoint_slice) for endpoint_slice in slices]
        listed = {key_of(endpoint_slice) for endpoint_slice in slices}
        gone = [key for key in self._slices if key not in listed]
        return _join(changes + [self.delete_slice(key) for key in gone])

    def _crowding(self, service: Key, obj: Key, *families: Family) -> tuple[Problem, ...]:
        """A problem of an object if its Service has too many endpoints."""
        record = self._records.get(service)
        if record is None or not record.crowded(families or Family):
            return ()
        text = f"its Service has more than {MOST_ENDPOINTS} endpoints, times ports; some are unused"
        return (Problem(obj, text),)

    # Snapshots -------------------------------------------------------------------------

    def snapshot(self, since: int) -> Snapshot:
        """What changed after generation ``since``; 0 gives everything."""
        found = self._walk(since)
        if found is None:
            self._rebuild()
            found = self._walk(since) or []
        return Snapshot(self.generation, tuple(found))

    def forget(self, until: int) -> None:
        """Drop records of Services that are gone, once every reader has got past ``until``."""
        dropped = set[int]()
        for key in [key for key in self._gone if self._records[key].stamp <= until]:
            self._gone.remove(key)
            record = self._records[key]
            if record.slices or any(record.ports.values()):
                continue
            self._stamped -= record.stamp > 0
            del self._records[key]
            dropped.add(record.stamp)
        if self._newest in dropped:
            self._newest = max((record.stamp for record in self._records.values()), default=0)

    def _walk(self, since: int) -> list[Record] | None:
        """Records newer than ``since``, or None if the order is broken."""
        found: list[Record] = []
        if next((record.stamp for record in self), 0) != self._newest:
            return None
        last = self._newest + 1
        for record in self:
            if record.stamp <= since:
                break
            if record.stamp >= last:
                return None
            last = record.stamp
            found.append(record)
        return None if since == 0 and len(found) != self._stamped else found

    def _rebuild(self) -> None:
        self.rebuilds += 1
        records = list(self._records.values())
        self._records = OrderedDict((record.key, record) for record in records)
        self._stamped = sum(record.stamp > 0 for record in records)
        self._newest = 0
        for record in records:
            if record.stamp or any(record.ports.values()):
                self._stamp(record)

    # Records ---------------------------------------------------------------------------

    def _set_ports(self, key: Key, ports: FamilyPorts) -> frozenset[Family]:
        record = self._records.get(key)
        before = record.ports if record else {}
        if before == ports:
            return frozenset()
        record = record or self._new(key)
        record.set_ports(ports)
        self._mark_gone(record)
        changed = frozenset(f for f in Family if before.get(f, ()) != ports.get(f, ()))
        if changed:
            self._stamp(record)
        return changed

    def _set_slice(self, service: Key, name: str, state: SliceState | None) -> frozenset[Family]:
        record = self._records.get(service)
        before = record.slices.get(name) if record else None
        if before == state:
            return frozenset()
        record = record or self._new(service)
        record.set_slice(name, state)
        self._mark_gone(record)
        touched = {slice_.family for slice_ in (before, state) if slice_ is not None}
        changed = frozenset(family for family in touched if record.ports.get(family))
        if changed:
            self._stamp(record)
        return changed

    def _new(self, key: Key) -> Record:
        """A record that nobody needs to look at yet: at the back of the list, stamp 0."""
        record = self._records[key] = Record(key, self.node_name)
        self._records.move_to_end(key, last=False)
        return record

    def _stamp(self, record: Record) -> None:
        self.generation += 1
        self._stamped += record.stamp == 0
        record.stamp = self._newest = self.generation
        self._records.move_to_end(record.key)

    def _mark_gone(self, record: Record) -> None:
        if not record.slices and not any(record.ports.values()):
            self._gone.add(record.key)


def _join(changes: Iterable[Change]) -> Change:
    families = frozenset[Family]()
    problems: list[Problem] = []
    for change in changes:
        families |= change.families
        problems += change.problems
    return Change(families, tuple(problems))
