"""Answers of nf_tables, taken apart. That the kernel gives such answers, tests/kernel tells."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Self

import pytest

from agent.kernel import nftables
from agent.kernel.errors import DumpInterruptedError
from agent.kernel.netlink import attribute, string
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE, OTHER = string(1, "nat"), string(1, "filter")
HANDLE, POSITION = attribute(3, bytes(7), b"\x09"), attribute(6, bytes(7), b"\x08")


def message(*attributes: bytes) -> bytes:
    body = b"".join((bytes(4), *attributes))
    return struct.pack("=IHHII", 16 + len(body), 0xA06, 2, 1, 0) + body


def counter(packets: int) -> bytes:
    counts = attribute(1, bytes(8)) + attribute(2, packets.to_bytes(8, "big"))
    return attribute(1, string(1, "counter"), attribute(2, counts, nested=True), nested=True)


def rule(*in_front: bytes, packets: int = 0, what: bytes = b"....", chain: str = "ONE") -> bytes:
    expressions = attribute(4, counter(packets), attribute(1, what), nested=True)
    return message(TABLE, string(2, chain), *in_front, expressions)


class Answers:
    """Stands in for ``Channel``: each dump is answered by all of these."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers

    def __call__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def dump(self, _: str, __: int, ___: int, ____: bytes = b"") -> Iterator[bytes]:
        yield from self.answers

    def dump_whole(self, _: str, __: int, ___: int, ____: bytes = b"") -> bytes:
        return b"".join(self.answers)


def digest(monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> bytes | None:
    monkeypatch.setattr(nftables, "Channel", Answers(*answers))
    return nftables.digests(Family.V4, "nat", ["ONE"]).get("ONE")


def test_numbers_and_counts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule has the same digest whatever its number, the one in front, and what it counted."""
    first = digest(monkeypatch, rule(HANDLE), rule(HANDLE, POSITION))

    assert first is not None
    for other in (attribute(3, bytes(8)), attribute(3, b"\xff" * 8)):
        assert digest(monkeypatch, rule(other, packets=7), rule(other, POSITION)) == first
    assert digest(monkeypatch, rule(HANDLE), rule(HANDLE, POSITION, what=b"other...")) != first
    assert digest(monkeypatch, rule(HANDLE)) != first
    assert digest(monkeypatch) is None


def test_a_chain_that_keeps_changing_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says so in any of its messages (NLM_F_DUMP_INTR)."""
    changed = bytearray(rule(HANDLE))
    changed[6] |= 0x10
    with pytest.raises(DumpInterruptedError, match="reading chain ONE of IPv4 nat"):
        digest(monkeypatch, rule(HANDLE), bytes(changed))


def test_another_order_of_attributes_is_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel puts numbers behind what the rule does, they are found all the same."""
    usual = rule(HANDLE, POSITION)
    expressions = usual[20 + len(TABLE + string(2, "ONE") + HANDLE + POSITION) :]
    turned = [
        message(HANDLE, POSITION, TABLE, string(2, "ONE"), expressions),
        message(string(2, "ONE"), TABLE, expressions, POSITION, HANDLE),
    ]

    assert {digest(monkeypatch, one) for one in (usual, *turned)} == {digest(monkeypatch, usual)}


def chain(*attributes: bytes) -> bytes:
    return message(*attributes, attribute(4, b"more"))


NUMBER = attribute(2, bytes(8))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(chain(TABLE, NUMBER, string(3, "ONE")), id="as the kernel has it"),
        pytest.param(chain(TABLE, string(3, "ONE")), id="without a number"),
        pytest.param(chain(TABLE, attribute(9, b"new."), string(3, "ONE")), id="something new"),
        pytest.param(chain(string(3, "ONE"), NUMBER, TABLE), id="another order"),
    ],
)
def test_chains_of_a_table_are_named(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """Wherever its table and its name stand; chains of other tables are none of its own."""
    others = [chain(OTHER, NUMBER, string(3, "TWO")), chain(string(3, "TWO"), OTHER)]
    monkeypatch.setattr(nftables, "Channel", Answers(*others, answer, chain(), message(TABLE)))

    assert nftables.chain_names(Family.V4, "nat") == {"ONE"}
