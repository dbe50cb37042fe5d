"""What has been recorded of a way while it is being walked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.path import ONE, Branch, Kind, Way

if TYPE_CHECKING:
    from fractions import Fraction

    from agent.inspect.path import Outcome, Step


class _Level:
    """Steps, then branches; what comes after the branches is the next level."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.branches: list[Branch] = []
        self.remaining: Fraction = ONE
        self.kind = Kind.CHANCE


class Trail:
    """Records steps and forks in a line; jumps that came to nothing are left out."""

    def __init__(self) -> None:
        self._levels = [_Level()]
        self._pending: list[Step] = []

    def jump(self, step: Step) -> None:
        """A jump into a chain; it counts when something happens there."""
        self._pending.append(step)

    def returned(self) -> None:
        """Nothing (more) happened in the chain that was jumped into last."""
        if self._pending:
            self._pending.pop()

    def step(self, step: Step) -> None:
        """A rule did something."""
        self._open().steps.append(step)

    def fork(self, kind: Kind, chance: Fraction, condition: str, way: Way) -> None:
        """With a chance, or under a condition, it goes another way; the trail is the rest."""
        level = self._open() if self._pending else self._levels[-1]
        share = level.remaining * chance if kind is Kind.CHANCE else ONE
        level.branches.append(Branch(kind, share, condition, way))
        level.kind = kind
        if kind is Kind.CHANCE:
            level.remaining *= 1 - chance

    def finish(self, outcome: Outcome) -> Way:
        """The whole way, ending in an outcome."""
        level = self._levels[-1]
        if not level.branches:
            self._levels.pop()
            return self._fold(Way(tuple(level.steps), (), outcome))
        return self._fold(Way((), (), outcome))

    def join(self, way: Way) -> Way:
        """The whole way, going on as another one does."""
        level = self._levels[-1]
        if not level.branches and not level.steps:
            self._levels.pop()
            return self._fold(way)
        if level.branches:
            return self._fold(way)
        self._levels.pop()
        if way.branches or way.outcome is not None:
            joined = Way((*level.steps, *way.steps), way.branches, way.outcome)
            return self._fold(joined)
        return self._fold(way)

    def _open(self) -> _Level:
        """The level that steps are added to, with the jumps that led there."""
        if self._levels[-1].branches:
            self._levels.append(_Level())
        level = self._levels[-1]
        level.steps += self._pending
        self._pending.clear()
        return level

    def _fold(self, way: Way) -> Way:
        """Put the levels around what comes last."""
        while self._levels:
            level = self._levels.pop()
            rest = Branch(level.kind, level.remaining, "", way)
            way = Way(tuple(level.steps), (*level.branches, rest))
        return way
