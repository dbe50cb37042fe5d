"""One rule as the kernel's tools read and print it, for the fake kernel.

This is a reading of iptables' own behaviour (1.8.9, both backends), written without the product's
parser so that the two can disagree; ``tests/kernel/test_fake_kernel.py`` holds it against the real
tools. It knows the options that the product writes and refuses all others.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PROTOCOLS = ("tcp", "udp", "sctp")
STATES = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
#: Targets that are no chains, and the built-in chains from which they may be reached.
TARGET_HOOKS = {
    "DNAT": {"PREROUTING", "OUTPUT"},
    "MASQUERADE": {"POSTROUTING"},
    "REJECT": {"INPUT", "FORWARD", "OUTPUT"},
}
VERDICTS = {"ACCEPT", "DROP", "RETURN", "QUEUE"}
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_UNQUOTED = re.compile(r"[-_0-9A-Za-z]+")
_FIELDS = {"-i": re.compile(r"[^\s/!]{1,15}"), "-p": re.compile("|".join(PROTOCOLS))}


#: Checks a value and puts it into the kernel's words; None stands for an option without a value.
Check: TypeAlias = "Callable[[str, int], str] | None"


class RuleError(Exception):
    """A rule that the tool does not take."""


def words(line: str) -> list[str]:
    """Words of a line; only double quotes group, and a backslash escapes inside of them."""
    found = []
    for match in _TOKEN.finditer(line):
        quoted, plain = match.groups()
        found.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return found


def quoted(text: str) -> str:
    """Text as ``iptables-save`` prints it."""
    if _UNQUOTED.fullmatch(text):
        return text
    return '"' + re.sub(r"([\"'\\])", r"\\\1", text) + '"'


@dataclasses.dataclass(frozen=True)
class Match:
    """A loaded match: its module, its options in the kernel's words, and its text."""

    module: str
    options: tuple[tuple[str, str], ...]
    text: str

    def get(self, option: str) -> str | None:
        """The value of an option, None if it was not given."""
        return dict(self.options).get(option)


@dataclasses.dataclass(frozen=True)
class KernelRule:
    """A rule; pairs are (value, negated)."""

    source: tuple[Network, bool] | None = None
    destination: tuple[Network, bool] | None = None
    interface: tuple[str, bool] | None = None
    protocol: tuple[str, bool] | None = None
    matches: tuple[Match, ...] = ()
    target: str = ""
    target_options: str = ""

    def text(self) -> str:
        """The rule behind ``-A CHAIN``, in the order in which the kernel's tools print it."""
        parts = []
        for option, pair in (
            ("-s", self.source),
            ("-d", self.destination),
            ("-i", self.interface),
            ("-p", self.protocol),
        ):
            if pair is not None:
                parts.append(f"{'! ' if pair[1] else ''}{option} {pair[0]}")
        parts += [match.text for match in self.matches]
        if self.target:
            parts.append(f"-j {self.target}")
        if self.target_options:
            parts.append(self.target_options)
        return " ".join(parts)


def parse(tokens: Iterable[str], family: int) -> KernelRule:
    """Read the words behind ``-A CHAIN``.

    Args:
        tokens: the words.
        family: 4 or 6.

    Raises:
        RuleError: the tool would refuse it, saying why.
    """
    return _parse(tuple(tokens), family)


@functools.lru_cache(maxsize=16384)
def _parse(tokens: tuple[str, ...], family: int) -> KernelRule:
    return _Reader(tokens, family).run()


class _Reader:
    def __init__(self, tokens: Sequence[str], family: int) -> None:
        self.tokens = list(reversed(tokens))
        self.family = family
        self.fields: dict[str, tuple[str, bool]] = {}
        self.networks: dict[str, tuple[Network, bool]] = {}
        self.modules: dict[str, list[tuple[str, str]]] = {}
        self.target = ""
        self.target_options: list[tuple[str, str]] = []

    def run(self) -> KernelRule:
        while self.tokens:
            word = self.tokens.pop()
            negated = word == "!"
            if negated:
                word = self._value("!")
            self._option(word, negated=negated)
        self._check_protocol()
        matches = tuple(
            Match(name, tuple(options), _print(name, dict(options), self.family))
            for name, options in self.modules.items()
        )
        return KernelRule(
            source=self.networks.get("-s"),
            destination=self.networks.get("-d"),
            interface=self.fields.get("-i"),
            protocol=self.fields.get("-p"),
            matches=matches,
            target=self.target,
            target_options=_print_target(self.target, dict(self.target_options), self.family),
        )

    def _value(self, option: str) -> str:
        if not self.tokens:
            raise RuleError(f'option "{option}" requires an argument')
        return self.tokens.pop()

    def _option(self, name: str, *, negated: bool) -> None:
        if name in {"-s", "-d"}:
            network = _network(self._value(name), self.family)
            # A range that holds everything is no match at all.
            if network.prefixlen or negated:
                self.networks[name] = (network, negated)
        elif name in _FIELDS:
            value = self._value(name)
            if not _FIELDS[name].fullmatch(value):
                raise RuleError(f"bad value `{value}' of {name}")
            self.fields[name] = (value, negated)
        elif name == "-m":
            module = self._value(name)
            if module not in _MODULES:
                raise RuleError(f"Couldn't load match `{module}':No such file or directory")
            self.modules.setdefault(module, [])
        elif name == "-j":
            self.target = self._value(name)
        elif name.startswith("--"):
            self._extension(name, negated=negated)
        else:
            raise RuleError(f"Bad argument `{name}'")

    def _extension(self, name: str, *, negated: bool) -> None:
        if name in _TARGETS.get(self.target, {}):
            value = self._checked(name, _TARGETS[self.target][name])
            self.target_options.append((name, value))
            return
        protocol = self.fields.get("-p")
        if name == "--dport" and protocol and protocol[0] not in self.modules:
            self.modules[protocol[0]] = []  # loaded for the protocol's own options
        for module in reversed(self.modules):
            if name in _MODULES[module]:
                value = self._checked(name, _MODULES[module][name])
                self.modules[module].append((f"!{name}" if negated else name, value))
                return
        raise RuleError(f'unknown option "{name}"')

    def _checked(self, name: str, check: Check) -> str:
        return check(self._value(name), self.family) if check else ""

    def _check_protocol(self) -> None:
        protocol = self.fields.get("-p", ("", False))
        for module, options in self.modules.items():
            if module not in PROTOCOLS and not options:
                raise RuleError(f"{module}: an option must be specified")
            if module in PROTOCOLS and protocol != (module, False):
                raise RuleError(f"{module.upper()} match requires '-p {module}'")
        has_port = any(re.search(r"(^[^:\[]+|\]):\d", value) for _, value in self.target_options)
        if self.target == "DNAT" and has_port and not protocol[0]:
            raise RuleError("Need TCP, UDP, SCTP or DCCP with port specification")
        if self.target == "DNAT" and not self.target_options:
            raise RuleError('You must specify "--to-destination"')
        if self.target == "MARK" and len(self.target_options) != 1:
            raise RuleError("MARK: One of the --set-xmark, --or-mark, --xor-mark is required")


def _network(text: str, family: int) -> Network:
    """A range as the tool reads it: IPv4 octets with a leading zero are octal."""
    address, _, prefix = text.partition("/")
    try:
        if family == 4:
            octets = [int(o, 8 if o[0] == "0" else 10) for o in address.split(".")]
            address = ".".join(map(str, octets))
        found = ipaddress.ip_network(f"{address}/{prefix}" if prefix else address, strict=False)
    except (ValueError, IndexError) as error:
        raise RuleError(f"host/network `{text}' not found") from error
    if found.version != family:
        raise RuleError(f"host/network `{text}' not found")
    return found


def _port(text: str, _family: int) -> str:
    """A number, or two with a colon between them."""
    parts = text.split(":")
    if len(parts) > 2 or any(not part.isdecimal() or int(part) > 65535 for part in parts):
        raise RuleError(f"invalid port/service `{text}' specified")
    numbers = [int(part) for part in parts]
    if numbers != sorted(numbers):
        raise RuleError(f"invalid portrange (min > max) {text}")
    return ":".join(map(str, numbers))


def _destination(text: str, family: int) -> str:
    address, _, port = text.rpartition(":") if family == 4 else text[1:].rpartition("]:")
    try:
        valid = ipaddress.ip_address(address).version == family and 0 < int(port) < 65536
    except ValueError as error:
        raise RuleError(f'Bad IP address "{text}"') from error
    if not valid:
        raise RuleError(f'Bad IP address "{text}"')
    return text


def _states(text: str, _family: int) -> str:
    given = text.split(",")
    if bad := [state for state in given if state not in STATES]:
        raise RuleError(f'Bad ctstate "{bad[0]}"')
    return ",".join(state for state in STATES if state in given)


def _mark(text: str, _family: int) -> str:
    try:
        numbers = [int(part, 0) for part in text.split("/")]
    except ValueError as error:
        raise RuleError(f'mark: bad value for option "--mark": {text}') from error
    if len(numbers) > 2 or any(not 0 <= number < 2**32 for number in numbers):
        raise RuleError(f'mark: bad value for option "--mark": {text}')
    return "/".join(f"{number:#x}" for number in numbers)


def _probability(text: str, _family: int) -> str:
    """The kernel keeps a multiple of 2^-31."""
    try:
        chance = float(text)
    except ValueError as error:
        raise RuleError(f'statistic: bad value for option "--probability": {text}') from error
    if not 0 <= chance <= 1:
        raise RuleError("statistic: --probability must be between 0 and 1")
    return f"{round(chance * 2**31) / 2**31:.11f}"


def _any(text: str, _family: int) -> str:
    return text


def _seconds(text: str, _family: int) -> str:
    if not text.isdecimal() or not 0 < int(text) < 2**32:
        raise RuleError(f'recent: bad value for option "--seconds", or out of range: "{text}"')
    return text


def _one_of(*values: str) -> Callable[[str, int], str]:
    def check(text: str, _family: int) -> str:
        if text not in values:
            raise RuleError(f"bad value {text!r}")
        return text

    return check


#: Options of each match and of each target.
_MODULES: dict[str, dict[str, Check]] = {
    "comment": {"--comment": _any},
    **{protocol: {"--dport": _port} for protocol in PROTOCOLS},
    "addrtype": {"--src-type": _one_of("LOCAL"), "--dst-type": _one_of("LOCAL")},
    "mark": {"--mark": _mark},
    "conntrack": {"--ctstate": _states},
    "recent": {
        "--name": _any,
        "--set": None,
        "--rcheck": None,
        "--reap": None,
        "--rsource": None,
        "--seconds": _seconds,
        "--mask": _any,
    },
    "statistic": {"--mode": _one_of("random"), "--probability": _probability},
    "nfacct": {"--nfacct-name": _any},
}
_TARGETS: dict[str, dict[str, Check]] = {
    "DNAT": {"--to-destination": _destination},
    "MARK": {"--set-xmark": _mark, "--or-mark": _mark, "--xor-mark": _mark},
    "MASQUERADE": {"--random-fully": None},
    "REJECT": {"--reject-with": _any},
}


def is_target(name: str) -> bool:
    """Whether a name is a target extension or a verdict, so no chain is needed."""
    return name in _TARGETS or name in VERDICTS


def _print(module: str, options: dict[str, str], family: int) -> str:
    """A match as ``iptables-save`` prints it."""
    parts = [f"-m {module}"]
    if module == "comment":
        parts.append(f"--comment {quoted(options['--comment'])}")
    elif module == "recent":
        parts += _print_recent(options, family)
    else:
        for name, value in options.items():
            parts.append(f"! {name[1:]} {value}" if name.startswith("!") else f"{name} {value}")
    return " ".join(parts)


def _print_recent(options: dict[str, str], family: int) -> list[str]:
    parts = ["--set"] if "--set" in options else ["--rcheck"]
    if "--seconds" in options:
        parts.append(f"--seconds {options['--seconds']}")
    if "--reap" in options:
        parts.append("--reap")
    mask = "255.255.255.255" if family == 4 else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
    return [*parts, f"--name {options.get('--name', 'DEFAULT')}", f"--mask {mask}", "--rsource"]


def _print_target(target: str, options: dict[str, str], family: int) -> str:
    """A target's options as ``iptables-save`` prints them."""
    if target == "MARK":
        (name, value), *_ = options.items()
        mark, _, mask = value.partition("/")
        masks = {"--or-mark": mark, "--xor-mark": "0x0", "--set-xmark": mask or "0xffffffff"}
        return f"--set-xmark {mark}/{masks[name]}"
    if target == "REJECT" and not options:
        return f"--reject-with {'icmp' if family == 4 else 'icmp6'}-port-unreachable"
    return " ".join(f"{name} {value}".rstrip() for name, value in options.items())
