"""Metrics with a registry of their own, with documentation, or read at scrape time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from agent import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import Metric


class Description(msgspec.Struct, frozen=True):
    """What documentation says of one metric."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


class Registry:
    """Makes metrics and remembers what they are; nothing is registered globally.

    Those of the process itself (memory, processor time, descriptors, garbage collection, Python)
    come with it.
    """

    def __init__(self) -> None:
        # The library's switch is global: without it each counter and histogram has one more
        # series with the time of its making, which kube-proxy's do not have.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.collectors = CollectorRegistry()
        self.descriptions: list[Description] = []
        ProcessCollector(registry=self.collectors)
        GCCollector(registry=self.collectors)
        PlatformCollector(registry=self.collectors)

    def counter(self, name: str, help_text: str, *labels: str) -> Counter:
        """A counter; the name ends in ``_total``."""
        self._describe(name, "counter", help_text, labels)
        return Counter(name, help_text, labels, registry=self.collectors)

    def gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        """A gauge."""
        self._describe(name, "gauge", help_text, labels)
        return Gauge(name, help_text, labels, registry=self.collectors)

    def histogram(
        self, name: str, help_text: str, *labels: str, buckets: Sequence[float]
    ) -> Histogram:
        """A histogram with these upper bounds."""
        self._describe(name, "histogram", help_text, labels)
        return Histogram(name, help_text, labels, registry=self.collectors, buckets=buckets)

    def at_scrape(self, name: str, help_text: str, reader: type[AtScrape]) -> AtScrape:
        """A metric without labels whose value is read when somebody asks."""
        self._describe(name, reader.kind, help_text, ())
        metric = reader(name, help_text)
        self.collectors.register(metric)
        return metric

    def add(
        self, collector: Collector, described: Iterable[tuple[str, str, tuple[str, ...], str]]
    ) -> None:
        """A collector with metrics of its own: name, type, labels and meaning of each."""
        for name, kind, labels, meaning in described:
            self._describe(name, kind, meaning, labels)
        self.collectors.register(collector)

    def _describe(self, name: str, kind: str, help_text: str, labels: Iterable[str]) -> None:
        """Keep what documentation needs."""
        self.descriptions.append(Description(name, kind, tuple(labels), help_text))


class AtScrape(Collector):
    """A gauge that is read when somebody asks; absent while there is nothing to read."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str) -> None:
        self._name = name
        self._help = help_text
        self.read: Callable[[], float | None] = lambda: None

    def describe(self) -> Iterable[Metric]:
        """Names are registered without reading anything."""
        return [self._build(None)]

    def collect(self) -> Iterator[Metric]:
        """Read the value. A reader that fails costs its own metric, not the whole scrape."""
        try:
            value = self.read()
        except Exception:  # whatever it is, it is logged and the other metrics stay
            log = logs.get(component="metrics")
            log.exception("a metric cannot be read", metric=self._name)
            return
        if value is not None:
            yield self._build(value)

    def _build(self, value: float | None) -> Metric:
        """The metric, with one sample or none."""
        return GaugeMetricFamily(self._name, self._help, value=value)


class CounterAtScrape(AtScrape):
    """A counter that something else counts, such as the kernel."""

    kind = "counter"

    def _build(self, value: float | None) -> Metric:
        """The metric, with one sample or none."""
        return CounterMetricFamily(self._name, self._help, value=value)
