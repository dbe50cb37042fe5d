"""Checks of the rules by which packets find their Service, and of who jumps where at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.findings import Finding, Wrong
from agent.inspect.survey import comment_of, is_lottery, service_in, suffix
from agent.inspect.tables import target_name
from agent.rules import names
from agent.rules.names import service_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.inspect.survey import Portal, Survey
    from agent.inspect.tables import Entry

#: What a portal's comment says behind the Service's name, and where it may lead to.
_KINDS = {
    "cluster IP": (names.SVC, names.SVL),
    "external IP": (names.EXT,),
    "loadbalancer IP": (names.EXT, names.FW),
    "": (names.EXT,),  # a node port
}
_REFUSALS = {"has no endpoints": "REJECT", "has no local endpoints": "DROP"}


def check_dispatch(survey: Survey) -> Iterator[Finding]:
    """All checks of this module."""
    yield from _check_portals(survey)
    yield from _check_contradictions(survey)
    yield from _check_targets(survey)
    yield from _check_orphans(survey)


def _finding(survey: Survey, kind: Wrong, portal: Portal, text: str, expected: str = "") -> Finding:
    return Finding(
        kind,
        survey.tables.family,
        portal.table,
        portal.chain,
        text,
        service=portal.service,
        rule=portal.entry.text,
        number=portal.entry.number,
        expected=expected,
    )


def _check_portals(survey: Survey) -> Iterator[Finding]:
    """Each packet finds one Service, and that which the comment names."""
    seen: dict[tuple[str, str, str, str, int], Portal] = {}
    for portal in survey.portals:
        if not portal.service:
            yield _finding(survey, Wrong.FOREIGN_RULE, portal, "a rule that is not the proxy's")
            continue
        if portal.table == "nat":
            yield from _check_leads(survey, portal)
        else:
            yield from _check_refusal(survey, portal)
        if not portal.port:
            text = "it matches no port, so it takes packets of others too"
            yield _finding(survey, Wrong.PORTAL_TARGET, portal, text, "--dport of the Service")
            continue
        key = (portal.table, portal.root, portal.protocol, portal.address, portal.port)
        other = seen.setdefault(key, portal)
        # All ports of a Service have the same health check port, and a rule each.
        if other is not portal and not portal.target == other.target == "ACCEPT":
            text = f"rule {other.entry.number} ({other.service}) takes the same packets before it"
            yield _finding(survey, Wrong.PORTAL_TWICE, portal, text)


def _check_leads(survey: Survey, portal: Portal) -> Iterator[Finding]:
    """A rule of the nat table leads to a chain of its Service, of the right kind."""
    said = portal.comment.removeprefix(portal.service).strip()
    wanted = _KINDS.get(said)
    if wanted is None or not portal.target.startswith("KUBE-"):
        yield _finding(survey, Wrong.FOREIGN_RULE, portal, "a rule that is not the proxy's")
        return
    digest = service_hash(portal.service, portal.protocol)
    expected = f"-j {wanted[0]}{digest}"
    if suffix(portal.target) != digest:
        owner = survey.services.get(suffix(portal.target), "")
        kind = Wrong.CROSSED if owner and owner != portal.service else Wrong.HASH
        text = f"{portal.target} is not a chain of {portal.service} ({portal.protocol})"
        yield _finding(survey, kind, portal, text, expected)
    elif not portal.target.startswith(wanted):
        text = f"it leads to {portal.target}, which is not for {said or 'a node port'}"
        yield _finding(survey, Wrong.PORTAL_TARGET, portal, text, expected)


def _check_refusal(survey: Survey, portal: Portal) -> Iterator[Finding]:
    """A rule of the filter table does what its comment says."""
    said = portal.comment.removeprefix(portal.service).strip()
    wanted = _REFUSALS.get(said, "")
    if said == "health check node port":
        wanted = "ACCEPT"
    elif said.startswith("traffic not accepted by "):
        wanted = "DROP"
        chain = said.rpartition(" ")[2]
        if survey.tables.chain("nat", chain) is None:
            text = f"there is no chain {chain} that would let anybody through"
            yield _finding(survey, Wrong.CONTRADICTION, portal, text)
    if not wanted:
        yield _finding(survey, Wrong.FOREIGN_RULE, portal, "a rule that is not the proxy's")
    elif portal.target != wanted:
        text = f"the comment says {said!r}, and the rule says {portal.target or 'nothing'}"
        yield _finding(survey, Wrong.PORTAL_TARGET, portal, text, f"-j {wanted}")


def _check_contradictions(survey: Survey) -> Iterator[Finding]:
    """A Service without endpoints is not sent to endpoints."""
    served = {
        (p.protocol, p.address, p.port): p
        for p in survey.portals
        if p.table == "nat" and is_lottery(p.target)
    }
    for portal in survey.portals:
        if portal.root != names.SERVICES or portal.table != "filter":
            continue
        other = served.get((portal.protocol, portal.address, portal.port))
        if other is not None:
            text = f"it is refused here, and the nat table sends it to {other.target}"
            yield _finding(survey, Wrong.CONTRADICTION, portal, text)


def _check_targets(survey: Survey) -> Iterator[Finding]:
    """Every jump has a chain."""
    for table, jumps in survey.dangling.items():
        for chain, entry in jumps:
            target = target_name(entry.rule.target)
            yield Finding(
                Wrong.JUMP_TO_NOTHING,
                survey.tables.family,
                table,
                chain,
                f"there is no chain {target}",
                service=survey.service_of(chain) or _named(entry),
                rule=entry.text,
                number=entry.number,
                expected=f"chain {target}",
            )


def _named(entry: Entry) -> str:
    return service_in(comment_of(entry.rule))


def _check_orphans(survey: Survey) -> Iterator[Finding]:
    """Every chain of a Service, and every branch, is jumped to."""
    for table, callers in survey.callers.items():
        for chain, caller in callers.items():
            if caller or not (names.is_service_chain(chain) or names.is_tree_chain(chain)):
                continue
            endpoint = survey.endpoint_of(chain) if chain.startswith(names.SEP) else ""
            what = f" (to {endpoint})" if endpoint else ""
            yield Finding(
                Wrong.ORPHAN_CHAIN,
                survey.tables.family,
                table,
                chain,
                f"nothing jumps to {chain}{what}",
                service=survey.service_of(chain) or _named_inside(survey, table, chain),
            )


def _named_inside(survey: Survey, table: str, chain: str) -> str:
    """The Service that the rules of a chain name."""
    named = (_named(entry) for entry in survey.tables.entries(table, chain))
    return next((name for name in named if name), "")
