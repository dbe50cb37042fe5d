"""``onenth cleanup``: remove our rules from both backends and both families."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from agent.kernel.detect import Backend, installed
from agent.kernel.iptables import Iptables
from agent.kernel.tools import SubprocessRunner
from agent.rules.parse import ParseError, parse_save
from agent.state.values import Family
from agent.sync.cleanup import foreign_jumps, removals
from agent.sync.port import ReadError, RestoreError

if TYPE_CHECKING:
    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner


class Removed(msgspec.Struct, frozen=True):
    """What was (or would be) removed from one family of one backend; ``problems``: why not all."""

    backend: str
    family: str
    chains: int = 0
    jumps: int = 0
    problems: tuple[str, ...] = ()


def clean(backend: str | None, *, dry_run: bool) -> list[Removed]:
    """Remove what is ours; families and backends where nothing is ours are left out.

    Args:
        backend: ``legacy``, ``nft`` or None for both.
        dry_run: only tell.

    What goes wrong in one does not keep the others; calling it again goes on where it stopped.

    Raises:
        ToolMissingError: no iptables is installed.
    """
    runner = SubprocessRunner()
    tools = installed(runner)
    wanted = [one for one in Backend if backend in {None, one.value}]
    found: list[Removed] = []
    for one in wanted:
        tool = tools[one]
        if tool is None:
            continue
        for family in Family:
            removed = _clean_one(tool, family, runner, dry_run=dry_run)
            if removed is not None:
                found.append(removed)
    return found


def _clean_one(tool: Tool, family: Family, runner: Runner, *, dry_run: bool) -> Removed | None:
    iptables = Iptables(tool, family, runner=runner)
    try:
        # Only tables that exist are looked at: asking legacy for one would make it.
        saved = parse_save(iptables.save_all())
    except (ReadError, ParseError) as error:
        return Removed(tool.backend.value, family.value, problems=(str(error),))
    problems = [
        f"{chain} in table {table} is empty, but stays: a rule of somebody else leads to it,"
        f" {rule!r}; delete that rule, and run this again"
        for (table, chain), rules in foreign_jumps(saved).items()
        for rule in rules
    ]
    verbs: Counter[str] = Counter()
    transactions = removals(saved)
    for transaction in transactions:
        try:
            if not dry_run:
                iptables.restore(transaction.text())
        except RestoreError as error:
            problems.append(str(error))
            break  # what follows relies on it
        verbs.update(line.text[:2] for block in transaction.blocks for line in block.lines)
    if not transactions:
        return None
    return Removed(
        tool.backend.value, family.value, verbs["-X"], verbs["-D"], problems=tuple(problems)
    )
