"""Bringing a chain from what it holds to what it should: whole, or by a few edits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.rules.static import LAST_RULE
from agent.sync.transaction import Line

if TYPE_CHECKING:
    from agent.cluster.objects import Key
    from agent.rules.dispatch import OwnedRules, Owner
    from agent.sync.transaction import Block

#: A chain with more rules than this is edited rule by rule if few of them change.
EDIT_FROM = 64
_MOST_EDITS = 32


def write_chain(
    block: Block, chain: str, rules: OwnedRules, held: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Bring a chain from what it held (None: unknown) to these rules; returns what it will hold."""
    texts = tuple(text for _, text in rules)
    if texts == held:
        return texts
    edits = _edits(rules, texts, held)
    if edits is None or held is None:
        _fill(block, chain, rules)
        return texts
    added, removed = edits
    owners = {text: owner for owner, text in rules}
    block.lines += [Line(f"-D {chain} {text}") for text in removed]
    # The last one first, since each goes in front of the others.
    block.lines += [Line(f"-I {chain} {text}", _service(owners[text])) for text in reversed(added)]
    return (*added, *(text for text in held if text not in removed))


def _edits(
    rules: OwnedRules, texts: tuple[str, ...], held: tuple[str, ...] | None
) -> tuple[list[str], list[str]] | None:
    """Rules to insert at the front and to delete, if that is less than writing the chain.

    Rules of different service ports have no order among them, those of one have: a node port counts
    what comes for 127.0.0.1 before it takes it. What stays last is never inserted.
    """
    if held is None or len(held) <= EDIT_FROM:
        return None
    wanted, present = set(texts), set(held)
    added = [text for text in texts if text not in present]
    removed = [text for text in held if text not in wanted]
    if len(added) + len(removed) > _MOST_EDITS or len(present) != len(held):
        return None
    if any(LAST_RULE in text for text in (*added, *removed)):
        return None
    fresh = set(added)
    partly = {o for o, text in rules if text in fresh} & {o for o, text in rules if text in present}
    return None if partly else (added, removed)


def _fill(block: Block, chain: str, rules: OwnedRules) -> None:
    block.chains[chain] = None
    block.lines += [Line(f"-A {chain} {text}", _service(owner)) for owner, text in rules]


def _service(owner: Owner | None) -> Key | None:
    return None if owner is None else owner[0]
