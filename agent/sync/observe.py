"""What sync tells those who watch it: logs, metrics, health, Events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agent.cluster.feed import Rejected
    from agent.cluster.objects import Key, Kind
    from agent.state.flows import UdpTable
    from agent.state.node import NodeInfo
    from agent.state.services import Problem
    from agent.state.values import Family, NodeView
    from agent.sync.apply import Outcome, Syncer
    from agent.sync.audit import Difference
    from agent.sync.port import ReadError, RestoreError


class Observer(Protocol):
    """All that happens in the sync thread, in its order; calls must not block."""

    def changed(self, kind: Kind) -> None:
        """An object was put, deleted or listed."""

    def rejected(self, rejected: Rejected) -> None:
        """An object cannot be used at all."""

    def problem(self, kind: Kind, problem: Problem) -> None:
        """A part of an object was left out."""

    def settled(self, kind: Kind, key: Key) -> None:
        """An object was put without a problem, or is gone."""

    def relisted(self, kind: Kind, bad: Collection[Key | None]) -> None:
        """A whole list of a kind came, in which only these objects have problems."""

    def listed(self, kind: Kind) -> None:
        """The first whole list of a kind is known."""

    def node(self, info: NodeInfo | None) -> None:
        """The Node object is (now) this; None if it does not exist."""

    def view(self, view: NodeView) -> None:
        """What rules of a family depend on besides Services is (now) this."""

    def queued(self, family: Family) -> None:
        """A change waits for the kernel."""

    def starting(self, family: Family) -> None:
        """A sync begins."""

    def synced(
        self, syncer: Syncer, outcome: Outcome, seconds: float, triggers: Sequence[float]
    ) -> None:
        """The kernel accepted a sync; ``triggers`` are the times of the changes in it."""

    def health_ports(
        self, view: NodeView, ports: Mapping[Key, int], ready: Mapping[Key, int]
    ) -> None:
        """Health check node ports of a family, and local ready endpoints behind them."""

    def flows(self, family: Family, table: UdpTable) -> None:
        """The kernel accepted rules; UDP flows should now be as in the table."""

    def failed(
        self,
        family: Family,
        error: RestoreError | ReadError,
        seconds: float,
        retry: float,
        *,
        full: bool,
    ) -> None:
        """A sync failed, and is tried again in ``retry`` seconds."""

    def audited(self, family: Family, differences: Sequence[Difference], seconds: float) -> None:
        """The kernel was compared with what it accepted."""

    def contested(self, family: Family, *, going_on: bool) -> None:
        """Somebody else keeps writing our rules, or no longer does."""

    def audit_failed(self, family: Family, error: ReadError) -> None:
        """The kernel could not be compared."""
