"""Expressions as the kernel encodes them, and what is printed of them.

That it is what iptables prints, tests/kernel tells, for the version that is installed.
"""

from __future__ import annotations

import struct

import pytest

from agent.kernel.expressions import Slot, UnknownError, expression
from agent.kernel.netlink import attribute, string
from agent.kernel.printer import Printer
from agent.state.values import Family

ONE, TWO = b"\0\0\0\1", b"\0\0\0\2"


def number(kind: int, value: int) -> bytes:
    return attribute(kind, value.to_bytes(4, "big"))


def made(name: str, *fields: bytes) -> bytes:
    data = attribute(2, *fields, nested=True)
    return attribute(1, string(1, name), data, nested=True)


def value(kind: int, content: bytes) -> bytes:
    return attribute(kind, attribute(1, content), nested=True)


def payload(base: int, offset: int, length: int, register: int = 1) -> bytes:
    fields = (number(kind, one) for kind, one in enumerate((register, base, offset, length), 1))
    return made("payload", *fields)


def meta(key: int, register: int = 1) -> bytes:
    return made("meta", number(2, key), number(1, register))


def compared(content: bytes, operator: int = 0, register: int = 1) -> bytes:
    return made("cmp", number(1, register), number(2, operator), value(3, content))


def masked(mask: bytes, xor: bytes = bytes(4), register: int = 1, size: int = 4) -> bytes:
    fields = (number(1, register), number(2, 1), number(3, size), number(6, 0))
    return made("bitwise", *fields, value(4, mask), value(5, xor))


def jump(chain: str, code: int = -3) -> bytes:
    verdict = attribute(1, struct.pack(">i", code)) + string(2, chain)
    nested = attribute(2, attribute(2, verdict, nested=True), nested=True)
    return made("immediate", number(1, 0), nested)


SOURCE = payload(1, 12, 4)


@pytest.mark.parametrize(
    ("unit", "slot", "text"),
    [
        (meta(16) + compared(b"\x06"), Slot.PROTOCOL, " -p tcp"),
        (meta(16) + compared(b"\x11", operator=1), Slot.PROTOCOL, " ! -p udp"),
        (payload(1, 9, 1) + compared(b"\x84"), Slot.PROTOCOL, " -p sctp"),  # iptables 1.8.11
        (meta(6) + compared(b"br0\0", operator=1), Slot.IN, " ! -i br0"),
        (meta(6) + compared(b"cali"), Slot.IN, " -i cali+"),
        (SOURCE + compared(b"\xc0\0\2\1"), Slot.SOURCE, " -s 192.0.2.1/32"),
        (payload(1, 16, 3) + compared(b"\xc0\0\2"), Slot.DESTINATION, " -d 192.0.2.0/24"),
        (
            SOURCE + masked(b"\xff\x80\0\0") + compared(b"\x0a\x80\0\0"),
            Slot.SOURCE,
            " -s 10.128.0.0/9",
        ),
        (payload(2, 2, 2) + compared(b"\0\x50"), Slot.PORT, " --dport 80"),
        (jump("KUBE-ONE"), Slot.TARGET, " -j KUBE-ONE"),
        (jump("KUBE-ONE", -4), Slot.TARGET, " -g KUBE-ONE"),
    ],
)
def test_what_an_expression_is_printed_as(unit: bytes, slot: Slot, text: str) -> None:
    """Those that load something are printed with what compares it."""
    assert expression(Family.V4, unit)[:2] == (slot, text)


@pytest.mark.parametrize(
    "unit",
    [
        meta(16) + compared(b"\x06", register=2),  # compares what nobody loaded
        SOURCE + masked(b"\xff\x80\0\0", register=2) + compared(b"\x0a\x80\0\0"),
        SOURCE + masked(b"\xff\0\xff\0") + compared(b"\x0a\0\0\0"),
        SOURCE + masked(b"\xff\x80\0\0", xor=ONE) + compared(b"\x0a\x80\0\0"),
        SOURCE + masked(b"\xff\x80\0\0", size=3) + compared(b"\x0a\x80\0\0"),
        meta(16) + compared(b"\x06", operator=2),  # less than
        meta(16) + compared(b"\x01"),
        meta(6) + compared(b"a b\0"),
        meta(3) + compared(TWO),
        payload(1, 14, 2) + compared(b"\2\1"),
        payload(2, 0, 2) + compared(b"\0\x50"),
        payload(2, 2, 2) + compared(b"\0\x50", operator=1),
        made("cmp", number(1, 1), number(2, 0), value(3, b"\x06"), number(9, 1)),
        meta(16) + jump("KUBE-ONE"),
        jump("a b"),
        jump("KUBE-ONE", -9),
        made("ct", number(1, 1)),
    ],
)
def test_everything_else_is_unknown(unit: bytes) -> None:
    """Whoever asks takes the tool's word for it."""
    with pytest.raises(UnknownError):
        expression(Family.V4, unit)


def chain(*rules: bytes, extra: bytes = b"", kind: int = 0xA06, flags: int = 2) -> bytes:
    messages = []
    for rule in rules:
        names = string(1, "nat") + string(2, "KUBE-ONE") + attribute(3, bytes(8))
        body = bytes(4) + names + extra + attribute(4, rule, nested=True)
        messages.append(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    return b"".join(messages)


RULE = SOURCE + compared(b"\xc0\0\2\1") + jump("KUBE-TWO")


def test_a_chain_is_printed_line_by_line() -> None:
    """An empty one as nothing."""
    printer = Printer(Family.V4)
    line = "-A KUBE-ONE -s 192.0.2.1/32 -j KUBE-TWO\n"

    assert printer.chain("KUBE-ONE", chain(RULE, RULE)) == 2 * line
    assert printer.chain("KUBE-ONE", b"") == ""


@pytest.mark.parametrize(
    "data",
    [
        chain(RULE, extra=attribute(7, b"by nft")),  # user data
        chain(RULE, kind=0xA05),
        chain(RULE, flags=0x12),  # the kernel broke the dump off
        chain(RULE)[:-4],
        chain(RULE[:-4]),
        chain(RULE + RULE),  # what stands behind a target, and what stands there twice
        chain(SOURCE),
        chain(payload(2, 2, 2) + compared(b"\0\x50") + jump("KUBE-TWO")),  # a port of what?
    ],
)
def test_a_chain_that_is_no_list_of_such_rules(data: bytes) -> None:
    """It is unknown as a whole, also to one who has printed others."""
    printer = Printer(Family.V4)
    printer.chain("KUBE-ONE", chain(RULE))
    with pytest.raises(UnknownError):
        printer.chain("KUBE-ONE", data)
