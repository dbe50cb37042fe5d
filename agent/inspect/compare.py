"""What the agent would change: the kernel's rules against those that should be there.

Rules are compared by meaning (``agent.rules.parse.canonical``). In dispatch chains the order of
different Services' rules has no meaning: kube-proxy writes them in any order. Rules and chains of
other programs are not looked at, and of built-in chains only the jumps.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.survey import service_in, suffix
from agent.inspect.tables import target_name
from agent.inspect.usual import UsualEndpoint, UsualLottery
from agent.rules import names
from agent.rules.parse import canonical, read_rule
from agent.rules.printed import printed
from agent.rules.rule import Comment, Destination, Nfacct, Statistic
from agent.rules.static import BASE_CHAINS, CANARY_TABLES, KUBELET_JUMPS, out_of_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.inspect.survey import Survey
    from agent.inspect.tables import Chain, Entry
    from agent.rules.dispatch import Owner
    from agent.rules.rule import Rule
    from agent.rules.ruleset import RuleSet
    from agent.rules.service import Compiled
    from agent.rules.static import BaseJump

Owned = tuple["Owner | None", str]


class Act(enum.Enum):
    """What would happen to a chain; the value is the sign of it."""

    CREATE = "+"
    DELETE = "-"
    CHANGE = "~"


class Line(msgspec.Struct, frozen=True):
    """A rule that would go or come, as text; ``number`` is its present position, 0 for none."""

    text: str
    number: int = 0


class Change(msgspec.Struct, frozen=True):
    """What would change in a chain for one service port (or for all).

    Attributes:
        act: what would happen to the chain.
        table: table.
        chain: chain.
        service: ``namespace/name:port``; empty for what all Services share.
        removed: rules that are there and should not be.
        added: rules that should be there and are not.
        moved: rules that are in their right place in another order only.
    """

    act: Act
    table: str
    chain: str
    service: str = ""
    removed: tuple[Line, ...] = ()
    added: tuple[Line, ...] = ()
    moved: bool = False


def compare(survey: Survey, rules: RuleSet, jumps: Iterable[BaseJump]) -> list[Change]:
    """What the agent would change, chain by chain; empty if the kernel is as it should be.

    Args:
        survey: of the kernel's tables.
        rules: what should be there.
        jumps: the jumps that should be in built-in chains.
    """
    return _Comparison(survey, rules).run(jumps)


def owner_name(owner: Owner) -> str:
    """``namespace/name:port`` of a service port."""
    key, port, _ = owner
    return f"{key}:{port}" if port else str(key)


class _Comparison:
    def __init__(self, survey: Survey, rules: RuleSet) -> None:
        self._survey = survey
        self._tables = survey.tables
        self._rules = rules

    def run(self, jumps: Iterable[BaseJump]) -> list[Change]:
        shared = {chain: self._rules.shared(chain) for chain in self._rules.shared_ids()}
        return [
            *self._missing_base(set(shared)),
            *self._jumps(jumps),
            *(c for (t, chain), rules in shared.items() for c in self._shared(t, chain, rules)),
            *self._own(),
            *self._leftover(set(shared)),
        ]

    def _compiled(self) -> Iterator[tuple[Owner, Compiled]]:
        for ports in self._rules.services.values():
            yield from ports.items()

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        """Service port by the hash of its chains."""
        return {
            suffix(chain): owner_name(owner)
            for owner, compiled in self._compiled()
            for chain, _ in compiled.chains
        }

    # What all Services share -------------------------------------------------------------

    def _missing_base(self, shared: set[tuple[str, str]]) -> Iterator[Change]:
        """Chains that are there from the start, and are not compared otherwise."""
        places = [(table, names.CANARY) for table in CANARY_TABLES]
        places += [(table, chain) for table, chains in BASE_CHAINS.items() for chain in chains]
        for table, chain in places:
            if (table, chain) not in shared and self._tables.chain(table, chain) is None:
                yield Change(Act.CREATE, table, chain)

    def _jumps(self, jumps: Iterable[BaseJump]) -> Iterator[Change]:
        by_chain: dict[tuple[str, str], list[BaseJump]] = {}
        for jump in jumps:
            by_chain.setdefault((jump.table, jump.source), []).append(jump)
        for (table, source), mine in by_chain.items():
            entries = self._tables.entries(table, source)
            present = [canonical(entry.rule) for entry in entries]
            missing = [jump for jump in mine if canonical(jump.rule) not in present]
            for jump in missing:
                if jump not in KUBELET_JUMPS or not self._guarded(jump, entries):
                    yield Change(Act.CHANGE, table, source, added=(Line(jump.rule.text()),))
            if not set(missing) - set(KUBELET_JUMPS) and out_of_place(
                [jump for jump in mine if jump not in missing], present
            ):
                yield Change(Act.CHANGE, table, source, moved=True)

    def _guarded(self, jump: BaseJump, entries: Sequence[Entry]) -> bool:
        """Whether the kubelet's own jump, which may carry a comment, is there."""
        name = target_name(jump.rule.target)
        return any(
            target_name(entry.rule.target) == name
            and all(type(match) is Comment for match in entry.rule.matches)
            for entry in entries
        )

    def _shared(self, table: str, chain: str, wanted: Sequence[Owned]) -> Iterator[Change]:
        present = self._tables.chain(table, chain)
        act = Act.CHANGE if present is not None else Act.CREATE
        entries = present.entries if present is not None else []
        if any(owner for owner, _ in wanted) or _is_dispatch(table, chain):
            yield from self._by_owner(act, table, chain, wanted, entries)
            return
        change = _ordered(Change(act, table, chain), [text for _, text in wanted], entries)
        if change is not None:
            yield change

    def _by_owner(
        self, act: Act, table: str, chain: str, wanted: Sequence[Owned], entries: Sequence[Entry]
    ) -> Iterator[Change]:
        """A dispatch chain: each Service's rules, and what is nobody's last."""
        if act is Act.CHANGE and self._is_printed([text for _, text in wanted], entries):
            return
        ours: dict[str, list[str]] = {}
        for owner, text in wanted:
            ours.setdefault(owner_name(owner) if owner else "", []).append(text)
        theirs: dict[str, list[Entry]] = {}
        for entry in entries:
            theirs.setdefault(_named(entry.rule), []).append(entry)
        changed = False
        for service in sorted(ours.keys() | theirs.keys()):
            texts, held = ours.get(service, []), theirs.get(service, [])
            if self._same(texts, held):
                continue
            change = _unordered(Change(act, table, chain, service), texts, held)
            if change is not None:
                changed = True
                yield change
        if act is not Act.CHANGE and not changed:
            yield Change(act, table, chain)
        tail = theirs.get("", [])
        last = len(entries) - len(tail)
        in_front = [e for e in tail if target_name(e.rule.target) == names.NODEPORTS]
        if not changed and any(entry.number <= last for entry in in_front):
            yield Change(Act.CHANGE, table, chain, moved=True)

    # Services' own chains ----------------------------------------------------------------

    def _own(self) -> Iterator[Change]:
        nat = self._tables.tables.get("nat", {})
        for owner, compiled in self._compiled():
            for chain, texts in compiled.chains:
                present = nat.get(chain)
                if present is not None and self._same_chain(texts, present):
                    continue
                act = Act.CREATE if present is None else Act.CHANGE
                entries = present.entries if present is not None else []
                template = Change(act, "nat", chain, owner_name(owner))
                change = _ordered(template, texts, entries)
                if change is not None:
                    yield change
                elif present is None:
                    yield template

    def _same_chain(self, texts: tuple[str, ...], chain: Chain) -> bool:
        """Likewise for a chain, of which nearly all are usual ones."""
        usual = chain.usual
        if type(usual) is UsualEndpoint and usual.as_written() == texts:
            return True
        if type(usual) is UsualLottery:
            behind = texts[1:] if usual.marking else texts
            if usual.as_written() == behind:
                return not usual.marking or self._alike(texts[0], usual.marking)
        return self._same(texts, chain.entries)

    def _same(self, texts: Sequence[str], entries: Sequence[Entry]) -> bool:
        """Whether a chain holds these rules, in this order."""
        return len(texts) == len(entries) and all(
            self._alike(text, entry.text) for text, entry in zip(texts, entries, strict=True)
        )

    def _is_printed(self, texts: Sequence[str], entries: Sequence[Entry]) -> bool:
        """Whether a chain holds these rules to the letter, as far as that can be told."""
        family = self._tables.family
        return len(texts) == len(entries) and all(
            printed(text, family) == entry.text for text, entry in zip(texts, entries, strict=True)
        )

    def _alike(self, ours: str, held: str) -> bool:
        """Whether one rule means what another one does."""
        if printed(ours, self._tables.family) == held:
            return True
        return canonical(read_rule(ours)) == canonical(read_rule(held))

    def _leftover(self, shared: set[tuple[str, str]]) -> Iterator[Change]:
        """Chains of Services, and branches, that should not be there."""
        own = {chain for _, compiled in self._compiled() for chain, _ in compiled.chains}
        for table, chains in self._tables.tables.items():
            for name, chain in chains.items():
                if (table == "nat" and name in own) or (table, name) in shared:
                    continue
                if not (
                    names.is_tree_chain(name) or (table == "nat" and names.is_service_chain(name))
                ):
                    continue
                if names.is_tree_chain(name):
                    yield from self._by_owner(Act.DELETE, table, name, (), chain.entries)
                    continue
                removed = tuple(Line(entry.text, entry.number) for entry in chain.entries)
                yield Change(Act.DELETE, table, name, self._owner(chain), removed)

    def _owner(self, chain: Chain) -> str:
        named = self._survey.service_of(chain.name) or self._known.get(suffix(chain.name), "")
        return named or next((n for e in chain.entries if (n := _named(e.rule))), "")


def _is_dispatch(table: str, chain: str) -> bool:
    return names.is_tree_chain(chain) or (table, chain) in _DISPATCH


_DISPATCH = {
    ("nat", names.SERVICES),
    ("nat", names.NODEPORTS),
    ("filter", names.SERVICES),
    ("filter", names.EXTERNAL_SERVICES),
    ("filter", names.NODEPORTS),
    ("filter", names.PROXY_FIREWALL),
}


def _named(rule: Rule) -> str:
    for match in rule.matches:
        if type(match) is Comment:
            return service_in(match.comment)
    return ""


def _ordered(template: Change, texts: Sequence[str], entries: Sequence[Entry]) -> Change | None:
    """Compare two lists of rules; None if they mean the same in the same order."""
    wanted = [canonical(read_rule(text)) for text in texts]
    present = [canonical(entry.rule) for entry in entries]
    if wanted == present:
        return None
    missing, extra = Counter(wanted), Counter(present)
    missing.subtract(present)
    extra.subtract(wanted)
    added = _pick(missing, wanted, [Line(text) for text in texts])
    removed = _pick(extra, present, [Line(entry.text, entry.number) for entry in entries])
    return msgspec.structs.replace(
        template, removed=removed, added=added, moved=not (added or removed)
    )


def _unordered(template: Change, texts: Sequence[str], entries: Sequence[Entry]) -> Change | None:
    """Likewise in whatever order, but for a rule that only counts packets to loopback."""
    change = _ordered(template, texts, entries)
    if change is None or not change.moved or not _counts_behind(entries):
        return None if change is not None and change.moved else change
    return change


def _counts_behind(entries: Sequence[Entry]) -> bool:
    """Whether a rule for packets to loopback stands behind the one for all of the same port."""
    seen: set[Rule] = set()
    for entry in entries:
        matches = entry.rule.matches
        wide = tuple(m for m in matches if type(m) is not Nfacct and m != _LOOPBACK)
        rule = canonical(msgspec.structs.replace(entry.rule, matches=wide))
        if len(wide) == len(matches):
            seen.add(rule)
        elif rule in seen:
            return True
    return False


_LOOPBACK = Destination("127.0.0.0/8")


def _pick(counts: Counter[Rule], forms: Sequence[Rule], lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines whose rules are on this side more often; the last ones of equal rules."""
    picked: list[Line] = []
    left = {form: count for form, count in counts.items() if count > 0}
    for form, line in zip(reversed(forms), reversed(lines), strict=True):
        if left.get(form, 0):
            left[form] -= 1
            picked.append(line)
    return tuple(reversed(picked))


def without_dice(text: str) -> Rule:
    """A rule without its probability: the same for the same endpoint, whatever its share."""
    rule = read_rule(text)
    matches = tuple(match for match in rule.matches if type(match) is not Statistic)
    return canonical(msgspec.structs.replace(rule, matches=matches))
