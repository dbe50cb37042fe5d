"""``onenth cleanup``: remove our rules from both backends and both families."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.kernel.detect import Backend, installed
from agent.kernel.iptables import Iptables
from agent.kernel.tools import SubprocessRunner
from agent.rules.parse import parse_save
from agent.state.values import Family
from agent.sync.cleanup import removals

if TYPE_CHECKING:
    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner


class Removed(msgspec.Struct, frozen=True):
    """What was (or would be) removed from one family of one backend."""

    backend: str
    family: str
    chains: int
    jumps: int


def clean(backend: str | None, *, dry_run: bool) -> list[Removed]:
    """Remove what is ours; families and backends where nothing is ours are left out.

    Args:
        backend: ``legacy``, ``nft`` or None for both.
        dry_run: only tell.

    Raises:
        ToolMissingError: no iptables is installed.
        ReadError: rules could not be read.
        RestoreError: rules could not be removed; calling it again goes on where it stopped.
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
    # Only tables that exist are looked at: asking legacy for one would make it.
    transactions = removals(parse_save(iptables.save_all()))
    if not transactions:
        return None
    chains = {
        (block.table, line.text)
        for transaction in transactions
        for block in transaction.blocks
        for line in block.lines
        if line.text.startswith("-X ")
    }
    jumps = sum(
        line.text.startswith("-D ")
        for transaction in transactions
        for block in transaction.blocks
        for line in block.lines
    )
    if not dry_run:
        for transaction in transactions:
            iptables.restore(transaction.text())
    return Removed(tool.backend.value, family.value, len(chains), jumps)
