"""From text to rules: the inverse of ``Rule.text``.

The kernel gives a rule back in other words than it was given: addresses with their prefix,
matches in another order, a probability as a multiple of 2^-31, defaults spelled out. So text is
never compared; ``canonical`` brings both sides to one form. Rules of other programs are read as
far as they have our parts, and the rest is kept word for word in ``Other``, one for each match
extension. Text that no tool prints is refused with a ``ParseError``, never guessed at.

The hot loop deals with 200,000 rules in about a second: words are split by plain string
operations, and each option is one look-up.
"""

from __future__ import annotations

import functools
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
    Recent,
    Rule,
    SetMark,
    Source,
    Statistic,
    Target,
)
from agent.rules.saved import parse_save
from agent.rules.words import ParseError, integer, is_number, join, quote, shorten, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["ParseError", "parse_save"]  # from where they are defined; the rest is defined here

_STATES = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
_PROTOCOLS = {name: Protocol(name) for name in ("tcp", "udp", "sctp")}
_NUMBERS = {"6": "tcp", "17": "udp", "132": "sctp"}
_DEFAULT_REJECTS = {"icmp-port-unreachable", "icmp6-port-unreachable"}
_FULL_MASKS = {"255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}
_DICE = ["--mode", "random", "--probability"]
#: A kernel probability is a whole number of these steps in 1.
PROBABILITY_STEPS = 2**31
#: A kernel probability is a multiple of this; ten decimals are a little finer.
PROBABILITY_STEP = 1 / PROBABILITY_STEPS


@functools.lru_cache(maxsize=4096)
def parse_rule(text: str) -> Rule:
    """Read a rule without its ``-A CHAIN``; remembers the latest ones.

    Raises:
        ParseError: a word or a value is missing, too many, or not of its kind.
    """
    return read_rule(text)


def read_rule(text: str) -> Rule:
    """``parse_rule`` for text that is read once.

    Raises:
        ParseError: as there.
    """
    words = tokens(text)
    try:
        return _read_words(words)
    except IndexError:
        raise ParseError(f"the rule ends behind {words[-1]!r}: {shorten(text)}") from None
    except ParseError as error:
        raise ParseError(f"{error}: {shorten(text)}") from None


def canonical(rule: Rule) -> Rule:
    """The rule with its matches in one order; equal for equal meaning."""
    matches = rule.matches
    if len(matches) < 2:
        return rule
    return Rule(tuple(sorted(matches, key=_sort_key)), rule.target)


def _sort_key(match: Match) -> tuple[int, str]:
    rank = _RANKS[type(match)]
    # Only of these may a rule have several.
    return (rank, match.text()) if rank >= _FIRST_REPEATABLE else (rank, "")


_RANKS: dict[type, int] = {
    kind: rank
    for rank, kind in enumerate(
        (
            *(Protocol, Source, Destination, DestinationPort, DestinationPorts),
            *(InInterface, Recent),
            *(Comment, AddressType, Mark, ConntrackState, Statistic, Nfacct, Other),
        )
    )
}
_FIRST_REPEATABLE = _RANKS[Comment]


def _read_words(words: list[str]) -> Rule:
    """The words of a rule, from left to right; IndexError where one is missing."""
    matches: list[Match] = []
    target: Target | None = None
    position, end = 0, len(words)
    while position < end:
        name = words[position]
        negated = name == "!"
        if negated:
            position += 1
            name = words[position]
        if name == "-m":
            read = _MODULES.get(words[position + 1], _read_foreign)
            position = read(words, position, matches)
        elif name in _TARGET_OPTIONS:
            target = _target(name, words[position + 1], words[position + 2 :])
            break
        elif (make := _OPTIONS.get(name)) is not None:
            matches.append(make(words[position + 1], negated))
            position += 2
        elif name == "-c":  # counters, in what iptables -S -v prints
            position += 3
        else:
            position = _read_unknown(words, position - negated, matches)
    return Rule(tuple(matches), target)


# Matches ---------------------------------------------------------------------------------


def _skip_module(_words: list[str], position: int, _matches: list[Match]) -> int:
    """A module of ours is recognised by its options, which follow."""
    return position + 2


def _read_foreign(words: list[str], position: int, matches: list[Match]) -> int:
    """A module that only other programs use, with all of its options."""
    end = _end_of_group(words, position + 2)
    matches.append(Other(join(words[position:end])))
    return end


def _end_of_group(words: list[str], position: int) -> int:
    """Where the options of a module end: at another module, a generic option or a target."""
    while position < len(words):
        at = position + (words[position] == "!")
        name = words[at] if at < len(words) else ""
        if name == "-m" or name in _TARGET_OPTIONS or name in _GENERIC:
            return position
        position = at + 1
    return position


def _read_unknown(words: list[str], position: int, matches: list[Match]) -> int:
    """An option that only other programs use, with its values."""
    at = position + (words[position] == "!")
    if words[at] == "[unsupported":  # a tool about what a newer one wrote: "[unsupported revision]"
        matches.append(Other(join(words[position : at + 2])))
        return at + 2
    if not words[at].startswith("--") and words[at] not in _GENERIC:
        raise ParseError(f"{words[at]!r} stands where an option should")
    end = at + 1
    if words[at] not in _WITHOUT_VALUE:
        while end < len(words) and not words[end].startswith("-") and words[end] != "!":
            end += 1
    matches.append(Other(join(words[position:end])))
    return end


def _read_recent(words: list[str], position: int, matches: list[Match]) -> int:
    """Ours set, or check with a time; what does more is another program's."""
    end = _end_of_group(words, position + 2)
    values = {"--name": "DEFAULT"}
    flags: set[str] = set()
    at = position + 2
    while at < end:
        option = words[at]
        if option in {"--name", "--seconds", "--mask"}:
            values[option] = words[at + 1]
            at += 2
        else:
            flags.add(option)
            at += 1
    flags.discard("--rsource")
    seconds, name = values.get("--seconds", ""), values["--name"]
    foreign = values.get("--mask", next(iter(_FULL_MASKS))) not in _FULL_MASKS
    if not foreign and flags == {"--set"} and not seconds:
        matches.append(Recent(name))
    elif not foreign and flags == {"--rcheck", "--reap"} and is_number(seconds):
        matches.append(Recent(name, int(seconds)))
    else:
        matches.append(Other(join(words[position:end])))
    return end


def _read_statistic(words: list[str], position: int, matches: list[Match]) -> int:
    """Ours are random and 1/n; others may be anything."""
    end = _end_of_group(words, position + 2)
    options = words[position + 2 : end]
    found = _share(options[3]) if len(options) == 4 and options[:3] == _DICE else None
    matches.append(found or Other(join(words[position:end])))
    return end


@functools.lru_cache(maxsize=4096)
def _share(probability: str) -> Statistic | None:
    """The share that a probability is; None if it is none."""
    one_in = share(probability_steps(probability))
    return Statistic(one_in) if one_in else None


def probability_steps(text: str) -> int:
    """A probability as the kernel keeps it: a multiple of 2^-31.

    Raises:
        ParseError: it is not a number from 0 to 1.
    """
    try:
        chance = float(text)
    except ValueError:
        chance = -1.0
    if not 0 <= chance <= 1:
        raise ParseError(f"{text!r} is not a probability")
    return round(chance * PROBABILITY_STEPS)


def share(steps: int) -> int:
    """The n whose 1/n the kernel keeps as so many steps; 0 if there is none.

    A step of rounding is allowed: ten decimals are a little coarser than a step.
    """
    if steps <= 0:
        return 0
    one_in = round(PROBABILITY_STEPS / steps)
    return one_in if abs(PROBABILITY_STEPS / one_in - steps) <= 1 else 0


def _source(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    return Source(_host(value), negated)


def _destination(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    return Destination(_host(value), negated)


def _host(cidr: str) -> str:
    """An address without a prefix that says nothing."""
    if ":" not in cidr:
        if cidr.endswith(("/32", "/255.255.255.255")):
            return cidr.partition("/")[0]
        return cidr
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
    known = _PROTOCOLS.get(_NUMBERS.get(value, value))
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


#: Options that belong to no module; those of other programs' rules included.
_GENERIC = {"-s", "-d", "-i", "-p", "-o", "-f", "-4", "-6"}
_WITHOUT_VALUE = {"-f", "-4", "-6"}
_TARGET_OPTIONS = {"-j", "-g"}
_OPTIONS: dict[str, Callable[[str, bool], Match]] = {
    "-s": _source,
    "-d": _destination,
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
_MODULES: dict[str, Callable[[list[str], int, list[Match]], int]] = {
    **dict.fromkeys(
        ("comment", "tcp", "udp", "sctp", "addrtype", "mark", "conntrack", "nfacct"), _skip_module
    ),
    "recent": _read_recent,
    "statistic": _read_statistic,
}


# Targets ---------------------------------------------------------------------------------


def _target(option: str, name: str, rest: Sequence[str]) -> Target:
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


def understood(text: str) -> Rule | None:
    """The canonical rule; None for text that cannot be read, which is no rule of ours.

    An old tool prints words of its own for what a newer one has written, such as ``[unsupported
    revision]``; nobody's rules may stop the agent.
    """
    try:
        return canonical(parse_rule(text))
    except ParseError:
        return None


def equal(ours: Iterable[str], theirs: Iterable[str]) -> bool:
    """Whether two lists of rule texts mean the same rules in the same order.

    Text of theirs that cannot be read is equal to nothing.

    Raises:
        ParseError: one of ours is no rule.
    """
    one, other = list(ours), list(theirs)
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(ours: str, theirs: str) -> bool:
    """Whether one rule means another; both are read for this once."""
    if ours == theirs:
        return True
    rule = canonical(read_rule(ours))
    try:
        return rule == canonical(read_rule(theirs))
    except ParseError:
        return False
