"""How a packet finds its service port: the chains that hold every service port's portals.

Two layouts. ``FlatDispatch`` is kube-proxy's: one rule after the other in KUBE-SERVICES and its
siblings; a new flow that is for no Service pays for a walk through all of them. ``TreeDispatch``
hangs the same rules below branches by destination (``agent.rules.radix``), so that it pays for a
few. Rules of different service ports match different packets, so their order has no meaning;
it is that of their owners, so that the same cluster gives the same text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agent.cluster.objects import Key
from agent.rules import names
from agent.rules.radix import ROOT, Branch, Entry, Radix
from agent.rules.service import Place, Portal

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A service port among all others: Service, port name, protocol.
Owner = tuple[Key, str, str]
#: A chain of a table.
ChainId = tuple[str, str]
OwnedRules = list[tuple["Owner | None", str]]


class Dispatch(ABC):
    """The portals of all service ports of one family, in some layout."""

    @abstractmethod
    def put(self, owner: Owner, portals: Iterable[Portal]) -> None:
        """Replace the portals of one service port; none removes it."""

    @abstractmethod
    def take_changes(self) -> tuple[set[ChainId], set[ChainId]]:
        """Chains that changed, and chains that are gone, since this was last called."""

    @abstractmethod
    def rules(self, chain: ChainId) -> OwnedRules:
        """A chain's rules with their owners; jumps to branches have none."""

    @abstractmethod
    def chains(self) -> Iterable[ChainId]:
        """All chains of the layout."""

    @abstractmethod
    def branches(self, table: str) -> Iterable[str]:
        """The chains of a table that hang below a dispatch chain, each behind those below it."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Number of rules in a table."""


class FlatDispatch(Dispatch):
    """kube-proxy's layout."""

    def __init__(self) -> None:
        self._texts: dict[Place, dict[Owner, tuple[str, ...]]] = {place: {} for place in Place}
        self._changed: set[Place] = set(Place)
        self._counts = dict.fromkeys(("nat", "filter"), 0)

    def put(self, owner: Owner, portals: Iterable[Portal]) -> None:
        """Replace the portals of one service port; none removes it."""
        texts: dict[Place, list[str]] = {}
        for portal in portals:
            texts.setdefault(portal.place, []).append(portal.text)
        for place, known in self._texts.items():
            before = known.pop(owner, ())
            after = tuple(texts.get(place, ()))
            if after:
                known[owner] = after
            if before != after:
                self._changed.add(place)
                self._counts[place.value[0]] += len(after) - len(before)

    def take_changes(self) -> tuple[set[ChainId], set[ChainId]]:
        """Chains that changed since this was last called; none ever goes."""
        changed = {place.value for place in self._changed}
        self._changed.clear()
        return changed, set()

    def rules(self, chain: ChainId) -> OwnedRules:
        """The chain's rules with their owners, in the order of the owners."""
        known = self._texts[Place(chain)]
        return [(owner, text) for owner in sorted(known) for text in known[owner]]

    def chains(self) -> Iterable[ChainId]:
        """The dispatch chains."""
        return [place.value for place in Place]

    def branches(self, table: str) -> Iterable[str]:
        """None."""
        del table
        return ()

    def count(self, table: str) -> int:
        """Number of rules in a table."""
        return self._counts[table]


class TreeDispatch(Dispatch):
    """The same rules below branches by destination prefix and by ranges of ports."""

    def __init__(self, address_bits: int) -> None:
        """Begin empty; ``address_bits`` is 32 or 128."""
        self._trees = {place: _Trees(place, address_bits) for place in Place}
        self._entries: dict[Owner, list[tuple[Radix, Entry]]] = {}
        self._changed: set[ChainId] = {place.value for place in Place}
        self._gone: set[ChainId] = set()
        self._flushed = True

    def put(self, owner: Owner, portals: Iterable[Portal]) -> None:
        """Replace the portals of one service port; none removes it."""
        before = self._entries.pop(owner, [])
        after: list[tuple[Radix, Entry]] = []
        for position, portal in enumerate(portals):
            radix = self._trees[portal.place].radix(portal)
            key = radix.key(portal.address, portal.protocol, portal.port)
            after.append((radix, Entry(key, owner, position, portal.text)))
        for radix, entry in before:
            if (radix, entry) not in after:
                radix.remove(entry)
                self._flushed = False
        for radix, entry in after:
            if (radix, entry) not in before:
                radix.add(entry)
                self._flushed = False
        if after:
            self._entries[owner] = after

    def take_changes(self) -> tuple[set[ChainId], set[ChainId]]:
        """Chains that changed, and chains that are gone, since this was last called."""
        self._flush()
        changed, gone = self._changed, self._gone
        self._changed, self._gone = set(), set()
        return changed, gone

    def rules(self, chain: ChainId) -> OwnedRules:
        """A chain's rules with their owners; jumps to branches have none."""
        self._flush()
        for trees in self._trees.values():
            found = trees.rules(chain)
            if found is not None:
                return found
        raise KeyError(chain)

    def chains(self) -> Iterable[ChainId]:
        """The dispatch chains and all branches."""
        self._flush()
        return [chain for trees in self._trees.values() for chain in trees.chains()]

    def branches(self, table: str) -> Iterable[str]:
        """The branches in a table, each behind those below it."""
        self._flush()
        mine = [trees for place, trees in self._trees.items() if place.value[0] == table]
        return [name for trees in mine for name in trees.branches()]

    def count(self, table: str) -> int:
        """Number of rules in a table, jumps to branches included."""
        self._flush()
        mine = [trees for place, trees in self._trees.items() if place.table == table]
        return sum(trees.count() for trees in mine)

    def _flush(self) -> None:
        if self._flushed:
            return
        self._flushed = True
        for trees in self._trees.values():
            changed, gone = trees.flush()
            self._changed = (self._changed - gone) | changed
            self._gone = (self._gone - changed) | gone


class _Trees:
    """What hangs below one dispatch chain: rules with an address, and rules without."""

    def __init__(self, place: Place, address_bits: int) -> None:
        self._table, self._root = place.value
        self._by_address = Radix(address_bits, self._namer("address"))
        self._by_port = Radix(0, self._namer("port"))
        self._branches: dict[str, tuple[Radix, Branch]] = {}

    def radix(self, portal: Portal) -> Radix:
        """Where a portal belongs."""
        return self._by_address if portal.address else self._by_port

    def _namer(self, what: str) -> _Namer:
        return _Namer(f"{self._table}/{self._root}", what)

    def flush(self) -> tuple[set[ChainId], set[ChainId]]:
        changed: set[ChainId] = set()
        gone: set[ChainId] = set()
        for radix, what in ((self._by_address, "address"), (self._by_port, "port")):
            name = self._namer(what)
            now, left = radix.flush()
            for branch in left:
                chain = name(branch)
                del self._branches[chain]
                gone.add((self._table, chain))
            for branch in now:
                chain = self._root if branch == ROOT else name(branch)
                changed.add((self._table, chain))
                if branch != ROOT:
                    self._branches[chain] = (radix, branch)
        return changed, gone

    def rules(self, chain: ChainId) -> OwnedRules | None:
        """The rules of a chain, if it is one of these."""
        table, name = chain
        if table != self._table:
            return None
        if name == self._root:
            return [*self._by_address.chains[ROOT], *self._by_port.chains[ROOT]]
        found = self._branches.get(name)
        return None if found is None else list(found[0].chains[found[1]])

    def chains(self) -> list[ChainId]:
        return [(self._table, self._root), *((self._table, name) for name in self._branches)]

    def branches(self) -> list[str]:
        return sorted(self._branches, key=lambda name: self._branches[name][1], reverse=True)

    def count(self) -> int:
        return self._by_address.count + self._by_port.count


class _Namer:
    """Names the chains of branches."""

    def __init__(self, root: str, what: str) -> None:
        self._root, self._what = root, what

    def __call__(self, branch: Branch) -> str:
        return names.tree_chain(self._root, f"{self._what} {branch.value:x}/{branch.bits}")
