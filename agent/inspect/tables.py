"""Tables as values: chains with rules that have been read, from the text of ``iptables-save``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.usual import UsualEndpoint, UsualLottery, usual
from agent.rules.parse import ParseError, read_rule
from agent.rules.rule import Dnat, Jump, Masquerade, Rule, SetMark
from agent.rules.saved import read_save, run_rules
from agent.rules.words import tokens
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.rules.rule import Target
    from agent.rules.saved import SavedChain

#: Targets that the kernel's extensions bring: a jump to one of these is not a jump to a chain.
_EXTENSIONS = (
    "ACCEPT AUDIT CHECKSUM CLASSIFY CLUSTERIP CONNMARK CONNSECMARK CT DNAT DNPT DROP DSCP ECN"
    " HL HMARK IDLETIMER LED LOG MARK MASQUERADE NETMAP NFLOG NFQUEUE NOTRACK QUEUE RATEEST"
    " REDIRECT REJECT RETURN SECMARK SET SNAT SNPT SYNPROXY TCPMSS TCPOPTSTRIP TEE TOS TPROXY"
    " TRACE TTL ULOG"
)
EXTENSIONS = frozenset(_EXTENSIONS.split())
#: How a table looks that a tool of one backend cannot read, because another wrote into it.
_UNREADABLE = re.compile(r"Table `(\w+)' is incompatible")


class Entry(msgspec.Struct, gc=False, eq=False):
    """A rule where it stands.

    Attributes:
        text: as it was printed, without ``-A CHAIN``.
        number: 1-based position in its chain.
        line: 1-based line of the text.
        packets: that it has counted.
        bytes: likewise.
    """

    text: str
    number: int
    line: int = 0
    packets: int = 0
    bytes: int = 0
    _rule: Rule | None = None

    @property
    def rule(self) -> Rule:
        """The rule as a value; read when it is first asked for."""
        found = self._rule
        return self.read() if found is None else found

    def read(self) -> Rule:
        """Read the rule.

        Raises:
            ParseError: it is none; rules that are read later have been found to be some.
        """
        found = self._rule = read_rule(self.text)
        return found


class Chain(msgspec.Struct, gc=False):
    """A chain.

    Attributes:
        name: its name.
        policy: empty for one that is not built in.
        usual: what it does, if it does it in the words of nearly all of its kind.
    """

    name: str
    policy: str = ""
    usual: UsualEndpoint | UsualLottery | None = None
    _entries: list[Entry] | None = None
    _run: str = ""
    _first: int = 0

    @property
    def entries(self) -> list[Entry]:
        """Its rules."""
        if self._run:
            lines = enumerate(run_rules(self.name, self._run))
            self._entries = [Entry(text, i + 1, self._first + i) for i, text in lines]
            self._run = ""
        if self._entries is None:
            self._entries = []
        return self._entries

    @property
    def count(self) -> int:
        """Number of its rules."""
        return self._run.count("\n") or len(self._entries or ())


Chains = dict[str, Chain]


class Tables(msgspec.Struct):
    """All tables of one family.

    Attributes:
        family: the family.
        tables: chains by table and name.
        generator: the tool that printed them, empty if unknown.
        unreadable: tables that the tool could not read.
        remarks: what else it remarked.
        counted: rules have counters.
    """

    family: Family
    tables: dict[str, Chains] = {}
    generator: str = ""
    unreadable: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    counted: bool = False

    def chain(self, table: str, name: str) -> Chain | None:
        """A chain, None if it is not there."""
        return self.tables.get(table, {}).get(name)

    def entries(self, table: str, name: str) -> list[Entry]:
        """A chain's rules; none if it is not there."""
        found = self.chain(table, name)
        return found.entries if found is not None else []

    @property
    def rules(self) -> int:
        """Number of rules."""
        return sum(chain.count for chains in self.tables.values() for chain in chains.values())


def read_tables(text: str, family: Family | None = None) -> Tables:
    """Read what ``iptables-save`` printed.

    Args:
        text: the whole output, with or without counters.
        family: IPv4 or IPv6; None to tell by the text.

    Raises:
        ParseError: naming the line.
    """
    saved = read_save(text)
    tables = {
        table: {name: _chain(chain) for name, chain in chains.items()}
        for table, chains in saved.tables.items()
    }
    unreadable = [m[1] for remark in saved.remarks if (m := _UNREADABLE.match(remark))]
    return Tables(
        family=family or _guess(saved.generator, tables),
        tables=tables,
        generator=saved.generator,
        unreadable=tuple(unreadable),
        remarks=tuple(saved.remarks),
        counted=saved.counted,
    )


def chain_of(
    name: str,
    run: str,
    does: UsualEndpoint | UsualLottery | None,
    policy: str = "",
    first: int = 0,
) -> Chain:
    """A chain.

    Args:
        name: its name.
        run: its rules, a line each, as they are printed.
        does: what ``usual`` says of it.
        policy: if it is built in.
        first: the line of the text in which its rules begin.

    Raises:
        ParseError: a rule of it is none, naming the line.
    """
    chain = Chain(name, policy, does, _run=run, _first=first)
    if does is None:
        _read_rules(chain.entries)
    return chain


def _chain(saved: SavedChain) -> Chain:
    name, policy, run = saved.name, "" if saved.policy == "-" else saved.policy, saved.run
    if run:
        return chain_of(name, run, usual(name, run), policy, saved.first)
    entries = [
        Entry(one.text, number, one.line, one.packets, one.bytes)
        for number, one in enumerate(saved.rules, 1)
    ]
    lines = "".join([f"-A {name} {entry.text}\n" for entry in entries])
    chain = Chain(name, policy, usual(name, lines), _entries=entries)
    if chain.usual is None:
        _read_rules(entries)
    return chain


def _read_rules(entries: Iterable[Entry]) -> None:
    """Read all rules now, so that one that cannot be read is an error here."""
    line = 0
    try:
        for entry in entries:
            line = entry.line
            entry.read()
    except ParseError as error:
        raise ParseError(f"line {line}: {error}") from error


def _guess(generator: str, tables: dict[str, Chains]) -> Family:
    """The family by the tool's name, else by the first address."""
    if generator.startswith("ip6tables"):
        return Family.V6
    if generator.startswith("iptables"):
        return Family.V4
    for chains in tables.values():
        for chain in chains.values():
            for entry in chain.entries:
                for match in entry.rule.matches:
                    cidr = getattr(match, "cidr", "")
                    if cidr:
                        return Family.V6 if ":" in cidr else Family.V4
    return Family.V4


# Targets ---------------------------------------------------------------------------------


def target_name(target: Target | None) -> str:
    """The name behind ``-j`` or ``-g``; empty for a rule without a target."""
    if type(target) is Jump:
        return target.target
    if target is None:
        return ""
    if isinstance(target, Dnat):
        return "DNAT"
    if isinstance(target, SetMark):
        return "MARK"
    if isinstance(target, Masquerade):
        return "MASQUERADE"
    return target_words(target)[1]


def target_words(target: Target) -> list[str]:
    """The target's words, from ``-j`` or ``-g`` on."""
    return tokens(target.text())


def is_goto(target: Target | None) -> bool:
    """Whether the rule goes to a chain without coming back behind itself."""
    return target is not None and target.text().startswith("-g ")


def jumps(chain: Chain) -> Iterable[tuple[Entry, str]]:
    """The chain's rules with the names of their targets."""
    return ((entry, target_name(entry.rule.target)) for entry in chain.entries)
