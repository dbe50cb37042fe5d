"""From text to rules: the inverse of ``Rule.text``, and a reader of ``iptables-save``.

The kernel gives a rule back in other words than it was given: addresses with their prefix,
matches in another order, a probability as a multiple of 2^-31, defaults spelled out. So text is
never compared; ``canonical`` brings both sides to one form. Rules of other programs are read as
far as they have our parts, and the rest is kept word for word in ``Other``.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from agent.rules.rule import (
    AddressType,
    Comment,
    ConntrackState,
    Destination,
    DestinationPort,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_STATES = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
_HOST = {"/32", "/128", "/255.255.255.255"}
_PROTOCOLS = {"6": "tcp", "17": "udp", "132": "sctp"}
_DEFAULT_REJECTS = {"icmp-port-unreachable", "icmp6-port-unreachable"}
#: A kernel probability is a multiple of this; ten decimals are a little finer.
PROBABILITY_STEP = 2**-31


class ParseError(ValueError):
    """A line that is not a rule, a chain or a table as ``iptables-save`` writes them."""


def tokens(text: str) -> list[str]:
    """Words of a rule, quoted ones without their quotes and escapes."""
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        quoted, plain = match.groups()
        found.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return found


@functools.lru_cache(maxsize=4096)
def parse_rule(text: str) -> Rule:
    """Read a rule without its ``-A CHAIN``.

    Raises:
        ParseError: an option lacks its value.
    """
    return _RuleParser(tokens(text)).run()


def canonical(rule: Rule) -> Rule:
    """The rule with its matches in one order; equal for equal meaning."""
    return Rule(tuple(sorted(rule.matches, key=repr)), rule.target)


class _RuleParser:
    """Reads the words of one rule from left to right."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.position = 0
        self.matches: list[Match] = []
        self.target: Target | None = None
        self.protocol = ""
        self.other: list[str] = []
        self.recent: dict[str, str] = {}

    def run(self) -> Rule:
        while self.position < len(self.words):
            negated = self._peek() == "!"
            if negated:
                self.position += 1
            self._option(self._next(), negated=negated)
        if self.protocol:
            self.matches.append(Protocol(self.protocol))
        if self.recent:
            self.matches.append(Recent(self.recent["name"], int(self.recent["seconds"])))
        if self.other:
            self.matches.append(Other(" ".join(self.other)))
        return Rule(tuple(self.matches), self.target)

    def _peek(self) -> str:
        return self.words[self.position] if self.position < len(self.words) else ""

    def _next(self) -> str:
        if self.position >= len(self.words):
            raise ParseError(f"the rule ends behind {self.words[-1]!r}")
        self.position += 1
        return self.words[self.position - 1]

    def _option(self, name: str, *, negated: bool) -> None:
        if name == "-m":
            self._module(self._next())
        elif name in {"-j", "-g"}:
            self._read_target(name)
        elif name == "-p":
            protocol = self._next()
            self._protocol(_PROTOCOLS.get(protocol, protocol), negated=negated)
        elif (make := _SIMPLE.get(name)) is not None:
            self.matches.append(make(self._next(), negated))
        else:
            self._unknown(name, negated=negated)

    def _protocol(self, protocol: str, *, negated: bool) -> None:
        if negated or protocol not in {"tcp", "udp", "sctp"}:
            self.other += [*(["!"] if negated else []), "-p", protocol]
        else:
            self.protocol = protocol

    def _module(self, module: str) -> None:
        """Load a match; ours are recognised by their options, which follow."""
        if module == "recent":
            self._recent()
        elif module == "statistic":
            self._statistic()
        elif module not in _OWN_MODULES:
            self.other += ["-m", module]

    def _recent(self) -> None:
        self.recent = {"name": "DEFAULT", "seconds": "0"}
        flags = {"--set", "--rcheck", "--reap", "--rsource"}
        while (word := self._peek()) in flags | {"--name", "--seconds", "--mask"}:
            self.position += 1
            if word not in flags:
                self.recent[word[2:]] = self._next()

    def _statistic(self) -> None:
        words = [self._next() for _ in range(4)]
        if words[:3] != ["--mode", "random", "--probability"]:
            self.other += ["-m", "statistic", *words]
            return
        chance = _number(words[3])
        one_in = round(1 / chance) if chance > 0 else 0
        if one_in > 0 and abs(chance - 1 / one_in) <= PROBABILITY_STEP:
            self.matches.append(Statistic(one_in))
        else:
            self.other += ["-m", "statistic", *words]

    def _unknown(self, name: str, *, negated: bool) -> None:
        self.other += [*(["!"] if negated else []), name]
        while self._peek() and not self._peek().startswith("-") and self._peek() != "!":
            self.other.append(_quote(self._next()))

    def _read_target(self, option: str) -> None:
        name = self._next()
        rest = self.words[self.position :]
        self.position = len(self.words)
        self.target = _target(option, name, rest)


def _target(option: str, name: str, rest: list[str]) -> Target:
    target: Target = OtherTarget(" ".join([option, name, *map(_quote, rest)]))
    match (option, name, rest):
        case ("-j", "DNAT", ["--to-destination", destination]):
            target = Dnat(destination)
        case ("-j", "MARK", [("--or-mark" | "--xor-mark") as operation, mark]):
            target = SetMark(operation[2:-5], int(mark, 16))
        case ("-j", "MARK", ["--set-xmark", value]):
            target = _set_xmark(value)
        case ("-j", "MASQUERADE", [] | ["--random-fully"]):
            target = Masquerade(bool(rest))
        case ("-j", "REJECT", ["--reject-with", kind]) if kind in _DEFAULT_REJECTS:
            target = Jump("REJECT")
        case ("-j", _, []):
            target = Jump(name)
    return target


def _set_xmark(value: str) -> Target:
    """``--or-mark X`` is kept as X/X, and ``--xor-mark X`` as X/0."""
    mark, _, mask = value.partition("/")
    number = int(mark, 16)
    if mask and int(mask, 16) == 0:
        return SetMark("xor", number)
    if mask and int(mask, 16) == number:
        return SetMark("or", number)
    return OtherTarget(f"-j MARK --set-xmark {value}")


def _quote(word: str) -> str:
    return f'"{word}"' if " " in word or not word else word


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _host(cidr: str) -> str:
    """An address without a prefix that says nothing."""
    address, slash, prefix = cidr.partition("/")
    return address if f"{slash}{prefix}" in _HOST else cidr


def _states(text: str) -> str:
    states = text.split(",")
    known = [state for state in _STATES if state in states]
    return ",".join([*known, *(state for state in states if state not in _STATES)])


def _mark(text: str, negated: bool) -> Match:  # noqa: FBT001  called by table
    mark, _, mask = text.partition("/")
    if mask and int(mark, 16) == int(mask, 16):
        return Mark(int(mark, 16), negated)
    return Other(f"-m mark {'! ' if negated else ''}--mark {text}")


def _plain(option: str, make: Callable[[str], Match]) -> Callable[[str, bool], Match]:
    """A match that we never negate; a negated one is another program's."""

    def read(value: str, negated: bool) -> Match:  # noqa: FBT001  called by table
        return Other(f"! {option} {value}") if negated else make(value)

    return read


def _dport(value: str) -> Match:
    return DestinationPort(int(value)) if value.isdecimal() else Other(f"--dport {value}")


_SIMPLE: dict[str, Callable[[str, bool], Match]] = {
    "-s": lambda value, negated: Source(_host(value), negated),
    "-d": lambda value, negated: Destination(_host(value), negated),
    "-i": InInterface,
    "--ctstate": lambda value, negated: ConntrackState(_states(value), negated),
    "--mark": _mark,
    "--comment": _plain("--comment", Comment),
    "--dport": _plain("--dport", _dport),
    "--nfacct-name": _plain("--nfacct-name", Nfacct),
    "--src-type": _plain("--src-type", functools.partial(AddressType, "src")),
    "--dst-type": _plain("--dst-type", functools.partial(AddressType, "dst")),
}
_OWN_MODULES = {"comment", "tcp", "udp", "sctp", "addrtype", "mark", "conntrack", "nfacct"}


def parse_save(text: str) -> dict[str, dict[str, list[str]]]:
    """Read what ``iptables-save`` prints: table -> chain -> rules without ``-A CHAIN``.

    Counters in front of rules are skipped; a chain without rules is there, with none.

    Raises:
        ParseError: naming the line.
    """
    tables: dict[str, dict[str, list[str]]] = {}
    chains: dict[str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("*"):
            chains = tables.setdefault(line[1:].strip(), {})
        elif line == "COMMIT":
            chains = None
        elif chains is None:
            raise ParseError(f"line {number}: {line[:80]!r} stands outside of a table")
        elif line.startswith(":"):
            chains.setdefault(line[1:].split(" ", 1)[0], [])
        else:
            chain, rule = _appended(line, number)
            chains.setdefault(chain, []).append(rule)
    return tables


def _appended(line: str, number: int) -> tuple[str, str]:
    if line.startswith("["):
        line = line.partition("] ")[2]
    if not line.startswith("-A "):
        raise ParseError(f"line {number}: {line[:80]!r} is not a rule, a chain or a table")
    chain, _, rule = line[3:].partition(" ")
    return chain, rule


def equal(ours: Iterable[str], theirs: Iterable[str]) -> bool:
    """Whether two lists of rule texts mean the same rules in the same order."""
    return [canonical(parse_rule(text)) for text in ours] == [
        canonical(parse_rule(text)) for text in theirs
    ]
