"""What ``iptables-nft-save`` prints for a rule, from the expressions that the kernel keeps.

Only for the kinds of rules of which a node has a hundred thousand: those of Services and their
endpoints, in the form in which iptables-nft writes them. Everything else is ``UnknownError``, and
whoever asks takes the tool's own word for it. A rule is printed whole or not at all: an
expression, a field, an order or a value that is not just as expected here makes it unknown.

Expressions: ``linux/netfilter/nf_tables.h``; extensions: ``linux/netfilter/xt_*.h`` and
``nf_nat.h``.
"""

from __future__ import annotations

import enum
import functools
import re
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from agent.kernel.netlink import FAMILIES, PROTOCOLS, attributes, values
from agent.rules.probability import PROBABILITY_STEPS
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Makes a part of a rule's text of some of its bytes.
    Make = Callable[[Family, bytes], str]

_ZERO = b"\0"
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
#: Of compat matches and targets: name, revision, the extension's own bytes.
_NAME, _REVISION, _INFO = 1, 2, 3

_L4PROTO, _IIFNAME = 16, 6
_NETWORK, _TRANSPORT = 1, 2
#: Offset of the source and of the destination in the network header, and length of an address.
_ADDRESSES = {Family.V4: (12, 16, 4), Family.V6: (8, 24, 16)}
_DPORT = (_TRANSPORT, 2, 2)
#: The protocol of IPv4's header, which iptables asks for since 1.8.11, in place of metadata.
_IP_PROTOCOL = (_NETWORK, 9, 1)
_EQUAL, _UNEQUAL = bytes(4), b"\0\0\0\1"
_VERDICTS = {0: "-j DROP", 1: "-j ACCEPT", 0xFFFFFFFB: "-j RETURN"}
_JUMP, _GOTO = 0xFFFFFFFD, 0xFFFFFFFC

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
#: What stands in quotation marks as it is.
_QUOTED = re.compile(r'[^"\\\x00-\x1f\x7f-\x9f]+')
_NAMED = re.compile(rb"([A-Za-z0-9_.-]+)(?:\0|\Z)")
_RECENT = struct.Struct("=IIBB200sBx16s")
#: Where the name begins.
_RECENT_NAME = 10
_RECENT_CHECK, _RECENT_SET, _RECENT_REAP = 1, 2, 32
_STATISTIC = struct.Struct("=HHI")
#: ``addrtype`` that asks whether one of both addresses is local: types of both, and flags.
_LOCAL = {struct.pack("=HHI", 4, 0, 0): "src", struct.pack("=HHI", 0, 4, 0): "dst"}
_DNAT = struct.Struct("=I16s16s2s2s2s")
_DNAT_FLAGS = 3  # addresses and ports
#: ``tcp`` or ``udp`` that asks for nothing more than the protocol: all ports, and zeros.
_ALL_PORTS = bytes.fromhex("0000ffff0000ffff")
#: Bytes of an expression at its end: what it has counted, and a port with its padding.
_COUNTS = 24
_PORT_TAIL = 4


class Slot(enum.IntEnum):
    """Where in a printed rule something stands: the first few in this order."""

    SOURCE = 0
    DESTINATION = 1
    IN = 2
    PROTOCOL = 3
    MATCHES = 4
    TARGET = 5
    PORT = 6
    NOWHERE = 7
    LOAD = 8


#: How many of them are printed apart.
PRINTED = 6
_MARKS = {Slot.SOURCE: "-s", Slot.DESTINATION: "-d"}


class UnknownError(Exception):
    """A rule of another kind."""


class Printed(NamedTuple):
    """What an expression is printed as.

    Attributes:
        slot: where.
        text: what, with a blank in front.
        hole: where the bytes begin and end that the text was made of, counted from its end; none
            of them if that is all of it.
        make: makes the text of these bytes.
    """

    slot: Slot
    text: str = ""
    hole: tuple[int, int] = (0, 0)
    make: Make | None = None


_MORE, _NOTHING = Printed(Slot.LOAD), Printed(Slot.NOWHERE, hole=(_COUNTS, 0))


def expression(family: Family, unit: bytes) -> Printed:
    """What an expression is printed as, with those in front that load what it compares.

    Args:
        family: whose rule it is in.
        unit: one or more expressions, encoded.

    Raises:
        UnknownError: it is none of those that are known here.
    """
    parts = [_parts(unit[start:end]) for _, start, end in attributes(unit, 0, len(unit))]
    name, data = parts[-1]
    if name in {"meta", "payload", "bitwise"}:
        return _MORE
    if name in {"cmp", "range"}:
        return _compared(family, parts)
    make = _EXPRESSIONS.get(name)
    if make is None or len(parts) > 1:
        raise UnknownError(name)
    return make(family, data)


def _parts(expression: bytes) -> tuple[str, bytes]:
    name, data = _fields(expression, _EXPRESSION_NAME, _EXPRESSION_DATA)
    return _word(name), data


def _fields(data: bytes, *kinds: int) -> list[bytes]:
    """Attributes, if there are just these."""
    found = values(data, 0)
    if found.keys() != set(kinds):
        raise UnknownError("other attributes")
    return [found[kind] for kind in kinds]


def _word(data: bytes) -> str:
    """A name with the zero behind it that the kernel counts."""
    if data.find(_ZERO) != len(data) - 1:
        raise UnknownError("no name")
    return _name(data)


def _name(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace")


def _safe(data: bytes) -> str:
    """A name that is printed as it is."""
    found = _NAMED.match(data)
    if found is None:
        raise UnknownError("another name")
    return found[1].decode()


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


# Registers ---------------------------------------------------------------------------------


def _compared(family: Family, parts: list[tuple[str, bytes]]) -> Printed:
    """Something that is loaded into a register, masked perhaps, and compared."""
    names = [name for name, _ in parts]
    if names[:1] == ["meta"] and names[1:] == ["cmp"]:
        key, register = _fields(parts[0][1], 2, 1)
        no, value = _comparison(parts[1][1], register)
        return _compared_meta(no, _number(key), value)
    if names[:1] != ["payload"]:
        raise UnknownError(" ".join(names))
    register, *numbers = _fields(parts[0][1], 1, 2, 3, 4)
    place = tuple(map(_number, numbers))
    if names[1:] == ["range"]:
        return _ports(parts[1][1], register, place)
    no, value = _comparison(parts[-1][1], register)
    if names[1:] == ["cmp"]:
        if place == _IP_PROTOCOL and family is Family.V4:
            return _protocol_of(no, value)
        if place == _DPORT and len(value) == 2 and not no:
            return Printed(Slot.PORT, _dport(family, value), (_PORT_TAIL, 0), _dport)
        return _compared_address(family, no, place, 8 * len(value), value)
    if names[1:] == ["bitwise", "cmp"]:
        return _compared_address(family, no, place, _prefix(parts[1][1], register), value)
    raise UnknownError(" ".join(names))


def _comparison(data: bytes, register: bytes) -> tuple[str, bytes]:
    """How a register is compared, as it is printed, and with what."""
    source, operator, nested = _fields(data, 1, 2, 3)
    no = {_EQUAL: "", _UNEQUAL: " !"}.get(operator)
    if no is None or source != register:
        raise UnknownError("another comparison")
    return no, _data(nested)


def _ports(data: bytes, register: bytes, place: tuple[int, ...]) -> Printed:
    """A range of ports."""
    source, operator, *nested = _fields(data, 1, 2, 3, 4)
    low, high = map(_data, nested)
    if (place, source, operator) != (_DPORT, register, _EQUAL) or {len(low), len(high)} != {2}:
        raise UnknownError("another range")
    return Printed(Slot.PORT, f" --dport {_number(low)}:{_number(high)}")


def _dport(_family: Family, port: bytes) -> str:
    """Two bytes; behind them there may be padding."""
    return f" --dport {_number(port[:2])}"


def _data(nested: bytes) -> bytes:
    """``NFTA_DATA_VALUE``."""
    [value] = _fields(nested, 1)
    if not value:
        raise UnknownError("no value")
    return value


def _compared_meta(no: str, key: int, value: bytes) -> Printed:
    if key == _L4PROTO:
        return _protocol_of(no, value)
    if key == _IIFNAME:
        every = "" if value.endswith(_ZERO) else "+"  # whose names begin like this
        return Printed(Slot.IN, f"{no} -i {_safe(value)}{every}")
    raise UnknownError("other metadata")


def _protocol_of(no: str, value: bytes) -> Printed:
    if len(value) != 1 or value[0] not in PROTOCOLS:
        raise UnknownError("another protocol")
    return Printed(Slot.PROTOCOL, f"{no} -p {PROTOCOLS[value[0]]}")


def _compared_address(
    family: Family, no: str, place: tuple[int, ...], prefix: int, value: bytes
) -> Printed:
    source, destination, size = _ADDRESSES[family]
    base, offset, length = place
    slot = {source: Slot.SOURCE, destination: Slot.DESTINATION}.get(offset)
    if slot is None or base != _NETWORK or not len(value) == length <= size:
        raise UnknownError("another place in the packet")
    mark = f"{no} {_MARKS[slot]} "

    def make(family: Family, value: bytes) -> str:
        return f"{mark}{socket.inet_ntop(FAMILIES[family], value.ljust(size, _ZERO))}/{prefix}"

    return Printed(slot, make(family, value), (length if length == size else 0, 0), make)


def _prefix(bitwise: bytes, register: bytes) -> int:
    """The prefix of a bitwise expression that does nothing but mask with one."""
    source, target, size, operation, *nested = _fields(bitwise, 1, 2, 3, 6, 4, 5)
    mask, xor = map(_data, nested)
    if (source, target) != (register, register) or _number(size) != len(mask):
        raise UnknownError("another register")
    if any(operation) or any(xor):
        raise UnknownError("another operation")
    number = _number(mask)
    ones = number.bit_count()
    if number != ((1 << ones) - 1) << (8 * len(mask) - ones):
        raise UnknownError("a mask with holes")
    return ones


# Extensions and verdicts -------------------------------------------------------------------


def _counter(_family: Family, _data: bytes) -> Printed:
    return _NOTHING


def _immediate(family: Family, data: bytes) -> Printed:
    register, nested = _fields(data, 1, 2)
    [verdict] = _fields(nested, 2)
    found = values(verdict, 0)
    code, chain = _number(found.get(1, b"")), found.get(2, b"")
    if any(register) or 1 not in found or not found.keys() <= {1, 2}:
        raise UnknownError("no verdict")
    if code in _VERDICTS and not chain:
        return Printed(Slot.TARGET, f" {_VERDICTS[code]}")
    if code not in {_JUMP, _GOTO} or not data.rstrip(_ZERO).endswith(_word(chain).encode()):
        raise UnknownError("another verdict")
    mark = "-j" if code == _JUMP else "-g"

    def make(_family: Family, chain: bytes) -> str:
        return f" {mark} {_safe(chain)}"

    return Printed(Slot.TARGET, make(family, chain), ((len(chain) + 3) & ~3, 0), make)


def _match(family: Family, data: bytes) -> Printed:
    word, number, info = _fields(data, _NAME, _REVISION, _INFO)
    name, revision = _word(word), _number(number)
    if not data.endswith(info):
        raise UnknownError(name)
    if (name, revision) == ("recent", 1):
        return _recent(family, info)
    make = _EXTENSIONS.get((name, revision))
    if make is None:
        raise UnknownError(name)
    return Printed(Slot.MATCHES, make(family, info), (len(info), 0), make)


def _comment(_family: Family, info: bytes) -> str:
    try:
        text = info.partition(_ZERO)[0].decode()
    except UnicodeDecodeError as error:
        raise UnknownError("bytes that are no text") from error
    if _PLAIN.fullmatch(text):
        return f" -m comment --comment {text}"
    if not _QUOTED.fullmatch(text):
        raise UnknownError("a comment with other characters")
    return f' -m comment --comment "{text}"'


def _tcp(_family: Family, info: bytes) -> str:
    return _protocol("tcp", info)


def _udp(_family: Family, info: bytes) -> str:
    return _protocol("udp", info)


def _protocol(name: str, info: bytes) -> str:
    if info.rstrip(_ZERO) != _ALL_PORTS:
        raise UnknownError(f"{name} with more")
    return f" -m {name}"


def _recent(family: Family, info: bytes) -> Printed:
    if len(info) < _RECENT.size:
        raise UnknownError("recent of another size")
    seconds, hits, flags, inverted, name, side, mask = _RECENT.unpack_from(info)
    size = _ADDRESSES[family][2]
    if hits or inverted or side or mask[:size] != b"\xff" * size:
        raise UnknownError("recent with more")
    if flags == _RECENT_SET and not seconds:
        does = "--set"
    elif flags == _RECENT_CHECK | _RECENT_REAP and seconds:
        does = f"--rcheck --seconds {seconds} --reap"
    else:
        raise UnknownError("recent for something else")
    whole = socket.inet_ntop(FAMILIES[family], mask[:size])
    before, behind = f" -m recent {does} --name ", f" --mask {whole} --rsource"

    def make(_family: Family, name: bytes) -> str:
        return f"{before}{_safe(name)}{behind}"

    begins = len(info) - _RECENT_NAME
    return Printed(Slot.MATCHES, make(family, name), (begins, begins - len(name)), make)


def _addrtype(_family: Family, info: bytes) -> str:
    if info not in _LOCAL:
        raise UnknownError("another type of addresses")
    return f" -m addrtype --{_LOCAL[info]}-type LOCAL"


@functools.lru_cache(maxsize=4096)
def _statistic(_family: Family, info: bytes) -> str:
    if len(info) < _STATISTIC.size:
        raise UnknownError("statistic of another size")
    mode, flags, steps = _STATISTIC.unpack_from(info)
    if mode or flags:
        raise UnknownError("another statistic")
    return f" -m statistic --mode random --probability {steps / PROBABILITY_STEPS:.11f}"


def _target(family: Family, data: bytes) -> Printed:
    word, revision, info = _fields(data, _NAME, _REVISION, _INFO)
    name = _word(word)
    if (name, _number(revision)) != ("DNAT", 2) or not data.endswith(info):
        raise UnknownError(name)
    return Printed(Slot.TARGET, _dnat(family, info), (len(info), 0), _dnat)


def _dnat(family: Family, info: bytes) -> str:
    if len(info) < _DNAT.size:
        raise UnknownError("DNAT of another size")
    flags, low, high, first, last, base = _DNAT.unpack_from(info)
    size = _ADDRESSES[family][2]
    if flags != _DNAT_FLAGS or low != high or first != last or base != bytes(2):
        raise UnknownError("DNAT with more")
    if any(low[size:]):
        raise UnknownError("DNAT to another family")
    host = socket.inet_ntop(FAMILIES[family], low[:size])
    place = f"[{host}]" if family is Family.V6 else host
    return f" -j DNAT --to-destination {place}:{_number(first)}"


_EXPRESSIONS: dict[str, Callable[[Family, bytes], Printed]] = {
    "counter": _counter,
    "immediate": _immediate,
    "match": _match,
    "target": _target,
}
_EXTENSIONS: dict[tuple[str, int], Callable[[Family, bytes], str]] = {
    ("addrtype", 1): _addrtype,
    ("comment", 0): _comment,
    ("tcp", 0): _tcp,
    ("udp", 0): _udp,
    ("statistic", 0): _statistic,
}
