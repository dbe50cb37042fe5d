"""Target 3: many endpoint changes within seconds, against the real daemon.

A change of its own for each of many Services, with the time of the change in the slice as the
EndpointSlice controller writes it; the agent's metric tells how long each took from there to the
kernel's acceptance. What one sync for each event would cost is measured in the same daemon, by
changes that are so far apart that each has its own. Audits count in the storm only.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING

from bench import objects
from bench.daemon import MIN_SYNC_PERIOD, Writer, cpu
from bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.bed import Bed
    from bench.daemon import Clusters
    from bench.scale import Scale
    from tests.kernel.running import RunningAgent

_BUCKET = "kubeproxy_network_programming_duration_seconds_bucket"
_LEADS = re.compile(r"^-A KUBE-SVC-\S+ .*-j (KUBE-SEP-\S+)$", re.MULTILINE)
_REWRITES = re.compile(r"^-A (KUBE-SEP-\S+) .*--to-destination (\S+)", re.MULTILINE)
#: A sync that begins at once is over by then.
_SYNC_SECONDS = 0.9
_SETTLE_SECONDS = 30.0


def measure(scale: Scale, clusters: Clusters) -> Iterator[Figure]:
    """All of target 3."""
    cluster = clusters.of(scale.services, scale.endpoints)
    bed, agent = cluster.bed, cluster.agent()
    yield from bed.call(lambda: list(_storm(bed, agent, Writer(cluster.url), scale)))
    clusters.close()  # it is another cluster now


def _storm(bed: Bed, agent: RunningAgent, writer: Writer, scale: Scale) -> Iterator[Figure]:
    expected = {
        f"{objects.pod_ip(pod)}:{objects.TARGET_PORT}"
        for pod in range(scale.services * scale.endpoints)
    }
    single = _one_by_one(agent, writer, scale, expected)
    before, began = cpu(agent), time.monotonic()
    histogram = _histogram(agent)
    for number in range(scale.storm):
        _pause(began + scale.storm_seconds * number / scale.storm)
        _change(writer, scale, scale.singles + number, expected)
    programmed = _settle(agent, histogram, scale.storm)
    worst = max(line["latency"] or 0.0 for line in agent.logged("synced", family="IPv4"))
    spent = cpu(agent) - before
    lost = len(expected ^ _destinations(bed))
    size = f"{scale.storm} changes in {scale.storm_seconds:g} s"
    yield Figure(f"storm, {size}: endpoints that are wrong in the end", lost, "", 0)
    yield Figure(
        f"storm, {size}: CPU over one sync for each",
        spent / (single * scale.storm),
        "x",
        0.5,
        note=f"{spent:.2f} s of CPU over {single * scale.storm:.1f} s",
    )
    yield Figure(
        f"storm, {size}: network programming latency, p99",
        min(_quantile(programmed, 0.99), worst),
        "s",
        2.0,
        note=f"p50 {_quantile(programmed, 0.5):.2f} s, worst {worst:.2f} s",
    )
    writer.close()


def _one_by_one(agent: RunningAgent, writer: Writer, scale: Scale, expected: set[str]) -> float:
    """CPU seconds for a change that has a sync of its own: the least, which no audit disturbed."""
    found: list[float] = []
    for number in range(scale.singles):
        before = cpu(agent)
        _change(writer, scale, number, expected)
        time.sleep(_SYNC_SECONDS)
        found.append(cpu(agent) - before)
        time.sleep(MIN_SYNC_PERIOD * 1.1 - _SYNC_SECONDS)
    return min(found)


def _change(writer: Writer, scale: Scale, number: int, expected: set[str]) -> None:
    """Replace one endpoint of a Service, now."""
    number %= scale.services
    pods = objects.pods_of(number, scale.endpoints)
    new = scale.services * scale.endpoints + number
    expected.discard(f"{objects.pod_ip(pods[0])}:{objects.TARGET_PORT}")
    expected.add(f"{objects.pod_ip(new)}:{objects.TARGET_PORT}")
    now = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
    writer.put(objects.endpoint_slice(number, [*pods[1:], new], changed=now))


def _pause(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def _settle(agent: RunningAgent, before: dict[float, float], events: int) -> dict[float, float]:
    """Wait until all events are in the kernel; how many took up to how many seconds.

    Raises:
        RuntimeError: some are not, after half a minute.
    """
    end = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < end:
        now = _histogram(agent)
        found = {bound: count - before.get(bound, 0) for bound, count in now.items()}
        if max(found.values(), default=0) >= events:
            return found
        time.sleep(0.2)
    raise RuntimeError(f"not all of {events} changes reached the kernel: {agent.story()}")


def _histogram(agent: RunningAgent) -> dict[float, float]:
    """Changes that took up to so many seconds; empty if there were none."""
    return {
        float(dict(labels)["le"]): value
        for (name, labels), value in agent.metrics().items()
        if name == _BUCKET and ("ip_family", "IPv4") in labels
    }


def _quantile(histogram: dict[float, float], share: float) -> float:
    """A quantile as Prometheus computes it, evenly within a bucket."""
    total = max(histogram.values(), default=0.0)
    below, lower = 0.0, 0.0
    for bound in sorted(histogram):
        count = histogram[bound]
        if count >= share * total and count > below:
            return lower + (bound - lower) * (share * total - below) / (count - below)
        below, lower = count, bound
    return lower


def _destinations(bed: Bed) -> set[str]:
    """Where Services lead to; chains that nothing leads to may wait for their deletion."""
    text = bed.kernel.save("nat")
    rewrites = dict(_REWRITES.findall(text))
    return {rewrites[chain] for chain in _LEADS.findall(text)}
