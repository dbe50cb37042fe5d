"""Whether somebody else keeps writing what this agent writes.

One difference between the kernel and what it accepted is an accident, and repairing it is the
end of it. If differences come back after each repair, another program writes the same chains: a
kube-proxy that was left running, or a second agent. No repair ends that; somebody has to be told.
Repairs go on meanwhile, at most one for each look, since what the other one writes may be no
Service at all.

Neither looks nor time can be counted alone. The other one may write as seldom as we look, and
right after a repair the agent looks several times within seconds, and finds nothing. On a machine
that is too busy, looks come much later than they should.
"""

from __future__ import annotations

from collections import deque

#: So many looks have to find differences...
_DIFFERENT = 3
#: ...within so many periods between looks, or within so many looks, whichever is longer. So long
#: without any difference ends it.
_PERIODS, _LOOKS = 10, 5


class Contest:
    """Counts looks at the kernel.

    Attributes:
        going_on: somebody else keeps writing.
    """

    def __init__(self, period: float) -> None:
        """Nobody does yet; ``period`` is what passes between looks, in seconds."""
        self.going_on = False
        self._window = _PERIODS * period
        self._looks = 0
        self._differences: deque[tuple[float, int]] = deque(maxlen=_DIFFERENT)

    def looked(self, now: float, *, different: bool) -> bool:
        """One more look, at a time in seconds; tells whether ``going_on`` is another now."""
        self._looks += 1
        if different:
            self._differences.append((now, self._looks))
        while self._differences and self._is_old(*self._differences[0], now):
            self._differences.popleft()
        before = self.going_on
        full = len(self._differences) == _DIFFERENT
        self.going_on = bool(self._differences) if before else full
        return self.going_on is not before

    def _is_old(self, time: float, look: int, now: float) -> bool:
        return time < now - self._window and look <= self._looks - _LOOKS
