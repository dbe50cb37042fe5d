"""Deletes stale UDP entries after rules were accepted, on a thread of its own.

The sync thread hands over what flows should be now (``UdpTable``) and goes on at once. Only the
latest table of each family counts: one that waits is replaced by a newer one. Just before
entries are deleted, it is asked again whether the table that called them stale is still the
latest; if it is not, the newer table will decide. Entries are read as a stream and deleted in
small lots, so memory stays small, and a sweep that fails is tried again, later each time. After
a lot the thread rests for as long as the lot took: deleting is Python's work, half a millisecond
an entry, and a sync that is due meanwhile needs the interpreter as well.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from agent.kernel import conntrack
from agent.kernel.errors import KernelError
from agent.state.flows import UdpFlow

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kernel.conntrack import Flow
    from agent.state.flows import UdpTable
    from agent.state.values import Family

_LOT = 256
_FIRST_RETRY = 1.0
_LONGEST_RETRY = 60.0


class SweepObserver(Protocol):
    """Who wants to know; called from the sweeper's thread."""

    def swept(self, family: Family, seconds: float, deleted: int) -> None:
        """A sweep ended well."""

    def sweep_failed(self, family: Family, error: KernelError, retry: float) -> None:
        """A sweep failed, and is tried again in so many seconds."""


class FlowSweeper:
    """Sweeps the conntrack table of the network namespace that it was started in."""

    def __init__(self, observer: SweepObserver, died: Callable[[BaseException], None]) -> None:
        """Nothing happens before ``start``.

        Args:
            observer: told of each sweep.
            died: told of an error that ended the thread.
        """
        self._observer = observer
        self._died = died
        self._changed = threading.Condition()
        self._tables: dict[Family, UdpTable] = {}
        self._due: dict[Family, float] = {}
        self._retries: dict[Family, float] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sweep-flows", daemon=True)

    def start(self) -> None:
        """Start the thread, in the caller's network namespace."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a lot that is being deleted is deleted first."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def offer(self, family: Family, table: UdpTable) -> None:
        """Take over what flows should be from now on; returns at once."""
        with self._changed:
            self._tables[family] = table
            self._due[family] = time.monotonic()
            self._retries.pop(family, None)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (family := self._wait()) is not None:
                self._sweep_once(family, self._tables[family])
        except BaseException as error:  # a thread must not die unseen
            self._died(error)
            raise

    def _wait(self) -> Family | None:
        """The next family that is due; None at the end."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                family = min(self._due, key=self._due.__getitem__, default=None)
                if family is not None and self._due[family] <= now:
                    del self._due[family]
                    return family
                self._changed.wait(self._due[family] - now if family is not None else None)
        return None

    def _sweep_once(self, family: Family, table: UdpTable) -> None:
        started = time.monotonic()
        try:
            deleted = self._sweep(family, table)
        except KernelError as error:
            retry = min(self._retries.get(family, _FIRST_RETRY / 2) * 2, _LONGEST_RETRY)
            with self._changed:
                self._retries[family] = retry
                self._due.setdefault(family, time.monotonic() + retry)
            self._observer.sweep_failed(family, error, retry)
        else:
            self._observer.swept(family, time.monotonic() - started, deleted)

    def _sweep(self, family: Family, table: UdpTable) -> int:
        """Delete what is stale by this table, for as long as it is the latest."""
        if not table:
            return 0
        deleted = 0
        lot: list[Flow] = []
        for flow in conntrack.udp_flows(family):
            if table.is_stale(_as_state(flow)):
                lot.append(flow)
            if len(lot) >= _LOT:
                deleted += self._delete(family, table, lot)
                lot.clear()
            if not self._is_latest(family, table):
                return deleted
        return deleted + self._delete(family, table, lot)

    def _delete(self, family: Family, table: UdpTable, lot: list[Flow]) -> int:
        if not lot or not self._is_latest(family, table):
            return 0
        from agent.kernel import deletion  # noqa: PLC0415  it brings all of pyroute2 with it

        started = time.monotonic()
        deleted = deletion.delete(lot)
        if len(lot) == _LOT:
            self._rest(time.monotonic() - started)
        return deleted

    def _rest(self, seconds: float) -> None:
        """Wait; the end and a newer table cut it short."""
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)

    def _is_latest(self, family: Family, table: UdpTable) -> bool:
        return self._tables.get(family) is table and not self._stopping


def _as_state(flow: Flow) -> UdpFlow:
    return UdpFlow(
        destination=(flow.orig_dst, flow.orig_dport),
        answered_by=(flow.reply_src, flow.reply_sport),
    )
