"""Checks of what stands whatever the Services are: jumps, marks, masquerading, forwarding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.findings import Finding, Wrong
from agent.inspect.survey import is_plain
from agent.inspect.tables import target_name
from agent.rules import names
from agent.rules.parse import canonical
from agent.rules.rule import (
    ACCEPT,
    DROP,
    RETURN,
    AddressType,
    Comment,
    ConntrackState,
    Destination,
    Jump,
    Mark,
    Masquerade,
    Nfacct,
    Rule,
    SetMark,
    rule,
)
from agent.rules.static import BASE_CHAINS, CANARY_TABLES, JUMPS, LAST_RULE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.inspect.survey import Survey
    from agent.inspect.tables import Entry
    from agent.rules.static import BaseJump

_TERMINAL = {"ACCEPT", "DROP", "REJECT"}
_SHARED = {chain for chains in BASE_CHAINS.values() for chain in chains}


def check_base(survey: Survey, tcp_be_liberal: bool | None) -> Iterator[Finding]:  # noqa: FBT001  a fact
    """All checks of this module.

    Args:
        survey: of one family's tables.
        tcp_be_liberal: the sysctl; None if it is not known, and then it is not compared.
    """
    check = _BaseCheck(survey)
    yield from check.chains()
    yield from check.jumps()
    yield from check.tail()
    mark = check.mark()
    yield from check.found
    yield from check.masquerade(mark)
    yield from check.forward(mark, tcp_be_liberal)


class _BaseCheck:
    """The checks of one family."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._tables = survey.tables
        self.found: list[Finding] = []

    def _finding(
        self,
        kind: Wrong,
        place: tuple[str, str],
        text: str,
        entry: Entry | None = None,
        expected: Rule | str = "",
    ) -> Finding:
        table, chain = place
        return Finding(
            kind,
            self._tables.family,
            table,
            chain,
            text,
            rule=entry.text if entry else "",
            number=entry.number if entry else 0,
            expected=expected if isinstance(expected, str) else expected.text(),
        )

    # Chains that must be there -----------------------------------------------------------

    def chains(self) -> Iterator[Finding]:
        """Base chains and canaries."""
        for table, chains in BASE_CHAINS.items():
            for chain in chains:
                if self._tables.chain(table, chain) is None:
                    text = f"chain {chain} is not there"
                    yield self._finding(Wrong.CHAIN_MISSING, (table, chain), text)
        for table in CANARY_TABLES:
            if self._tables.chain(table, names.CANARY) is None:
                text = f"the canary is not there: table {table} has been flushed, or never written"
                yield self._finding(Wrong.CANARY_MISSING, (table, names.CANARY), text)

    # Jumps from built-in chains ----------------------------------------------------------

    def jumps(self) -> Iterator[Finding]:
        """The twelve jumps: there, once, as they should be, in order, and reachable."""
        sources = dict.fromkeys((jump.table, jump.source) for jump in JUMPS)
        for place in sources:
            # Each was put at the front, so the last one comes first.
            wanted = [jump for jump in reversed(JUMPS) if (jump.table, jump.source) == place]
            yield from self._jumps_of(place, wanted)

    def _jumps_of(self, place: tuple[str, str], wanted: Sequence[BaseJump]) -> Iterator[Finding]:
        entries = self._tables.entries(*place)
        present = [entry for entry in entries if target_name(entry.rule.target) in _SHARED]
        order: list[tuple[int, Entry]] = []
        for position, jump in enumerate(wanted):
            name = target_name(jump.rule.target)
            mine = [entry for entry in present if target_name(entry.rule.target) == name]
            same = [e for e in mine if canonical(e.rule) == canonical(jump.rule)]
            if not mine:
                text = f"nothing jumps from {place[1]} to {name}"
                yield self._finding(Wrong.JUMP_MISSING, place, text, expected=jump.rule)
                continue
            for entry in mine:
                if entry not in same:
                    text = f"the jump to {name} is not as it should be"
                    yield self._finding(Wrong.JUMP_DIFFERS, place, text, entry, jump.rule)
            for entry in same[1:]:
                text = f"the jump to {name} stands in {place[1]} {len(same)} times"
                yield self._finding(Wrong.JUMP_TWICE, place, text, entry)
            order.append((position, mine[0]))
        yield from self._order(place, order)
        yield from self._shadows(place, entries, present)

    def _order(self, place: tuple[str, str], order: list[tuple[int, Entry]]) -> Iterator[Finding]:
        numbers = [entry.number for _, entry in order]
        if numbers == sorted(numbers):
            return
        wanted = ", ".join(target_name(entry.rule.target) for _, entry in order)
        first = next(e for (_, e), n in zip(order, sorted(numbers), strict=True) if e.number != n)
        text = f"the jumps stand in another order in {place[1]}"
        yield self._finding(Wrong.JUMP_ORDER, place, text, first, f"in this order: {wanted}")

    def _shadows(
        self, place: tuple[str, str], entries: Sequence[Entry], present: Sequence[Entry]
    ) -> Iterator[Finding]:
        """A rule in front that lets no packet through to the jumps."""
        last = present[-1].number if present else 0
        for entry in entries[: max(last - 1, 0)]:
            if is_plain(entry.rule.matches) and target_name(entry.rule.target) in _TERMINAL:
                name = target_name(entry.rule.target)
                text = f"no packet gets past this {name}, and jumps of the proxy stand behind it"
                yield self._finding(Wrong.JUMP_SHADOWED, place, text, entry)
                return

    # The node-port tail ------------------------------------------------------------------

    def tail(self) -> Iterator[Finding]:
        """What is for this node goes to KUBE-NODEPORTS, behind all other rules."""
        place = ("nat", names.SERVICES)
        entries = self._tables.entries(*place)
        tail = [e for e in entries if target_name(e.rule.target) == names.NODEPORTS]
        expected = rule(Comment(LAST_RULE), AddressType("dst"), to=Jump(names.NODEPORTS))
        if not tail:
            if self._tables.entries("nat", names.NODEPORTS):
                text = f"nothing jumps to {names.NODEPORTS}: node ports do not answer"
                yield self._finding(Wrong.TAIL_MISSING, place, text, expected=expected)
            return
        seen: set[Rule] = set()
        for entry in tail:
            form = canonical(entry.rule)
            if form in seen:
                text = f"the jump to {names.NODEPORTS} is there twice"
                yield self._finding(Wrong.TAIL_TWICE, place, text, entry)
            seen.add(form)
            if not _is_tail(entry.rule):
                text = f"the jump to {names.NODEPORTS} is not as it should be"
                yield self._finding(Wrong.JUMP_DIFFERS, place, text, entry, expected)
        if tail[-1].number != tail[0].number + len(tail) - 1 or tail[-1] is not entries[-1]:
            text = f"rules stand behind the jump to {names.NODEPORTS}, which must be the last one"
            yield self._finding(Wrong.TAIL_NOT_LAST, place, text, tail[0])

    # Marks -------------------------------------------------------------------------------

    def mark(self) -> int:
        """The mark of packets to masquerade, 0 if it cannot be told; what is wrong is kept."""
        place = ("nat", names.MARK_MASQ)
        entries = self._tables.entries(*place)
        if len(entries) == 1 and not entries[0].rule.matches:
            target = entries[0].rule.target
            if isinstance(target, SetMark) and target.operation == "or" and target.mark:
                return target.mark
        if self._tables.chain(*place) is not None:
            text = f"{names.MARK_MASQ} does not set a mark and nothing else"
            entry = entries[0] if entries else None
            expected = "-j MARK --or-mark 0x4000 (or the mark of the configuration)"
            self.found.append(self._finding(Wrong.MARK_RULE, place, text, entry, expected))
        return 0

    def masquerade(self, mark: int) -> Iterator[Finding]:
        """RETURN without the mark, clear the mark, masquerade: in this order."""
        place = ("nat", names.POSTROUTING)
        if self._tables.chain(*place) is None:
            return
        entries = self._tables.entries(*place)
        forms = [len(e.rule.matches) == 1 and _is_unmarked(e.rule) for e in entries[:1]] + [
            not e.rule.matches and _clears(e.rule) for e in entries[1:2]
        ]
        last = entries[2:3]
        whole = len(entries) == 3 and all(forms) and isinstance(last[0].rule.target, Masquerade)
        if not whole or not is_plain(last[0].rule.matches):
            shown = mark or 0x4000
            expected = (
                f"-m mark ! --mark {shown:#x}/{shown:#x} -j RETURN; -j MARK --xor-mark {shown:#x};"
                " -j MASQUERADE"
            )
            bad = next((e for e, ok in zip(entries, [*forms, True], strict=False) if not ok), None)
            text = f"{names.POSTROUTING} does not masquerade marked packets, and them only"
            yield self._finding(Wrong.MASQUERADE_RULES, place, text, bad, expected)
            return
        for entry in entries[:2]:
            used = _mark_of(entry.rule)
            if mark and used != mark:
                text = f"it looks at mark {used:#x}, and {names.MARK_MASQ} sets {mark:#x}"
                yield self._finding(Wrong.MARK_MISMATCH, place, text, entry, f"mark {mark:#x}")

    # Forwarding --------------------------------------------------------------------------

    def forward(self, mark: int, tcp_be_liberal: bool | None) -> Iterator[Finding]:  # noqa: FBT001  a fact
        """Marked and answering packets are accepted, INVALID ones dropped before."""
        place = ("filter", names.FORWARD)
        if self._tables.chain(*place) is None:
            return
        entries = self._tables.entries(*place)
        marked = [e for e in entries if e.rule.target == ACCEPT and _accepts_mark(e.rule)]
        answers = [e for e in entries if e.rule.target == ACCEPT and _accepts_answers(e.rule)]
        if not marked:
            expected = rule(Mark(mark or 0x4000), to=ACCEPT)
            text = "packets of Services are not accepted"
            yield self._finding(Wrong.FORWARD_RULES, place, text, expected=expected)
        elif mark and (used := _mark_of(marked[0].rule)) != mark:
            text = f"it looks at mark {used:#x}, and {names.MARK_MASQ} sets {mark:#x}"
            yield self._finding(Wrong.MARK_MISMATCH, place, text, marked[0], f"mark {mark:#x}")
        if not answers:
            expected = rule(ConntrackState("RELATED,ESTABLISHED"), to=ACCEPT)
            text = "answers are not accepted"
            yield self._finding(Wrong.FORWARD_RULES, place, text, expected=expected)
        yield from self._invalid(place, entries, tcp_be_liberal)

    def _invalid(
        self,
        place: tuple[str, str],
        entries: Sequence[Entry],
        liberal: bool | None,  # noqa: FBT001  a fact
    ) -> Iterator[Finding]:
        drops = [entry for entry in entries if _drops_invalid(entry.rule)]
        expected = rule(ConntrackState("INVALID"), to=DROP)
        if not drops and liberal is False:
            text = "nothing drops INVALID packets, and nf_conntrack_tcp_be_liberal is 0"
            yield self._finding(Wrong.INVALID_RULE_MISSING, place, text, expected=expected)
        if drops and liberal is True:
            text = "INVALID packets are dropped, although nf_conntrack_tcp_be_liberal is not 0"
            yield self._finding(Wrong.INVALID_RULE_UNNEEDED, place, text, drops[0])
        if drops and drops[0] is not entries[0]:
            text = "rules stand in front of the one against INVALID packets"
            yield self._finding(Wrong.RULE_ORDER, place, text, drops[0], "as the first rule")


def _is_tail(one: Rule) -> bool:
    others = [match for match in one.matches if type(match) is not Comment]
    local = [m for m in others if isinstance(m, AddressType) and m == AddressType("dst")]
    addresses = [match for match in others if isinstance(match, Destination)]
    if local:
        return len(others) == 1 + len(addresses) and all(a.negated for a in addresses)
    return len(addresses) == 1 == len(others) and not addresses[0].negated


def _is_unmarked(one: Rule) -> bool:
    return one.target == RETURN and any(isinstance(m, Mark) and m.negated for m in one.matches)


def _clears(one: Rule) -> bool:
    return isinstance(one.target, SetMark) and one.target.operation == "xor"


def _mark_of(one: Rule) -> int:
    if isinstance(one.target, SetMark):
        return one.target.mark
    return next((match.mark for match in one.matches if isinstance(match, Mark)), 0)


def _accepts_mark(one: Rule) -> bool:
    kinds = {type(match) for match in one.matches} - {Comment}
    return kinds == {Mark} and not any(isinstance(m, Mark) and m.negated for m in one.matches)


def _accepts_answers(one: Rule) -> bool:
    states = [match for match in one.matches if isinstance(match, ConntrackState)]
    others = {type(match) for match in one.matches} - {Comment, ConntrackState}
    return not others and [state.states for state in states] == ["RELATED,ESTABLISHED"]


def _drops_invalid(one: Rule) -> bool:
    others = [match for match in one.matches if type(match) not in {Comment, Nfacct}]
    return one.target == DROP and others == [ConntrackState("INVALID")]
