"""The way of a packet through rules: a tree of steps that ends in what becomes of it."""

from __future__ import annotations

import enum
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE = Fraction(1)


class End(enum.Enum):
    """What becomes of a packet; the value is for people."""

    #: It goes on to where it is addressed (to), perhaps translated.
    PASSED = "passes"
    DROPPED = "is dropped"
    REJECTED = "is rejected"
    #: Something that is not in the rules decides.
    UNKNOWN = "is not known"


class Effect(enum.Enum):
    """What a rule did; the value is for people."""

    JUMP = "jump"
    MARK = "mark"
    TRANSLATE = "translate"
    MASQUERADE = "masquerade"
    ACCEPT = "accept"
    DROP = "drop"
    REJECT = "reject"
    POLICY = "policy"
    OTHER = "other"


class Place(msgspec.Struct, frozen=True):
    """A rule by table, chain and position (1-based, 0 for a chain's policy)."""

    table: str
    chain: str
    number: int

    def __str__(self) -> str:
        return f"{self.table} {self.chain} {f'rule {self.number}' if self.number else 'policy'}"


class Step(msgspec.Struct, frozen=True):
    """A rule that did something.

    Attributes:
        hook: where the packet was.
        place: the rule.
        effect: what it did.
        detail: to what: a chain, an endpoint, a mark.
        text: of the rule, empty for a policy.
    """

    hook: str
    place: Place
    effect: Effect
    detail: str
    text: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What becomes of the packet.

    Attributes:
        end: the kind.
        endpoint: ``ip:port`` that it was translated to; empty if it was not.
        masqueraded: its source becomes an address of the node.
        local: it ends on this node, and not at another address.
        by: the rule that dropped, rejected, or took it away.
        why: what is not known.
        source: another translation of its source.
    """

    end: End
    endpoint: str = ""
    masqueraded: bool = False
    local: bool = False
    by: Place | None = None
    why: str = ""
    source: str = ""


class Kind(enum.Enum):
    """Why a way forks."""

    #: The kernel rolls dice.
    CHANCE = "chance"
    #: It depends on whether the client is remembered.
    AFFINITY = "affinity"
    #: It depends on something that is not in the rules.
    UNKNOWN = "unknown"


class Branch(msgspec.Struct, frozen=True, eq=False):
    """One way on.

    Attributes:
        kind: why there is more than one.
        chance: the probability, if no condition of another branch holds.
        condition: under which it is taken; empty if only the dice decide.
        way: what follows.
    """

    kind: Kind
    chance: Fraction
    condition: str
    way: Way

    @property
    def conditional(self) -> bool:
        """Whether it is taken under a condition that is not assumed to hold."""
        return bool(self.condition)


class Way(msgspec.Struct, frozen=True, eq=False):
    """Steps, and then branches or an end; the same object where ways meet again."""

    steps: tuple[Step, ...] = ()
    branches: tuple[Branch, ...] = ()
    outcome: Outcome | None = None

    def leaves(self) -> Iterator[Outcome]:
        """All outcomes, each once for each way to it that is its own."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            way = stack.pop()
            if id(way) in seen:
                continue
            seen.add(id(way))
            if way.outcome is not None:
                yield way.outcome
            stack += [branch.way for branch in reversed(way.branches)]


class Outcomes(msgspec.Struct, frozen=True):
    """All that may become of a packet.

    Attributes:
        usual: outcomes with their probabilities, if no condition holds: no client is remembered,
            and what may match does not.
        possible: all outcomes, those under a condition included.
    """

    usual: dict[Outcome, Fraction]
    possible: frozenset[Outcome]


def outcomes(way: Way) -> Outcomes:
    """Add up the probabilities of a way's ends."""
    return Outcomes(_usual(way, {}), frozenset(way.leaves()))


def _usual(way: Way, known: dict[int, dict[Outcome, Fraction]]) -> dict[Outcome, Fraction]:
    if id(way) in known:
        return known[id(way)]
    found: dict[Outcome, Fraction] = {}
    if way.outcome is not None:
        found[way.outcome] = ONE
    for branch in way.branches:
        if branch.conditional:
            continue
        for outcome, chance in _usual(branch.way, known).items():
            found[outcome] = found.get(outcome, Fraction(0)) + branch.chance * chance
    known[id(way)] = found
    return found
