"""What the sweeper of UDP flows tells, as logs and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent import logs

if TYPE_CHECKING:
    from agent.serve.metrics import Metrics
    from agent.state.values import Family


class SweepReports:
    """A ``SweepObserver`` of ``agent.kernel.sweeper``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._log = logs.get()

    def swept(self, family: Family, seconds: float, deleted: int) -> None:
        """A sweep ended well."""
        self._metrics.sync.reconciled(family, seconds=seconds, deleted=deleted)
        if deleted:
            self._log.info("stale UDP flows deleted", family=family.value, flows=deleted)

    def sweep_failed(self, family: Family, error: Exception, retry: float) -> None:
        """A sweep failed."""
        self._log.warning(
            "UDP flows could not be swept", family=family.value, error=str(error), retry=retry
        )
