"""Whether somebody else keeps writing what this agent writes.

One difference between the kernel and what it accepted is an accident, and repairing it is the
end of it. If differences come back after each repair, another program writes the same chains: a
kube-proxy that was left running, or a second agent. No repair ends that; somebody has to be told.
Repairs go on meanwhile, at most one for each look, since what the other one writes may be no
Service at all.

Time decides, not how many looks found nothing in between. The other one may write as seldom as we
look, and right after a repair the agent looks several times within seconds.
"""

from __future__ import annotations

from collections import deque

#: So many looks have to find differences...
_DIFFERENT = 3
#: ...within so many periods between looks; and so many without any difference end it.
_PERIODS = 10


class Contest:
    """Counts looks at the kernel.

    Attributes:
        going_on: somebody else keeps writing.
    """

    def __init__(self, period: float) -> None:
        """Nobody does yet; ``period`` is what passes between looks, in seconds."""
        self.going_on = False
        self._window = _PERIODS * period
        self._differences: deque[float] = deque(maxlen=_DIFFERENT)

    def looked(self, now: float, *, different: bool) -> bool:
        """One more look, at a time in seconds; tells whether ``going_on`` is another now."""
        if different:
            self._differences.append(now)
        while self._differences and self._differences[0] < now - self._window:
            self._differences.popleft()
        before = self.going_on
        full = len(self._differences) == _DIFFERENT
        self.going_on = bool(self._differences) if before else full
        return self.going_on is not before
