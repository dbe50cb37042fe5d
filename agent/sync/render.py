"""What a first sync on an empty node would send, as one text; for people and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.sync.plan import KernelView, Planner

if TYPE_CHECKING:
    from agent.rules.ruleset import RuleSet


def render(rules: RuleSet) -> str:
    """The restore input that makes an empty node hold these rules."""
    planner = Planner(rules)
    services = sorted(rules.services)
    view = KernelView(frozenset(), {}, {(j.table, j.source): [] for j in planner.jumps()})
    own = planner.own(services, view=view)
    return planner.switch(services, own, view=view).transaction.text()
