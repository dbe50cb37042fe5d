"""When the changes happened that the kernel has not accepted yet, for measuring latency.

The EndpointSlice controller writes the time of the change that made it write into an
annotation (``endpoints.kubernetes.io/last-change-trigger-time``, RFC 3339). The time from there
to the kernel's acceptance is the network programming latency
(https://github.com/kubernetes/community/blob/main/sig-scalability/slos/network_programming_latency.md).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from agent.cluster.objects import ANNOTATION_TRIGGER_TIME

if TYPE_CHECKING:
    from agent.cluster.objects import EndpointSlice, Key


def trigger_time(endpoint_slice: EndpointSlice) -> float | None:
    """The annotation as seconds since the epoch; None if absent or malformed."""
    text = (endpoint_slice.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


#: Times that wait at the most, while the kernel accepts nothing for hours. The oldest stay: the
#: greatest latency is the one that matters.
MOST = 10_000


class TriggerTimes:
    """Trigger times of accepted changes that wait for the kernel, in one family.

    Times before ``since`` are of changes that some earlier process has programmed.
    """

    def __init__(self, since: float, most: int = MOST) -> None:
        self._since = since
        self._most = most
        self._waiting: dict[Key, list[float]] = {}
        self._count = 0

    def note(self, key: Key, moment: float | None) -> None:
        """A slice changed; ``moment`` is its trigger time."""
        if moment is not None and moment > self._since and self._count < self._most:
            self._waiting.setdefault(key, []).append(moment)
            self._count += 1

    def drop(self, key: Key) -> None:
        """A slice was deleted: its annotation tells of an older change, not of this one."""
        self._count -= len(self._waiting.pop(key, ()))

    def take(self) -> list[float]:
        """The kernel accepted everything: all times that waited."""
        times = [moment for moments in self._waiting.values() for moment in moments]
        self._waiting.clear()
        self._count = 0
        return times
