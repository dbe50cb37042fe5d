"""What to send, so that the kernel holds what it should: transactions, in a safe order.

Safety model. A packet must meet a complete Service or none, at every instant:

- A Service's own chains are always written together, in one atomic block. They may be written
  before anything jumps to them, or be rewritten under a jump that stays valid.
- The shared chains (dispatch, mark, masquerade, forward) are switched over in one block per
  table, after all chains that they jump to exist.
- What is no longer used is deleted last, when nothing jumps to it.
- Refusals in the filter table and rules in the nat table belong together. A new refusal is in
  force before the nat rules of its Service go, and an old one is lifted after they have come:
  a block with the union of old and new refusals goes in front, and the exact ones behind. So
  no packet for a Service leaves the node untranslated in between.

The planner keeps what the kernel accepted last (``Accepted``) and nothing else; a plan that
failed is thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Key
from agent.rules import names
from agent.rules.ruleset import ServiceChains, own_chains
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
from agent.sync.transaction import Block, Line, Transaction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.rules.dispatch import Owner
    from agent.rules.ruleset import RuleSet

Shared = dict[tuple[str, str], list[tuple["Owner | None", str]]]


class Accepted(msgspec.Struct):
    """What the kernel accepted last, in one family.

    Attributes:
        services: chains and portals of each Service.
        shared: rules of each shared chain, by (table, chain).
        stale: nat chains that nothing jumps to any more and that are still there.
    """

    services: dict[Key, ServiceChains] = {}
    shared: dict[tuple[str, str], tuple[str, ...]] = {}
    stale: set[str] = set()


class KernelView(msgspec.Struct, frozen=True):
    """What a full sync must know of the kernel before it writes.

    Attributes:
        chains: the service chains that exist in the nat table.
        missing_jumps: those of our jumps that are not in the built-in chains.
    """

    chains: frozenset[str]
    missing_jumps: tuple[BaseJump, ...]


class Planner:
    """Makes transactions from a rule set and what was accepted last."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.accepted = Accepted()

    def jumps(self) -> tuple[BaseJump, ...]:
        """The jumps that must be in the built-in chains, in order of insertion."""
        return JUMPS + (KUBELET_JUMPS if needs_localnet_guard(self.rules.node) else ())

    # Services' own chains ----------------------------------------------------------------

    def own(self, services: Iterable[Key], *, rewrite: bool) -> tuple[Block, set[str]]:
        """Write the chains of some Services.

        Args:
            services: which.
            rewrite: write chains that the kernel has accepted, too.

        Returns:
            A nat block, and the chains that these Services have no longer.
        """
        block, gone = Block("nat"), set[str]()
        for key in services:
            wanted = own_chains(self.rules.services.get(key, {}))
            held = own_chains(self.accepted.services.get(key, {}))
            for chain, texts in wanted.items():
                if rewrite or held.get(chain) != texts:
                    block.write(chain, texts, key)
            gone.update(held.keys() - wanted.keys())
        return block, gone

    def foundation(self) -> Transaction:
        """Write the nat chains that Services' own chains jump to, and nothing else."""
        block = Block("nat")
        for (table, chain), rules in static_chains(self.rules.node).items():
            if table == "nat":
                block.write(chain, [rule.text() for rule in rules])
        return Transaction([block])

    # Shared chains -----------------------------------------------------------------------

    def switch(
        self, services: Collection[Key], own: Block, *, view: KernelView | None
    ) -> Transaction:
        """Switch the shared chains over.

        Args:
            services: those that may have changed since the last accepted state.
            own: nat chains to write in the same block; may be empty.
            view: the kernel's state for a full sync, which writes everything; None else.
        """
        shared = self._shared(services, view=view)
        before, after = Block("filter"), Block("filter")
        nat = Block("nat", dict(own.chains), list(own.lines))
        for (table, chain), rules in shared.items():
            if table == "nat":
                _fill(nat, chain, rules)
                continue
            texts = {text for _, text in rules}
            held = self.accepted.shared.get((table, chain), ())
            lifted = [text for text in held if text not in texts]
            if lifted:
                _fill(after, chain, rules)
            if view is not None or not texts.issubset(held):
                _fill(before, chain, [*rules, *((None, text) for text in lifted)])
        blocks = [before, nat, after]
        if view is not None:
            blocks = [self._base(before, nat, view), *blocks]
        return Transaction([block for block in blocks if block])

    def _base(self, before: Block, nat: Block, view: KernelView) -> Block:
        """Add what only a full sync writes: base chains, canaries and missing jumps."""
        by_table = {"filter": before, "nat": nat, "mangle": Block("mangle")}
        for table, chains in BASE_CHAINS.items():
            for chain in chains:
                by_table[table].chains.setdefault(chain, None)
        for table in CANARY_TABLES:
            by_table[table].chains[names.CANARY] = None
        for jump in view.missing_jumps:
            by_table[jump.table].lines.append(Line(f"-I {jump.source} {jump.rule.text()}"))
        return by_table["mangle"]

    def _shared(self, services: Collection[Key], *, view: KernelView | None) -> Shared:
        """The shared chains to write: all in a full sync, else those that these Services touch."""
        if view is not None:
            return self.rules.shared_chains()
        touched = {place for key in services for place in self._places(key)}
        return {place.value: self.rules.place_rules(place) for place in Place if place in touched}

    def _places(self, key: Key) -> set[Place]:
        """Dispatch chains in which a Service's portals differ from the accepted ones."""
        held = _portals(self.accepted.services.get(key, {}))
        wanted = _portals(self.rules.services.get(key, {}))
        return {place for place, _ in held ^ wanted}

    # After acceptance --------------------------------------------------------------------

    def commit(self, services: Iterable[Key], written: Transaction) -> None:
        """Remember that these Services, and the shared chains written, are in the kernel."""
        for key in services:
            if key in self.rules.services:
                self.accepted.services[key] = self.rules.services[key]
            else:
                self.accepted.services.pop(key, None)
        for block in written.blocks:
            for chain in block.chains:
                if not names.is_service_chain(chain):
                    self.accepted.shared[block.table, chain] = tuple(_rules_of(block, chain))

    def deletions(self, chains: Iterable[str]) -> Transaction:
        """Delete nat chains that nothing jumps to."""
        transaction = Transaction([])
        self.append_deletions(transaction, chains)
        return transaction

    def append_deletions(self, transaction: Transaction, chains: Iterable[str]) -> None:
        """Delete nat chains behind everything else that the transaction does in nat."""
        nat = next((block for block in transaction.blocks if block.table == "nat"), None)
        if nat is None:
            nat = Block("nat")
        for chain in sorted(chains):
            nat.delete(chain)
        if nat and nat not in transaction.blocks:
            transaction.blocks.append(nat)


def _fill(block: Block, chain: str, rules: Iterable[tuple[Owner | None, str]]) -> None:
    block.chains[chain] = None
    block.lines += [
        Line(f"-A {chain} {text}", owner[0] if owner else None) for owner, text in rules
    ]


def _rules_of(block: Block, chain: str) -> Iterable[str]:
    prefix = f"-A {chain} "
    return (line.text[len(prefix) :] for line in block.lines if line.text.startswith(prefix))


def _portals(chains: ServiceChains) -> set[tuple[Place, str]]:
    return {(portal.place, portal.text) for port in chains.values() for portal in port.portals}
