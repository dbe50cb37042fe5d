"""Why each family's next sync will run, in words: for its log line and for ``/statusz``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.state.values import Family


class Reasons:
    """Notes what happens, and hands it over when a sync has run. Owned by the sync's thread."""

    def __init__(self, families: Collection[Family]) -> None:
        self._noted: dict[Family, Counter[str]] = {family: Counter() for family in families}
        self._latest: dict[Family, tuple[str, ...]] = {}

    def note(self, reason: str, family: Family | None = None) -> None:
        """Something that a sync of the family, or of all, is for."""
        for one in self._noted if family is None else (family,):
            self._noted[one][reason] += 1

    def take(self, family: Family, *, full: bool) -> tuple[str, ...]:
        """What the sync that has just run was for, the most frequent first."""
        noted = self._noted[family]
        found = [
            f"{reason} ({count})" if count > 1 else reason for reason, count in noted.most_common()
        ]
        noted.clear()
        if not found:
            found = ["it was time for a full sync" if full else "what had to wait was due"]
        self._latest[family] = tuple(found)
        return self._latest[family]

    def latest(self, family: Family) -> tuple[str, ...]:
        """What was taken last."""
        return self._latest.get(family, ())
