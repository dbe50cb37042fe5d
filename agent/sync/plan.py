"""What to send, so that the kernel holds what it should: transactions, in a safe order.

Safety model. A packet must meet a complete Service or none, at every instant:

- A Service's own chains are always written together, in one atomic block. They may be written
  before anything jumps to them, or be rewritten under a jump that stays valid.
- The shared chains (dispatch, mark, masquerade, forward) are switched over in one block per
  table, after all chains that they jump to exist.
- What is no longer used is deleted last, when nothing jumps to it.
- Refusals in the filter table and rules in the nat table belong together. Where translation
  goes, refusals are exchanged in a filter block in front of nat, and where it comes, in one
  behind nat; where it stays, new refusals go in front and old ones are lifted behind. So a
  packet is treated as before or as after, and never leaves the node untranslated in between.

The planner keeps what the kernel accepted last (``Accepted``) and nothing else; a plan that
failed is thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Key
from agent.rules import names
from agent.rules.dispatch import ChainId
from agent.rules.parse import canonical, parse_rule
from agent.rules.ruleset import ServiceChains, own_chains
from agent.rules.service import Place
from agent.rules.static import (
    BASE_CHAINS,
    CANARY_TABLES,
    JUMPS,
    KUBELET_JUMPS,
    LAST_RULE,
    BaseJump,
    needs_localnet_guard,
    static_chains,
)
from agent.sync.transaction import Block, Line, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.rules.dispatch import OwnedRules, Owner
    from agent.rules.ruleset import RuleSet

#: A chain with more rules than this is edited rule by rule if few of them change.
EDIT_FROM = 64
_MOST_EDITS = 32


class Accepted(msgspec.Struct):
    """What the kernel accepted last, in one family.

    Attributes:
        services: chains and portals of each Service.
        shared: rules of each shared chain.
        stale: chains that nothing jumps to any more and that are still there.
    """

    services: dict[Key, ServiceChains] = {}
    shared: dict[ChainId, tuple[str, ...]] = {}
    stale: set[ChainId] = set()


class KernelView(msgspec.Struct, frozen=True):
    """What a full sync must know of the kernel before it writes.

    Attributes:
        chains: the chains of ours that exist, apart from the base chains.
        filters: rules of the filter table's chains, as the kernel words them.
        missing_jumps: those of our jumps that are not in the built-in chains.
        canary: the canary of the mangle table exists.
    """

    chains: frozenset[ChainId]
    filters: dict[str, list[str]]
    missing_jumps: tuple[BaseJump, ...]
    canary: bool = False


class Switch(msgspec.Struct):
    """A transaction over shared chains, and what it leaves in them.

    Attributes:
        transaction: what to send.
        shared: rules of each chain that it writes, in the order in which they then stand.
    """

    transaction: Transaction
    shared: dict[ChainId, tuple[str, ...]] = {}


class Planner:
    """Makes transactions from a rule set and what was accepted last."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.accepted = Accepted()
        self._changed: set[ChainId] = set()
        self._gone: set[ChainId] = set()

    def jumps(self) -> tuple[BaseJump, ...]:
        """The jumps that must be in the built-in chains, in order of insertion."""
        return JUMPS + (KUBELET_JUMPS if needs_localnet_guard(self.rules.node) else ())

    # Services' own chains ----------------------------------------------------------------

    def own(self, services: Iterable[Key], *, rewrite: bool) -> tuple[Block, set[ChainId]]:
        """Write the chains of some Services.

        Args:
            services: which.
            rewrite: write chains that the kernel has accepted, too.

        Returns:
            A nat block, and the chains that these Services have no longer.
        """
        block, gone = Block("nat"), set[ChainId]()
        for key in services:
            wanted = own_chains(self.rules.services.get(key, {}))
            held = own_chains(self.accepted.services.get(key, {}))
            for chain, texts in wanted.items():
                if rewrite or held.get(chain) != texts:
                    block.write(chain, texts, key)
            gone.update(("nat", chain) for chain in held.keys() - wanted.keys())
        return block, gone

    def foundation(self) -> Transaction:
        """Write the nat chains that Services' own chains jump to, and nothing else."""
        block = Block("nat")
        for (table, chain), rules in static_chains(self.rules.node).items():
            if table == "nat":
                block.write(chain, [rule.text() for rule in rules])
        return Transaction([block])

    # Shared chains -----------------------------------------------------------------------

    def switch(self, services: Iterable[Key], own: Block, *, view: KernelView | None) -> Switch:
        """Switch the shared chains over.

        Args:
            services: those that may have changed since the last accepted state.
            own: nat chains to write in the same block; may be empty.
            view: the kernel's state for a full sync, which writes everything; None for a
                partial one, which writes what has changed since the last accepted state.
        """
        self._take_changes()
        filters = _Filter(*self._timing(services))
        nat = Block("nat", dict(own.chains), list(own.lines))
        switch = Switch(Transaction([]))
        for chain in sorted(self._changed if view is None else self.rules.shared_ids()):
            rules = self.rules.shared(chain)
            held = self.accepted.shared.get(chain)
            if chain[0] == "nat":
                switch.shared[chain] = _write(nat, chain[1], rules, None if view else held)
            else:
                known = held or () if view is None else _as_ours(view, chain[1], rules)
                held = held if view is None else None
                switch.shared[chain] = filters.write(chain[1], rules, held, known)
        blocks = [filters.before, nat, filters.after]
        if view is not None:
            blocks = [self._base(filters.before, nat, view), *blocks]
        switch.transaction.blocks = [block for block in blocks if block]
        return switch

    def _timing(self, services: Iterable[Key]) -> tuple[set[str], set[str]]:
        """Refusals that must not come before nat, and those that must not outlast it."""
        late: set[str] = set()
        early: set[str] = set()
        for key in services:
            held = _by_destination(self.accepted.services.get(key, {}))
            wanted = _by_destination(self.rules.services.get(key, {}))
            for destination in held.keys() | wanted.keys():
                before = held.get(destination, _Destination())
                after = wanted.get(destination, _Destination())
                if after.translated and not before.translated:
                    late |= after.refusals
                if before.translated and not after.translated:
                    early |= before.refusals
        return late, early

    def gone(self) -> set[ChainId]:
        """Shared chains that the layout has no longer."""
        self._take_changes()
        return set(self._gone)

    def _take_changes(self) -> None:
        changed, gone = self.rules.take_changes()
        self._changed = (self._changed - gone) | changed
        self._gone = (self._gone - changed) | gone

    def _base(self, before: Block, nat: Block, view: KernelView) -> Block:
        """Add what only a full sync writes: base chains, canaries and missing jumps."""
        by_table = {"filter": before, "nat": nat, "mangle": Block("mangle")}
        for table, chains in BASE_CHAINS.items():
            for chain in chains:
                by_table[table].chains.setdefault(chain, None)
        for table in CANARY_TABLES:
            if table != "mangle" or not view.canary:  # what changes nothing is not sent
                by_table[table].chains[names.CANARY] = None
        for jump in view.missing_jumps:
            by_table[jump.table].lines.append(Line(f"-I {jump.source} {jump.rule.text()}"))
        return by_table["mangle"]

    # After acceptance --------------------------------------------------------------------

    def commit(self, services: Iterable[Key], switch: Switch, gone: set[ChainId]) -> None:
        """Remember that these Services, and the shared chains written, are in the kernel.

        ``gone`` are chains that nothing jumps to any more and that are still there.
        """
        for key in services:
            if key in self.rules.services:
                self.accepted.services[key] = self.rules.services[key]
            else:
                self.accepted.services.pop(key, None)
        self.accepted.shared.update(switch.shared)
        for chain in self._gone:
            self.accepted.shared.pop(chain, None)
        self.accepted.stale = (self.accepted.stale | gone) - self._in_use(services)
        self._changed, self._gone = set(), set()

    def _in_use(self, services: Iterable[Key]) -> set[ChainId]:
        own = {
            ("nat", chain)
            for key in services
            for chain in own_chains(self.rules.services.get(key, {}))
        }
        return own | {chain for chain in self.accepted.stale if chain in self.accepted.shared}

    # Deleting ----------------------------------------------------------------------------

    def deletions(self, chains: Iterable[ChainId]) -> Transaction:
        """Delete chains that nothing jumps to."""
        transaction = Transaction([])
        self.append_deletions(transaction, chains)
        return transaction

    def append_deletions(self, transaction: Transaction, chains: Iterable[ChainId]) -> None:
        """Delete chains behind everything else that the transaction does in their tables."""
        for table, chain in sorted(chains):
            blocks = [block for block in transaction.blocks if block.table == table]
            if not blocks:
                blocks = [Block(table)]
                transaction.blocks += blocks
            blocks[-1].delete(chain)


def _write(
    block: Block, chain: str, rules: OwnedRules, held: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Bring a chain from what it held (None: unknown) to these rules; returns what it will hold."""
    texts = tuple(text for _, text in rules)
    if texts == held:
        return texts
    edits = _edits(texts, held)
    if edits is None or held is None:
        _fill(block, chain, rules)
        return texts
    added, removed = edits
    owners = {text: owner for owner, text in rules}
    block.lines += [Line(f"-D {chain} {text}") for text in removed]
    block.lines += [Line(f"-I {chain} {text}", _service(owners[text])) for text in added]
    return (*reversed(added), *(text for text in held if text not in removed))


def _edits(
    texts: tuple[str, ...], held: tuple[str, ...] | None
) -> tuple[list[str], list[str]] | None:
    """Rules to insert at the front and to delete, if that is less than writing the chain.

    Rules of service ports have no order among them; what stays last is never inserted.
    """
    if held is None or len(held) <= EDIT_FROM:
        return None
    wanted, present = set(texts), set(held)
    added = [text for text in texts if text not in present]
    removed = [text for text in held if text not in wanted]
    if len(added) + len(removed) > _MOST_EDITS or len(present) != len(held):
        return None
    return None if any(LAST_RULE in text for text in (*added, *removed)) else (added, removed)


class _Filter:
    """The filter table's blocks: what is new comes before nat, and what is lifted after it."""

    def __init__(self, late: set[str], early: set[str]) -> None:
        self.before, self.after = Block("filter"), Block("filter")
        self._late, self._early = late, early

    def write(
        self, chain: str, rules: OwnedRules, held: tuple[str, ...] | None, known: Iterable[str]
    ) -> tuple[str, ...]:
        """Bring a chain to these rules.

        Args:
            chain: which.
            rules: what it should hold.
            held: what it holds, if nothing but what is different needs to be written.
            known: the rules that are in it.

        Returns:
            What it will hold.
        """
        known = tuple(known)
        wanted = {text for _, text in rules}
        held_back = self._late.difference(known)
        outlasting = [text for text in known if text not in wanted and text not in self._early]
        first: OwnedRules = [rule for rule in rules if rule[1] not in held_back]
        first += [(None, text) for text in outlasting]
        present = held
        if held is None or {text for _, text in first} != set(known):
            present = _write(self.before, chain, first, present)
        if outlasting or not wanted.isdisjoint(held_back):
            present = _write(self.after, chain, rules, present)
        return tuple(text for _, text in rules) if present is None else present


def _as_ours(view: KernelView, chain: str, rules: OwnedRules) -> list[str]:
    """Rules that the kernel holds, in our words where we write the same rule."""
    ours = {canonical(parse_rule(text)): text for _, text in rules}
    return [ours.get(canonical(parse_rule(text)), text) for text in view.filters.get(chain, ())]


class _Destination(msgspec.Struct):
    """What happens to packets for one address and port: nat rules, and filter rules."""

    translated: bool = False
    refusals: set[str] = set()


def _by_destination(chains: ServiceChains) -> dict[tuple[str, str, int], _Destination]:
    found: dict[tuple[str, str, int], _Destination] = {}
    for port in chains.values():
        for portal in port.portals:
            where = (portal.address, portal.protocol, portal.port)
            destination = found.setdefault(where, _Destination())
            if portal.place in {Place.NAT_SERVICES, Place.NAT_NODEPORTS}:
                destination.translated = True
            else:
                destination.refusals.add(portal.text)
    return found


def _fill(block: Block, chain: str, rules: OwnedRules) -> None:
    block.chains[chain] = None
    block.lines += [Line(f"-A {chain} {text}", _service(owner)) for owner, text in rules]


def _service(owner: Owner | None) -> Key | None:
    return None if owner is None else owner[0]
