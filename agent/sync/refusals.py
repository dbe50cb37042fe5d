"""Swapping the filter table's refusals around a change of nat, without a gap.

A refusal (REJECT, or DROP) is for packets that nat did not translate, so it and the nat rule for
the same target belong together, but stand in different tables, which the kernel changes one
after the other. So the filter table gets two blocks, one in front of nat's and one behind it:

- What is new goes in front: as long as nat translates, it meets nothing. Unless nat only begins
  to translate its target, or another refusal for the target waits to be lifted: then it goes
  behind, in place of that one.
- What is lifted goes behind if nat translates its target then, so that packets are refused until
  they are translated. Else it goes in front, since nat still translates them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.rules import names
from agent.rules.parse import parse_rule, understood
from agent.rules.rule import Destination, DestinationPort, Jump, Other, Protocol
from agent.sync.chains import write_chain
from agent.sync.transaction import Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.rules.dispatch import OwnedRules

#: What a portal matches: address (empty for a node port), protocol, port.
Target = tuple[str, str, int]


def target_of(text: str) -> Target | None:
    """The target of a rule; None if it has none, like a jump to a branch."""
    address, protocol, port = "", "", 0
    for match in parse_rule(text).matches:
        match match:
            case Destination(cidr, False):
                address = cidr
            case Protocol(name):
                protocol = name
            case DestinationPort(number):
                port = number
    return (address, protocol, port) if protocol and port else None


class Standing(NamedTuple):
    """Refusals below one dispatch chain: those that are there, and those that should be."""

    present: set[str]
    wanted: set[str]


class Refusals:
    """Chains of the filter table, written into two blocks.

    Attributes:
        before: the block in front of nat's.
        after: the block behind it.
    """

    def __init__(
        self, standing: Mapping[str, Standing], translated: set[Target], coming: set[Target]
    ) -> None:
        """Swap around a change of nat.

        Args:
            standing: what may change, by the dispatch chain that leads to it.
            translated: targets that nat translates behind it.
            coming: those of them that it did not translate in front of it.
        """
        self.before, self.after = Block("filter"), Block("filter")
        self._outlasting = {
            root: sorted(t for t in present - wanted if target_of(t) in translated)
            for root, (present, wanted) in standing.items()
        }
        late: set[Target | None] = set(coming)
        late |= {target_of(text) for texts in self._outlasting.values() for text in texts}
        self._held_back = {
            text
            for present, wanted in standing.values()
            for text in wanted - present
            if target_of(text) in late
        }

    def roots(self) -> set[str]:
        """Dispatch chains that refusals outlast the change in; they must be written."""
        return {root for root, texts in self._outlasting.items() if texts}

    def write(self, chain: str, rules: OwnedRules, held: tuple[str, ...] | None) -> tuple[str, ...]:
        """Write one chain into the blocks.

        Args:
            chain: which.
            rules: what it should hold.
            held: what it holds, if only what is different needs to be written; else None.

        Returns:
            What it will hold.
        """
        outlasting = self._outlasting.get(chain, [])
        first: OwnedRules = [rule for rule in rules if rule[1] not in self._held_back]
        behind = bool(outlasting) or len(first) < len(rules)
        first += [(None, text) for text in outlasting]
        present = write_chain(self.before, chain, first, held)
        return write_chain(self.after, chain, rules, present) if behind else present


def below(filters: Mapping[str, list[str]], root: str) -> Iterator[str]:
    """Rules below a dispatch chain, through branches of a tree, as the kernel words them.

    Only those that this agent, or kube-proxy, may have written.
    """
    seen = {root}
    chains = [root]
    while chains:
        for text in filters.get(chains.pop(), ()):
            rule = understood(text)
            if rule is None or any(isinstance(match, Other) for match in rule.matches):
                continue
            if not text.isprintable():
                continue  # a comment with a line end would be two lines of input
            match rule.target:
                case Jump(target) if names.is_tree_chain(target):
                    if target not in seen:
                        seen.add(target)
                        chains.append(target)
                case Jump():
                    yield text
