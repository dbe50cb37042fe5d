"""Target 2: one change, from the watch event's arrival to the kernel's acceptance.

The event is the bytes of a line of a watch; decoding is part of it. In turns with it, the bare
tool restores the balancing chain of a Service like the changed one, with the same rules as
before, and both see the same machine. The agent's own share is what it computes up to where the
restore begins.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, NamedTuple

from agent.cluster.wire import read_line
from agent.kernel.detect import Backend
from agent.rules.ruleset import own_chains
from bench import changes
from bench.bed import Bed, NoKernel
from bench.figures import Figure
from bench.inprocess import running
from bench.timing import median, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.changes import Change, Line
    from bench.inprocess import InProcess
    from bench.scale import Scale

_MILLI = 1000.0
#: Turns that do not count: everything is loaded in them.
_WARM = 2
_MEDIAN, _P99, _LEGACY = 1.5, 3.0, 1.1
_SHARE, _GROWTH = 2.0, 1.5


class Taken(NamedTuple):
    """Milliseconds: computed up to the restore's beginning, and passed up to its end."""

    share: float
    accepted: float


def measure(scale: Scale) -> Iterator[Figure]:
    """All of target 2."""
    with Bed(Backend.NFT) as bed, running(bed.kernel, Backend.NFT) as agent:
        bed.call(agent.list_all, scale.services, scale.endpoints)
        for kind in changes.ALL:
            samples = scale.samples if kind is changes.Endpoint else scale.samples // 5
            pairs = bed.call(_turns, bed, agent, kind(scale), samples)
            yield from _compared(scale, Backend.NFT, kind, pairs)
    with Bed(Backend.LEGACY) as bed, running(bed.kernel, Backend.LEGACY) as agent:
        bed.call(agent.list_all, scale.services, scale.endpoints)
        change = changes.Endpoint(scale)
        pairs = bed.call(_turns, bed, agent, change, scale.legacy_samples)
        yield from _compared(scale, Backend.LEGACY, changes.Endpoint, pairs)
    yield from _shares(scale)


def _turns(bed: Bed, agent: InProcess, change: Change, samples: int) -> list[tuple[float, float]]:
    """Milliseconds of ours and of the bare tool, in turns."""
    for line in change.before():
        agent.take_in(line)
    agent.settle()
    found: list[tuple[float, float]] = []
    for turn in range(samples + _WARM):
        ours = _take(agent, change.line(turn)).accepted
        text = _chain(agent, change.written(turn))
        began = time.perf_counter()
        bed.bare(text)
        found.append((ours, (time.perf_counter() - began) * _MILLI))
    return found[_WARM:]


def _compared(
    scale: Scale, backend: Backend, kind: type[Change], pairs: list[tuple[float, float]]
) -> Iterator[Figure]:
    ours, bare = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    details = {
        name: {f"p{p}": percentile(values, p) for p in (10, 50, 90, 99)}
        for name, values in (("ours", ours), ("bare", bare))
    }
    of = f"one {kind.name}, {backend.value}, {scale.services} x {scale.endpoints}, over a bare one"
    middle = _MEDIAN if backend is Backend.NFT else _LEGACY
    yield Figure(
        f"{of}, median",
        median(ours) / median(bare),
        "x",
        middle,
        note=f"{median(ours):.1f} ms over {median(bare):.1f} ms",
        details=details,
    )
    if backend is Backend.NFT and kind is changes.Endpoint:
        high, other = percentile(ours, 99), percentile(bare, 99)
        note = f"{high:.1f} ms over {other:.1f} ms"
        yield Figure(f"{of}, p99", high / other, "x", _P99, note=note, details=details)


def _take(agent: InProcess, line: Line) -> Taken:
    """Take in a line of a watch, with the restore that it leads to."""
    agent.kernel.began = 0.0
    computed, began = time.thread_time(), time.perf_counter()
    found = read_line(*line)
    if found.event is None:
        raise RuntimeError("the line holds no event")
    agent.handle(found.event)
    accepted = time.perf_counter() - began
    if not agent.kernel.began:
        raise RuntimeError("a change led to no restore")
    return Taken((agent.kernel.began - computed) * _MILLI, accepted * _MILLI)


def _chain(agent: InProcess, service: str) -> str:
    """Restore input that writes the balancing chain of a Service as it is."""
    rules = agent.controller.tracks[0].syncer.rules
    key = next(k for k in rules.services if k.name == service)
    own = own_chains(rules.services[key])
    chain = next(chain for chain in own if chain.startswith("KUBE-SVC-"))
    lines = [f"-A {chain} {text}" for text in own[chain]]
    return "\n".join(["*nat", f":{chain} - [0:0]", *lines, "COMMIT", ""])


def _shares(scale: Scale) -> Iterator[Figure]:
    """The agent's own share, for few and for many Services."""
    few, many = scale.python
    small, large = _shares_at(few, scale), _shares_at(many, scale)
    for name, share in large.items():
        yield Figure(
            f"one {name}, event in to restore input out, {many} Services", share, "ms", _SHARE
        )
        yield Figure(
            f"the same over that at {few} Services",
            share / small[name],
            "x",
            _GROWTH,
            note=f"{share:.2f} ms over {small[name]:.2f} ms",
        )


def _shares_at(services: int, scale: Scale) -> dict[str, float]:
    """Milliseconds from an event to the beginning of its restore, at the median."""
    sized = dataclasses.replace(scale, services=services)
    found: dict[str, float] = {}
    with running(NoKernel(), Backend.NFT) as agent:
        agent.list_all(services, scale.endpoints)
        for kind in changes.ALL:
            change = kind(sized)
            for line in change.before():
                agent.take_in(line)
            agent.settle()
            turns = min(scale.samples, services // 2)
            taken = [_take(agent, change.line(turn)).share for turn in range(turns)]
            found[kind.name] = median(taken[_WARM:])
    return found
