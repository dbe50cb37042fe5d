"""Durations as Go writes them, which is how Kubernetes' files and flags have them."""

from __future__ import annotations

import re

from agent.config.errors import BadValueError

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # the micro sign
    "\u03bcs": 10**3,  # the Greek letter
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION_PART = re.compile(
    rf"(?=\.?[0-9])([0-9]{{0,19}})(?:\.([0-9]{{0,19}}))?({'|'.join(_NANOSECONDS)})"
)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
#: Go keeps a duration as 64 bits of nanoseconds: about 292 years.
_LONGEST = 2**63 - 1


def parse_duration(text: str) -> float:
    """Seconds of a duration in Go's notation, such as ``1m30s``, ``500ms`` or ``0``.

    Raises:
        BadValueError: it is not one, it is negative, or it is longer than Go can hold.
    """
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise BadValueError(f'{text!r} is not a duration such as "30s", "1m30s" or "500ms"')
    total = 0
    for whole, fraction, unit in _DURATION_PART.findall(text):
        total += int(whole or 0) * _NANOSECONDS[unit]
        if fraction:
            total += int(fraction) * _NANOSECONDS[unit] // 10 ** len(fraction)
    if total > _LONGEST:
        raise BadValueError(f"{text!r} is longer than 292 years")
    return total / 10**9


def format_duration(seconds: float) -> str:
    """A duration as Go prints it: ``24h0m0s``, ``1.5s``, ``20ms``, ``0s``."""
    nanoseconds = round(seconds * 10**9)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < 10**9:
        unit = next(unit for unit in ("ms", "us", "ns") if nanoseconds >= _NANOSECONDS[unit])
        return _decimal(nanoseconds, _NANOSECONDS[unit]) + unit
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, 10**9) + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def _decimal(value: int, unit: int) -> str:
    """``value / unit`` without trailing zeros, exactly."""
    whole, rest = divmod(value, unit)
    fraction = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
