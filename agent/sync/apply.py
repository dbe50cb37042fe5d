"""Bringing the kernel to what it should hold, and knowing afterwards what it holds.

One ``Syncer`` owns the rules of one family. It remembers only what the kernel accepted. A
failure of any kind keeps everything pending, and the next attempt is a full sync: it reads
which chains and jumps exist, writes every chain, and deletes what is left over. So whatever
state the kernel is in, one accepted full sync makes it right. Where writing in parts costs more
than reading, the nat table is read first, and chains of it that are right are not written.

When the kernel refuses a *line* in a full sync, the rest must go in without it. The guilty
Service is the one that the line is for, if the tool named one. If it only said that the commit
failed, the Services' own chains are written in batches, a refused batch is halved until one
Service is left (``agent.sync.culprits``), and rules in shared chains are tried in a chain that no
packet visits. In a partial sync a refusal blames nobody: the kernel may lack a chain that somebody
else deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from agent.cluster.objects import Key
from agent.rules.dispatch import ChainId
from agent.sync.batches import at_once, batches, grown
from agent.sync.culprits import culprits, refused_rules
from agent.sync.look import Looker
from agent.sync.plan import KernelView, Planner, Switch
from agent.sync.port import Refusal, RestoreError
from agent.sync.setaside import Quarantine, SetAside
from agent.sync.stale import StaleChains
from agent.sync.transaction import Block, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from agent.rules.ruleset import RuleSet
    from agent.rules.static import BaseJump
    from agent.state.store import Record, Store
    from agent.state.values import NodeView
    from agent.sync.port import Kernel

#: Rules of branches that go into one transaction before the switch, while there are few chains.
_BRANCH_RULES = 500


class Follower(Protocol):
    """Something else that is kept from the same changes, Service by Service."""

    def update(self, records: Sequence[Record]) -> None:
        """Take in records that changed."""


class SyncSettings(msgspec.Struct, frozen=True):
    """How to write.

    Attributes:
        batch: Services whose own chains go into one transaction, more of them the more chains
            there are; None for everything in a single restore, which is right where each restore
            copies the whole table.
        batch_over: likewise, where chains of ours are in use already: then the kernel checks
            all of them at each transaction, and fewer transactions cost less.
        cleanup_period: in a large cluster, stale chains are deleted at most once in this many
            seconds.
    """

    batch: int | None
    batch_over: int | None = None
    cleanup_period: float = 30.0


class Outcome(msgspec.Struct):
    """What one accepted sync did.

    Attributes:
        full: everything was written.
        services: Services whose rules changed.
        transactions: restores that were run.
        lines: lines of restore input, by table.
        deleted: chains that were deleted.
        leftover: why stale chains could not be deleted, if so; they are tried again.
        set_aside: Services that were set aside in this sync.
    """

    full: bool
    services: int = 0
    transactions: int = 0
    lines: dict[str, int] = {}
    deleted: int = 0
    leftover: RestoreError | None = None
    set_aside: dict[Key, SetAside] = {}


class Syncer:
    """Keeps the kernel's rules of one family."""

    def __init__(
        self,
        rules: RuleSet,
        kernel: Kernel,
        settings: SyncSettings,
        clock: Callable[[], float],
        followers: Sequence[Follower] = (),
    ) -> None:
        self.rules = rules
        self.kernel = kernel
        self.settings = settings
        self.planner = Planner(rules)
        self.quarantine = Quarantine(clock)
        self.generation = 0
        self.needs_full = True
        self._followers = followers
        self._pending: set[Key] = set()
        self._store: Store | None = None
        self._stale = StaleChains(settings.cleanup_period, clock)

    def sync(self, store: Store, *, full: bool = False) -> Outcome:
        """Bring the kernel up to date with the store.

        Args:
            store: what should be; everything after the last call counts as changed.
            full: write everything, even what has not changed.

        Raises:
            RestoreError: the kernel did not accept it; nothing is lost, call again.
            ReadError: the kernel's state could not be read; likewise.
        """
        outcome = Outcome(full=full or self.needs_full)
        self._store = store
        self.prepare(store)
        self.needs_full = True  # until this attempt has succeeded
        keys = self.rules.services.keys() | self._pending if outcome.full else self._pending
        services = sorted(keys)
        view = self._looker.view(right=not self._fits(services)) if outcome.full else None
        outcome.services = len(self._pending)
        self._apply(services, view, outcome)
        self._pending.clear()
        self._clean_up(outcome)
        self.needs_full = False
        return outcome

    def set_node(self, store: Store, node: NodeView) -> None:
        """Compile everything for a node that has changed; the next sync is full."""
        self._pending |= self.rules.recompile(store, node)
        self.needs_full = True

    @property
    def pending(self) -> int:
        """Services whose rules differ from what the kernel accepted last."""
        return len(self._pending)

    def due_at(self) -> float | None:
        """When there is something to do although nothing changes, in clock seconds.

        A Service that was set aside is tried again, or stale chains may go that had to wait.
        """
        times: list[float | None] = [self.quarantine.next_due()]
        if not self.needs_full:
            times += self._stale.due_at(self.planner.accepted.stale)
        return min((time for time in times if time is not None), default=None)

    # Changes -----------------------------------------------------------------------------

    def prepare(self, store: Store) -> None:
        """Take in and compile what changed since the last call; ``sync`` begins with it."""
        snapshot = store.snapshot(self.generation)
        changed = {record.key for record in snapshot.records}
        freed = self.quarantine.changed(changed) | self.quarantine.due()
        self.rules.set_aside -= freed
        records = [record for key in freed - changed if (record := store.get(key)) is not None]
        self._pending |= self.rules.update([*snapshot.records, *records], store)
        for follower in self._followers:
            follower.update(snapshot.records)
        self.generation = snapshot.generation

    def _set_aside(self, key: Key, error: RestoreError, outcome: Outcome) -> None:
        reason = error.stderr.strip() or str(error)
        outcome.set_aside[key] = self.quarantine.add(key, reason)
        self.rules.set_aside.add(key)
        record = self._store.get(key) if self._store is not None else None
        if record is not None:
            self._pending |= self.rules.update([record], ())

    # Reading -----------------------------------------------------------------------------

    @property
    def _looker(self) -> Looker:
        return Looker(self.planner, self.kernel)

    def wrong_jumps(self) -> dict[BaseJump, int]:
        """How often each of our jumps is there, if not just once, or first out of its place.

        Raises:
            ReadError: a built-in chain could not be read.
        """
        return self._looker.wrong_jumps()

    # Writing -----------------------------------------------------------------------------

    def _apply(self, services: Sequence[Key], view: KernelView | None, outcome: Outcome) -> None:
        if self._fits(services):
            try:
                self._apply_at_once(services, view, outcome)
            except RestoreError as error:
                if error.refusal is not Refusal.INPUT or view is None:
                    raise
                view = self._looker.again(view)
            else:
                return
        self._apply_in_parts(services, view, outcome)

    def _apply_at_once(
        self, services: Sequence[Key], view: KernelView | None, outcome: Outcome
    ) -> None:
        """One restore with everything; a Service whose line is refused is left out."""
        while True:
            own, gone = self.planner.own(services, view=view), self.planner.left(services)
            switch = self.planner.switch(services, own, view=view)
            deleted = self._deletable(switch.transaction, gone) if view is None else set[ChainId]()
            self.planner.append_deletions(switch.transaction, deleted)
            try:
                self._restore(switch.transaction, outcome)
            except RestoreError as error:
                if view is None or not self._blame(switch.transaction, error, outcome):
                    raise
                view = self._looker.again(view)
            else:
                self._commit(services, switch, gone, view)
                self._deleted(deleted, outcome)
                return

    def _apply_in_parts(
        self, services: Sequence[Key], view: KernelView | None, outcome: Outcome
    ) -> None:
        """Own chains in batches, then the shared chains."""
        live = view is None or bool(view.chains)
        size = (live and self.settings.batch_over) or self.settings.batch
        writing = services
        if view is not None:
            self._restore(self.planner.foundation(), outcome)
            writing = self.planner.wrong(services, view)
        for some in batches(writing, self.rules.services, size, grows=not live):
            self._write_own(some, view, outcome)
        if view is not None:
            view = self._write_branches(view, outcome)
        while True:
            switch = self.planner.switch(services, Block("nat"), view=view)
            try:
                self._restore(switch.transaction, outcome)
            except RestoreError as error:
                if view is None or not (
                    self._blame(switch.transaction, error, outcome)
                    or self._probe(switch.transaction, error, outcome)
                ):
                    raise
                view = self._looker.again(view)
            else:
                self._commit(services, switch, self.planner.left(services), view)
                return

    def _fits(self, services: Sequence[Key]) -> bool:
        """Whether everything goes into one transaction."""
        return at_once(services, self.rules.services, self.settings.batch)

    def _write_own(
        self, services: Sequence[Key], view: KernelView | None, outcome: Outcome
    ) -> None:
        """Write the own chains of some Services; those that the kernel refuses are set aside."""
        refused: dict[Key, RestoreError] = {}

        def accepts(keys: Sequence[Key]) -> bool:
            # What was accepted before is in the kernel.
            error = self._refusal_of(keys, view, outcome)
            if error is not None:
                refused.update(dict.fromkeys(keys, error))
            return error is None

        if not accepts(services):
            for key in culprits(services, accepts):
                if key not in self.rules.set_aside:
                    self._set_aside(key, refused[key], outcome)

    def _refusal_of(
        self, services: Sequence[Key], view: KernelView | None, outcome: Outcome
    ) -> RestoreError | None:
        """Try to write some Services' own chains; without those that a refusal names by line."""
        while True:
            own = self.planner.own(services, view=view)
            transaction = Transaction([own] if own else [])
            try:
                self._restore(transaction, outcome)
            except RestoreError as error:
                if error.refusal is not Refusal.INPUT or view is None:
                    raise
                if not self._blame(transaction, error, outcome):
                    return error
            else:
                return None

    def _write_branches(self, view: KernelView, outcome: Outcome) -> KernelView:
        """Write branches that nothing jumps to yet; returns the view with them."""
        right = dict(view.right)
        size = grown(_BRANCH_RULES, self.rules.own_count)
        for block in self.planner.branches(view, size):
            try:
                self._restore(Transaction([block]), outcome)
            except RestoreError as error:
                if error.refusal is not Refusal.INPUT:
                    raise
                break  # the switch writes what is left, and finds out whose fault it is
            right |= {chain: tuple(rules) for chain, rules in block.fills}
        return msgspec.structs.replace(view, right=right)

    def _blame(self, transaction: Transaction, error: RestoreError, outcome: Outcome) -> bool:
        """Set aside the Service that a refused line is for; tells whether there was one."""
        if error.refusal is not Refusal.INPUT:
            return False
        key = transaction.service_at(error.line)
        if key is None or key in self.rules.set_aside:
            return False
        self._set_aside(key, error, outcome)
        return True

    def _probe(self, transaction: Transaction, error: RestoreError, outcome: Outcome) -> bool:
        """Find the Services whose rules in shared chains the kernel refuses."""
        if error.refusal is not Refusal.INPUT:
            return False
        found = False
        for block in transaction.blocks:
            by_service: dict[Key, list[str]] = {}
            for line in block.lines:
                if line.service is not None:
                    rule = line.text.split(" ", 2)[2]
                    by_service.setdefault(line.service, []).append(rule)
            for key in refused_rules(
                block.table, by_service, lambda one: self._restore(one, outcome)
            ):
                self._set_aside(key, error, outcome)
                found = True
        return found

    def _restore(self, transaction: Transaction, outcome: Outcome) -> None:
        if not transaction.blocks:
            return
        outcome.transactions += 1
        self.kernel.restore(transaction.text())
        for block in transaction.blocks:
            outcome.lines[block.table] = outcome.lines.get(block.table, 0) + block.size

    # After acceptance --------------------------------------------------------------------

    def _commit(
        self,
        services: Collection[Key],
        switch: Switch,
        gone: set[ChainId],
        view: KernelView | None,
    ) -> None:
        left = gone | self.planner.gone()
        if view is not None:
            left |= view.chains - set(self.rules.shared_ids())
        self.planner.commit({*services, *self._pending}, switch, left)

    def _may_clean(self) -> bool:
        return self._stale.may_clean(large=not self.rules.comments)

    def _deletable(self, transaction: Transaction, gone: set[ChainId]) -> set[ChainId]:
        """Chains to delete in one go with what no longer jumps to them.

        A full sync also finds chains that others may jump to; those are deleted apart.
        """
        if not self._may_clean():
            return set()
        stale = self._stale.free(self.planner.accepted.stale) | gone | self.planner.gone()
        return stale - transaction.chains()  # one may be wanted again

    def _clean_up(self, outcome: Outcome) -> None:
        """Delete stale chains; that this fails (somebody jumps to one) must not fail the sync."""
        stale = self._stale.due(self.planner.accepted.stale)
        if not self._may_clean():
            return
        while stale:
            transaction = self.planner.deletions(stale)
            try:
                self._restore(transaction, outcome)
            except RestoreError as error:
                outcome.leftover = error
                chain = transaction.deleted_at(error.line)
                stuck = stale if chain is None else {chain}
                self._stale.stick(stuck)
                stale = stale - stuck
            else:
                self._deleted(stale, outcome)
                return

    def _deleted(self, chains: set[ChainId], outcome: Outcome) -> None:
        self.planner.accepted.stale -= chains
        outcome.deleted += len(chains)
        self._stale.gone(chains)
