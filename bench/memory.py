"""Target 5: what the real daemon keeps in memory, with the official client and both families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.daemon import peak, resident
from bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.daemon import Clusters
    from bench.scale import Scale

FEW = 10
_SMALL, _LARGE = 62.0, 180.0


def measure(scale: Scale, clusters: Clusters) -> Iterator[Figure]:
    """All of target 5."""
    cluster = clusters.of(scale.services, scale.endpoints)
    cluster.launch()
    agent = clusters.of(FEW, scale.endpoints).agent()
    yield Figure(
        f"resident after the first sync, {FEW} x {scale.endpoints}",
        resident(agent),
        "MB",
        _SMALL,
        note=f"peak {peak(agent):.0f} MB",
    )
    size = f"{scale.services} x {scale.endpoints}"
    agent = cluster.agent()
    note = f"peak {peak(agent):.0f} MB"
    adapted = scale.note(_SMALL, _LARGE, "MB")
    yield Figure(
        f"resident after the first sync, {size}",
        resident(agent),
        "MB",
        scale.of(_SMALL, _LARGE),
        note=f"{note}; {adapted}" if adapted else note,
    )
    if scale.quick:
        return
    agent = cluster.restart()
    yield Figure(
        f"resident after a start over live rules, {size}",
        resident(agent),
        "MB",
        note=f"peak {peak(agent):.0f} MB",
    )
