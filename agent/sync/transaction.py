"""A transaction as data: restore input that knows which Service each line is for."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import msgspec

from agent.cluster.objects import Key


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of restore input, and the Service that it is for (None: nobody's)."""

    text: str
    service: Key | None = None


class Block(msgspec.Struct):
    """What one table gets: chains that are created or emptied, their rules, then lines in order.

    A table's block is applied by the kernel at one instant.

    Attributes:
        table: which.
        chains: those that are created or emptied, and whose they are (None: nobody's).
        lines: in order.
        fills: chains of one owner, with their rules; in front of the lines. A large block has a
            hundred thousand rules here, and makes no object of any.
    """

    table: str
    chains: dict[str, Key | None] = {}
    lines: list[Line] = []
    fills: list[tuple[str, Sequence[str]]] = []

    def write(self, chain: str, rules: Sequence[str], service: Key | None = None) -> None:
        """Create or empty a chain, and fill it."""
        self.chains[chain] = service
        if rules:
            self.fills.append((chain, rules))

    def delete(self, chain: str) -> None:
        """Empty a chain and delete it; nothing may jump to it any more."""
        self.chains[chain] = None
        self.lines.append(Line(f"-X {chain}"))

    def copy(self) -> Block:
        """Another one with the same content."""
        return Block(self.table, dict(self.chains), list(self.lines), list(self.fills))

    @property
    def size(self) -> int:
        """Number of lines, without those of chains."""
        return len(self.lines) + sum([len(rules) for _, rules in self.fills])

    def in_order(self) -> tuple[list[str], list[tuple[str, Sequence[str]]]]:
        """Names of ``chains``, and ``fills``, in the order of the input."""
        return sorted(self.chains, reverse=True), sorted(self.fills, key=itemgetter(0))

    def __bool__(self) -> bool:
        return bool(self.chains or self.lines)


class Transaction(msgspec.Struct):
    """Blocks that are handed to the tool together; each is atomic, in this order.

    Both backends' tools keep the chains of their input in a sorted list, and walk along it from its
    beginning to insert one or find it. So chain lines go from the last name to the first, each of
    which is then inserted at the beginning, and rules from the first to the last.
    """

    blocks: list[Block]

    def lines(self) -> list[Line]:
        """All lines of the input, in order; line 1 of the input comes first."""
        found: list[Line] = []
        for block in self.blocks:
            chains, fills = block.in_order()
            found.append(Line(f"*{block.table}"))
            found += [Line(f":{chain} - [0:0]", block.chains[chain]) for chain in chains]
            found += [
                Line(f"-A {chain} {rule}", block.chains[chain])
                for chain, rules in fills
                for rule in rules
            ]
            found += block.lines
            found.append(Line("COMMIT"))
        return found

    def text(self) -> str:
        """The input for ``iptables-restore --noflush``: the text of ``lines``."""
        parts: list[str] = []
        for block in self.blocks:
            parts.append(f"*{block.table}\n")
            chains, fills = block.in_order()
            parts += [f":{chain} - [0:0]\n" for chain in chains]
            for chain, rules in fills:
                # In three parts: a giant's chain is not copied once more.
                parts += [f"-A {chain} ", f"\n-A {chain} ".join(rules), "\n"]
            parts += [f"{line.text}\n" for line in block.lines]
            parts.append("COMMIT\n")
        return "".join(parts)

    def services(self) -> set[Key]:
        """The Services with a line in it."""
        keys = {line.service for block in self.blocks for line in block.lines}
        keys |= {key for block in self.blocks for key in block.chains.values()}
        return {key for key in keys if key is not None}

    def chains(self) -> set[tuple[str, str]]:
        """The chains that it creates or empties, by (table, chain)."""
        return {(block.table, chain) for block in self.blocks for chain in block.chains}

    def deleted_at(self, line: int | None) -> tuple[str, str] | None:
        """The (table, chain) that a line (counted from 1) deletes, if it deletes one."""
        table = ""
        for number, one in enumerate(self.lines(), 1):
            verb, _, chain = one.text.partition(" ")
            if verb.startswith("*"):
                table = verb[1:]
            elif number == line:
                return (table, chain) if verb == "-X" else None
        return None

    def service_at(self, line: int | None) -> Key | None:
        """The Service that a line (counted from 1) is for."""
        lines = self.lines()
        return lines[line - 1].service if line is not None and 0 < line <= len(lines) else None
