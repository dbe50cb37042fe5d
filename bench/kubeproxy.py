"""The same rules as kube-proxy writes them at first: one restore with everything in it.

The order is kube-proxy's: Services as its map happens to give them, for each of them its chains
and its rules one after the other, chain lines in front. So chain lines are in no order of names.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.rules.ruleset import RuleSet

_SEED = 1


def one_restore(rules: RuleSet) -> str:
    """Restore input with all rules of a rule set that is flat."""
    services = [port for ports in rules.services.values() for port in ports.values()]
    random.Random(_SEED).shuffle(services)  # noqa: S311 (an order, the same in every run)
    own = {chain for port in services for chain, _ in port.chains}
    lines: list[str] = []
    for table, chains in rules.tables().items():
        shared = {chain: texts for chain, texts in chains.items() if chain not in own}
        lines += [f"*{table}", *(f":{chain} - [0:0]" for chain in shared)]
        if table == "nat":
            lines += [f":{chain} - [0:0]" for port in services for chain, _ in port.chains]
            for port in services:
                for chain, texts in port.chains:
                    lines += [f"-A {chain} {text}" for text in texts]
        lines += [f"-A {chain} {text}" for chain, texts in shared.items() for text in texts]
        lines.append("COMMIT")
    return "\n".join([*lines, ""])
