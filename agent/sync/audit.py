"""Does the kernel still hold what we wrote? Other tools flush tables and delete rules.

Where the backend can tell for certain that nobody else has changed anything since everything
was written, a round is done. Otherwise it looks at what all Services share (canaries, jumps,
shared chains), and at a sample of the Services' own chains that moves on from round to round: of
N chains, max(50 - N/125, 5) percent, but never fewer than 100, or all there are. Branches of a
dispatch tree, of which there are hundreds, take turns likewise. The cursor moves by what was
looked at, also when a read failed, so that one unreadable corner cannot hold up the rest;
Services of different namespaces take turns in the order, so that no corner waits for another.

A chain is compared by meaning (``agent.rules.parse``), which takes its text, and text is slow to
come by. So the digest of a chain that was found right is kept, where the backend gives one, and
an equal digest is enough later. Digests are also learned while nobody else has changed
anything, when what is there is what was written. Until all have come by once (``learning``) it is
best to look often: as soon as somebody changes a rule, what is not known has to be read. In a
large cluster that is its whole table, which costs as much as twenty rounds. So what is not known
waits for a few rounds, until the read is for many; what is known and differs is read at once.
"""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from agent.cluster.objects import Key
from agent.rules import names
from agent.rules.parse import equal
from agent.rules.ruleset import own_chains
from agent.rules.static import BASE_CHAINS, CANARY_TABLES
from agent.sync.look import read_chain, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.rules.dispatch import ChainId
    from agent.rules.ruleset import ServiceChains
    from agent.rules.static import BaseJump
    from agent.sync.apply import Syncer

#: Up to so many chains are read one by one, above it their whole table.
_ONE_BY_ONE = 30
#: With more chains than this, what takes a read of the whole table waits for so many rounds.
_LARGE, _PATIENCE = 10_000, 3
#: The name under which the digest of the built-in chains is known.
_BUILT_IN: ChainId = ("", "jumps")
#: In place of the digest of a chain that has no rules.
_EMPTY = bytes(16)
#: What is amiss with a jump that is there so often.
_JUMPS_AMISS = {0: "no jump", 1: "jump order"}
Rules = tuple[str, ...]
N = TypeVar("N")


class _Unit(NamedTuple):
    """Chains that are looked at together: a Service's own, or one shared chain.

    ``token`` is what they were written from; an unequal one has other chains.
    """

    name: Key | ChainId
    token: object
    chains: dict[ChainId, Rules]


class Difference(msgspec.Struct, frozen=True):
    """A chain that is not as it was written.

    ``what`` is ``missing``, ``changed``, ``no jump`` (a built-in chain lacks one of ours),
    ``jump twice`` (it has one more than once), ``jump order`` (it has ours in another order) or
    ``stray`` (a service chain that is no Service's).
    """

    table: str
    chain: str
    what: str
    service: Key | None = None


def sample_size(chains: int) -> int:
    """How many of this many chains one round looks at."""
    percent = max(50 - chains // 125, 5)
    return min(chains, max(100, chains * percent // 100))


def take_turns(keys: Iterable[Key]) -> list[Key]:
    """The Services in an order in which namespaces alternate."""
    by_namespace: dict[str, list[Key]] = {}
    for key in sorted(keys):
        by_namespace.setdefault(key.namespace, []).append(key)
    rounds = zip_longest(*by_namespace.values())
    return [key for turn in rounds for key in turn if key is not None]


class _Turns(Generic[N]):
    """Names that take turns, each once in a lap.

    A lap is a list, so that it goes on where it was whatever comes and goes meanwhile.

    Attributes:
        left: what this lap has still to see, the next one last.
    """

    def __init__(self, order: Callable[[Iterable[N]], list[N]]) -> None:
        self.left: list[N] = []
        self._order = order

    def following(self, present: Collection[N]) -> Iterator[N]:
        """Each once, from the one that is next on; what is taken is to be put to ``done``."""
        seen: set[N] = set()
        for _ in range(2):
            while self.left:
                name = self.left[-1]
                if name in present and name not in seen:
                    seen.add(name)
                    yield name
                else:
                    del self.left[-1]
            self.left = self._order(present)[::-1]

    def done(self) -> None:
        """The one that came last has been taken."""
        del self.left[-1]


def _unit(key: Key, token: ServiceChains) -> _Unit:
    return _Unit(key, token, {("nat", chain): rules for chain, rules in own_chains(token).items()})


def _shared_unit(chain: ChainId, rules: Rules) -> _Unit:
    return _Unit(chain, rules, {chain: rules})


def _digest_of(parts: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _is_flushed(unit: _Unit, digest: bytes) -> bool:
    """Whether no chain has a rule, or is there, though there should be some."""
    return any(unit.chains.values()) and digest == _digest_of([_EMPTY] * len(unit.chains))


class Audit:
    """Compares the kernel with what it accepted, a part at a time.

    Attributes:
        learning: rounds learn what chains look like, and there are chains that they have not seen.
    """

    def __init__(self, syncer: Syncer) -> None:
        self._syncer = syncer
        self._services: _Turns[Key] = _Turns(take_turns)
        self._branches: _Turns[ChainId] = _Turns(sorted)
        #: Of a unit: its token, and the digest that its chains had when they were right.
        self._known: dict[Key | ChainId, tuple[object, bytes]] = {}
        self.learning = True
        self._seen = False
        self._waiting: dict[Key | ChainId, None] = {}  # what came by and has not been read
        self._waited = 0  # for so many rounds
        self._patience = 0

    def run(self) -> list[Difference]:
        """One round; the differences found.

        Raises:
            ReadError: the kernel's rules could not be read.
        """
        self._forget_changed()
        units, whole = self._sample()
        untouched = self._syncer.kernel.untouched()
        self._seen |= whole
        self.learning = untouched and not self._seen
        if untouched:
            self._learn_from_ours([*units, self._built_in()])
            return []
        due = self._waited >= self._patience
        if due:
            units = self._with_waiting(units)
        found = [
            Difference(*chain, what, unit.name if isinstance(unit.name, Key) else None)
            for unit, chain, what in self._compare(units, may_wait=not due)
        ]
        if due:
            self._waiting.clear()
        self._waited = self._waited + 1 if self._waiting else 0
        return [*found, *self._canaries_and_jumps(), *(self._strays() if whole else [])]

    def _forget_changed(self) -> None:
        """Forget what Services looked like that are others now.

        Their old chains would live until their turn comes; in a busy cluster that is all of them.
        """
        services = self._syncer.planner.accepted.services
        changed = [
            name
            for name, (token, _) in self._known.items()
            if type(name) is Key and services.get(name) is not token
        ]
        for name in changed:
            del self._known[name]

    # What to look at ---------------------------------------------------------------------

    def _sample(self) -> tuple[list[_Unit], bool]:
        """The shared chains and the next Services, and whether a turn is complete."""
        accepted = self._syncer.planner.accepted
        units = self._shared_sample()
        total = sum([len(p.chains) for ports in accepted.services.values() for p in ports.values()])
        left = sample_size(total)
        self._patience = _PATIENCE if total > _LARGE else 0
        whole = not accepted.services
        for key in self._services.following(accepted.services):
            if left <= 0:
                break
            unit = _unit(key, accepted.services[key])
            left -= len(unit.chains)
            units.append(unit)
            self._services.done()
            if not self._services.left:
                whole = True
                self._forget_absent()
        return units, whole

    def _shared_sample(self) -> list[_Unit]:
        """The shared chains; of branches, the next ones."""
        shared = self._syncer.planner.accepted.shared
        branches = {chain: None for chain in shared if names.is_tree_chain(chain[1])}
        chains = [chain for chain in shared if chain not in branches]
        left = sample_size(len(branches))
        for chain in self._branches.following(branches):
            if left <= 0:
                break
            left -= 1
            chains.append(chain)
            self._branches.done()
        return [_shared_unit(chain, shared[chain]) for chain in chains]

    def _with_waiting(self, units: list[_Unit]) -> list[_Unit]:
        """A sample, and what waits of those before it."""
        accepted = self._syncer.planner.accepted
        late = self._waiting.keys() - {unit.name for unit in units}
        units = list(units)
        for name in self._waiting:
            if name not in late:
                continue
            if isinstance(name, Key):
                if name in accepted.services:
                    units.append(_unit(name, accepted.services[name]))
            elif name in accepted.shared:
                units.append(_shared_unit(name, accepted.shared[name]))
        return units

    def _forget_absent(self) -> None:
        """Forget chains that are no longer there."""
        accepted = self._syncer.planner.accepted
        there = accepted.services.keys() | accepted.shared.keys() | {_BUILT_IN}
        self._known = {name: known for name, known in self._known.items() if name in there}

    # Comparing ---------------------------------------------------------------------------

    def _compare(self, units: list[_Unit], *, may_wait: bool) -> list[tuple[_Unit, ChainId, str]]:
        """What is wrong with which chain: by digest where it is known, else by text."""
        digests = self._digests(units)
        doubtful = [
            unit
            for unit in units
            if self._known_digest(unit) is None
            or self._known_digest(unit) != digests.get(unit.name)
        ]
        if digests and may_wait:
            doubtful = self._put_off(doubtful, digests)
        wrong = self._by_text({chain: rules for u in doubtful for chain, rules in u.chains.items()})
        right = [unit for unit in doubtful if wrong.keys().isdisjoint(unit.chains)]
        again = self._digests(right) if digests else {}
        for unit in right:
            # Only if it did not change while its text was read.
            if unit.name in again and again[unit.name] == digests.get(unit.name):
                self._known[unit.name] = (unit.token, again[unit.name])
        return [(u, chain, wrong[chain]) for u in doubtful for chain in u.chains if chain in wrong]

    def _put_off(self, doubtful: list[_Unit], digests: dict[Key | ChainId, bytes]) -> list[_Unit]:
        """Let wait what is only not known, if it is much; returns what is left to be read."""
        unknown = {
            unit.name
            for unit in doubtful
            if self._known_digest(unit) is None and not _is_flushed(unit, digests[unit.name])
        }
        if sum(len(unit.chains) for unit in doubtful if unit.name in unknown) <= _ONE_BY_ONE:
            return doubtful
        self._waiting.update(dict.fromkeys(unknown))
        return [unit for unit in doubtful if unit.name not in unknown]

    def _known_digest(self, unit: _Unit) -> bytes | None:
        token, digest = self._known.get(unit.name, (None, None))
        return digest if token is unit.token or token == unit.token else None

    def _learn_from_ours(self, units: list[_Unit]) -> None:
        """While everything there is ours, what is there is right."""
        missing = [unit for unit in units if self._known_digest(unit) is None]
        digests = self._digests(missing)
        if self._syncer.kernel.untouched():
            for unit in missing:
                if unit.name in digests:
                    self._known[unit.name] = (unit.token, digests[unit.name])

    def _digests(self, units: list[_Unit]) -> dict[Key | ChainId, bytes]:
        """One digest of all chains of each unit; nothing where the backend gives none."""
        parts: dict[ChainId, bytes] = {}
        for table in BASE_CHAINS:
            mine = [chain for unit in units for of, chain in unit.chains if of == table]
            digests = self._syncer.kernel.digests(table, mine)
            if digests is None:
                return {}
            parts.update({(table, chain): digest for chain, digest in digests.items()})
        return {
            unit.name: _digest_of(parts.get(chain, _EMPTY) for chain in unit.chains)
            for unit in units
        }

    def _by_text(self, chains: dict[ChainId, Rules]) -> dict[ChainId, str]:
        wrong: dict[ChainId, str] = {}
        for table in BASE_CHAINS:
            mine = {chain: rules for (of, chain), rules in chains.items() if of == table}
            held = self._read(table, mine)
            for chain, rules in mine.items():
                if chain not in held:
                    wrong[table, chain] = "missing"
                elif not equal(rules, held[chain]):
                    wrong[table, chain] = "changed"
        return wrong

    def _read(self, table: str, chains: Collection[str]) -> Mapping[str, list[str]]:
        kernel = self._syncer.kernel
        if len(chains) > _ONE_BY_ONE:
            return read_table(kernel, table)
        found: dict[str, list[str]] = {}
        for chain in chains:
            rules = read_chain(kernel, table, chain)
            if rules is not None:
                found[chain] = rules
        return found

    # What is not a chain of ours with rules -------------------------------------------------

    def _canaries_and_jumps(self) -> list[Difference]:
        syncer = self._syncer
        canaries = [
            Difference(table, names.CANARY, "missing")
            for table in CANARY_TABLES
            if syncer.kernel.chain(table, names.CANARY) is None
        ]
        jumps = [
            Difference(jump.table, jump.source, _JUMPS_AMISS.get(count, "jump twice"))
            for jump, count in self._wrong_jumps().items()
        ]
        return canaries + jumps

    def _built_in(self) -> _Unit:
        """The built-in chains, known by which jumps of ours should be in them."""
        jumps = self._syncer.planner.jumps()
        return _Unit(_BUILT_IN, jumps, {(jump.table, jump.source): () for jump in jumps})

    def _wrong_jumps(self) -> dict[BaseJump, int]:
        """Our jumps that are amiss, and how often they are there; read where chains changed."""
        unit = self._built_in()
        before = self._digests([unit])
        if before and before[_BUILT_IN] == self._known_digest(unit):
            return {}
        wrong = self._syncer.wrong_jumps()
        if before and not wrong and self._digests([unit]) == before:
            self._known[_BUILT_IN] = (unit.token, before[_BUILT_IN])
        return wrong

    def _strays(self) -> list[Difference]:
        accepted = self._syncer.planner.accepted
        known = {("nat", c) for chains in accepted.services.values() for c in own_chains(chains)}
        known |= accepted.stale | accepted.shared.keys()
        return [
            Difference(table, chain, "stray")
            for table in BASE_CHAINS
            for chain in sorted(self._syncer.kernel.chains(table))
            if (names.is_service_chain(chain) or names.is_tree_chain(chain))
            and (table, chain) not in known
        ]
