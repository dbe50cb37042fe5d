"""New and established connections as metrics: what ``onenth top`` shows, for Prometheus.

Off by default. The counters of the rules are read on a thread of their own, never by a scrape,
and so seldom that it takes at most one fiftieth of one core however many rules there are. Series
of Services and endpoints that are gone go as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from agent import logs
from agent.inspect.traffic import (
    EndpointId,
    Established,
    Meter,
    Portal,
    Row,
    Sample,
    attribute,
    read_sample,
    rows,
)
from agent.kernel.connections import translated
from agent.kernel.dump import dump
from agent.kernel.errors import HostError, KernelError
from agent.kernel.tools import SubprocessRunner
from agent.state.values import Family
from agent.sync.port import ReadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from agent.kernel.iptables import Capabilities
    from agent.serve.collect import Registry
    from agent.serve.metrics import Metrics

Level = Literal["service", "endpoint"]
#: Seconds between two readings, unless that would be too much work.
PERIOD = 30.0
_PART = 50

_NEW = "onenth_service_new_connections_total"
_ESTABLISHED = "onenth_service_established_connections"
_SPLIT = "onenth_service_split_p_value"
_ENDPOINT_NEW = "onenth_endpoint_new_connections_total"
_ENDPOINT_ESTABLISHED = "onenth_endpoint_established_connections"
_SERVICE_LABELS = ("ip_family", "service", "protocol")
_SPLIT_LABELS = (*_SERVICE_LABELS, "scope")
_ENDPOINT_LABELS = (*_SERVICE_LABELS, "endpoint")
#: Name, type, labels and meaning of each, and the level from which it is there.
METRICS: tuple[tuple[str, str, tuple[str, ...], str, Level], ...] = (
    (
        _NEW,
        "counter",
        _SERVICE_LABELS,
        "New connections, from the counters of rules (metrics.connections: service)",
        "service",
    ),
    (
        _ESTABLISHED,
        "gauge",
        _SERVICE_LABELS,
        "Established connections, from connection tracking (likewise)",
        "service",
    ),
    (
        _SPLIT,
        "gauge",
        _SPLIT_LABELS,
        "Probability that fair dice split at least so unevenly, by scope all or local (likewise)",
        "service",
    ),
    (
        _ENDPOINT_NEW,
        "counter",
        _ENDPOINT_LABELS,
        "New connections (metrics.connections: endpoint)",
        "endpoint",
    ),
    (
        _ENDPOINT_ESTABLISHED,
        "gauge",
        _ENDPOINT_LABELS,
        "Established connections (likewise)",
        "endpoint",
    ),
)


class _Series(msgspec.Struct):
    """What is exported: values by metric and labels."""

    values: dict[str, dict[tuple[str, ...], float]]


class Reader(msgspec.Struct, frozen=True):
    """Where numbers come from.

    Attributes:
        rules: what ``iptables-save -c`` prints for a family.
        connections: established connections of a family.
    """

    rules: Callable[[Family], str]
    connections: Callable[[Family], Iterable[tuple[Portal, EndpointId]]]


def make_traffic(
    level: Literal["off", "service", "endpoint"],
    metrics: Metrics,
    capabilities: Capabilities,
    families: Sequence[Family],
    died: Callable[[BaseException], None],
) -> TrafficMetrics | None:
    """The metrics of this node's kernel; None if they are switched off."""
    if level == "off":
        return None
    runner = SubprocessRunner()

    def read(family: Family) -> str:
        return dump(capabilities.tool, family, runner, counters=True)

    return TrafficMetrics(metrics.parts, families, level, Reader(read, translated), died)


class TrafficMetrics(Collector):
    """Reads on a thread; a scrape gets what was read last."""

    def __init__(
        self,
        registry: Registry,
        families: Sequence[Family],
        level: Level,
        reader: Reader,
        died: Callable[[BaseException], None],
        *,
        period: float = PERIOD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read before ``start``.

        Args:
            registry: where the metrics appear.
            families: those that are served.
            level: by Service, or also by endpoint.
            reader: where numbers come from.
            died: told of an error that ended the thread.
            period: seconds between two readings.
            clock: monotonic seconds.
        """
        self._level = level
        self._reader = reader
        self._died = died
        self._period = period
        self._clock = clock
        self._log = logs.get(component="traffic")
        self._meters = {family: Meter(since_written=False) for family in families}
        self._totals: dict[str, dict[tuple[str, ...], float]] = {_NEW: {}, _ENDPOINT_NEW: {}}
        self._series = _Series({})
        self._complained = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        registry.add(self, [one[:4] for one in METRICS if self._has(one[4])])

    def _has(self, level: Level) -> bool:
        return level == "service" or self._level == "endpoint"

    def start(self) -> None:
        """Start the thread, in the caller's network namespace."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a reading that runs is waited for."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            pause = 0.0
            while not self._stopping.wait(pause):
                started = self._clock()
                self.read()
                pause = max(self._period, _PART * (self._clock() - started))
        except BaseException as error:  # a thread must not die unseen
            self._died(error)
            raise

    def read(self) -> None:
        """Read everything once."""
        found: list[Row] = []
        try:
            for family, meter in self._meters.items():
                sample = read_sample(self._reader.rules(family))
                meter.take(sample)
                established = self._established(family, sample)
                found += rows(family.value, meter.totals, meter.latest, 1.0, established)
        except (ReadError, HostError) as error:
            self._complain(f"the counters of the rules cannot be read: {error}")
            return
        self._series = _Series(self._export(found))

    def _established(self, family: Family, sample: Sample) -> Established | None:
        try:
            return attribute(self._reader.connections(family), sample.portals)
        except KernelError as error:
            self._complain(f"connections cannot be counted: {error}")
            return None

    def _complain(self, text: str) -> None:
        """Log a failure once for as long as it stays the same."""
        if text != self._complained:
            self._complained = text
            self._log.warning("metrics of connections are missing", reason=text)

    def _export(self, found: Sequence[Row]) -> dict[str, dict[tuple[str, ...], float]]:
        values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name, *_ in METRICS}
        for row in found:
            labels = (row.family, row.service, row.protocol)
            _add(values[_NEW], labels, row.per_second)
            if row.p is not None:
                values[_SPLIT][*labels, "local" if row.local else "all"] = row.p
            for one in row.endpoints:
                _add(values[_ENDPOINT_NEW], (*labels, one.endpoint), one.per_second)
                if one.established is not None:
                    # A local and a cluster-wide lottery share endpoints, and their connections.
                    values[_ENDPOINT_ESTABLISHED][*labels, one.endpoint] = one.established
        for (*service, _), count in values[_ENDPOINT_ESTABLISHED].items():
            _add(values[_ESTABLISHED], tuple(service), count)
        for name in (_NEW, _ENDPOINT_NEW):
            known = self._totals[name]
            self._totals[name] = {k: known.get(k, 0.0) + new for k, new in values[name].items()}
            values[name] = self._totals[name]
        return values

    def describe(self) -> Iterable[Metric]:
        """Names are registered without reading anything."""
        return list(self._build(_Series({})))

    def collect(self) -> Iterator[Metric]:
        """What was read last."""
        return self._build(self._series)

    def _build(self, series: _Series) -> Iterator[Metric]:
        for name, kind, labels, meaning, level in METRICS:
            if self._has(level):
                make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                metric = make(name, meaning, labels=labels)
                for values, number in series.values.get(name, {}).items():
                    metric.add_metric(list(values), number)
                yield metric


def _add(values: dict[tuple[str, ...], float], labels: tuple[str, ...], number: float) -> None:
    values[labels] = values.get(labels, 0.0) + number
