"""Taking our rules away: exactly ours, in an order that never cuts a Service in half.

First the jumps and the shared chains go, in one block per table: from then on no packet meets
any of our rules. Then the Services' own chains are emptied, and then deleted, in batches, since
a chain can be deleted only when nothing jumps to it; what they jumped to goes last. Rules are
removed by the text that the kernel gave. The kubelet's chains (KUBE-IPTABLES-HINT,
KUBE-KUBELET-CANARY, KUBE-FIREWALL) are not ours and stay.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from agent.rules import names
from agent.rules.parse import canonical, understood
from agent.rules.static import BASE_CHAINS, CANARY_TABLES, JUMPS
from agent.sync.apply import PROBE_CHAIN
from agent.sync.transaction import Block, Line, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BATCH = 1000

Saved = dict[str, dict[str, list[str]]]


def is_ours(table: str, chain: str) -> bool:
    """Whether the chain is one that this agent, or kube-proxy, makes."""
    if chain == names.CANARY:
        return table in CANARY_TABLES
    if chain == PROBE_CHAIN or chain in BASE_CHAINS.get(table, ()):
        return True
    if names.is_tree_chain(chain):
        return table in BASE_CHAINS
    return table == "nat" and names.is_service_chain(chain)


def removals(saved: Saved) -> list[Transaction]:
    """Transactions that remove everything of ours from what ``iptables-save`` showed.

    Empty if there is nothing of ours.
    """
    jumps = [(jump.table, jump.source, canonical(jump.rule)) for jump in JUMPS]
    first: list[Block] = []
    own: list[str] = []
    last = Block("nat")
    for table, chains in saved.items():
        block = Block(table)
        for chain, rules in chains.items():
            block.lines += [
                Line(f"-D {chain} {text}")
                for text in rules
                if (table, chain, understood(text)) in jumps
            ]
        shared = [chain for chain in chains if is_ours(table, chain)]
        if table == "nat":
            own = sorted(filter(names.is_service_chain, shared))
            shared = [chain for chain in shared if chain not in set(own)]
            if own and names.MARK_MASQ in shared:
                # Services' chains still jump to it.
                shared.remove(names.MARK_MASQ)
                last.delete(names.MARK_MASQ)
        for chain in shared:
            block.delete(chain)
        if block:
            first.append(block)
    transactions = [Transaction(first)] if first else []
    empty = [Block("nat", dict.fromkeys(batch)) for batch in _batches(own)]
    delete = [Block("nat", {}, [Line(f"-X {c}") for c in batch]) for batch in _batches(own)]
    rest = (block for block in (*empty, *delete, last) if block)
    return [*transactions, *(Transaction([block]) for block in rest)]


def _batches(chains: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(chains)
    while batch := list(islice(rest, BATCH)):
        yield batch
