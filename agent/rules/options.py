"""What one option of a rule, with its value, or one target says: a match, or a target.

Values come in many forms (with or without a prefix that says nothing, decimal or hexadecimal,
dotted), and leave in the one that our own rules have.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from agent.rules.rule import (
    AddressType,
    Comment,
    ConntrackState,
    Destination,
    DestinationPort,
    DestinationPorts,
    Dnat,
    InInterface,
    Jump,
    Mark,
    Masquerade,
    Match,
    Nfacct,
    Other,
    OtherTarget,
    Protocol,
    SetMark,
    Source,
    Target,
)
from agent.rules.words import integer, is_number, join, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_STATES = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
PROTOCOLS = {name: Protocol(name) for name in ("tcp", "udp", "sctp")}
_NUMBERS = {"6": "tcp", "17": "udp", "132": "sctp"}
_DEFAULT_REJECTS = {"icmp-port-unreachable", "icmp6-port-unreachable"}


def _source(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    return Source(_host(value), negated)


def destination(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    """What ``-d`` says."""
    return Destination(_host(value), negated)


def _host(cidr: str) -> str:
    """An address without a prefix that says nothing."""
    if ":" not in cidr:
        return cidr.removesuffix("/32").removesuffix("/255.255.255.255")
    if "." in cidr:
        cidr = _without_dots(cidr)
    return cidr.removesuffix("/128")


def _without_dots(cidr: str) -> str:
    """An IPv6 address in one form: the tools write ``::1.2.3.4`` where we write ``::102:304``."""
    address, slash, prefix = cidr.partition("/")
    try:
        return f"{ipaddress.IPv6Address(address)}{slash}{prefix}"
    except ValueError:
        return cidr


def _protocol(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    known = PROTOCOLS.get(_NUMBERS.get(value, value))
    if known is None or negated:
        return Other(f"! -p {value}" if negated else f"-p {value}")
    return known


def _comment(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    return Comment(value) if not negated else Other(f"! --comment {quote(value)}")


def _port(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    if not negated and is_number(value):
        return DestinationPort(int(value))
    first, colon, last = value.partition(":")
    if not negated and colon and is_number(first) and is_number(last):
        return DestinationPorts(int(first), int(last))
    return Other(f"! --dport {value}" if negated else f"--dport {value}")


def _mark(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    mark, slash, mask = value.partition("/")
    number = integer(mark)
    if slash and integer(mask) == number:
        return Mark(number, negated)
    return Other(f"-m mark {'! ' if negated else ''}--mark {value}")


def _states(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    states = value.split(",")
    known = [state for state in _STATES if state in states]
    known += [state for state in states if state not in _STATES]
    return ConntrackState(",".join(known), negated)


def _address_type(side: str) -> Callable[[str, bool], Match]:
    def read(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
        if negated:
            return Other(f"-m addrtype ! --{side}-type {value}")
        return AddressType(side, value)

    return read


def _nfacct(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    return Nfacct(value) if not negated else Other(f"-m nfacct ! --nfacct-name {value}")


#: Reads an option's value, negated or not.
OPTIONS: dict[str, Callable[[str, bool], Match]] = {
    "-s": _source,
    "-d": destination,
    "-i": InInterface,
    "-p": _protocol,
    "--comment": _comment,
    "--dport": _port,
    "--mark": _mark,
    "--ctstate": _states,
    "--src-type": _address_type("src"),
    "--dst-type": _address_type("dst"),
    "--nfacct-name": _nfacct,
}


def read_target(option: str, name: str, rest: Sequence[str]) -> Target:
    """A target by its option, its name and the words behind it."""
    target: Target | None = None
    match (option, name, rest):
        case ("-j", "MASQUERADE", [] | ["--random-fully"]):
            target = Masquerade(random_fully=bool(rest))
        case ("-j", _, []):
            target = Jump(name)
        case ("-j", "DNAT", ["--to-destination", destination]):
            target = Dnat(_destination_of(destination))
        case ("-j", "MARK", [("--or-mark" | "--xor-mark") as operation, mark]):
            target = SetMark(operation[2:-5], integer(mark))
        case ("-j", "MARK", ["--set-xmark", value]):
            target = _set_xmark(value)
        case ("-j", "REJECT", ["--reject-with", kind]) if kind in _DEFAULT_REJECTS:
            target = Jump("REJECT")
    return target or OtherTarget(join([option, name, *rest]))


def _destination_of(text: str) -> str:
    """``ip:port`` with the address in one form."""
    if text.startswith("[::") and "." in text:
        address, bracket, port = text[1:].partition("]")
        return f"[{_without_dots(address)}{bracket}{port}"
    return text


def _set_xmark(value: str) -> Target:
    """``--or-mark X`` is kept as X/X, and ``--xor-mark X`` as X/0."""
    mark, slash, mask = value.partition("/")
    number = integer(mark)
    if slash and integer(mask) == 0:
        return SetMark("xor", number)
    if slash and integer(mask) == number:
        return SetMark("or", number)
    return OtherTarget(f"-j MARK --set-xmark {value}")
