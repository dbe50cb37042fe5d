"""What differs from what should be, as findings: each named as Service, chain and rule."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from agent.inspect.compare import Act, Change, Line, owner_name, without_dice
from agent.inspect.findings import Finding, Wrong
from agent.inspect.survey import is_lottery
from agent.inspect.tables import target_name
from agent.inspect.wrap import counted
from agent.rules import names
from agent.rules.parse import read_rule
from agent.rules.rule import Dnat
from agent.rules.static import JUMPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.inspect.survey import Survey
    from agent.rules.ruleset import RuleSet

_BUILT_IN = {(jump.table, jump.source) for jump in JUMPS}


def differences(survey: Survey, rules: RuleSet, changes: Sequence[Change]) -> list[Finding]:
    """Findings for what ``compare`` found.

    Args:
        survey: of the kernel's tables.
        rules: what should be there.
        changes: of ``compare`` for the two.
    """
    return _Differences(survey, rules).run(changes) if changes else []


def merge(found: Iterable[Finding], different: Iterable[Finding], rules: RuleSet) -> list[Finding]:
    """Findings of both kinds; a difference where a fault has been found already is that fault.

    What the configuration asks for is no fault: node ports may be for addresses that the node
    does not have.
    """
    found = [
        one for one in found if one.kind is not Wrong.TAIL_MISSING or rules.node.node_port_ips != ()
    ]
    known = {(one.table, one.chain, one.number) for one in found}
    chains = {(one.table, one.chain) for one in found if not one.number}
    return [
        *found,
        *(
            one
            for one in different
            if one.kind not in _VAGUE
            or not ((one.table, one.chain, one.number) in known or (one.table, one.chain) in chains)
        ),
    ]


_VAGUE = {Wrong.RULE_DIFFERS, Wrong.RULE_MISSING, Wrong.RULE_UNEXPECTED, Wrong.CHAIN_MISSING}


class _Differences:
    def __init__(self, survey: Survey, rules: RuleSet) -> None:
        self._survey = survey
        self._rules = rules
        self._expected = {
            owner_name(owner): compiled
            for ports in rules.services.values()
            for owner, compiled in ports.items()
        }

    def _leads_to(self, chain: str) -> str:
        """Where an endpoint's chain should lead to; the chain's name if it should not be there."""
        return _destination(self._chains[chain]) if chain in self._chains else chain

    @functools.cached_property
    def _chains(self) -> dict[str, tuple[str, ...]]:
        return dict(chain for compiled in self._expected.values() for chain in compiled.chains)

    def run(self, changes: Sequence[Change]) -> list[Finding]:
        by_service: dict[str, list[Change]] = {}
        for change in changes:
            by_service.setdefault(change.service, []).append(change)
        found: list[Finding] = []
        for service, mine in sorted(by_service.items()):
            if not service:
                found += self._shared(mine)
            elif service not in self._expected:
                found.append(self._unexpected(mine))
            elif self._is_missing(service):
                found.append(self._missing(mine))
            else:
                found += self._changed(mine)
        return found

    def _finding(
        self,
        kind: Wrong,
        change: Change,
        text: str,
        present: Line | None = None,
        wanted: Line | None = None,
    ) -> Finding:
        return Finding(
            kind,
            self._survey.tables.family,
            change.table,
            change.chain,
            text,
            service=change.service,
            rule=present.text if present else "",
            number=present.number if present else 0,
            expected=wanted.text if wanted else "",
        )

    # Whole Services ----------------------------------------------------------------------

    def _unexpected(self, changes: Sequence[Change]) -> Finding:
        chains = sum(change.act is Act.DELETE for change in changes)
        rules = sum(len(change.removed) for change in changes)
        left = f"{counted(chains, 'chain')} and {counted(rules, 'rule')} of it are left"
        text = f"there is no such Service port; {left}"
        first = next((change for change in changes if change.removed), changes[0])
        line = first.removed[0] if first.removed else None
        return self._finding(Wrong.SERVICE_UNEXPECTED, first, text, line)

    def _is_missing(self, service: str) -> bool:
        """Whether nothing of a Service port is there."""
        tables = self._survey.tables
        compiled = self._expected[service]
        if any(tables.chain("nat", chain) is not None for chain, _ in compiled.chains):
            return False
        return not any(portal.service == service for portal in self._survey.portals)

    def _missing(self, changes: Sequence[Change]) -> Finding:
        wanted = next((c for c in changes if c.act is Act.CHANGE and c.added), changes[0])
        endpoints = [c for c in changes if c.chain.startswith(names.SEP)]
        has = counted(len(endpoints), "endpoint")
        text = f"there is no rule for this Service port, which has {has} here"
        line = wanted.added[0] if wanted.added else None
        return self._finding(Wrong.SERVICE_MISSING, wanted, text, wanted=line)

    # Parts of Services -------------------------------------------------------------------

    def _changed(self, changes: Sequence[Change]) -> Iterator[Finding]:
        told: set[str] = set()
        for change in changes:
            if is_lottery(change.chain):
                yield from self._lottery(change, told)
            elif not change.chain.startswith(names.SEP):
                yield from self._rules_of(change, change.removed, change.added)
        for change in changes:
            if change.chain.startswith(names.SEP) and change.chain not in told:
                yield from self._endpoint(change)

    def _lottery(self, change: Change, told: set[str]) -> Iterator[Finding]:
        """Endpoints that are too many or too few; then shares alone are no news."""
        came = {_target(line): line for line in change.added}
        went = {_target(line): line for line in change.removed}
        stale = [c for c in went if c.startswith(names.SEP) and c not in self._wanted(change)]
        lacking = [c for c in came if c.startswith(names.SEP) and c not in self._held(change)]
        for chain in stale:
            told.add(chain)
            endpoint = self._survey.endpoint_of(chain)
            text = f"{endpoint or chain} is no endpoint of the Service (any more), and gets traffic"
            yield self._finding(Wrong.ENDPOINT_STALE, change, text, went[chain])
        for chain in lacking:
            told.add(chain)
            text = f"{self._leads_to(chain)} is an endpoint, and gets no traffic"
            yield self._finding(Wrong.ENDPOINT_MISSING, change, text, wanted=came[chain])
        removed = [line for line in change.removed if _target(line) not in stale]
        added = [line for line in change.added if _target(line) not in lacking]
        if stale or lacking:
            same = {without_dice(line.text) for line in removed}
            same &= {without_dice(line.text) for line in added}
            removed = [line for line in removed if without_dice(line.text) not in same]
            added = [line for line in added if without_dice(line.text) not in same]
            yield from self._rules_of(change, removed, added, moved=False)
        else:
            yield from self._rules_of(change, removed, added)

    def _wanted(self, change: Change) -> set[str]:
        texts = dict(self._expected[change.service].chains).get(change.chain, ())
        return {target_name(read_rule(text).target) for text in texts}

    def _held(self, change: Change) -> set[str]:
        entries = self._survey.tables.entries(change.table, change.chain)
        return {target_name(entry.rule.target) for entry in entries}

    def _endpoint(self, change: Change) -> Iterator[Finding]:
        if change.act is Act.DELETE:
            endpoint = self._survey.endpoint_of(change.chain)
            text = f"{endpoint or change.chain} is no endpoint of the Service (any more)"
            line = change.removed[0] if change.removed else None
            yield self._finding(Wrong.ENDPOINT_STALE, change, text, line)
        elif change.act is Act.CREATE:
            endpoint = self._leads_to(change.chain)
            text = f"the chain of the endpoint {endpoint} is not there"
            line = change.added[-1] if change.added else None
            yield self._finding(Wrong.ENDPOINT_MISSING, change, text, wanted=line)
        else:
            yield from self._rules_of(change, change.removed, change.added)

    def _shared(self, changes: Sequence[Change]) -> Iterator[Finding]:
        for change in changes:
            if (change.table, change.chain) in _BUILT_IN:
                if any(_target(line) == names.KUBELET_FIREWALL for line in change.added):
                    text = f"nothing jumps from {change.chain} to {names.KUBELET_FIREWALL}"
                    line = change.added[0]
                    yield self._finding(Wrong.JUMP_MISSING, change, text, wanted=line)
            elif change.act is Act.CREATE:
                text = f"chain {change.chain} is not there"
                yield self._finding(Wrong.CHAIN_MISSING, change, text)
            elif change.act is Act.DELETE:
                text = f"chain {change.chain} belongs to no Service"
                first = change.removed[0] if change.removed else None
                yield self._finding(Wrong.RULE_UNEXPECTED, change, text, first)
            elif change.chain == names.KUBELET_FIREWALL:
                # The kubelet's chain, and other rules in it are the kubelet's.
                yield from self._rules_of(change, (), change.added, moved=False)
            else:
                yield from self._rules_of(change, change.removed, change.added)

    def _rules_of(
        self,
        change: Change,
        removed: Sequence[Line],
        added: Sequence[Line],
        *,
        moved: bool | None = None,
    ) -> Iterator[Finding]:
        """Rules that differ, pair by pair where they have the same target."""
        left = list(added)
        for line in removed:
            other = next((one for one in left if _target(one) == _target(line)), None)
            if other is None:
                text = "a rule that should not be there"
                yield self._finding(Wrong.RULE_UNEXPECTED, change, text, line)
            else:
                left.remove(other)
                text = "a rule is not as it should be"
                yield self._finding(Wrong.RULE_DIFFERS, change, text, line, other)
        for line in left:
            text = "a rule is not there"
            yield self._finding(Wrong.RULE_MISSING, change, text, wanted=line)
        if change.moved if moved is None else moved:
            text = "the rules stand in another order"
            yield self._finding(Wrong.RULE_ORDER, change, text)


def _target(line: Line) -> str:
    return target_name(read_rule(line.text).target)


def _destination(texts: Iterable[str]) -> str:
    for text in texts:
        target = read_rule(text).target
        if isinstance(target, Dnat):
            return target.destination
    return ""
