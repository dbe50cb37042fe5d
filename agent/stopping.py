"""How a signal ends the daemon: after the restore that is running, whatever else is left to do."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from agent.sync.port import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.sync.port import Kernel


class Stop:
    """A signal that asks the process to end; on the queue it ends the loop.

    A signal handler runs between any two steps of the main thread, which may hold a lock then:
    so nothing is logged in it, and nothing but the queue, which is made for that, is touched.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def catch(self, put: Callable[[Stop], None]) -> None:
        """Catch the signals from now on."""

        def handle(number: int, _: object) -> None:
            self.signal = signal.Signals(number)
            put(self)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)


class StoppedError(Exception):
    """A signal came in the middle of a sync; what has been accepted stays."""


class Interruptible(Wrapped):
    """A kernel that begins nothing more once a signal has come.

    A sync can be a hundred transactions, and each may wait for the lock. Between any two of
    them every packet meets complete Services (``agent.sync.plan``), so the agent may end there.
    """

    def __init__(self, kernel: Kernel, stop: Stop) -> None:
        super().__init__(kernel)
        self._stop = stop

    def restore(self, text: str) -> None:
        """Apply restore input, unless a signal has come."""
        self._ask()
        super().restore(text)

    def save(self, table: str) -> str:
        """Read a table, unless a signal has come."""
        self._ask()
        return super().save(table)

    def chain(self, table: str, chain: str) -> list[str] | None:
        """Read a chain, unless a signal has come."""
        self._ask()
        return super().chain(table, chain)

    def _ask(self) -> None:
        if self._stop.signal is not None:
            raise StoppedError
