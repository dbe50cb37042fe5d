"""Who jumps where, and which Service a chain belongs to: what checks need to know of tables.

kube-proxy and onenth name every Service in the comments of the rules by which packets find it,
and a chain's name ends with a hash of the Service's name. So the tables alone tell whose a
chain is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from agent.inspect.tables import EXTENSIONS, Chain, Entry, Tables, target_name
from agent.inspect.usual import UsualEndpoint, UsualLottery
from agent.rules import names
from agent.rules.rule import (
    Comment,
    Destination,
    DestinationPort,
    Dnat,
    Jump,
    Match,
    Other,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.rules.rule import Rule

#: A Service (and port) in a comment, and what is said of it.
_SERVICE = re.compile(r"(?:^|\s)([a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*(?::[a-z0-9-]+)?)(?:\s|$)")
_SUFFIX = 16
#: Chains in which packets find their Service, by table; trees hang below them.
DISPATCH = {
    "nat": (names.SERVICES, names.NODEPORTS),
    "filter": (
        names.SERVICES,
        names.EXTERNAL_SERVICES,
        names.NODEPORTS,
        names.PROXY_FIREWALL,
    ),
}


class Portal(NamedTuple):
    """A rule by which packets find a service port.

    Attributes:
        table: nat or filter.
        root: the dispatch chain below which it stands.
        chain: the chain in which it stands.
        entry: the rule.
        comment: of the rule.
        service: ``namespace/name:port``; empty if the comment names none.
        protocol: that it matches, empty for any.
        address: likewise; empty for a node port.
        port: likewise, 0 for any.
        target: chain or verdict.
    """

    table: str
    root: str
    chain: str
    entry: Entry
    comment: str
    service: str
    protocol: str
    address: str
    port: int
    target: str


class Reference(NamedTuple):
    """A rule that jumps somewhere, and its chain."""

    chain: str
    entry: Entry


class Survey:
    """An index of one family's tables.

    Attributes:
        tables: what is surveyed.
        portals: rules by which packets find service ports, in the order of the chains.
        callers: a chain that jumps to each chain, by table and chain; empty for none.
        dangling: jumps to chains that are not there, by table.
        services: service port by the hash at the end of chains' names.
        refused: service ports whose external traffic the filter table drops or rejects.
        guarded: firewall chains behind which the filter table drops what falls through.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.callers: dict[str, dict[str, str]] = {}
        self.dangling: dict[str, list[Reference]] = {}
        for table, chains in tables.tables.items():
            self.callers[table], self.dangling[table] = _jumps(chains)
        self.portals = [
            portal
            for table, roots in DISPATCH.items()
            for root in roots
            for portal in self._portals(table, root)
        ]
        self.services: dict[str, str] = {}
        for portal in self.portals:
            if portal.service and names.is_service_chain(portal.target):
                self.services.setdefault(suffix(portal.target), portal.service)
        self._names_from_endpoints()
        self.refused = {
            portal.service
            for portal in self.portals
            if portal.root == names.EXTERNAL_SERVICES and portal.target in {"DROP", "REJECT"}
        }
        self.guarded = {
            portal.comment.rpartition(" ")[2]
            for portal in self.portals
            if portal.root == names.PROXY_FIREWALL and portal.target == "DROP"
        }

    def is_held(self) -> bool:
        """Whether any chain of a Service proxy is there."""
        return any(
            names.SERVICES in chains or names.NODEPORTS in chains
            for chains in self.tables.tables.values()
        )

    def service_of(self, chain: str) -> str:
        """The service port that a chain belongs to; empty if nothing tells."""
        return self.services.get(suffix(chain), "") if names.is_service_chain(chain) else ""

    def endpoint_of(self, chain: str) -> str:
        """``ip:port`` that an endpoint's chain leads to; empty if it leads nowhere."""
        found = self.tables.chain("nat", chain)
        if found is None:
            return ""
        if type(found.usual) is UsualEndpoint:
            return found.usual.destination
        for entry in reversed(found.entries):
            if isinstance(entry.rule.target, Dnat):
                return entry.rule.target.destination
        return ""

    def dispatch_chains(self, table: str, root: str) -> Iterator[Chain]:
        """A dispatch chain and all branches below it, in the order of the jumps."""
        seen: set[str] = set()
        waiting = [root]
        while waiting:
            name = waiting.pop()
            chain = self.tables.chain(table, name)
            if chain is None or name in seen:
                continue
            seen.add(name)
            yield chain
            below = [target_name(entry.rule.target) for entry in chain.entries]
            waiting += reversed([name for name in below if names.is_tree_chain(name)])

    def _portals(self, table: str, root: str) -> Iterator[Portal]:
        for chain in self.dispatch_chains(table, root):
            for entry in chain.entries:
                target = target_name(entry.rule.target)
                if target != names.NODEPORTS and not names.is_tree_chain(target):
                    yield _portal(table, root, chain.name, entry, target)

    def _names_from_endpoints(self) -> None:
        """An endpoint's chain is whose the chain is from which it is jumped to."""
        services = self.services
        for chain, caller in self.callers.get("nat", {}).items():
            if caller and chain.startswith(names.SEP):
                owner = services.get(caller[-_SUFFIX:])
                if owner is not None:
                    services.setdefault(chain[-_SUFFIX:], owner)


def _jumps(chains: dict[str, Chain]) -> tuple[dict[str, str], list[Reference]]:
    """The first chain that jumps to each chain, and jumps to chains that are not there."""
    callers = dict.fromkeys(chains, "")
    dangling: list[Reference] = []
    known = chains.__contains__
    marked = known(names.MARK_MASQ)
    for name, chain in chains.items():
        usual = chain.usual
        if type(usual) is UsualEndpoint and marked:
            callers[names.MARK_MASQ] = name
            continue
        if type(usual) is UsualLottery and marked and all(map(known, usual.endpoints)):
            if usual.marking:
                callers[names.MARK_MASQ] = name
            callers |= {to: callers[to] or name for to in usual.endpoints}
            continue
        for entry in chain.entries:
            target = entry.rule.target
            to = target.target if type(target) is Jump else target_name(target)
            caller = callers.get(to)
            if caller == "":
                callers[to] = name
            elif caller is None and to and to not in EXTENSIONS:
                dangling.append(Reference(name, entry))
    return callers, dangling


def _portal(table: str, root: str, chain: str, entry: Entry, target: str) -> Portal:
    comment = protocol = address = ""
    port = 0
    for match in entry.rule.matches:
        if isinstance(match, Comment):
            comment = match.comment
        elif isinstance(match, Protocol):
            protocol = match.protocol
        elif isinstance(match, Destination) and not match.negated:
            address = match.cidr
        elif isinstance(match, DestinationPort):
            port = match.port
    service = service_in(comment)
    return Portal(table, root, chain, entry, comment, service, protocol, address, port, target)


def is_lottery(chain: str) -> bool:
    """Whether the chain's rules share connections out over endpoints.

    The name of a branch of a dispatch tree may begin like that of one.
    """
    return chain.startswith((names.SVC, names.SVL)) and not names.is_tree_chain(chain)


def service_in(comment: str) -> str:
    """The service port that a comment names; empty if it names none."""
    first, _, rest = comment.partition(" ")
    if "/" in first and not rest.startswith("->") and _SERVICE.fullmatch(first):
        return first
    found = _SERVICE.search(comment)
    return found[1] if found else ""


def comment_of(rule: Rule) -> str:
    """A rule's comment; empty if it has none."""
    for match in rule.matches:
        if type(match) is Comment:
            return match.comment
    return ""


def suffix(chain: str) -> str:
    """The hash at the end of a chain's name."""
    return chain[-_SUFFIX:]


def is_plain(matches: tuple[Match, ...]) -> bool:
    """Whether matches say nothing but a comment: the rule always matches."""
    return all(type(match) is Comment for match in matches)


def has_other(rule: Rule) -> bool:
    """Whether a rule has a match that only other programs use."""
    return any(type(match) is Other for match in rule.matches)
