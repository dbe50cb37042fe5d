"""Taking our rules away: exactly ours, in an order that never cuts a Service in half.

First the jumps and the shared chains go, in one block per table: from then on no packet meets
any of our rules. Then the Services' own chains are emptied, and then deleted, in batches, since
a chain can be deleted only when nothing jumps to it; what they jumped to goes last. Rules are
removed by the text that the kernel gave. A chain of ours that somebody else's rule leads to cannot
be deleted; it is emptied, so that his packets come back as if it were not there.

The kubelet's chains (KUBE-IPTABLES-HINT, KUBE-KUBELET-CANARY, KUBE-FIREWALL) are not ours and stay.
KUBE-FIREWALL and the jumps to it have to, whoever wrote them: route_localnet stays switched on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from agent.rules import names
from agent.rules.parse import canonical, understood
from agent.rules.static import BASE_CHAINS, CANARY_TABLES, JUMPS
from agent.sync.culprits import PROBE_CHAIN
from agent.sync.transaction import Block, Line, Transaction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.rules.dispatch import ChainId

BATCH = 1000
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TARGET = re.compile(r"(?:^| )-[jg] (\S+)")

_JUMPS = {(jump.table, jump.source, canonical(jump.rule)) for jump in JUMPS}

Saved = Mapping[str, Mapping[str, list[str]]]


def is_ours(table: str, chain: str) -> bool:
    """Whether the chain is one that this agent, or kube-proxy, makes."""
    if chain == names.CANARY:
        return table in CANARY_TABLES
    if chain == PROBE_CHAIN or chain in BASE_CHAINS.get(table, ()):
        return True
    if names.is_tree_chain(chain):
        return table in BASE_CHAINS
    return table == "nat" and names.is_service_chain(chain)


def foreign_jumps(saved: Saved) -> dict[ChainId, list[str]]:
    """Our chains that rules of others lead to, and those rules, as ``-A CHAIN ...``."""
    found: dict[ChainId, list[str]] = {}
    for table, chains in saved.items():
        for chain, rules in chains.items():
            if is_ours(table, chain):
                continue
            for text in rules:
                target = _target(text)
                if target in chains and is_ours(table, target) and not _is_jump(table, chain, text):
                    found.setdefault((table, target), []).append(f"-A {chain} {text}")
    return found


def _target(text: str) -> str:
    """The chain that a rule leads to, also of one that can be read only in part."""
    targets = _TARGET.findall(_QUOTED.sub("", text))
    return targets[-1] if targets else ""


def _is_jump(table: str, chain: str, text: str) -> bool:
    return (table, chain, understood(text)) in _JUMPS


def removals(saved: Saved) -> list[Transaction]:
    """Transactions that remove everything of ours from what ``iptables-save`` showed.

    Empty if there is nothing of ours.
    """
    held = foreign_jumps(saved).keys()
    first: list[Block] = []
    own: list[str] = []
    last = Block("nat")
    for table, chains in saved.items():
        block = Block(table)
        for chain, rules in chains.items():
            block.lines += [
                Line(f"-D {chain} {text}") for text in rules if _is_jump(table, chain, text)
            ]
        shared = [chain for chain in chains if is_ours(table, chain)]
        if table == "nat":
            own = sorted(filter(names.is_service_chain, shared))
            shared = [chain for chain in shared if chain not in set(own)]
            if own and names.MARK_MASQ in shared:
                # Services' chains still jump to it.
                shared.remove(names.MARK_MASQ)
                _remove(last, names.MARK_MASQ, held)
        for chain in shared:
            _remove(block, chain, held)
        if block:
            first.append(block)
    transactions = [Transaction(first)] if first else []
    empty = [Block("nat", dict.fromkeys(batch)) for batch in _batches(own)]
    free = (chain for chain in own if ("nat", chain) not in held)
    delete = [Block("nat", {}, [Line(f"-X {c}") for c in batch]) for batch in _batches(free)]
    rest = (block for block in (*empty, *delete, last) if block)
    return [*transactions, *(Transaction([block]) for block in rest)]


def _remove(block: Block, chain: str, held: Collection[ChainId]) -> None:
    """Delete a chain, or only empty it if somebody else's rule leads to it."""
    if (block.table, chain) in held:
        block.chains[chain] = None
    else:
        block.delete(chain)


def _batches(chains: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(chains)
    while batch := list(islice(rest, BATCH)):
        yield batch
