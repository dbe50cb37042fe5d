"""``onenth plan``: what the agent would change in the kernel right now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agent.commands.expected import expect, node_name, node_warning, read_objects
from agent.commands.sources import Options, read_held, this_node
from agent.inspect.compare import Act, compare
from agent.inspect.plan import SHARED, Group, Plan, make_plan
from agent.inspect.wrap import counted, indented

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.config.model import Config
    from agent.kernel.tools import Runner
    from agent.state.values import Family

_VERBS = {Act.CREATE: "add", Act.CHANGE: "change", Act.DELETE: "remove"}


class FamilyPlan(msgspec.Struct, frozen=True):
    """What would change in one family.

    Attributes:
        family: IPv4 or IPv6.
        where: backend or file, in words.
        rules: that should be there.
        plan: what would change.
    """

    family: str
    where: str
    rules: int
    plan: Plan


class Plans(msgspec.Struct, frozen=True):
    """What would change on a node.

    Attributes:
        node: its name.
        source: where Services came from.
        families: by family.
        problems: of the objects.
        warnings: what makes the plan say less than it could.
    """

    node: str
    source: str
    families: tuple[FamilyPlan, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return not any(one.plan for one in self.families)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``-o json``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {"changes": not self.empty, **plain}


def run(options: Options, config: Config, runner: Runner | None = None) -> Plans:
    """Compare what is with what the agent would write.

    Raises:
        LookError: something could not be looked at.
        HostError: no iptables is installed, or this process may not ask.
    """
    objects = read_objects(config, options.tell)
    held = read_held(options, runner)
    node = this_node(options)
    families = config.ip_families or tuple(one.family for one in held)
    plans = []
    for one in held:
        if one.family not in families or not _served(one.family, held, config):
            continue
        expected = expect(config, objects, one, node)
        changes = compare(one.survey, expected.rules, expected.jumps)
        plan = make_plan(one.survey, map(str, expected.rules.services), changes)
        rules = sum(expected.rules.counts().values()) + len(expected.jumps)
        plans.append(FamilyPlan(one.family.value, one.where, rules, plan))
    rejected = (f"{one.kind.value} {one.key}: {one.reason}" for one in objects.rejected)
    problems = (*objects.problems, *rejected)
    warnings = tuple(filter(None, [node_warning(config, objects)]))
    return Plans(node_name(config), objects.source, tuple(plans), problems, warnings)


def _served(family: Family, held: Sequence[Any], config: Config) -> bool:
    """Whether a family counts: it was asked for, or one of the two holds rules and it does."""
    if config.ip_families:
        return family in config.ip_families
    holding = [one.family for one in held if one.survey.is_held()]
    return not holding or family in holding


def as_text(plans: Plans, *, diff: bool = False) -> Iterator[str]:
    """The plan for people, a line each, at most 80 columns wide but for raw rules."""
    for problem in plans.problems:
        yield from indented(f"not planned: {problem}", 0, 2)
    for one in plans.families:
        rules = f"{counted(one.rules, 'rule')} for node {plans.node}, from {plans.source}"
        yield from indented(f"{one.where}: {rules}", 0, 2)
        if not one.plan:
            yield "  no changes: the rules are those that the agent would write"
            continue
        if one.plan.moved:
            moved = counted(one.plan.moved, "rule changes its place", "rules change their places")
            yield f"  ~ {moved} (--dispatch flat or tree)"
        for group in one.plan.groups:
            yield from _group(group, diff=diff)
    yield ""
    yield _summary(plans)


def _group(group: Group, *, diff: bool) -> Iterator[str]:
    yield ""
    yield f"  {group.act.value} {group.service or 'what all Services share'}"
    for item in group.items:
        yield from indented(f"{item.act.value} {item.text}", 6, 8)
    if not diff:
        return
    for change in group.changes:
        yield f"      {change.act.value} {change.table} {change.chain}"
        for line in change.removed:
            yield f"        - {line.text}"
        for line in change.added:
            yield f"        + {line.text}"
        if change.moved:
            yield "        ~ the same rules in another order"


def _summary(plans: Plans) -> str:
    if plans.empty:
        return "Plan: no changes."
    counts = [
        f"{sum(one.plan.count(act) for one in plans.families):,} to {verb}"
        for act, verb in _VERBS.items()
    ]
    shared = any(g.service == SHARED for one in plans.families for g in one.plan.groups)
    tail = "; and rules that all Services share." if shared else "."
    return f"Plan: Services: {', '.join(counts)}{tail}"
