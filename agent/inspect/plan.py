"""What the agent would change, for people: grouped by Service, in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.compare import Act, Change, Line
from agent.inspect.survey import comment_of, is_lottery, service_in
from agent.inspect.tables import target_name
from agent.inspect.wrap import counted
from agent.rules import names
from agent.rules.parse import canonical, read_rule
from agent.rules.rule import Destination, DestinationPort, Dnat, Protocol, Rule, Statistic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.inspect.survey import Survey

#: The group of what is no single Service's.
SHARED = ""


class Item(msgspec.Struct, frozen=True):
    """One thing that would come (+), go (-) or change (~)."""

    act: Act
    text: str


class Group(msgspec.Struct, frozen=True):
    """What would happen to one Service.

    Attributes:
        act: whether the Service comes, goes or changes.
        service: ``namespace/name``; empty for what all Services share.
        items: in words.
        changes: chain by chain.
    """

    act: Act
    service: str
    items: tuple[Item, ...]
    changes: tuple[Change, ...]


class Plan(msgspec.Struct, frozen=True):
    """All that would happen in one family.

    Attributes:
        groups: by Service; what all share comes last.
        moved: portals that only change their place, into a tree or out of one.
    """

    groups: tuple[Group, ...]
    moved: int = 0

    def __bool__(self) -> bool:
        return bool(self.groups or self.moved)

    def count(self, act: Act) -> int:
        """Services that come, go or change."""
        return sum(group.act is act and group.service != SHARED for group in self.groups)


def make_plan(survey: Survey, wanted: Iterable[str], changes: Sequence[Change]) -> Plan:
    """Group what ``compare`` found.

    Args:
        survey: of the kernel's tables.
        wanted: Services (``namespace/name``) that should have rules.
        changes: of ``compare``.
    """
    there = set(wanted)
    kept, moved = _without_moves(changes)
    by_service: dict[str, list[Change]] = {}
    for change in kept:
        by_service.setdefault(change.service.partition(":")[0], []).append(change)
    here = {
        service.partition(":")[0]
        for service in [*survey.services.values(), *(p.service for p in survey.portals)]
    }
    order = sorted(by_service, key=lambda service: (service == SHARED, service))
    groups: list[Group] = []
    for service in order:
        act = Act.CHANGE
        if service != SHARED:
            act = Act.CREATE if service not in here else Act.CHANGE
            act = Act.DELETE if service not in there else act
        groups.append(_group(survey, act, service, by_service[service]))
    return Plan(tuple(groups), moved)


def _without_moves(changes: Sequence[Change]) -> tuple[list[Change], int]:
    """Leave out portals that go from one dispatch chain to another as they are."""
    portals = [change for change in changes if change.service and _is_dispatch(change)]
    gone = Counter(_key(change, line) for change in portals for line in change.removed)
    came = Counter(_key(change, line) for change in portals for line in change.added)
    moved = gone & came
    if not moved:
        return list(changes), 0
    gone, came = moved.copy(), moved.copy()
    kept: list[Change] = []
    for change in changes:
        if not (change.service and _is_dispatch(change)):
            kept.append(change)
            continue
        removed = _unmoved(change, change.removed, gone)
        added = _unmoved(change, change.added, came)
        if removed or added or change.moved:
            kept.append(msgspec.structs.replace(change, removed=removed, added=added))
    return kept, moved.total()


_Key = tuple[str, str, Rule]


def _key(change: Change, line: Line) -> _Key:
    return change.table, change.service, canonical(read_rule(line.text))


def _unmoved(change: Change, lines: Iterable[Line], moved: Counter[_Key]) -> tuple[Line, ...]:
    kept: list[Line] = []
    for line in lines:
        key = _key(change, line)
        if moved[key] > 0:
            moved[key] -= 1
        else:
            kept.append(line)
    return tuple(kept)


def _is_dispatch(change: Change) -> bool:
    return not names.is_service_chain(change.chain)


def _group(survey: Survey, act: Act, service: str, changes: Sequence[Change]) -> Group:
    items: dict[Item, None] = {}
    for change in changes:
        items |= dict.fromkeys(_items(survey, change, shared=service == SHARED))
    ordered = sorted(items, key=lambda item: "+-~".index(item.act.value))
    return Group(act, service, tuple(ordered), tuple(changes))


def _items(survey: Survey, change: Change, *, shared: bool) -> Iterator[Item]:
    if shared:
        yield from _shared_items(change)
    elif change.chain.startswith(names.SEP):
        yield _endpoint_item(survey, change)
    elif is_lottery(change.chain):
        yield from _lottery_items(change)
    elif not names.is_service_chain(change.chain):
        yield from (Item(Act.DELETE, _portal(line)) for line in change.removed)
        yield from (Item(Act.CREATE, _portal(line)) for line in change.added)
        if change.moved:
            yield Item(Act.CHANGE, f"order of its rules in {change.chain}")
    else:
        what = (
            "who may use the load balancer"
            if change.chain.startswith(names.FW)
            else "external traffic"
        )
        yield Item(change.act, f"{what} ({change.chain}{_sizes(change)})")


def _shared_items(change: Change) -> Iterator[Item]:
    where = f"{change.table} {change.chain}"
    if change.act is not Act.CHANGE:
        yield Item(change.act, f"chain {where}")
        return
    for act, lines in ((Act.DELETE, change.removed), (Act.CREATE, change.added)):
        for line in lines:
            yield Item(act, f"{where}: {comment_of(read_rule(line.text)) or line.text}")
    if change.moved:
        yield Item(Act.CHANGE, f"{where}: order of the rules")


def _endpoint_item(survey: Survey, change: Change) -> Item:
    lines = change.removed if change.act is Act.DELETE else change.added
    targets = (read_rule(line.text).target for line in lines)
    endpoint = next((t.destination for t in targets if isinstance(t, Dnat)), "")
    return Item(change.act, f"endpoint {endpoint or survey.endpoint_of(change.chain)}")


def _lottery_items(change: Change) -> Iterator[Item]:
    local = " of this node" if change.chain.startswith(names.SVL) else ""
    before, after = _shares(change.removed), _shares(change.added)
    if before and after and before != after:
        yield Item(Act.CHANGE, f"share of each endpoint{local}: 1/{before} -> 1/{after}")
    elif change.act is Act.CREATE and after:
        yield Item(Act.CREATE, f"share of each endpoint{local}: 1/{after}")
    else:
        yield Item(change.act, f"rules of {change.chain}{_sizes(change)}")


def _shares(lines: Sequence[Line]) -> int:
    """Among how many the dice choose, as far as these rules tell."""
    among = 0
    for line in lines:
        rule = read_rule(line.text)
        if target_name(rule.target).startswith(names.SEP):
            dice = [match.one_in for match in rule.matches if type(match) is Statistic]
            among = max(among, dice[0] if dice else 1)
    return among


def _sizes(change: Change) -> str:
    parts = [
        counted(len(lines), *verbs)
        for lines, *verbs in ((change.removed, "goes", "go"), (change.added, "comes", "come"))
        if lines
    ]
    return f": {', '.join(parts)}" if parts and change.act is Act.CHANGE else ""


def _portal(line: Line) -> str:
    """A rule of a dispatch chain, in words."""
    rule = read_rule(line.text)
    comment = comment_of(rule)
    said = comment.removeprefix(service_in(comment)).strip()
    port = next((m.port for m in rule.matches if type(m) is DestinationPort), 0)
    protocol = next((m.protocol for m in rule.matches if type(m) is Protocol), "")
    address = next((m.cidr for m in rule.matches if type(m) is Destination), "")
    host = f"[{address}]:" if ":" in address else f"{address}:" if address else ""
    target = target_name(rule.target)
    verdict = f" -> {target}" if target.isupper() and not target.startswith("KUBE-") else ""
    return f"{said or 'node port'} {host}{port}/{protocol}{verdict}"
