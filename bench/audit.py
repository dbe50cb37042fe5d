"""Target 7: comparing the kernel's rules with what was accepted, a sample a round.

While nobody else changes rules, one number tells, and what chains look like is learned. When
somebody does, chains that are known are compared by what they look like, and others by text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel.detect import Backend
from agent.sync.audit import Audit
from bench.bed import Bed, store, syncer
from bench.figures import Figure, settled
from bench.first import AGAIN, FIRST
from bench.timing import median, spend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.daemon import Clusters
    from bench.scale import Scale

_WHOLE, _FIXED = 150.0, 50.0
_MILLI = 1000.0
_ROUNDS = 5
#: Rounds of which one reads the table as text, for all that came by in them.
_WAITING = 4
#: Rounds in which every chain comes by once; a sample has at least 5 percent.
_LAP = 21


def measure(scale: Scale, _clusters: Clusters) -> Iterator[Figure]:
    """All of target 7."""
    size = f"{scale.services} x {scale.endpoints}"
    target, note = scale.of(_FIXED, _WHOLE), scale.note(_FIXED, _WHOLE, "ms")
    with Bed(Backend.NFT) as bed:
        writer = syncer(bed.kernel, Backend.NFT)
        state = store(scale.services, scale.endpoints)
        writer.prepare(state)
        FIRST[scale.services].append(bed.call(spend, lambda: writer.sync(state))[1])
        audit = Audit(writer)

        def rounds(count: int, *, others: bool) -> list[float]:
            found = []
            for number in range(count):
                if others:
                    _change(bed, number)
                differences, spent = spend(audit.run, tidy=False)
                if differences:
                    raise RuntimeError(f"the audit found {differences}")
                found.append(spent.cpu * _MILLI)
            return found

        def figures(what: str, count: int, *, others: bool) -> Sequence[Figure]:
            found = bed.call(rounds, count, others=others)

            def judge() -> list[Figure]:
                name = f"audit, nft, {size}, {what}"
                details = {"ms": found}
                return [Figure(name, median(found), "ms", target, note=note, details=details)]

            return settled(
                judge, lambda: found.extend(bed.call(rounds, count, others=others)), scale.again
            )

        yield from figures("nobody else writes, learning", _LAP, others=False)
        yield from figures("nobody else writes", _ROUNDS, others=False)
        yield from figures("others write", _ROUNDS, others=True)
        AGAIN[scale.services].append(bed.call(spend, lambda: writer.sync(state, full=True))[1])
        yield from figures("others write, after a full sync", _ROUNDS, others=True)
        audit = Audit(writer)  # one that has not seen anything yet
        unknown = [] if scale.quick else bed.call(rounds, _WAITING, others=True)
    if not unknown:
        return
    yield Figure(
        f"audit, nft, {size}, others write before all is learned, mean",
        sum(unknown) / len(unknown),
        "ms",
        note=f"one round in {_WAITING} takes {max(unknown):.0f} ms; each chain comes by once",
        details={"ms": unknown},
    )


def _change(bed: Bed, number: int) -> None:
    """Somebody else adds a rule."""
    bed.bare(f"*filter\n:OTHERS-{number} - [0:0]\n-A OTHERS-{number} -j RETURN\nCOMMIT\n")
