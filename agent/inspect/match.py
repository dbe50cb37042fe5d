"""Whether a rule's matches hold for a packet: yes, no, with some chance, or unknown.

What the kernel decides from things that are not in the rules (sets, limits, connection marks,
remembered clients) is never guessed: such a match "may hold", and says what it depends on.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.packet import Fate, Host, Packet, contains
from agent.rules.probability import PROBABILITY_STEPS, probability_steps, share
from agent.rules.rule import (
    AddressType,
    Comment,
    ConntrackState,
    Destination,
    DestinationPort,
    DestinationPorts,
    InInterface,
    Mark,
    Nfacct,
    Other,
    Protocol,
    Recent,
    Rule,
    Source,
    Statistic,
)
from agent.rules.words import ParseError, integer, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = Fraction(1)
#: Numbers of protocols that ``-p`` may be printed with.
_PROTOCOLS = {"1": "icmp", "6": "tcp", "17": "udp", "58": "ipv6-icmp", "132": "sctp"}
_SAME = {"icmpv6": "ipv6-icmp"}
_STATES = {"NEW", "ESTABLISHED", "RELATED", "INVALID", "UNTRACKED"}


class View(msgspec.Struct, frozen=True):
    """A packet at one hook.

    Attributes:
        packet: as it came.
        host: the node.
        fate: what rules have made of it.
        incoming: interface by which it comes, empty at hooks of packets that the node sends,
            None if unknown.
        outgoing: interface by which it will leave, empty at hooks before that is decided,
            None if unknown.
    """

    packet: Packet
    host: Host
    fate: Fate
    incoming: str | None
    outgoing: str | None


class Verdict(msgspec.Struct, frozen=True):
    """How a rule matches.

    Attributes:
        chance: the probability with which it does, if nothing is unknown.
        unknown: what it depends on that is not known.
        remembers: it asks for a client that was seen before.
    """

    chance: Fraction = ONE
    unknown: tuple[str, ...] = ()
    remembers: Recent | None = None


ALWAYS = Verdict()


def judge(rule: Rule, view: View) -> Verdict | None:
    """How a rule matches a packet; None if it does not.

    Raises:
        ParseError: a match has a value that is not of its kind.
    """
    chance = ONE
    unknown: list[str] = []
    remembers: Recent | None = None
    for match in rule.matches:
        kind = type(match)
        if kind is Recent and match.seconds:  # type: ignore[union-attr]  # kind is its type
            remembers = match  # type: ignore[assignment]  # likewise
            continue
        answer = _JUDGES[kind](match, view)
        if answer is True:
            continue
        if answer is False:
            return None
        if isinstance(answer, Fraction):
            chance *= answer
        else:
            unknown.append(answer)
    if chance == 1 and not unknown and remembers is None:
        return ALWAYS
    return Verdict(chance, tuple(unknown), remembers) if chance else None


# Matches of ours ---------------------------------------------------------------------------


def _yes(_match: object, _view: View) -> bool:
    return True


def _protocol(match: Protocol, view: View) -> bool:
    return view.packet.protocol == match.protocol


def _source(match: Source, view: View) -> bool | str:
    if view.fate.masqueraded or view.fate.source_translated:
        return f"{match.text()} (the source has been translated)"
    return _in_any(match.cidr, view.packet.source) != match.negated


def _destination(match: Destination, view: View) -> bool:
    return _in_any(match.cidr, view.fate.destination) != match.negated


def _in_any(cidrs: str, address: str) -> bool:
    try:
        if "," not in cidrs:
            return contains(cidrs, address)
        return any(contains(cidr, address) for cidr in cidrs.split(","))
    except ValueError as error:
        raise ParseError(f"{cidrs!r} is not an address or a range") from error


def _destination_port(match: DestinationPort, view: View) -> bool:
    return view.fate.port == match.port


def _destination_ports(match: DestinationPorts, view: View) -> bool:
    return match.first <= view.fate.port <= match.last


def _in_interface(match: InInterface, view: View) -> bool | str:
    if view.incoming is None:
        if match.name in view.packet.avoids:
            return match.negated
        return match.text() if match.name != "+" else not match.negated
    return _is_interface(match.name, view.incoming) != match.negated


def _is_interface(pattern: str, name: str) -> bool:
    if pattern.endswith("+"):
        return name.startswith(pattern[:-1])
    return pattern == name


def _address_type(match: AddressType, view: View) -> bool | str:
    return _is_type(match.side, match.type, view)


def _is_type(side: str, types: str, view: View) -> bool | str:
    address = view.packet.source if side == "src" else view.fate.destination
    wanted = set(types.split(","))
    if view.host.is_local(view.packet.family, address):
        return "LOCAL" in wanted
    return False if wanted == {"LOCAL"} else f"-m addrtype --{side}-type {types}"


def _mark(match: Mark, view: View) -> bool:
    return (view.fate.mark & match.mark == match.mark) != match.negated


def _state(match: ConntrackState, view: View) -> bool | str:
    return _in_states(match.states, view) != match.negated


def _in_states(states: str, view: View) -> bool:
    now = {view.packet.state if view.fate.tracked else "UNTRACKED"}
    if view.fate.translated:
        now.add("DNAT")
    if view.fate.masqueraded or view.fate.source_translated:
        now.add("SNAT")
    return not now.isdisjoint(states.split(","))


def _recent(_match: Recent, _view: View) -> bool:
    return True  # it remembers the client; asking is not done here


def _statistic(match: Statistic, _view: View) -> Fraction:
    return Fraction(1, match.one_in)


# Matches of others -------------------------------------------------------------------------


def _other(match: Other, view: View) -> bool | Fraction | str:
    """Evaluate word by word; all must hold."""
    words = tokens(match.options)
    module = ""
    if words[0] == "-m":
        module, words = words[1], words[2:]
    whole = match.options
    if module == "statistic":
        return _other_statistic(words, whole)
    if module in _PLAIN_MODULES or not module:
        answers = [_option(option, whole, view) for option in _options(words)]
        if False in answers:
            return False
        return True if answers and all(answer is True for answer in answers) else whole
    return whole


def _other_statistic(words: list[str], whole: str) -> Fraction | str:
    match words:
        case ["--mode", "random", "--probability", text]:
            return exact(probability_steps(text))
        case ["--mode", "random", "!", "--probability", text]:
            return 1 - exact(probability_steps(text))
    return whole


def exact(steps: int) -> Fraction:
    """A kernel probability as the fraction that was meant: 1/n where it is one."""
    one_in = share(steps)
    return Fraction(1, one_in) if one_in else Fraction(steps, PROBABILITY_STEPS)


def _options(words: list[str]) -> list[tuple[str, bool, list[str]]]:
    """Options with whether they are negated and their values."""
    found: list[tuple[str, bool, list[str]]] = []
    negated = False
    for word in words:
        if word == "!":
            negated = True
        elif word.startswith("-"):
            found.append((word, negated, []))
            negated = False
        elif found:
            found[-1][2].append(word)
    return found


def _option(option: tuple[str, bool, list[str]], whole: str, view: View) -> bool | str:
    name, negated, values = option
    judge_option = _OTHER_OPTIONS.get(name)
    if judge_option is None:
        return whole
    answer = judge_option(values, view)
    return whole if answer is None else answer != negated


def _other_protocol(values: list[str], view: View) -> bool | None:
    name = _PROTOCOLS.get(values[0], values[0])
    wanted = _SAME.get(name, name)
    return wanted in {"all", "0"} or wanted == view.packet.protocol


def _out_interface(values: list[str], view: View) -> bool | None:
    if view.outgoing is None:
        return True if values[0] == "+" else None
    return _is_interface(values[0], view.outgoing)


def _fragment(_values: list[str], _view: View) -> bool | None:
    return False  # the first packet of a flow is none


def _ports_of(which: str) -> Callable[[list[str], View], bool | None]:
    def judge_ports(values: list[str], view: View) -> bool | None:
        ranges = [_port_range(part) for part in values[0].split(",")]
        if None in ranges:
            return None
        known = [range_ for range_ in ranges if range_ is not None]
        answers: set[bool | None] = set()
        if which in {"destination", "either"}:
            answers.add(any(first <= view.fate.port <= last for first, last in known))
        if which in {"source", "either"}:
            answers.add(_source_port_in(known, view.packet.source_port))
        if True in answers:
            return True
        return None if None in answers else False

    return judge_ports


def _source_port_in(ranges: list[tuple[int, int]], port: int | None) -> bool | None:
    if port is not None:
        return any(first <= port <= last for first, last in ranges)
    return True if (0, 65535) in ranges else None


def _port_range(text: str) -> tuple[int, int] | None:
    first, colon, last = text.partition(":")
    low, high = first or "0", (last or "65535") if colon else first
    if not (low.isdecimal() and high.isdecimal()):
        return None
    return int(low), int(high)


def _tcp_flags(values: list[str], view: View) -> bool | None:
    """The first packet of a TCP flow has SYN and none of the others."""
    if view.packet.state != "NEW" or len(values) != 2:
        return None
    mask, wanted = values[0].split(","), values[1].split(",")
    return ({"SYN"} if "SYN" in mask else {"NONE"}) == set(wanted)


def _syn(_values: list[str], view: View) -> bool | None:
    return True if view.packet.state == "NEW" else None


def _other_state(values: list[str], view: View) -> bool | None:
    return _in_states(values[0], view) if set(values[0].split(",")) <= _STATES else None


def _other_mark(values: list[str], view: View) -> bool | None:
    mark, _, mask = values[0].partition("/")
    return view.fate.mark & (integer(mask) if mask else 0xFFFFFFFF) == integer(mark)


def _type_of(side: str) -> Callable[[list[str], View], bool | None]:
    def judge_type(values: list[str], view: View) -> bool | None:
        answer = _is_type(side, values[0], view)
        return answer if isinstance(answer, bool) else None

    return judge_type


def _original_destination(values: list[str], view: View) -> bool | None:
    return _in_any(values[0], view.packet.destination)


def _original_source(values: list[str], view: View) -> bool | None:
    return _in_any(values[0], view.packet.source)


def _original_port(values: list[str], view: View) -> bool | None:
    found = _port_range(values[0])
    return None if found is None else found[0] <= view.packet.port <= found[1]


def _direction(values: list[str], _view: View) -> bool | None:
    return values[0] == "ORIGINAL"  # that of a flow's first packet


#: Modules whose options below mean what they mean everywhere.
_PLAIN_MODULES = {"tcp", "udp", "sctp", "multiport", "state", "mark", "addrtype", "conntrack"}
_OTHER_OPTIONS: dict[str, Callable[[list[str], View], bool | None]] = {
    "-p": _other_protocol,
    "-o": _out_interface,
    "-f": _fragment,
    "--dport": _ports_of("destination"),
    "--dports": _ports_of("destination"),
    "--sport": _ports_of("source"),
    "--sports": _ports_of("source"),
    "--ports": _ports_of("either"),
    "--tcp-flags": _tcp_flags,
    "--syn": _syn,
    "--state": _other_state,
    "--mark": _other_mark,
    "--src-type": _type_of("src"),
    "--dst-type": _type_of("dst"),
    "--ctorigdst": _original_destination,
    "--ctorigsrc": _original_source,
    "--ctorigdstport": _original_port,
    "--ctproto": _other_protocol,
    "--ctdir": _direction,
}
_JUDGES: dict[type, Callable[..., bool | Fraction | str]] = {
    Comment: _yes,
    Nfacct: _yes,
    Protocol: _protocol,
    Source: _source,
    Destination: _destination,
    DestinationPort: _destination_port,
    DestinationPorts: _destination_ports,
    InInterface: _in_interface,
    AddressType: _address_type,
    Mark: _mark,
    ConntrackState: _state,
    Recent: _recent,
    Statistic: _statistic,
    Other: _other,
}
