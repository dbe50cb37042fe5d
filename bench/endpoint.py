"""Target 2: one change, from the watch event's arrival to the kernel's acceptance.

The event is the bytes of a line of a watch; decoding is part of it. In turns with it, the bare
tool restores the balancing chain of a Service like the changed one, with the same rules as
before. Compared is the CPU of both with their children (see ``bench.timing``); what passed is in
the notes. The agent's own share is what it computes up to where the restore begins.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

from agent.cluster.wire import read_line
from agent.kernel.detect import Backend
from agent.rules.ruleset import own_chains
from bench import changes
from bench.bed import Bed, NoKernel
from bench.figures import Figure, settled
from bench.inprocess import running
from bench.timing import children_cpu, median, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.changes import Change, Line
    from bench.daemon import Clusters
    from bench.inprocess import InProcess
    from bench.scale import Scale

_MILLI = 1000.0
#: Turns that do not count: everything is loaded in them.
_WARM = 2
_MEDIAN, _P99, _LEGACY = 1.5, 3.0, 1.1
_SHARE, _GROWTH = 2.0, 1.5


class Took(NamedTuple):
    """Milliseconds: computed, children included, and passed."""

    cpu: float
    wall: float


class Pair(NamedTuple):
    """A change, and the bare restore that took its turn."""

    ours: Took
    bare: Took


def measure(scale: Scale, _clusters: Clusters) -> Iterator[Figure]:
    """All of target 2."""
    with Bed(Backend.NFT) as bed, running(bed.kernel, Backend.NFT) as agent:
        bed.call(agent.list_all, scale.services, scale.endpoints)
        for kind in changes.ALL:
            samples = scale.samples if kind is changes.Endpoint else max(4, scale.samples // 8)
            yield from bed.call(_compare, scale, bed, agent, kind(scale), samples)
    with Bed(Backend.LEGACY) as bed, running(bed.kernel, Backend.LEGACY) as agent:
        bed.call(agent.list_all, scale.services, scale.endpoints)
        change = changes.Endpoint(scale)
        yield from bed.call(_compare, scale, bed, agent, change, scale.legacy_samples)
    yield from _shares(scale)


def _compare(
    scale: Scale, bed: Bed, agent: InProcess, change: Change, samples: int
) -> Sequence[Figure]:
    """A change and a bare restore, in turns."""
    for line in change.before():
        agent.take_in(line)
    agent.settle()
    turns = itertools.count()
    for _ in range(_WARM):
        _pair(bed, agent, change, next(turns))
    found: list[Pair] = []

    def more() -> None:
        found.extend(_pair(bed, agent, change, next(turns)) for _ in range(samples))

    more()
    return settled(lambda: list(_judged(scale, bed.backend, change, found)), more, scale.again)


def _pair(bed: Bed, agent: InProcess, change: Change, turn: int) -> Pair:
    line = change.line(turn)
    ours = _took(lambda: _take(agent, line))
    text = _chain(agent, change.written(turn))
    return Pair(ours, _took(lambda: bed.bare(text)))


def _took(function: Callable[[], object]) -> Took:
    children, own, wall = children_cpu(), time.process_time(), time.perf_counter()
    function()
    passed, computed = time.perf_counter() - wall, time.process_time() - own
    return Took((children_cpu() - children + computed) * _MILLI, passed * _MILLI)


def _judged(scale: Scale, backend: Backend, change: Change, pairs: list[Pair]) -> Iterator[Figure]:
    ours, bare = [pair.ours.cpu for pair in pairs], [pair.bare.cpu for pair in pairs]
    passed = [pair.ours.wall for pair in pairs], [pair.bare.wall for pair in pairs]
    details = {
        name: {f"p{p}": percentile(values, p) for p in (10, 50, 90, 99)}
        for name, values in (
            ("ours", ours),
            ("bare", bare),
            ("ours passed", passed[0]),
            ("bare passed", passed[1]),
        )
    }
    of = (
        f"one {change.name}, {backend.value}, {scale.services} x {scale.endpoints}, over a bare one"
    )
    limit = _MEDIAN if backend is Backend.NFT else _LEGACY
    yield Figure(
        f"{of}, median",
        median([mine / other for mine, other in zip(ours, bare, strict=True)]),
        "x",
        limit,
        note=f"{median(ours):.1f} ms of CPU over {median(bare):.1f} ms;"
        f" {median(passed[0]):.0f} ms passed over {median(passed[1]):.0f} ms",
        details=details,
    )
    if backend is Backend.NFT and isinstance(change, changes.Endpoint):
        high, other = percentile(ours, 99), percentile(bare, 99)
        note = f"{high:.1f} ms of CPU over {other:.1f} ms"
        yield Figure(f"{of}, p99", high / other, "x", _P99, note=note, details=details)


def _take(agent: InProcess, line: Line) -> float:
    """Take in a line of a watch; milliseconds computed up to the beginning of its restore."""
    agent.kernel.began = 0.0
    computed = time.thread_time()
    found = read_line(*line)
    if found.event is None:
        raise RuntimeError("the line holds no event")
    agent.handle(found.event)
    if not agent.kernel.began:
        raise RuntimeError("a change led to no restore")
    return (agent.kernel.began - computed) * _MILLI


def _chain(agent: InProcess, service: str) -> str:
    """Restore input that writes the balancing chain of a Service as it is."""
    rules = agent.controller.tracks[0].syncer.rules
    key = next(k for k in rules.services if k.name == service)
    own = own_chains(rules.services[key])
    chain = next(chain for chain in own if chain.startswith("KUBE-SVC-"))
    lines = [f"-A {chain} {text}" for text in own[chain]]
    return "\n".join(["*nat", f":{chain} - [0:0]", *lines, "COMMIT", ""])


def _shares(scale: Scale) -> Iterator[Figure]:
    """The agent's own share, for few and for many Services, in turns."""
    few, many = scale.python
    sizes = [dataclasses.replace(scale, services=services) for services in scale.python]
    with running(NoKernel(), Backend.NFT) as small, running(NoKernel(), Backend.NFT) as large:
        for agent, sized in zip((small, large), sizes, strict=True):
            agent.list_all(sized.services, sized.endpoints)
        for kind in changes.ALL:
            cases = [
                (agent, kind(sized)) for agent, sized in zip((small, large), sizes, strict=True)
            ]
            for agent, change in cases:
                for line in change.before():
                    agent.take_in(line)
                agent.settle()
            turns = min(scale.turns, few // 2)
            taken = [
                [_take(agent, change.line(turn)) for agent, change in cases]
                for turn in range(turns)
            ][_WARM:]
            before, share = (median(values) for values in zip(*taken, strict=True))
            of = f"one {kind.name}, event in to restore input out"
            yield Figure(f"{of}, {many} Services", share, "ms", _SHARE)
            yield Figure(
                f"the same over that at {few} Services",
                share / before,
                "x",
                _GROWTH,
                note=f"{share:.2f} ms over {before:.2f} ms",
            )
