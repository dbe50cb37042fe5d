"""Chains as ``iptables-nft-save`` prints them, from what the kernel sends of them.

A node has sixty thousand chains of a few kinds: chains of one kind have the same bytes but for
addresses, names and numbers. So the first of a kind is read expression by expression
(``agent.kernel.expressions``), and those that are like it in all other bytes are printed like it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.kernel.expressions import PRINTED, Slot, UnknownError, expression
from agent.kernel.netlink import attributes
from agent.kernel.nftables import rule_places

if TYPE_CHECKING:
    from agent.kernel.expressions import Make, Printed
    from agent.state.values import Family

#: Kinds of chains of one length.
_MOST_SHAPES = 16
#: What a message begins with that counts, its length, type and flags; and the head of an attribute.
_MESSAGE, _HEAD = 8, 4
_ELEMENT = 1


class _Piece(NamedTuple):
    """Bytes of a rule that its text, or a part of it, is made of."""

    start: int
    end: int
    make: Make


#: Where a chain's own name goes, which no text has in it.
_NAME = "\0"
_Same = list[tuple[int, int, bytes]]
_Parts = list[str | _Piece]


class _Shape(NamedTuple):
    """Chains that differ only in some of their bytes.

    Attributes:
        same: what all have, and where.
        pieces: the bytes in which they differ.
        template: what they are printed as, with a ``%s`` for each piece.
    """

    same: tuple[tuple[int, int, bytes], ...]
    pieces: tuple[_Piece, ...]
    template: str


class Printer:
    """Prints chains of one family.

    A chain that is like one that was printed before, but for addresses, names and numbers, is
    printed like that one; there are few kinds.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        #: By how long a chain is.
        self._shapes: dict[int, list[_Shape]] = {}

    def chain(self, name: str, data: bytes) -> str:
        """The rules, a line each.

        Args:
            name: of the chain.
            data: what the kernel sent of it (``nftables.chain_dump``).

        Raises:
            UnknownError: one of them is none of those that are known here.
        """
        shapes = self._shapes.setdefault(len(data), [])
        for shape in shapes:
            for start, end, content in shape[0]:
                if data[start:end] != content:
                    break
            else:
                return self._text(shape, name, data)
        shape = self._learn(data)
        if len(shapes) < _MOST_SHAPES:
            shapes.append(shape)
        return self._text(shape, name, data)

    def _text(self, shape: _Shape, name: str, data: bytes) -> str:
        family = self._family
        texts = [make(family, data[start:end]) for start, end, make in shape[1]]
        return (shape[2] % tuple(texts)).replace(_NAME, name)

    def _learn(self, data: bytes) -> _Shape:
        """What kind of chain this is."""
        places = rule_places(data)
        if places is None:
            raise UnknownError("what only nft writes")
        same: _Same = []
        parts: _Parts = []
        for message, begins, ends in places:
            same.append((message, message + _MESSAGE, data[message : message + _MESSAGE]))
            same.append((begins - _HEAD, begins, data[begins - _HEAD : begins]))
            here, mine = self._rule(data[begins:ends])
            same += [(begins + start, begins + end, what) for start, end, what in here]
            parts += [f"-A {_NAME}", *[_moved(part, begins) for part in mine], "\n"]
        return _Shape(
            tuple(_merged(same)),
            tuple(part for part in parts if isinstance(part, _Piece)),
            "".join(p.replace("%", "%%") if isinstance(p, str) else "%s" for p in parts),
        )

    def _rule(self, expressions: bytes) -> tuple[_Same, _Parts]:
        """What all rules like this have, and what they are printed as."""
        same: _Same = []
        slots: list[_Parts] = [[] for _ in range(PRINTED)]
        start = 0
        for kind, _, unpadded in attributes(expressions, 0, len(expressions)):
            if kind != _ELEMENT:
                raise UnknownError("no expression")
            end = (unpadded + 3) & ~3
            found = expression(self._family, expressions[start:end])
            if found.slot == Slot.LOAD:
                continue  # what is loaded is printed with what it is compared with
            _place(slots, found, end)
            hole, behind = end - found.hole[0], end - found.hole[1]
            same.append((start, hole, expressions[start:hole]))
            if behind < end:
                same.append((behind, end, expressions[behind:end]))
            start = end
        if start != len(expressions) or not any(slots):
            raise UnknownError("it has no end, or says nothing")
        return same, [part for slot in slots for part in slot]


def _moved(part: str | _Piece, by: int) -> str | _Piece:
    if isinstance(part, str):
        return part
    return _Piece(part.start + by, part.end + by, part.make)


def _merged(same: _Same) -> _Same:
    """With one entry for what stands side by side."""
    found: _Same = []
    for start, end, content in same:
        if found and found[-1][1] == start:
            begin, _, before = found.pop()
            found.append((begin, end, before + content))
        else:
            found.append((start, end, content))
    return found


def _place(slots: list[_Parts], found: Printed, end: int) -> None:
    """Put an expression where it is printed; it ends at ``end``."""
    if found.slot == Slot.NOWHERE:
        return
    slot = Slot.MATCHES if found.slot == Slot.PORT else found.slot
    if slots[Slot.TARGET] or (slot != Slot.MATCHES and slots[slot]):
        raise UnknownError("something stands there twice")
    if found.slot == Slot.PORT:
        protocol = "".join(part for part in slots[Slot.PROTOCOL] if isinstance(part, str))
        match = f" -m{protocol[3:]}"
        if not protocol.startswith(" -p ") or match in slots[Slot.MATCHES]:
            raise UnknownError("a port without its protocol, or two")
        slots[Slot.MATCHES].append(match)
    begins, ends = found.hole
    piece = _Piece(end - begins, end - ends, found.make) if found.make and begins else found.text
    slots[slot].append(piece)
