"""Whether somebody else keeps writing what this agent writes.

One difference between the kernel and what it accepted is an accident, and repairing it is the
end of it. If looks at the kernel go on finding differences, each after a repair, another program
writes the same chains: a kube-proxy that was left running, or a second agent. No repair
ends that; somebody has to be told. Repairs go on meanwhile, at most one for each look, since
what the other one writes may be no Service at all.
"""

from __future__ import annotations

from collections import deque

#: So many of the latest looks have to find differences...
_DIFFERENT = 3
#: ...out of so many; and so many without any end it.
_LOOKS = 5


class Contest:
    """Counts looks at the kernel.

    Attributes:
        going_on: somebody else keeps writing.
    """

    def __init__(self) -> None:
        self.going_on = False
        self._looks: deque[bool] = deque(maxlen=_LOOKS)

    def looked(self, *, different: bool) -> bool:
        """One more look; tells whether ``going_on`` is another now."""
        self._looks.append(different)
        before = self.going_on
        if self.going_on:
            self.going_on = any(self._looks)
        else:
            self.going_on = sum(self._looks) >= _DIFFERENT
        return self.going_on is not before
