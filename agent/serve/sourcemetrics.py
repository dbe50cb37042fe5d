"""Metrics of lists and watches, and of what they brought."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.cluster.objects import Kind
from agent.cluster.observe import WatchEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.cluster.feed import Event
    from agent.serve.collect import Registry

#: As in the Kubernetes client of the components that have these metrics.
_REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_LIST_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class SourceMetrics:
    """A ``SourceObserver`` that counts."""

    def __init__(self, registry: Registry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._contacts: dict[Kind, float] = {}
        self._age = registry.gauge(
            "onenth_source_last_contact_seconds",
            "Time since the API server last sent anything about a kind of object",
            "kind",
        )
        self._lists = registry.counter(
            "onenth_source_lists_total", "Lists, by result", "kind", "result"
        )
        self._list_duration = registry.histogram(
            "onenth_source_list_duration_seconds",
            "Duration of a complete list",
            "kind",
            buckets=_LIST_BUCKETS,
        )
        self._items = registry.gauge(
            "onenth_source_listed_objects", "Objects in the last list", "kind"
        )
        self._watches = registry.counter(
            "onenth_source_watches_total", "Watches that the API server accepted", "kind"
        )
        self._watch_ends = registry.counter(
            "onenth_source_watch_ends_total", "Watches that ended, by reason", "kind", "reason"
        )
        self._events = registry.counter(
            "onenth_source_events_total", "What watches brought", "kind", "type"
        )
        self._requests = registry.counter(
            "rest_client_requests_total",
            "Requests to the API server, by status code",
            "code",
            "method",
            "host",
        )
        self._request_duration = registry.histogram(
            "rest_client_request_duration_seconds",
            "Time until the API server began to answer a request",
            "verb",
            "host",
            buckets=_REQUEST_BUCKETS,
        )
        for kind in Kind:
            for reason in WatchEnd:
                self._watch_ends.labels(kind.value, reason.value)
            for result in ("complete", "failed"):
                self._lists.labels(kind.value, result)
            self._watches.labels(kind.value)

    def requested(self, method: str, host: str, code: str, seconds: float) -> None:
        """See ``RequestObserver``."""
        self._requests.labels(code, method, host).inc()
        self._request_duration.labels(method, host).observe(seconds)

    def contact(self, kind: Kind) -> None:
        """See ``SourceObserver``."""
        new = kind not in self._contacts
        self._contacts[kind] = self._monotonic()
        if new:  # the series begins with the first contact
            self._age.labels(kind.value).set_function(
                lambda: self._monotonic() - self._contacts[kind]
            )

    def list_done(self, kind: Kind, seconds: float, items: int) -> None:
        """See ``SourceObserver``."""
        self._lists.labels(kind.value, "complete").inc()
        self._list_duration.labels(kind.value).observe(seconds)
        self._items.labels(kind.value).set(items)

    def list_failed(self, kind: Kind, error: Exception) -> None:  # noqa: ARG002  the protocol's
        """See ``SourceObserver``."""
        self._lists.labels(kind.value, "failed").inc()

    def watch_started(self, kind: Kind) -> None:
        """See ``SourceObserver``."""
        self._watches.labels(kind.value).inc()

    def watch_ended(self, kind: Kind, reason: WatchEnd) -> None:
        """See ``SourceObserver``."""
        self._watch_ends.labels(kind.value, reason.value).inc()

    def event(self, kind: Kind, event: Event) -> None:
        """See ``SourceObserver``."""
        self._events.labels(kind.value, type(event).__name__.lower()).inc()
