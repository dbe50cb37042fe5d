"""Target 5: what the real daemon keeps in memory, with the official client and both families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel.detect import Backend
from bench.bed import Bed
from bench.daemon import api_server, daemon, peak, resident
from bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.scale import Scale

_FEW = 10
_SMALL, _LARGE = 62.0, 180.0


def measure(scale: Scale) -> Iterator[Figure]:
    """All of target 5."""
    with Bed(Backend.NFT) as bed, api_server(bed, _FEW, scale.endpoints), daemon(bed) as agent:
        yield Figure(
            f"resident after the first sync, {_FEW} x {scale.endpoints}",
            resident(agent),
            "MB",
            _SMALL,
            note=f"peak {peak(agent):.0f} MB",
        )
    size = f"{scale.services} x {scale.endpoints}"
    with Bed(Backend.NFT) as bed, api_server(bed, scale.services, scale.endpoints):
        with daemon(bed) as agent:
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
        with daemon(bed) as agent:
            yield Figure(
                f"resident after a start over live rules, {size}",
                resident(agent),
                "MB",
                note=f"peak {peak(agent):.0f} MB",
            )
