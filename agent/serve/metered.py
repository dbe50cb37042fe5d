"""How long restores take, and what comes of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.sync.port import Wrapped

if TYPE_CHECKING:
    from agent.serve.metrics import Metrics
    from agent.state.values import Family
    from agent.sync.port import Kernel


class MeteredKernel(Wrapped):
    """A kernel whose restores are measured."""

    def __init__(self, kernel: Kernel, family: Family, metrics: Metrics) -> None:
        super().__init__(kernel)
        self._family = family
        self._metrics = metrics

    def restore(self, text: str) -> None:
        """Pass on, and measure."""
        started = time.monotonic()
        accepted = False
        try:
            super().restore(text)
            accepted = True
        finally:
            seconds = time.monotonic() - started
            self._metrics.sync.restored(
                self._family, accepted=accepted, size=len(text), seconds=seconds
            )
