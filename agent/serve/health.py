"""Whether the rules in the kernel are as fresh as they should be.

Health is a comparison of two moments, for each family: when the oldest change that is not yet
in the kernel was queued, and now. Silence is never health and idleness is never sickness: a
quiet cluster queues nothing and stays healthy, while a change that waits for longer than the
limit makes the agent unhealthy until a sync is accepted, however busy it looks. Starting up is
no exception: the first sync is a change that waits.

``/healthz`` answers for the node as a place to send traffic to: it also fails while the Node is
being deleted, so that load balancers go away in time. ``/livez`` answers for this process
alone, and ``/readyz`` says that rules have been written from complete lists. Bodies and their
fields are kube-proxy's. None of this says anything about the network beyond this node.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.state.values import Family


class FamilyHealth(msgspec.Struct, frozen=True, rename="camel"):
    """Health of one family; ``last_updated`` is RFC 3339."""

    last_updated: str
    healthy: bool


class Health(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The body of ``/healthz`` and ``/livez``.

    Attributes:
        last_updated: now while the answer is 200, else when a family was last updated; that is
            how kube-proxy reports it.
        current_time: now.
        healthy: no family has waited for too long; says nothing of the Node.
        node_eligible: the Node may be sent traffic; ``/healthz`` only.
        status: by family.
    """

    last_updated: str
    current_time: str
    healthy: bool
    node_eligible: bool | None = None
    status: dict[str, FamilyHealth] = msgspec.field(default_factory=dict)


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """The body of ``/readyz``."""

    ready: bool
    lists_complete: bool
    synced: dict[str, bool]


class Answer(msgspec.Struct, frozen=True):
    """A status code and the body that goes with it."""

    code: int
    body: Health | Readiness


class HealthState:
    """Keeps the moments that health is made of. Any thread may call anything.

    Args:
        timeout: seconds that a change may wait; kube-proxy takes twice ``syncPeriod``.
        families: the families that are served.
        monotonic: seconds that only grow, for ages.
        wall: seconds since 1970, for what is printed.
    """

    def __init__(
        self,
        timeout: float,
        families: Iterable[Family],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._timeout = timeout
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        started = wall()
        self._updated = dict.fromkeys(sorted(families, key=_name), started)
        self._waiting: dict[Family, float] = {}
        self._synced: set[Family] = set()
        self._lists_complete = False
        self._eligible = True

    def queued(self, family: Family) -> None:
        """Rules wait to be written: a change was noticed, or a sync begins for any reason.

        Of several, the oldest counts. That a sync counts while it runs makes one that never
        ends visible. The thread that syncs calls this and ``updated``.
        """
        with self._lock:
            self._waiting.setdefault(family, self._monotonic())

    def updated(self, family: Family) -> None:
        """The kernel accepted everything that had been queued."""
        with self._lock:
            self._waiting.pop(family, None)
            self._updated[family] = self._wall()
            self._synced.add(family)

    def lists_complete(self) -> None:
        """The first list of every kind has been read to its end."""
        with self._lock:
            self._lists_complete = True

    def set_eligible(self, *, eligible: bool) -> None:
        """Whether the Node may be sent traffic: it exists and nothing is about to delete it."""
        with self._lock:
            self._eligible = eligible

    @property
    def healthy(self) -> bool:
        """Whether no family has waited for too long; what health check node ports ask."""
        with self._lock:
            return not self._late(self._monotonic())

    def healthz(self) -> Answer:
        """Health of the node as a place to send traffic to."""
        with self._lock:
            return self._answer(eligible=self._eligible)

    def livez(self) -> Answer:
        """Health of this process."""
        with self._lock:
            return self._answer(eligible=None)

    def readyz(self) -> Answer:
        """Whether rules have been written from complete lists, for every family."""
        with self._lock:
            synced = {family.value: family in self._synced for family in self._updated}
            ready = self._lists_complete and all(synced.values())
            body = Readiness(ready, self._lists_complete, synced)
        return Answer(200 if ready else 503, body)

    def _answer(self, *, eligible: bool | None) -> Answer:
        """Put an answer together; the lock is held."""
        late = self._late(self._monotonic())
        good = not late and eligible is not False
        now = self._wall()
        body = Health(
            last_updated=_rfc3339(now if good else max(self._updated.values(), default=now)),
            current_time=_rfc3339(now),
            healthy=not late,
            node_eligible=eligible,
            status={
                family.value: FamilyHealth(_rfc3339(moment), family not in late)
                for family, moment in self._updated.items()
            },
        )
        return Answer(200 if good else 503, body)

    def _late(self, now: float) -> set[Family]:
        """Families that have waited for too long; the lock is held."""
        return {family for family, since in self._waiting.items() if now - since >= self._timeout}


def _name(family: Family) -> str:
    """What families are ordered by."""
    return family.value


def _rfc3339(moment: float) -> str:
    """A moment in UTC with microseconds."""
    when = dt.datetime.fromtimestamp(moment, dt.UTC)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")
