"""``python -m bench [--quick] [--only NAME ...]``: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.demo import namespaces
from agent.kernel.detect import Backend
from bench import audit, endpoint, figures, first, large, memory, packets, startup, storm
from bench.bed import store, tool
from bench.daemon import Clusters
from bench.scale import FULL, QUICK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.figures import Figure
    from bench.scale import Scale

#: Those in front share API servers and a daemon, and the storm, which changes them, comes last.
MEASUREMENTS: dict[str, Callable[[Scale, Clusters], Iterator[Figure]]] = {
    "start": startup.measure,
    "memory": memory.measure,
    "storm": storm.measure,
    "audit": audit.measure,
    "first": first.measure,
    "endpoint": endpoint.measure,
    "packets": packets.measure,
    "large": large.measure,
}
IN_CLUSTERS = {"start", "memory", "storm"}
#: Not for every run.
APART = {"large"}


def main() -> int:
    """Measure; 1 if a target is missed, 3 if nothing can be measured here."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 Services, under a minute")
    parser.add_argument("--only", action="append", choices=sorted(MEASUREMENTS), metavar="NAME")
    parser.add_argument("--output", type=Path, help="JSON file (bench-results/DATE.json)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.stderr.write("needs root: it works in network namespaces of its own\n")
        return 3
    scale = QUICK if options.quick else FULL
    namespaces.sweep()
    started = time.monotonic()
    found = run(scale, options.only or [name for name in MEASUREMENTS if name not in APART])
    now = f"{dt.datetime.now().astimezone():%Y-%m-%dT%H%M%S}"
    path = options.output or Path("bench-results", f"{now}{'-quick' if scale.quick else ''}.json")
    version = ".".join(map(str, tool(Backend.NFT).version))
    figures.write(path, found, scale, version)
    missed = sum(figure.verdict == "MISSED" for figure in found)
    sys.stdout.write(f"{missed} missed, {time.monotonic() - started:.0f} s; wrote {path}\n")
    return 1 if missed else 0


def run(scale: Scale, names: list[str]) -> list[Figure]:
    """Measure, and print each figure as soon as it is there."""
    found: list[Figure] = []
    about = figures.machine()
    sys.stdout.write(" ".join(f"{name} {value}" for name, value in about.items()) + "\n")
    figures.head(sys.stdout)
    with Clusters() as clusters:
        if IN_CLUSTERS.intersection(names):
            clusters.of(memory.FEW, scale.endpoints)
            clusters.of(scale.services, scale.endpoints)
            store(scale.services, scale.endpoints)  # while the servers start
        for name in sorted(names, key=list(MEASUREMENTS).index):
            if name not in IN_CLUSTERS:
                clusters.close()  # nothing else runs beside it
            for figure in MEASUREMENTS[name](scale, clusters):
                figures.show(figure, sys.stdout)
                found.append(figure)
    return found


if __name__ == "__main__":
    sys.exit(main())
