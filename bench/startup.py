"""Target 4: from nothing to rules that are ready to be written, in a process of its own.

``python -m bench.startup KUBECONFIG`` lists and decodes through the official client, compiles, and
prints how many seconds of CPU it took when the first restore would have begun. The imports are
part of it.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from operator import itemgetter
from typing import TYPE_CHECKING

from agent.cluster.client import make_client
from agent.cluster.feed import SourceFailed
from agent.cluster.kube import KubeSource
from agent.kernel.detect import Backend
from bench import objects
from bench.bed import NoKernel
from bench.figures import Figure, settled
from bench.inprocess import running
from tests.kernel.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.cluster.feed import Event
    from bench.daemon import Cluster, Clusters
    from bench.scale import Scale

#: Seconds of CPU: for everything, and the part that is for a process with no Services.
_WHOLE, _FIXED = 4.0, 1.0
_TIMEOUT = 120.0


def measure(scale: Scale, clusters: Clusters) -> Iterator[Figure]:
    """All of target 4; the best start counts."""
    cluster = clusters.of(scale.services, scale.endpoints)
    starts = [_started(cluster)]

    def judge() -> list[Figure]:
        best = min(starts, key=itemgetter("ready"))
        note = f"of it {best['imports']:.2f} s for imports"
        adapted = scale.note(_FIXED, _WHOLE, "s")
        name = f"start: list, decode, compile {scale.services} x {scale.endpoints}, CPU"
        note = f"{note}; {adapted}" if adapted else note
        limit = scale.of(_FIXED, _WHOLE)
        return [Figure(name, best["ready"], "s", limit, note=note, details=best)]

    yield from settled(judge, lambda: starts.append(_started(cluster)), scale.again)


def _started(cluster: Cluster) -> dict[str, float]:
    """Seconds of CPU of a process of its own: of imports, and up to the first restore."""
    argv = [sys.executable, "-m", "bench.startup", str(cluster.kubeconfig)]
    child = cluster.bed.namespace.popen(
        argv, cwd=ROOT, env=cluster.bed.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = child.communicate(timeout=_TIMEOUT)
    if child.returncode:
        raise RuntimeError(err)
    found: dict[str, float] = json.loads(out.splitlines()[-1])  # behind what was logged
    return found


class ReadyError(Exception):
    """The first restore would begin now."""


class _Ready(NoKernel):
    """Ends everything when something is to be written."""

    def restore(self, text: str) -> None:
        """Nothing is written."""
        raise ReadyError(len(text))


def start(path: str) -> None:
    """Go through a start, and print the seconds of CPU that it took."""
    imports = time.process_time()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = KubeSource(make_client(path), node_name=objects.NODE)
    with running(_Ready(), Backend.NFT) as agent:
        source.start(events.put)
        try:
            while True:
                event = events.get(timeout=_TIMEOUT)
                if isinstance(event, SourceFailed):
                    raise event.error
                agent.handle(event)
        except ReadyError:
            ready = time.process_time()
        source.stop()
    sys.stdout.write(json.dumps({"imports": imports, "ready": ready}))


if __name__ == "__main__":
    start(sys.argv[1])
