"""What to send, so that the kernel holds what it should: transactions, in a safe order.

Safety model. A packet must meet a complete Service or none, at every instant:

- A Service's own chains are always written together, in one atomic block. They may be written
  before anything jumps to them, or be rewritten under a jump that stays valid.
- Branches of a tree that are new are written before anything jumps to them.
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
from agent.rules.parse import equal, understood
from agent.rules.ruleset import Differences, ServiceChains, chains_of, differences, own_chains
from agent.rules.service import Place
from agent.rules.static import (
    BASE_CHAINS,
    CANARY_TABLES,
    JUMPS,
    KUBELET_JUMPS,
    BaseJump,
    needs_localnet_guard,
    static_chains,
)
from agent.sync.chains import write_chain
from agent.sync.refusals import Refusals, Standing, Target, below
from agent.sync.transaction import Block, Line, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.rules.endpoints import Chain
    from agent.rules.ruleset import RuleSet


#: Of a Service that does not exist.
_NOTHING: ServiceChains = {}
_FILTER_ROOTS = tuple(place.chain for place in Place if place.table == "filter")


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
        standing_jumps: built-in chains without just one of each of our jumps, in order, by (table,
            chain), and our jumps that are there, as the kernel words them.
        canary: the canary of the mangle table exists.
        right: nat chains that hold what they should already, and what that is; they are not
            written as long as they should hold it.
    """

    chains: frozenset[ChainId]
    filters: dict[str, list[str]]
    standing_jumps: dict[ChainId, list[str]]
    canary: bool = False
    right: dict[str, tuple[str, ...]] = {}


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
        #: What was compared last: both halves of a plan ask for it.
        self._compared: tuple[ServiceChains, ServiceChains, Differences] = {}, {}, ([], [])
        self._changed: set[ChainId] = set()
        self._gone: set[ChainId] = set()

    def jumps(self) -> tuple[BaseJump, ...]:
        """The jumps that must be in the built-in chains, in order of insertion."""
        return JUMPS + (KUBELET_JUMPS if needs_localnet_guard(self.rules.node) else ())

    # Services' own chains ----------------------------------------------------------------

    def own(self, services: Iterable[Key], *, view: KernelView | None) -> Block:
        """Write the chains of some Services: a nat block.

        Args:
            services: which.
            view: the kernel's state for a full sync, which writes all that is not right there;
                None for a partial one, which writes what differs from the last accepted state.
        """
        block = Block("nat")
        chains, fills = block.chains, block.fills
        for key in services:
            for own in self._written(key, view):
                chain, texts = own
                chains[chain] = key
                if texts:
                    fills.append(own)  # what there is by the hundred thousand, as it is
        return block

    def _written(self, key: Key, view: KernelView | None) -> Iterable[Chain]:
        """The chains of a Service that are to be written."""
        if view is None:
            return self._differences(key)[0]
        held = view.right
        return [c for c in chains_of(self.rules.services.get(key, {})) if held.get(c[0]) != c[1]]

    def _differences(self, key: Key) -> Differences:
        """Chains of a Service that are not as they were accepted, and those that it has lost."""
        held = self.accepted.services.get(key, _NOTHING)
        wanted = self.rules.services.get(key, _NOTHING)
        before, after, found = self._compared
        if before is not held or after is not wanted:
            found = differences(held, wanted)
            self._compared = held, wanted, found
        return found

    def left(self, services: Iterable[Key]) -> set[ChainId]:
        """Chains that some Services had when they were accepted, and have no longer."""
        known = [key for key in services if key in self.accepted.services]
        return {("nat", chain) for key in known for chain in self._differences(key)[1]}

    def right(self, held: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
        """Chains that are in nat as they should be, with what they should hold."""
        own = (own_chains(compiled) for compiled in self.rules.services.values())
        right = {
            chain: texts
            for chains in own
            for chain, texts in chains.items()
            if chain in held and equal(texts, held[chain])
        }
        for table, chain in self.rules.shared_ids():
            if table == "nat" and chain in held:
                texts = tuple(text for _, text in self.rules.shared((table, chain)))
                if equal(texts, held[chain]):
                    right[chain] = texts
        return right

    def wrong(self, services: Iterable[Key], view: KernelView) -> list[Key]:
        """Those of some Services that have a chain that is not right in the kernel."""
        return [
            key
            for key in services
            if not own_chains(self.rules.services.get(key, {})).items() <= view.right.items()
        ]

    def foundation(self) -> Transaction:
        """Write the nat chains that Services' own chains jump to, and nothing else."""
        block = Block("nat")
        for (table, chain), rules in static_chains(self.rules.node).items():
            if table == "nat":
                block.write(chain, [rule.text() for rule in rules])
        return Transaction([block])

    def branches(self, view: KernelView, size: int) -> Iterator[Block]:
        """Write the branches of the nat table's tree that are not there, in parts.

        Nothing jumps to them before the switch, so they may go in front of it like Services' own
        chains, and have to for the same reason. A part has about so many rules, and each comes
        behind those that it jumps to.
        """
        block = Block("nat")
        for chain in self.rules.dispatch.branches("nat"):
            if ("nat", chain) not in view.chains:
                block.write(chain, [text for _, text in self.rules.shared(("nat", chain))])
            if block.size >= size:
                yield block
                block = Block("nat")
        if block:
            yield block

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
        nat = own.copy()
        refusals = self._refusals(services, view)
        switch = Switch(Transaction([]))
        written = self._changed | {("filter", chain) for chain in refusals.roots()}
        for chain in sorted(written if view is None else self.rules.shared_ids()):
            rules = self.rules.shared(chain)
            held = self.accepted.shared.get(chain) if view is None else None
            if chain[0] == "nat":
                held = view.right.get(chain[1]) if view else held
                switch.shared[chain] = write_chain(nat, chain[1], rules, held)
            else:
                switch.shared[chain] = refusals.write(chain[1], rules, held)
        blocks = [refusals.before, nat, refusals.after]
        if view is not None:
            blocks = [self._base(refusals.before, nat, view), *blocks]
        switch.transaction.blocks = [block for block in blocks if block]
        return switch

    def _refusals(self, services: Iterable[Key], view: KernelView | None) -> Refusals:
        """How the filter table's refusals change: in all in a full sync, else of these Services."""
        keys = set(services) if view is None else {*services, *self.rules.services}
        after, wanted = _split(self.rules.services.get(key, {}) for key in keys)
        before, held = _split(self.accepted.services.get(key, {}) for key in keys)
        standing: dict[str, Standing] = {}
        for root, texts in wanted.items():
            if view is None:
                standing[root] = Standing(held[root], texts)
            else:
                standing[root] = _known(view, root, texts)
        return Refusals(standing, after, after - before)

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
                if table != "nat" or chain not in view.right:  # the line empties the chain
                    by_table[table].chains.setdefault(chain, None)
        for table in CANARY_TABLES:
            if table != "mangle" or not view.canary:  # what changes nothing is not sent
                by_table[table].chains[names.CANARY] = None
        # Where one is wrong all are put in anew, at one instant: their order has a meaning.
        for (table, source), texts in view.standing_jumps.items():
            by_table[table].lines += [Line(f"-D {source} {text}") for text in texts]
        for jump in self.jumps():
            if (jump.table, jump.source) in view.standing_jumps:
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
        if not needs_localnet_guard(self.rules.node):
            # It stays there, since route_localnet does; but it is the kubelet's again.
            self.accepted.shared.pop(("filter", names.KUBELET_FIREWALL), None)
        self.accepted.stale |= gone
        if self.accepted.stale:
            self.accepted.stale -= self._in_use(services)
        self._changed, self._gone = set(), set()

    def _in_use(self, services: Iterable[Key]) -> set[ChainId]:
        """Stale chains that are wanted again: by one of these Services, or by all."""
        stale = self.accepted.stale
        candidates = {chain for table, chain in stale if table == "nat"}
        own = {
            ("nat", chain)
            for key in services
            for chain, _ in chains_of(self.rules.services.get(key, {}))
            if chain in candidates
        }
        return own | {chain for chain in stale if chain in self.accepted.shared}

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


def _split(services: Iterable[ServiceChains]) -> tuple[set[Target], dict[str, set[str]]]:
    """What the portals in nat match, and the portals in each dispatch chain of filter."""
    services_place, node_ports_place = Place.NAT_SERVICES, Place.NAT_NODEPORTS
    translated: set[Target] = set()
    texts: dict[str, set[str]] = {root: set() for root in _FILTER_ROOTS}
    for chains in services:
        for port in chains.values():
            for portal in port.portals:
                if portal.place is services_place or portal.place is node_ports_place:
                    translated.add((portal.address, portal.protocol, portal.port))
                else:
                    texts[portal.place.chain].add(portal.text)
    return translated, texts


def _known(view: KernelView, root: str, wanted: set[str]) -> Standing:
    """What the kernel holds below a dispatch chain, in our words where we write the same."""
    ours = {understood(text): text for text in wanted}
    texts = below(view.filters, root)
    return Standing({ours.get(understood(text), text) for text in texts}, wanted)
