"""Checks of the chains of Services: the lottery, endpoints, external traffic, firewalls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.inspect.findings import Finding, Wrong
from agent.inspect.packet import split_endpoint
from agent.inspect.survey import comment_of, is_lottery, is_plain, suffix
from agent.inspect.tables import target_name
from agent.inspect.usual import UsualEndpoint, UsualLottery
from agent.inspect.wrap import counted
from agent.rules import names
from agent.rules.names import service_hash
from agent.rules.probability import PROBABILITY_STEPS
from agent.rules.rule import Comment, Dnat, Jump, Other, Protocol, Recent, Source, Statistic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.inspect.survey import Survey
    from agent.inspect.tables import Chain, Entry
    from agent.rules.rule import Rule


_TO_MARK = Jump(names.MARK_MASQ)


class Reporter:
    """Makes findings of one chain."""

    def __init__(self, survey: Survey, chain: Chain, table: str = "nat") -> None:
        self.survey = survey
        self.chain = chain
        self.service = survey.service_of(chain.name)
        self._table = table

    def __call__(
        self, kind: Wrong, text: str, entry: Entry | None = None, expected: str = ""
    ) -> Finding:
        """A finding about a rule of the chain, or about the chain."""
        return Finding(
            kind,
            self.survey.tables.family,
            self._table,
            self.chain.name,
            text,
            service=self.service,
            rule=entry.text if entry else "",
            number=entry.number if entry else 0,
            expected=expected,
        )


def check_service_chains(survey: Survey) -> Iterator[Finding]:
    """All checks of this module."""
    for name, chain in survey.tables.tables.get("nat", {}).items():
        if name.startswith(names.SEP):
            if not _is_whole(chain, survey.services.get(suffix(name), "")):
                yield from _check_endpoint(Reporter(survey, chain))
            continue
        if not name.startswith("KUBE-"):
            continue
        report = Reporter(survey, chain)
        if is_lottery(name):
            if not _is_fair(survey, chain):
                yield from _check_lottery(report)
        elif name.startswith(names.EXT):
            yield from _check_external(report)
        elif name.startswith(names.FW):
            yield from _check_firewall(report)


# The lottery -------------------------------------------------------------------------------


def _is_fair(survey: Survey, chain: Chain) -> bool:
    """Whether the chain is as nearly all are, so that nothing else needs to be looked at."""
    usual = chain.usual
    return type(usual) is UsualLottery and (
        not usual.seconds or all(_remembers(survey, one) for one in usual.endpoints)
    )


def _check_lottery(report: Reporter) -> Iterator[Finding]:
    """Masquerade rules, then remembered clients, then the dice."""
    dice: list[_Lead] = []
    sticky: list[tuple[_Lead, Recent]] = []
    for entry in report.chain.entries:
        target = target_name(entry.rule.target)
        if target.startswith(names.SEP):
            recent = _recent(entry.rule)
            if recent is None:
                dice.append(_Lead(entry, target))
                continue
            if dice:
                text = "it asks for remembered clients behind the dice"
                yield report(Wrong.RULE_ORDER, text, entry, "in front of the dice")
            sticky.append((_Lead(entry, target), recent))
        elif target == names.MARK_MASQ:
            if dice or sticky:
                text = "the rule that marks packets stands behind rules that lead away"
                yield report(Wrong.RULE_ORDER, text, entry, "in front of all others")
        else:
            text = "a rule that is neither the proxy's nor harmless" if target else "a foreign rule"
            yield report(Wrong.FOREIGN_RULE, text, entry)
    if not dice:
        yield report(Wrong.NO_ENDPOINTS, "the chain leads to no endpoint")
    yield from _check_dice(report, dice)
    yield from _check_sticky(report, sticky, dice)
    yield from _check_comments(report, [*(lead for lead, _ in sticky), *dice])


class _Lead(NamedTuple):
    """A rule of a lottery that leads to an endpoint's chain.

    Attributes:
        entry: the rule.
        chain: to which it leads.
    """

    entry: Entry
    chain: str


def _recent(rule: Rule) -> Recent | None:
    for match in rule.matches:
        if type(match) is Recent:
            return match
    return None


def _check_dice(report: Reporter, dice: Sequence[_Lead]) -> Iterator[Finding]:
    """Rule i of n matches with 1/(n-i), and the last one always."""
    left = count = len(dice)
    seen: set[str] = set()
    for entry, target in dice:
        if target in seen:
            text = f"{target} is there twice, so its endpoint gets two shares of {count}"
            yield report(Wrong.ENDPOINT_TWICE, text, entry)
        seen.add(target)
        if not _is_share(entry.rule, left):
            chance = _chance(entry.rule)
            if left == 1:
                text = f"the last rule matches with {chance}: the rest falls through the chain"
                expected = "no probability: the last rule always matches"
                yield report(Wrong.LAST_HAS_PROBABILITY, text, entry, expected)
            elif not chance:
                behind = counted(left - 1, "rule behind it is", "rules behind it are")
                text = f"it always matches, so the {behind} never reached"
                yield report(Wrong.CASCADE_ENDS_EARLY, text, entry, f"probability 1/{left}")
            else:
                text = f"it matches with {chance} instead of 1/{left}"
                yield report(Wrong.PROBABILITY, text, entry, f"probability 1/{left}")
        left -= 1


def _chance(rule: Rule) -> str:
    """The rule's probability in words; empty if it has none."""
    for match in rule.matches:
        if type(match) is Statistic:
            return f"1/{match.one_in}"
        if type(match) is Other and "statistic" in match.options:
            return match.options.removeprefix("-m statistic ")
    return ""


def _is_share(rule: Rule, wanted: int) -> bool:
    """Whether a rule matches with 1/``wanted``, in the kernel's steps of 2^-31."""
    for match in rule.matches:
        if type(match) is Statistic:
            one_in = match.one_in
            # Above 46341 endpoints, neighbouring shares are less than a step apart.
            return wanted > 1 and (
                one_in == wanted
                or abs(PROBABILITY_STEPS / one_in - PROBABILITY_STEPS / wanted) <= 1
            )
        if type(match) is Other and "statistic" in match.options:
            return False
    return wanted == 1


def _check_sticky(
    report: Reporter, sticky: Sequence[tuple[_Lead, Recent]], dice: Sequence[_Lead]
) -> Iterator[Finding]:
    """Remembered clients are sent where they were, all for the same time."""
    if not sticky:
        return
    seconds: set[int] = set()
    first, _ = sticky[0]
    for (entry, target), recent in sticky:
        seconds.add(recent.seconds)
        if recent.name != target:
            text = f"clients that are remembered as {recent.name} are sent to {target}"
            yield report(Wrong.AFFINITY, text, entry, f"-m recent --name {target}")
        if not recent.seconds:
            text = "it remembers clients here, and does not ask for them"
            yield report(Wrong.AFFINITY, text, entry)
    if len(seconds) > 1:
        text = f"clients are remembered for different times: {sorted(seconds)} s"
        yield report(Wrong.AFFINITY, text, first.entry)
    thrown = [lead.chain for lead in dice]
    if [lead.chain for lead, _ in sticky] != thrown:
        text = "the endpoints of remembered clients are not those of the dice, in the same order"
        yield report(Wrong.AFFINITY, text, first.entry, ", ".join(thrown))
    for entry, chain in dice:
        if not _remembers(report.survey, chain):
            text = f"{chain} does not remember its clients, so there is no affinity to it"
            yield report(Wrong.AFFINITY, text, entry, f"-m recent --set --name {chain} in {chain}")


def _remembers(survey: Survey, chain: str) -> bool:
    found = survey.tables.chain("nat", chain)
    if found is not None and type(found.usual) is UsualEndpoint:
        return found.usual.remembers == chain
    return any(
        type(match) is Recent and not match.seconds and match.name == chain
        for entry in survey.tables.entries("nat", chain)
        for match in entry.rule.matches
    )


def _check_comments(report: Reporter, leads: Sequence[_Lead]) -> Iterator[Finding]:
    """``service -> ip:port`` tells the truth."""
    for entry, chain in leads:
        comment = comment_of(entry.rule)
        if not comment:
            continue
        service, arrow, address = comment.partition(" -> ")
        endpoint = report.survey.endpoint_of(chain)
        if report.service and service != report.service:
            text = f"the comment names {service}, and the chain is that of {report.service}"
            yield report(Wrong.COMMENT, text, entry, report.service)
        elif arrow and endpoint and address != endpoint:
            text = f"the comment says {address}, and the rule leads to {endpoint}"
            yield report(Wrong.COMMENT, text, entry, f"{service} -> {endpoint}")


# Endpoints ---------------------------------------------------------------------------------


def _is_whole(chain: Chain, service: str) -> bool:
    """Whether the chain is as nearly all are, so that nothing else needs to be looked at."""
    usual = chain.usual
    return (
        type(usual) is UsualEndpoint
        and bool(service)
        and usual.comment in {"", service}
        and usual.remembers in {"", chain.name}
        and service_hash(service, usual.protocol, usual.destination) == suffix(chain.name)
    )


def _check_endpoint(report: Reporter) -> Iterator[Finding]:
    """A rule that marks packets of the endpoint to itself, and one that translates."""
    entries = report.chain.entries
    translating = [entry for entry in entries if type(entry.rule.target) is Dnat]
    if len(translating) != 1 or entries[-1] is not translating[0]:
        text = {0: "it does not translate to an endpoint"}.get(
            len(translating), "it translates more than once, or not in its last rule"
        )
        yield report(Wrong.ENDPOINT_BROKEN, text, entries[0] if entries else None)
        return
    rule = translating[0].rule
    destination = report.survey.endpoint_of(report.chain.name)
    yield from _check_hairpin(report, entries[:-1], split_endpoint(destination)[0])
    yield from _check_translation(report, translating[0], destination)
    for entry in entries:
        comment = comment_of(entry.rule)
        if comment and report.service and comment != report.service:
            text = f"the comment names {comment}, and the chain is that of {report.service}"
            yield report(Wrong.COMMENT, text, entry, report.service)
    protocol = next((m.protocol for m in rule.matches if type(m) is Protocol), "")
    if report.service and protocol:
        wanted = service_hash(report.service, protocol, destination)
        if wanted != suffix(report.chain.name):
            text = f"the name is not that of {destination} of {report.service} ({protocol})"
            yield report(Wrong.HASH, text, translating[0], names.SEP + wanted)


def _check_hairpin(report: Reporter, before: Sequence[Entry], ip: str) -> Iterator[Finding]:
    expected = f"-s {ip} -j {names.MARK_MASQ}"
    marking = [e for e in before if target_name(e.rule.target) == names.MARK_MASQ]
    if not marking:
        text = f"packets of {ip} to itself are not marked, so it cannot reach its own Service"
        yield report(Wrong.HAIRPIN, text, expected=expected)
    for entry in marking:
        sources = [match for match in entry.rule.matches if type(match) is Source]
        if [(one.cidr, one.negated) for one in sources] != [(ip, False)]:
            text = f"it does not mark packets of the endpoint {ip}"
            yield report(Wrong.HAIRPIN, text, entry, expected)
    for entry in before:
        if entry not in marking:
            yield report(Wrong.FOREIGN_RULE, "a rule that is not the proxy's", entry)


def _check_translation(report: Reporter, entry: Entry, destination: str) -> Iterator[Finding]:
    for match in entry.rule.matches:
        if type(match) is Recent and (match.name != report.chain.name or match.seconds):
            text = f"it remembers clients as {match.name}"
            expected = f"-m recent --set --name {report.chain.name}"
            yield report(Wrong.AFFINITY, text, entry, expected)
        elif type(match) not in {Comment, Protocol, Recent}:
            text = f"not every packet that gets here is sent to {destination}"
            yield report(Wrong.ENDPOINT_BROKEN, text, entry, "no match but the protocol's")


# External traffic --------------------------------------------------------------------------


def _check_external(report: Reporter) -> Iterator[Finding]:
    """Marked if need be, then to the lottery; or dropped by the filter table."""
    mine = suffix(report.chain.name)
    targets = [target_name(entry.rule.target) for entry in report.chain.entries]
    for entry, target in zip(report.chain.entries, targets, strict=True):
        if is_lottery(target):
            if suffix(target) != mine:
                text = f"it leads to {target}, which is another Service's"
                expected = target[: -len(mine)] + mine
                yield report(Wrong.CROSSED, text, entry, expected)
        elif target != names.MARK_MASQ:
            yield report(Wrong.FOREIGN_RULE, "a rule that is not the proxy's", entry)
    if names.MARK_MASQ not in targets:
        text = "no packet is marked for masquerading: answers would not come back through here"
        yield report(Wrong.MASQUERADE_MISSING, text, expected=f"-j {names.MARK_MASQ}")
    last = report.chain.entries[-1] if report.chain.entries else None
    always = last is not None and is_plain(last.rule.matches) and is_lottery(targets[-1])
    if not always and report.service not in report.survey.refused:
        text = "packets fall through the chain: its last rule does not lead to endpoints"
        yield report(Wrong.FALLS_THROUGH, text, last, f"-j {names.SVC}{mine} or {names.SVL}{mine}")


def _check_firewall(report: Reporter) -> Iterator[Finding]:
    """Sources that may pass go to the Service; the filter table drops the rest."""
    mine = suffix(report.chain.name)
    for entry in report.chain.entries:
        target = target_name(entry.rule.target)
        if target and target != names.EXT + mine:
            kind = Wrong.CROSSED if target.startswith(names.EXT) else Wrong.FOREIGN_RULE
            yield report(kind, f"it leads to {target}", entry, names.EXT + mine)
        elif target and not any(type(match) is Source for match in entry.rule.matches):
            text = "everybody may pass, whatever the source ranges say"
            yield report(Wrong.FIREWALL_OPEN, text, entry, "-s with a source range")
    if report.chain.name not in report.survey.guarded:
        text = f"{names.PROXY_FIREWALL} does not drop what {report.chain.name} lets fall through"
        yield report(Wrong.FIREWALL_OPEN, text, expected=f"a DROP in {names.PROXY_FIREWALL}")
