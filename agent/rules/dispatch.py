"""How a packet finds its service port: the chains that hold every service port's portals.

The flat layout is kube-proxy's: one rule after the other in KUBE-SERVICES and its siblings.
Rules of different service ports match different destinations, so their order has no meaning;
they are kept in the order of their owners, so that the same cluster gives the same text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cluster.objects import Key
from agent.rules.service import Place, Portal

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A service port among all others: Service, port name, protocol.
Owner = tuple[Key, str, str]


class Dispatch:
    """The portals of all service ports of one family, in the flat layout."""

    def __init__(self) -> None:
        self._texts: dict[Place, dict[Owner, tuple[str, ...]]] = {place: {} for place in Place}

    def set(self, owner: Owner, portals: Iterable[Portal]) -> None:
        """Replace the portals of one service port; none removes it."""
        texts: dict[Place, list[str]] = {}
        for portal in portals:
            texts.setdefault(portal.place, []).append(portal.text)
        for place, known in self._texts.items():
            if place in texts:
                known[owner] = tuple(texts[place])
            else:
                known.pop(owner, None)

    def rules(self, place: Place) -> list[tuple[Owner, str]]:
        """The chain's rules with their owners, in the order of the owners."""
        known = self._texts[place]
        return [(owner, text) for owner in sorted(known) for text in known[owner]]

    def count(self, place: Place) -> int:
        """Number of rules in the chain."""
        return sum(map(len, self._texts[place].values()))
