"""``onenth cleanup``: remove our rules from both backends and both families."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from agent.kernel.detect import Backend, installed
from agent.kernel.dump import dump
from agent.kernel.errors import PrivilegeError
from agent.kernel.iptables import Iptables
from agent.kernel.tools import SubprocessRunner
from agent.rules import names
from agent.rules.parse import ParseError, parse_save
from agent.state.values import Family
from agent.sync.cleanup import foreign_jumps, removals
from agent.sync.port import ReadError, RestoreError

if TYPE_CHECKING:
    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner


class Removed(msgspec.Struct, frozen=True):
    """What was (or would be) removed from one family of one backend.

    Attributes:
        backend: of iptables.
        family: IPv4 or IPv6.
        chains: that went.
        jumps: from built-in chains that went.
        problems: why not all.
        denied: why nothing at all, if this process may not even look.
        guarded: KUBE-FIREWALL is there, and stays.
    """

    backend: str
    family: str
    chains: int = 0
    jumps: int = 0
    problems: tuple[str, ...] = ()
    denied: str = ""
    guarded: bool = False

    @property
    def where(self) -> str:
        """In words."""
        return f"{self.backend} {self.family}"


def clean(backend: str | None, *, dry_run: bool) -> list[Removed]:
    """Remove what is ours; families and backends about which there is nothing to say are left out.

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
            if removed != Removed(one.value, family.value):
                found.append(removed)
    return found


def _clean_one(tool: Tool, family: Family, runner: Runner, *, dry_run: bool) -> Removed:
    backend = tool.backend.value
    iptables = Iptables(tool, family, runner=runner)
    try:
        saved = parse_save(dump(tool, family, runner))
    except PrivilegeError as error:
        return Removed(backend, family.value, denied=str(error))
    except (ReadError, ParseError) as error:
        return Removed(backend, family.value, problems=(str(error),))
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
    return Removed(
        backend,
        family.value,
        verbs["-X"],
        verbs["-D"],
        problems=tuple(problems),
        guarded=names.KUBELET_FIREWALL in saved.get("filter", {}),
    )
