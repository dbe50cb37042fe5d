"""Metrics of syncs. Names, labels and buckets are kube-proxy's (1.36) where it has them.

Source of those: pkg/proxy/metrics/metrics.go of Kubernetes. ``..._iptables_total`` and
``..._no_local_endpoints_total`` are gauges there, whatever their names say, and so here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.serve.collect import Registry
    from agent.state.values import Family

#: 1 ms, doubled up to 16 s.
SYNC_BUCKETS = tuple(0.001 * 2**power for power in range(15))
#: Fine where the service level objective is decided, up to five minutes.
PROGRAMMING_BUCKETS = (
    0.25,
    0.5,
    *(float(second) for second in range(1, 60)),
    *(float(second) for second in range(60, 120, 5)),
    *(float(second) for second in range(120, 301, 30)),
)
_SYNC = "kubeproxy_sync_proxy_rules"
_FAMILY = "ip_family"


class SyncMetrics:
    """What the syncing thread tells about its work. Durations are seconds."""

    def __init__(
        self,
        registry: Registry,
        families: Iterable[Family],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._make_syncs(registry)
        self._make_changes(registry)
        self._make_rules(registry)
        self._make_own(registry)
        for family in families:
            self._start(family.value)

    def queued(self, family: Family) -> None:
        """A sync was asked for."""
        self._last_queued.labels(family.value).set(self._wall())

    def synced(self, family: Family, *, full: bool, accepted: bool, seconds: float) -> None:
        """A sync ended. Failed ones count in the durations, as in kube-proxy."""
        name = family.value
        self._duration.labels(name).observe(seconds)
        (self._full if full else self._partial).labels(name).observe(seconds)
        if accepted:
            self._last_synced.labels(name).set(self._wall())
        elif not full:
            self._partial_failures.labels(name).inc()

    def restored(self, family: Family, *, accepted: bool, size: int, seconds: float) -> None:
        """One ``iptables-restore`` ended; its input had so many bytes."""
        name = family.value
        self._restores.labels(name, "accepted" if accepted else "refused").inc()
        self._restore_bytes.labels(name).inc(size)
        self._restore_duration.labels(name).observe(seconds)
        if not accepted:
            self._failures.labels(name).inc()

    def programmed(self, family: Family, seconds: float) -> None:
        """A change of endpoints is in the kernel, so long after it happened in the cluster."""
        self._programming.labels(family.value).observe(max(seconds, 0.0))

    def changed(self, *, services: int = 0, endpoints: int = 0) -> None:
        """So many changes have come in."""
        self._service_changes.inc(services)
        self._endpoint_changes.inc(endpoints)

    def pending(self, *, services: int, endpoints: int) -> None:
        """So many changes are not in the kernel yet."""
        self._services_pending.set(services)
        self._endpoints_pending.set(endpoints)

    def rules(self, family: Family, table: str, *, total: int, written: int) -> None:
        """So many rules of a table are ours, and so many were written by the last sync."""
        self._rules_total.labels(table, family.value).set(total)
        self._rules_last.labels(table, family.value).set(written)

    def no_local_endpoints(self, family: Family, *, internal: int, external: int) -> None:
        """So many service ports have a Local policy and no endpoint here."""
        self._no_local.labels("internal", family.value).set(internal)
        self._no_local.labels("external", family.value).set(external)

    def reconciled(self, family: Family, *, seconds: float, deleted: int) -> None:
        """Stale entries of the connection tracking table were looked for and deleted."""
        self._conntrack_duration.labels(family.value).observe(seconds)
        self._conntrack_deleted.labels(family.value).inc(deleted)

    def audited(self, family: Family, differences: int | None) -> None:
        """The kernel's rules were compared with ours; None if they could not be read."""
        name = family.value
        result = "failed" if differences is None else "different" if differences else "same"
        self._audits.labels(name, result).inc()
        self._differences.labels(name).inc(differences or 0)

    def contested(self, family: Family, *, going_on: bool) -> None:
        """Somebody else keeps writing our rules, or no longer does."""
        self._contested.labels(family.value).set(int(going_on))

    def set_aside(self, family: Family, services: int) -> None:
        """So many Services are set aside now because the kernel refused their rules."""
        self._set_aside.labels(family.value).set(services)

    def _make_syncs(self, registry: Registry) -> None:
        """Durations and moments."""
        self._duration = registry.histogram(
            f"{_SYNC}_duration_seconds", "Duration of a sync", _FAMILY, buckets=SYNC_BUCKETS
        )
        self._full = registry.histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Duration of a sync that writes every rule",
            _FAMILY,
            buckets=SYNC_BUCKETS,
        )
        self._partial = registry.histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Duration of a sync that writes what changed",
            _FAMILY,
            buckets=SYNC_BUCKETS,
        )
        self._last_synced = registry.gauge(
            f"{_SYNC}_last_timestamp_seconds", "When the kernel last accepted a sync", _FAMILY
        )
        self._last_queued = registry.gauge(
            f"{_SYNC}_last_queued_timestamp_seconds", "When a sync was last asked for", _FAMILY
        )
        self._programming = registry.histogram(
            "kubeproxy_network_programming_duration_seconds",
            "Time from a change of endpoints in the cluster to its rules in the kernel",
            _FAMILY,
            buckets=PROGRAMMING_BUCKETS,
        )

    def _make_changes(self, registry: Registry) -> None:
        """What comes in."""
        self._endpoint_changes = registry.counter(
            f"{_SYNC}_endpoint_changes_total", "Changes of endpoints that came in"
        )
        self._endpoints_pending = registry.gauge(
            f"{_SYNC}_endpoint_changes_pending", "Changes of endpoints that wait for a sync"
        )
        self._service_changes = registry.counter(
            f"{_SYNC}_service_changes_total", "Changes of Services that came in"
        )
        self._services_pending = registry.gauge(
            f"{_SYNC}_service_changes_pending", "Changes of Services that wait for a sync"
        )

    def _make_rules(self, registry: Registry) -> None:
        """What goes out."""
        self._failures = registry.counter(
            f"{_SYNC}_iptables_restore_failures_total",
            "Restores that the kernel or the tool refused",
            _FAMILY,
        )
        self._partial_failures = registry.counter(
            f"{_SYNC}_iptables_partial_restore_failures_total",
            "Partial syncs that failed; a full one follows",
            _FAMILY,
        )
        self._rules_total = registry.gauge(
            f"{_SYNC}_iptables_total", "Rules of ours in a table (a gauge)", "table", _FAMILY
        )
        self._rules_last = registry.gauge(
            f"{_SYNC}_iptables_last", "Rules that the last sync wrote", "table", _FAMILY
        )
        self._no_local = registry.gauge(
            f"{_SYNC}_no_local_endpoints_total",
            "Service ports with a Local policy and no endpoint on this node (a gauge)",
            "traffic_policy",
            _FAMILY,
        )
        self._conntrack_duration = registry.histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "Duration of a search for stale connection tracking entries",
            _FAMILY,
            buckets=SYNC_BUCKETS,
        )
        self._conntrack_deleted = registry.counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Stale connection tracking entries that were deleted",
            _FAMILY,
        )

    def _make_own(self, registry: Registry) -> None:
        """What kube-proxy does not have."""
        self._restores = registry.counter(
            "onenth_restore_transactions_total", "Restores, by result", _FAMILY, "result"
        )
        self._restore_bytes = registry.counter(
            "onenth_restore_bytes_total", "Bytes of restore input", _FAMILY
        )
        self._restore_duration = registry.histogram(
            "onenth_restore_duration_seconds",
            "Duration of one restore",
            _FAMILY,
            buckets=SYNC_BUCKETS,
        )
        self._audits = registry.counter(
            "onenth_audit_rounds_total",
            "Comparisons of the kernel's rules with ours, by result",
            _FAMILY,
            "result",
        )
        self._differences = registry.counter(
            "onenth_audit_differences_total", "Differences that those found", _FAMILY
        )
        self._contested = registry.gauge(
            "onenth_rules_contested",
            "1 while another program keeps writing our rules, whatever is repaired",
            _FAMILY,
        )
        self._set_aside = registry.gauge(
            "onenth_set_aside_services",
            "Services without rules because the kernel refused them",
            _FAMILY,
        )

    def _start(self, name: str) -> None:
        """Begin every series of a family at zero, and its moments at the present.

        A moment of 0 would look like a sync that has been missing since 1970.
        """
        for moment in (self._last_synced, self._last_queued):
            moment.labels(name).set(self._wall())
        for metric in (
            self._duration,
            self._full,
            self._partial,
            self._programming,
            self._failures,
            self._partial_failures,
            self._conntrack_duration,
            self._conntrack_deleted,
            self._restore_bytes,
            self._restore_duration,
            self._differences,
            self._contested,
            self._set_aside,
        ):
            metric.labels(name)
        for result in ("accepted", "refused"):
            self._restores.labels(name, result)
        for result in ("same", "different", "failed"):
            self._audits.labels(name, result)
        for policy in ("internal", "external"):
            self._no_local.labels(policy, name)
