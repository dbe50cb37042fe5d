"""Did you mean ...?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def closest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word that a misspelt one most resembles, whatever its case, or None."""
    import difflib  # noqa: PLC0415  costs 1 MB of memory, and only a mistake needs it

    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[close[0]] if close else None


def closest_key(path: str, known: Iterable[str]) -> str | None:
    """The key that a wrong one stands for: the same name in another section, or a likely slip."""
    by_name: dict[str, str] = {}
    keys = list(known)
    for key in keys:
        by_name.setdefault(_last(key), key)
    if same_name := by_name.get(_last(path)):
        return same_name
    if whole := closest(path, keys, 0.75):
        return whole
    name = closest(_last(path), by_name, 0.75)
    return by_name[name] if name else None


def _last(path: str) -> str:
    """The part after the last dot, in lower case."""
    return path.lower().rpartition(".")[2]
