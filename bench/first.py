"""Target 1: a first full sync on an empty node, and a full one over live rules.

Compared by CPU (see ``bench.timing``): ours from compiled rules that are ready to be written (what
it takes to get there is target 4's) to what the kernel accepted, and the bare tool from the text
that is there. The yardstick on nft is one text with everything, as kube-proxy would write it: on
nft itself, and at a size where that does not end, on legacy. Legacy is held against the bare
restore of the very text that the agent writes, whose order the tool likes better.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.kernel.detect import Backend
from agent.kernel.errors import ToolTimeoutError
from agent.rules.ruleset import RuleSet
from bench.bed import TIMEOUT, VIEW, Bed, Recording, store, syncer
from bench.figures import Figure, settled
from bench.kubeproxy import one_restore
from bench.timing import Spent, spend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.daemon import Clusters
    from bench.scale import Scale


#: First syncs on nft by the number of Services, and full ones over their rules. What others need to
#: write all the same counts with them.
FIRST: defaultdict[int, list[Spent]] = defaultdict(list)
AGAIN: defaultdict[int, list[Spent]] = defaultdict(list)


class Written(NamedTuple):
    """What a first sync took, and a full one over its rules."""

    first: Spent
    again: Spent


class Legacy(NamedTuple):
    """What a first sync took, and bare restores: of its text, and of kube-proxy's."""

    ours: Spent
    same: Spent
    theirs: Spent


def measure(scale: Scale, _clusters: Clusters) -> Iterator[Figure]:
    """All of target 1."""
    size = f"{scale.services} x {scale.endpoints}"
    yield _growth(scale)
    yield _against_single(scale)
    figure, legacy = _legacy(scale)
    yield figure
    first, again = _nft(scale.services, scale.endpoints, scale.runs)
    more = "; 3 x at 5000, where legacy takes ten times as long" if scale.quick else ""
    for text, bare, target in (
        ("in kube-proxy's order", legacy.theirs, scale.legacy_times),
        ("in our order", legacy.same, None),
    ):
        yield Figure(
            f"first sync, nft, {size}, over legacy {text}",
            first.cpu / bare.cpu,
            "x",
            target,
            note=f"{first.cpu:.2f} s of CPU over {bare.cpu:.2f} s; {first.wall:.2f} s passed{more}",
            details=_details(ours=first, bare=bare),
        )
    yield Figure(
        f"full sync over live rules, nft, {size}, over the first",
        again.cpu / first.cpu,
        "x",
        2.0,
        note=f"{again.cpu:.2f} s of CPU, {again.wall:.2f} s passed",
        details=_details(first=first, again=again),
    )


def _against_single(scale: Scale) -> Figure:
    size = f"{scale.single} x {scale.endpoints}"
    ours = _nft(scale.single, scale.endpoints, scale.runs).first
    text = _as_kube_proxy(scale.single, scale.endpoints)
    with Bed(Backend.NFT) as bed:
        ended, single = bed.call(spend, lambda: _ends(bed, text), tidy=False)
    note = f"{single.cpu:.1f} s of CPU over {ours.cpu:.2f} s"
    if not ended:
        note += f"; it did not end in {TIMEOUT:.0f} s"
    if scale.quick:
        note += "; 15 x at 2000, where one takes 6 times as long"
    return Figure(
        f"first sync, nft, {size}, times faster than one restore",
        single.cpu / ours.cpu,
        "x",
        scale.single_times,
        least=True,
        note=note,
        details=_details(ours=ours, single=single),
    )


def _ends(bed: Bed, text: str) -> bool:
    """Restore with the bare tool; tells whether it ended in time."""
    try:
        bed.bare(text)
    except ToolTimeoutError:
        return False
    return True


@functools.cache
def _as_kube_proxy(services: int, endpoints: int) -> str:
    """All rules in one text: the flat layout, in kube-proxy's order."""
    rules, state = RuleSet(VIEW), store(services, endpoints)
    rules.update(state, state)
    return one_restore(rules)


def _legacy(scale: Scale) -> tuple[Figure, Legacy]:
    """Ours against its own text, and the best of each; ours and both bare restores in turns."""
    found = [_written_in_turns(scale) for _ in range(scale.legacy_runs)]

    def best() -> Legacy:
        return Legacy(*[min(some, key=_cpu) for some in zip(*found, strict=True)])

    def judge() -> list[Figure]:
        legacy = best()
        name = f"first sync, legacy, {scale.services} x {scale.endpoints}, over the bare restore"
        note = f"{legacy.ours.cpu:.2f} s of CPU over {legacy.same.cpu:.2f} s for the same text"
        if scale.quick:
            note += "; 1.25 x at 5000; reading three tables before does not grow"
        details = _details(ours=legacy.ours, bare=legacy.same)
        ratio = legacy.ours.cpu / legacy.same.cpu
        return [Figure(name, ratio, "x", scale.bare_times, note=note, details=details)]

    [figure] = settled(judge, lambda: found.append(_written_in_turns(scale)), scale.again)
    return figure, best()


def _written_in_turns(scale: Scale) -> Legacy:
    state = store(scale.services, scale.endpoints)
    with Bed(Backend.LEGACY) as bed:
        kernel = Recording(bed.kernel)
        agent = syncer(kernel, Backend.LEGACY)
        agent.prepare(state)
        ours = bed.call(spend, lambda: agent.sync(state))[1]
    texts = "".join(kernel.texts), _as_kube_proxy(scale.services, scale.endpoints)
    return Legacy(ours, *[_bare(Backend.LEGACY, text) for text in texts])


def _bare(backend: Backend, text: str) -> Spent:
    """The bare tool in an empty kernel."""
    with Bed(backend) as bed:
        return bed.call(spend, lambda: bed.bare(text), tidy=False)[1]


def _nft(services: int, endpoints: int, runs: int) -> Written:
    """The best first sync of so many or more, and the best full one over what one wrote."""
    while len(AGAIN[services]) < runs:
        _run(services, endpoints)
    return Written(min(FIRST[services], key=_cpu), min(AGAIN[services], key=_cpu))


def _run(services: int, endpoints: int, *, again: bool = True) -> Spent:
    """One first sync, and a full one over its rules."""
    state = store(services, endpoints)
    with Bed(Backend.NFT) as bed:
        agent = syncer(bed.kernel, Backend.NFT)
        agent.prepare(state)
        first = bed.call(spend, lambda: agent.sync(state))[1]
        FIRST[services].append(first)
        if again:
            over = bed.call(spend, lambda: agent.sync(state, full=True))[1]
            AGAIN[services].append(over)
    return first


def _growth(scale: Scale) -> Figure:
    """A large one over as many small ones as make up its size, half of them before and half behind.

    What the machine shares with others makes it slower or faster for minutes.
    """
    few, many = scale.growth
    halves = many // few // 2
    small = [_run(few, scale.endpoints, again=False) for _ in range(halves)]
    large = _run(many, scale.endpoints, again=False)
    small += [_run(few, scale.endpoints, again=False) for _ in range(halves)]
    mean = sum(map(_cpu, small)) / len(small)
    return Figure(
        f"first sync, nft, {few} to {many} Services, over linear growth",
        large.cpu / mean * few / many,
        "x",
        1.5,
        note=f"{mean:.2f} s of CPU in the mean of {len(small)}, then {large.cpu:.2f} s",
        details=_details(large=large) | {"small": [one.cpu for one in small]},
    )


def _cpu(spent: Spent) -> float:
    return spent.cpu


def _details(**spent: Spent) -> dict[str, Any]:
    return {name: one._asdict() for name, one in spent.items()}
