"""A set of rules by what they match, and the chains that find them in few steps.

Every rule has a key: the bits of its destination address, if it matches one, then of its
protocol and of its destination port. Keys are kept sorted, so all rules under a prefix are one
slice. A chain holds the rules of one prefix. If they are few they stand in it; if they are many
it holds one jump for each next half byte of the keys, behind the bits that they all share. So a
packet meets a handful of rules at each of a handful of levels, and one rule more or less
concerns the chains on its way alone.

The chains depend on the set of rules only, never on the order in which they came.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from agent.rules.rule import (
    Destination,
    DestinationPort,
    DestinationPorts,
    Jump,
    Match,
    Protocol,
    Rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.rules.dispatch import Owner

#: A chain with more rules than this is split.
LIMIT = 32
#: A branch with no more rules than this is not worth a jump: they stand in the chain above.
INLINE = 2
#: With more changes than this at once, building anew costs less.
_MANY = 64
_STEP = 4
_PROTOCOLS = ("tcp", "udp", "sctp")
_PORT_BITS = 16
_TAIL_BITS = _STEP + _PORT_BITS


class Entry(NamedTuple):
    """One rule: where it belongs, whose it is, and its text."""

    key: int
    owner: Owner
    position: int
    text: str


class Branch(NamedTuple):
    """A prefix of keys: so many bits, and their value."""

    bits: int
    value: int


ROOT = Branch(0, 0)
Texts = tuple[tuple["Owner | None", str], ...]


class Radix:
    """The chains below one root for rules with (or without) a destination address.

    Attributes:
        chains: rules of every branch, as of the last ``flush``; ROOT's stand in the root chain.
        count: number of rules in ``chains``, jumps to branches included.
    """

    def __init__(self, address_bits: int, name: Callable[[Branch], str]) -> None:
        """Begin empty.

        Args:
            address_bits: 32 or 128, or 0 for rules that match no address.
            name: names the chain of a branch.
        """
        self.chains: dict[Branch, Texts] = {ROOT: ()}
        self.count = 0
        self._address_bits = address_bits
        self._total = address_bits + _TAIL_BITS
        self._name = name
        self._entries: list[Entry] = []
        self._children: dict[Branch, tuple[Branch, ...]] = {ROOT: ()}
        self._jumps: dict[Branch, str] = {}  # the rules that lead to branches
        self._touched: set[int] = set()
        self._changed: set[Branch] = set()
        self._gone: set[Branch] = set()

    def key(self, address: str, protocol: str, port: int) -> int:
        """The key of a rule."""
        number = _number(address) if address else 0
        return (number << _STEP | _PROTOCOLS.index(protocol)) << _PORT_BITS | port

    def add(self, entry: Entry) -> None:
        """Add a rule."""
        insort(self._entries, entry)
        self._touched.add(entry.key)

    def remove(self, entry: Entry) -> None:
        """Remove a rule that was added."""
        position = bisect_left(self._entries, entry)
        if self._entries[position : position + 1] != [entry]:
            raise KeyError(entry)
        del self._entries[position]
        self._touched.add(entry.key)

    def flush(self) -> tuple[set[Branch], set[Branch]]:
        """Bring ``chains`` up to date.

        Returns:
            The branches whose rules are new or different, and those that are gone.
        """
        changed, gone = set[Branch](), set[Branch]()
        if len(self._touched) > _MANY:
            before, self.chains, self._children = self.chains, {}, {}
            self._jumps.clear()
            self.count = 0
            self._build(ROOT, None, set())
            changed = {b for b, texts in self.chains.items() if before.get(b) != texts}
            gone = before.keys() - self.chains.keys()
        elif self._touched:
            for key in self._touched:
                self._refresh(key)
            changed, gone = self._changed, self._gone
        self._changed, self._gone = set(), set()
        self._touched.clear()
        return changed, gone

    # Building ----------------------------------------------------------------------------

    def _refresh(self, key: int) -> None:
        """Build the branches on the way to a key anew, and drop what they lead to no longer."""
        old = set(self._way(key))
        led_to = {child for branch in old for child in self._children[branch]}
        built: set[Branch] = set()
        self._build(ROOT, key, built)
        leads_to = {child for branch in built for child in self._children[branch]}
        for branch in (led_to | old) - leads_to - {ROOT}:
            self._drop(branch, leads_to)

    def _way(self, key: int) -> Iterator[Branch]:
        """The present branches on the way to a key."""
        branch: Branch | None = ROOT
        while branch is not None:
            yield branch
            children = self._children[branch]
            branch = next((child for child in children if self._covers(child, key)), None)

    def _covers(self, branch: Branch, key: int) -> bool:
        return key >> (self._total - branch.bits) == branch.value

    def _drop(self, branch: Branch, spared: set[Branch]) -> None:
        self.count -= len(self.chains.pop(branch, ()))
        self._jumps.pop(branch, None)
        self._gone.add(branch)
        for child in self._children.pop(branch, ()):
            if child not in spared:
                self._drop(child, spared)

    def _build(self, branch: Branch, key: int | None, built: set[Branch]) -> None:
        """Build a branch and those below it that are new or on the way to the key."""
        built.add(branch)
        start, end = self._slice(branch)
        texts: list[tuple[Owner | None, str]] = []
        children: list[Branch] = []
        for child, first, last in self._parts(start, end):
            if child is None:
                texts += [(entry.owner, entry.text) for entry in self._entries[first:last]]
            else:
                children.append(child)
                if child not in self._jumps:
                    self._jumps[child] = Rule(self._matches(child), Jump(self._name(child))).text()
                texts.append((None, self._jumps[child]))
        before = self.chains.get(branch)
        if before != tuple(texts):
            self.count += len(texts) - len(before or ())
            self.chains[branch] = tuple(texts)
            self._changed.add(branch)
        self._children[branch] = tuple(children)
        for child in children:
            on_way = key is not None and self._covers(child, key)
            if on_way or child not in self.chains:
                self._build(child, key, built)

    def _slice(self, branch: Branch) -> tuple[int, int]:
        low = branch.value << (self._total - branch.bits)
        high = low + (1 << (self._total - branch.bits))
        return self._position(low), self._position(high)

    def _position(self, key: int) -> int:
        return bisect_left(self._entries, (key,))

    def _parts(self, start: int, end: int) -> Iterator[tuple[Branch | None, int, int]]:
        """What a chain for these rules holds: jumps to branches, and rules (no branch)."""
        different = self._entries[start].key ^ self._entries[end - 1].key if start < end else 0
        if end - start <= LIMIT or not different:
            yield None, start, end
            return
        shared = (self._total - different.bit_length()) // _STEP * _STEP
        bits = shared + _STEP
        shift = self._total - bits
        while start < end:
            value = self._entries[start].key >> shift
            stop = min(self._position((value + 1) << shift), end)
            yield (Branch(bits, value) if stop - start > INLINE else None), start, stop
            start = stop

    def _matches(self, branch: Branch) -> tuple[Match, ...]:
        """What the packets of a branch have in common."""
        bits, value = branch
        matches: list[Match] = []
        port_bits = max(bits - self._address_bits - _STEP, 0)
        if bits > self._address_bits:
            protocol = value >> port_bits & (1 << _STEP) - 1
            matches.append(Protocol(_PROTOCOLS[protocol]))
        if self._address_bits:
            matches.append(Destination(self._prefix(branch)))
        if port_bits:
            width = _PORT_BITS - port_bits
            first = (value & (1 << port_bits) - 1) << width
            matches.append(_ports(first, first + (1 << width) - 1))
        return tuple(matches)

    def _prefix(self, branch: Branch) -> str:
        """The addresses of a branch, as a CIDR, or the one address."""
        length = min(branch.bits, self._address_bits)
        number = branch.value >> (branch.bits - length) << (self._address_bits - length)
        kind = ipaddress.IPv4Address if self._address_bits == 32 else ipaddress.IPv6Address
        address = str(kind(number))
        return address if length == self._address_bits else f"{address}/{length}"


def _number(address: str) -> int:
    """An address as a number; all have been validated, so IPv4 needs no more than arithmetic."""
    if ":" in address:
        return int(ipaddress.IPv6Address(address))
    first, second, third, last = address.split(".")
    return (int(first) << 24) + (int(second) << 16) + (int(third) << 8) + int(last)


def _ports(first: int, last: int) -> Match:
    return DestinationPort(first) if first == last else DestinationPorts(first, last)
