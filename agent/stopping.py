"""How a signal ends the daemon: after the restore that is running, whatever else is left to do."""

from __future__ import annotations

import enum
import os
import signal
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agent.kernel.privileges import reduce
from agent.sync.port import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.sync.port import Kernel


SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Ask(enum.Enum):
    """What signals ask for that do not end the agent."""

    CONFIG = "look at the configuration file"
    STATUS = "log the status"


class Stop:
    """A signal that asks the process to end; on the queue it ends the loop.

    Python runs signal handlers in the main thread, between two of its steps. A signal that
    comes just before that thread begins to wait for the queue is therefore seen only when the
    wait is over, which can take a whole syncPeriod; and a handler that logs, while the thread
    it interrupts holds the log's lock, waits for ever. So the handler here does nothing. The
    interpreter writes each signal's number into a pipe, at once, and a thread reads it.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def catch(
        self,
        put: Callable[[Any], None],
        others: Mapping[signal.Signals, object] = MappingProxyType({}),
    ) -> None:
        """Catch the signals from now on, in the main thread; ``put`` is called from another.

        ``others`` are signals that end nothing, with what is put when they come.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writing, False)  # a full pipe has told enough
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        thread = threading.Thread(
            target=self._read, args=(reading, put, others), name="signals", daemon=True
        )
        thread.start()
        for number in SIGNALS.union(others):
            signal.signal(number, lambda _number, _frame: None)

    def _read(
        self, pipe: int, put: Callable[[Any], None], others: Mapping[signal.Signals, object]
    ) -> None:
        reduce(())  # this thread is there before the others give up rights, and needs none
        while received := os.read(pipe, 1):
            number = signal.Signals(received[0])
            if number in others:
                put(others[number])
            elif number in SIGNALS:
                self.signal = number
                put(self)


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
