"""``onenth top``: how connections are shared out, live."""

from __future__ import annotations

import fnmatch
import time
from typing import TYPE_CHECKING, Any

import msgspec

from agent.commands.sources import LookError, Options, chosen_tool, families_of
from agent.inspect.traffic import Established, Meter, Row, Sample, attribute, read_sample, rows
from agent.inspect.wrap import counted
from agent.kernel.connections import translated
from agent.kernel.dump import dump
from agent.kernel.errors import KernelError
from agent.kernel.tools import SubprocessRunner
from agent.sync.port import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner
    from agent.state.values import Family

#: Of the time, at most this part goes into reading the connection table.
_READING = 0.2

_ORDERS: dict[str, Callable[[Row], tuple[Any, ...]]] = {
    "rate": lambda row: (-row.per_second, -row.thrown, row.service),
    "established": lambda row: (-(row.established or 0), -row.per_second, row.service),
    "total": lambda row: (-row.thrown, row.service),
    "p": lambda row: (row.p is None, row.p or 0.0, row.service),
    "name": lambda row: (row.service, row.family, row.local),
}
ORDERS = tuple(_ORDERS)


class View(msgspec.Struct, frozen=True):
    """What to show.

    Attributes:
        interval: seconds between samples.
        order: one of ``ORDERS``.
        pattern: only service ports whose name it fits (with * and ?) or holds.
        connections: count established connections.
        since_start: count from the start of the command, not from when rules were written.
    """

    interval: float = 2.0
    order: str = "rate"
    pattern: str = ""
    connections: bool = True
    since_start: bool = False


class Screen(msgspec.Struct, frozen=True):
    """All rows at one moment.

    Attributes:
        backend: of iptables.
        seconds: between the last two samples; 0 if there was only one.
        rows: in their order.
        connections: whether established connections were counted, or why not.
    """

    backend: str
    seconds: float
    rows: tuple[Row, ...]
    connections: str = ""


class Watcher:
    """Samples a node's counters.

    Raises:
        LookError: they cannot be read.
        HostError: no iptables is installed, or this process may not ask.
    """

    def __init__(self, options: Options, view: View, runner: Runner | None = None) -> None:
        self._view = view
        self._runner = runner or SubprocessRunner()
        self._tool: Tool = chosen_tool(options, self._runner)
        self._families = families_of(options)
        self._meters = {
            family: Meter(since_written=not view.since_start) for family in self._families
        }
        self._at: float | None = None
        self._connections: dict[Family, Established] | None = None
        self._why_not = "" if view.connections else "not asked for"
        self._count_after = 0.0

    def look(self) -> Screen:
        """Take a sample, and show what there is.

        Raises:
            LookError: the counters cannot be read.
        """
        samples = {family: self._sample(family) for family in self._families}
        now = time.monotonic()
        seconds = now - self._at if self._at is not None else 0.0
        self._at = now
        if not self._why_not and now >= self._count_after:
            self._count(samples)
        found: list[Row] = []
        for family, sample in samples.items():
            meter = self._meters[family]
            meter.take(sample)
            counted = self._connections[family] if self._connections is not None else None
            found += rows(family.value, meter.totals, meter.latest, seconds, counted)
        return Screen(
            self._tool.backend.value,
            seconds,
            tuple(sorted(self._fitting(found), key=_ORDERS[self._view.order])),
            self._why_not,
        )

    def _sample(self, family: Family) -> Sample:
        try:
            return read_sample(dump(self._tool, family, self._runner, counters=True))
        except ReadError as error:
            raise LookError(f"the kernel's counters cannot be read: {error}") from error

    def _count(self, samples: dict[Family, Sample]) -> None:
        """Count established connections; a large table is not read at every look."""
        started = time.monotonic()
        try:
            self._connections = {
                family: attribute(translated(family), sample.portals)
                for family, sample in samples.items()
            }
        except KernelError as error:
            self._connections, self._why_not = None, str(error)
        took = time.monotonic() - started
        self._count_after = time.monotonic() + took * (1 / _READING - 1)

    def _fitting(self, found: Sequence[Row]) -> Iterator[Row]:
        pattern = self._view.pattern
        for row in found:
            fits = fnmatch.fnmatchcase(row.service, pattern)
            if not pattern or fits or pattern in row.service:
                yield row


def verdict(row: Row) -> str:
    """Whether a split is chance, in a word or two."""
    if row.fair is None:
        return "too few" if len(row.endpoints) > 1 else ""
    return "chance" if row.fair else "NOT chance"


def lines(screen: Screen, *, endpoints: bool, limit: int = 0) -> Iterator[tuple[str, str]]:
    """The screen as lines of at most 80 columns, each with a style of rich.

    Args:
        screen: what to show.
        endpoints: also one by one.
        limit: lines at most, 0 for all.
    """
    yield f"{'SERVICE':<38} {'NEW/S':>7} {'TOTAL':>8} {'EST':>6} {'p':>6} {'SPLIT':>10}", "bold"
    shown = 1
    for row in screen.rows:
        for line in _row(row, endpoints=endpoints):
            if limit and shown >= limit - 1:
                yield f"... {counted(len(screen.rows), 'lottery', 'lotteries')} in all", "dim"
                return
            yield line
            shown += 1
    if not screen.rows:
        yield "no Service has endpoints here", "dim"
    if screen.connections:
        yield f"no established connections: {screen.connections}"[:80], "dim"


def _row(row: Row, *, endpoints: bool) -> Iterator[tuple[str, str]]:
    marks = [mark for mark, on in (("local", row.local), ("v6", row.family == "IPv6")) if on]
    name = _fit(f"{row.service} ({', '.join(marks)})" if marks else row.service, 38)
    p = "" if row.p is None else f"{row.p:.4f}" if row.p >= 0.0001 else "<.0001"
    numbers = f"{row.per_second:>7.1f} {row.thrown:>8} {_number(row.established):>6} {p:>6}"
    style = "red" if row.fair is False else ""
    yield f"{name:<38} {numbers} {verdict(row):>10}", style
    if not endpoints:
        return
    for one in row.endpoints:
        share = "" if one.share is None else f"{one.share:.1%}"
        name = _fit(f"  {one.endpoint}", 38)
        numbers = f"{one.per_second:>7.1f} {one.thrown:>8} {_number(one.established):>6} {share:>6}"
        yield f"{name:<38} {numbers} {row.expected:>10}", "dim"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _fit(text: str, width: int) -> str:
    """Text of a width; what is too long loses its middle, where names differ least."""
    if len(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{text[:half]}…{text[len(text) - (width - 1 - half) :]}"


def as_json(screen: Screen) -> dict[str, Any]:
    """Plain values, for ``-o json``."""
    plain: dict[str, Any] = msgspec.to_builtins(screen)
    return plain


def once(watcher: Watcher, view: View, sleep: Callable[[float], None] = time.sleep) -> Screen:
    """Two samples, an interval apart: a rate takes two.

    Raises:
        LookError: the counters cannot be read.
    """
    watcher.look()
    sleep(view.interval)
    return watcher.look()
