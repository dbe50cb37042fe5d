"""A packet's way as a tree of text, at most 80 columns wide."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from agent.inspect.match import exact
from agent.inspect.path import Effect, End, Kind, Outcome, Step, Way
from agent.inspect.wrap import WIDTH, indented
from agent.rules.probability import probability_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.inspect.path import Branch

#: So many endpoints are shown one by one; of more, the first ones.
SHOWN = 12
_VERBS = {
    Effect.JUMP: "to",
    Effect.MARK: "the packet's mark becomes",
    Effect.TRANSLATE: "the destination becomes",
    Effect.MASQUERADE: "masqueraded, as this node",
    Effect.ACCEPT: "accepted",
    Effect.DROP: "dropped",
    Effect.REJECT: "rejected",
    Effect.POLICY: "policy of the chain:",
    Effect.OTHER: "",
}


def tree(way: Way) -> Iterator[str]:
    """The way as lines."""
    yield from _way(way, "", "")


def _way(way: Way, first: str, rest: str) -> Iterator[str]:
    """Steps, then branches; ``first`` and ``rest`` stand in front of lines."""
    lead = first
    for step in way.steps:
        for line in _step(step, WIDTH - len(rest)):
            yield lead + line
            lead = rest
    if way.outcome is not None and not way.branches:
        for line in indented(outcome_text(way.outcome), 0, 2, WIDTH - len(rest)):
            yield lead + line
            lead = rest
        return
    yield from _branches(way.branches, rest)


def _step(step: Step, width: int) -> Iterator[str]:
    verb = f"{_VERBS[step.effect]} {step.detail}".strip()
    yield from indented(f"{step.place}: {verb}", 0, 4, width)
    condition = _condition(step.text)
    if condition:
        yield from indented(condition, 4, 4, width)


def _condition(text: str) -> str:
    """What a rule matches, without its target and the words that say nothing."""
    matches = f" {text}".partition(" -j ")[0].partition(" -g ")[0].strip()
    for noise in ("-m comment ", "-m tcp ", "-m udp ", "-m sctp ", "-m statistic --mode random "):
        matches = matches.replace(noise, "")
    for last in (" -m tcp", " -m udp", " -m sctp"):
        matches = matches.removesuffix(last)
    return _PROBABILITY.sub(_fraction, matches.replace("--comment ", ""))


_PROBABILITY = re.compile(r"--probability ([0-9.]+)")


def _fraction(match: re.Match[str]) -> str:
    return f"--probability {exact(probability_steps(match[1]))}"


# Branches ----------------------------------------------------------------------------------


def _branches(branches: Sequence[Branch], indent: str) -> Iterator[str]:
    sticky = [b for b in branches if b.kind is Kind.AFFINITY and b.conditional]
    dice = [b for b in branches if not b.conditional]
    common = _common(dice) if len(dice) > 1 else None
    shown = [b for b in branches if b not in sticky]
    if sticky:
        yield from _sticky(sticky, dice, indent)
    cut = len(shown) - SHOWN if common is not None and len(shown) > SHOWN + 1 else 0
    if cut:
        shown = shown[:SHOWN]
    for number, branch in enumerate(shown):
        last = number == len(shown) - 1 and not cut and common is None
        way = _without(branch.way, common) if common is not None else branch.way
        head = f"{'└─' if last else '├─'} {_label(branch)}"
        below = f"{indent}{'   ' if last else '│  '}"
        yield from (indent + line for line in indented(head, 0, 3, WIDTH - len(indent)))
        yield from _way(way, below, below)
    if cut:
        yield f"{indent}├─ ... and {cut} more, {dice[-1].chance} each"
    if common is not None:
        yield f"{indent}└─ then, for each of them"
        yield from _way(common, f"{indent}   ", f"{indent}   ")


def _label(branch: Branch) -> str:
    if branch.conditional:
        prefix = "may match" if branch.kind is Kind.UNKNOWN else "if"
        return f"{prefix}: {branch.condition}"
    if branch.kind is Kind.CHANCE:
        return str(branch.chance)
    return "otherwise"


def _sticky(sticky: Sequence[Branch], dice: Sequence[Branch], indent: str) -> Iterator[str]:
    """Remembered clients go where they were; one line says it if that is all there is to it."""
    remembered = {o.endpoint for branch in sticky for o in branch.way.leaves()}
    thrown = {o.endpoint for branch in dice for o in branch.way.leaves()}
    seconds = sticky[0].condition.rpartition("(")[2].rstrip(")")
    if remembered == thrown:
        yield f"{indent}├─ if the client is remembered {seconds}: the endpoint that it had"
        return
    for branch in sticky:
        yield from (indent + line for line in indented(f"├─ {_label(branch)}", 0, 3))
        yield from _way(branch.way, f"{indent}│  ", f"{indent}│  ")


def _common(branches: Sequence[Branch]) -> Way | None:
    """What all branches do behind the translation, if it is the same for all."""
    tails = [_tail(branch.way) for branch in branches]
    first = tails[0]
    if first is None or any(tail is None or not _same(first, tail) for tail in tails):
        return None
    steps, outcome = first
    return Way(steps, (), msgspec.structs.replace(_anywhere(outcome), endpoint="the endpoint"))


Tail = tuple[tuple[Step, ...], Outcome]


def _tail(way: Way) -> Tail | None:
    """Steps behind the translation to an endpoint, and the outcome."""
    if way.branches or way.outcome is None:
        return None
    for number, step in enumerate(way.steps):
        if step.effect is Effect.TRANSLATE:
            return way.steps[number + 1 :], way.outcome
    return None


def _same(one: Tail, other: Tail) -> bool:
    return one[0] == other[0] and _anywhere(one[1]) == _anywhere(other[1])


def _anywhere(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, endpoint="", local=False)


def _without(way: Way, common: Way) -> Way:
    """The way up to the translation; the rest is told once for all."""
    count = len(way.steps) - len(common.steps)
    return Way(way.steps[:count])


def outcome_text(outcome: Outcome) -> str:
    """What becomes of the packet, in a sentence."""
    by = f" by {outcome.by}" if outcome.by is not None else ""
    if outcome.end is not End.PASSED:
        why = f": {outcome.why}" if outcome.why else ""
        return f"= {outcome.end.value}{by}{why}"
    where = f"to {outcome.endpoint}" if outcome.endpoint else "to where it is addressed"
    source = f"from {outcome.source}" if outcome.source else "with its own source address"
    if outcome.masqueraded:
        source = "masqueraded"
    return f"= passes {where}, {source}"


# JSON --------------------------------------------------------------------------------------


def plain(way: Way) -> dict[str, Any]:
    """The way as plain values, for ``-o json``; chances are fractions as text."""
    found: dict[str, Any] = {
        "steps": [
            {
                "hook": step.hook,
                "table": step.place.table,
                "chain": step.place.chain,
                "rule": step.place.number,
                "effect": step.effect.value,
                "detail": step.detail,
                "text": step.text,
            }
            for step in way.steps
        ]
    }
    if way.branches:
        found["branches"] = [
            {
                "kind": branch.kind.value,
                "chance": str(branch.chance),
                "condition": branch.condition,
                **plain(branch.way),
            }
            for branch in way.branches
        ]
    if way.outcome is not None:
        found["outcome"] = plain_outcome(way.outcome)
    return found


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values."""
    return {
        "end": outcome.end.name.lower(),
        "endpoint": outcome.endpoint,
        "masqueraded": outcome.masqueraded,
        "local": outcome.local,
        "by": str(outcome.by) if outcome.by else "",
        "why": outcome.why,
        "source": outcome.source,
    }
