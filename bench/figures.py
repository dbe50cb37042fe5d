"""What was measured, what was asked for, and how both are shown."""

from __future__ import annotations

import datetime as dt
import os
import platform
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.scale import Scale


class Figure(msgspec.Struct, frozen=True):
    """One measured number.

    Attributes:
        name: what was measured.
        value: the number, in ``unit``.
        unit: of value and target; ``x`` for a ratio.
        target: what it is held against; None for a number that is only reported.
        least: it must be at least the target; else at most.
        note: what stands behind it, or how the target was adapted.
        details: raw numbers, for whoever wants to look closer.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    least: bool = False
    note: str = ""
    details: dict[str, Any] = {}

    @property
    def ratio(self) -> float | None:
        """Value over target: at most 1 is held; for ``least`` it is the target over the value."""
        if not self.target or not self.value:
            return None
        return self.target / self.value if self.least else self.value / self.target

    @property
    def verdict(self) -> str:
        """``held``, ``MISSED``, or nothing if there is no target."""
        if self.target is None:
            return ""
        held = self.value >= self.target if self.least else self.value <= self.target
        return "held" if held else "MISSED"


def settled(
    judge: Callable[[], Sequence[Figure]], more: Callable[[], object], times: int
) -> Sequence[Figure]:
    """Figures of what was measured; as long as one misses, more is measured, up to so many times.

    All samples count in the end. What is near its target on a noisy machine gets more of them,
    and what is far from it misses with all of them.
    """
    found = judge()
    for _ in range(times):
        if all(figure.verdict != "MISSED" for figure in found):
            break
        more()
        found = judge()
    return found


_COLUMNS = (64, 11, 12, 5, 6)


def head(out: TextIO) -> None:
    """Print the head of the table."""
    _row(out, "figure", "measured", "target", "ratio", "", "")


def show(figure: Figure, out: TextIO) -> None:
    """Print one line."""
    target = ""
    if figure.target is not None:
        target = f"{'>=' if figure.least else '<='} {_number(figure.target)} {figure.unit}".rstrip()
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    measured = f"{_number(figure.value)} {figure.unit}".rstrip()
    _row(out, figure.name, measured, target, ratio, figure.verdict, figure.note)


def _row(out: TextIO, *cells: str) -> None:
    padded = [
        cell.ljust(width) if not index else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, _COLUMNS, strict=False))
    ]
    out.write("  ".join([*padded, *cells[len(_COLUMNS) :]]).rstrip() + "\n")
    out.flush()


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def machine() -> dict[str, Any]:
    """What it was measured on."""
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def write(path: Path, figures: Sequence[Figure], scale: Scale, iptables: str) -> None:
    """Write everything as JSON."""
    document = {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"iptables": iptables},
        "scale": msgspec.to_builtins(scale),
        "figures": [
            msgspec.to_builtins(figure) | {"ratio": figure.ratio, "verdict": figure.verdict}
            for figure in figures
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
