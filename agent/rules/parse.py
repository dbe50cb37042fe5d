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
import re
from typing import TYPE_CHECKING

from agent.rules.options import OPTIONS, PROTOCOLS, destination, read_target
from agent.rules.probability import probability_steps, share
from agent.rules.rule import (
    AddressType,
    Comment,
    ConntrackState,
    Destination,
    DestinationPort,
    DestinationPorts,
    InInterface,
    Jump,
    Mark,
    Match,
    Nfacct,
    Other,
    Protocol,
    Recent,
    Rule,
    Source,
    Statistic,
    Target,
)
from agent.rules.saved import parse_save
from agent.rules.words import ParseError, is_number, join, shorten, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["ParseError", "parse_save"]  # from where they are defined; the rest is defined here

_FULL_MASKS = {"255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}
_DICE = ["--mode", "random", "--probability"]
_DICE_TEXT = "-m statistic --mode random --probability "
_PLAIN_CHAIN = re.compile(r"KUBE-[A-Z0-9-]+").fullmatch
_PORTAL = re.compile(
    r"(?:-d ([0-9.]+/[0-9]+|[0-9a-f:]+/[0-9]+) )?-p (tcp|udp|sctp)"
    r' -m comment --comment "([^"\\]*)" -m \2 --dport ([0-9]+) -j (KUBE-[A-Z0-9-]+)'
).fullmatch
_COMMENTED = re.compile(r'-m comment --comment "([^"\\]*)" -j (KUBE-[A-Z0-9-]+)').fullmatch
_ASKING = re.compile(
    r"-m recent --rcheck --seconds ([0-9]+) --reap --name (KUBE-[A-Z0-9-]+)"
    r" --mask (?:255\.255\.255\.255|ffff(?::ffff){7}) --rsource -j (KUBE-[A-Z0-9-]+)"
).fullmatch


@functools.lru_cache(maxsize=512)
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
    usual = _usual(text)
    if usual is not None:
        return usual
    words = tokens(text)
    try:
        return _read_words(words)
    except IndexError:
        raise ParseError(f"the rule ends behind {words[-1]!r}: {shorten(text)}") from None
    except ParseError as error:
        raise ParseError(f"{error}: {shorten(text)}") from None


def _usual(text: str) -> Rule | None:
    """A rule of a large cluster, in the words of which there are most; else None.

    What this does not know is read word by word, to the same end.
    """
    if text.startswith(_DICE_TEXT):
        probability, _, target = text[len(_DICE_TEXT) :].partition(" -j ")
        below_one = probability.startswith("0.") and is_number(probability[2:])
        found = _share(probability) if below_one else None
        if found is not None and _PLAIN_CHAIN(target):
            return Rule((found,), Jump(target))
    elif (portal := _PORTAL(text)) is not None:
        cidr, protocol, comment, port, target = portal.groups()
        to = (destination(cidr, negated=False),) if cidr else ()
        says = (PROTOCOLS[protocol], Comment(comment), DestinationPort(int(port)))
        return Rule((*to, *says), Jump(target))
    elif text.startswith("-j "):
        if _PLAIN_CHAIN(text[3:]):
            return Rule((), Jump(text[3:]))
    elif (said := _COMMENTED(text)) is not None:
        return Rule((Comment(said[1]),), Jump(said[2]))
    elif (asked := _ASKING(text)) is not None:
        seconds, name, target = asked.groups()
        return Rule((Recent(name, int(seconds)),), Jump(target))
    return None


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
            target = read_target(name, words[position + 1], words[position + 2 :])
            break
        elif (make := OPTIONS.get(name)) is not None:
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
        name = words[at]
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


#: Options that belong to no module; those of other programs' rules included.
_GENERIC = {"-s", "-d", "-i", "-p", "-o", "-f", "-4", "-6"}
_WITHOUT_VALUE = {"-f", "-4", "-6"}
_TARGET_OPTIONS = {"-j", "-g"}
_MODULES: dict[str, Callable[[list[str], int, list[Match]], int]] = {
    **dict.fromkeys(
        ("comment", "tcp", "udp", "sctp", "addrtype", "mark", "conntrack", "nfacct"), _skip_module
    ),
    "recent": _read_recent,
    "statistic": _read_statistic,
}


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
