"""A rule as a value, and its text.

A rule is a tuple of matches, each a small value, and a target. ``Rule.text`` is the only place
where a rule becomes the text that ``iptables-restore`` reads; ``agent.rules.parse`` is its
inverse. Every part of ours has been validated where it entered (``agent.state``); comments of
other programs' rules may hold anything, and are quoted for it.
"""

from __future__ import annotations

import msgspec

from agent.rules.words import quote


class Value(msgspec.Struct, frozen=True, gc=False):
    """Base of matches and targets."""


class Comment(Value, frozen=True):
    """``-m comment``; quoted where it holds a blank, as kube-proxy writes it."""

    comment: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-m comment --comment {quote(self.comment)}"


class Protocol(Value, frozen=True):
    """``-p``, with the match extension of the protocol loaded."""

    protocol: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-m {self.protocol} -p {self.protocol}"


class Source(Value, frozen=True):
    """``-s``: an address or a CIDR."""

    cidr: str
    negated: bool = False

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"! -s {self.cidr}" if self.negated else f"-s {self.cidr}"


class Destination(Value, frozen=True):
    """``-d``: an address or a CIDR."""

    cidr: str
    negated: bool = False

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"! -d {self.cidr}" if self.negated else f"-d {self.cidr}"


class DestinationPort(Value, frozen=True):
    """``--dport``, of the protocol in front of it."""

    port: int

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"--dport {self.port}"


class DestinationPorts(Value, frozen=True):
    """``--dport``: a range of ports, both ends included."""

    first: int
    last: int

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"--dport {self.first}:{self.last}"


class InInterface(Value, frozen=True):
    """``-i``: a name, or a prefix that ends with ``+``."""

    name: str
    negated: bool = False

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"! -i {self.name}" if self.negated else f"-i {self.name}"


class AddressType(Value, frozen=True):
    """``-m addrtype``: whether the source or destination is an address of this node."""

    side: str  # "src" or "dst"
    type: str = "LOCAL"

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-m addrtype --{self.side}-type {self.type}"


class Mark(Value, frozen=True):
    """``-m mark``: all bits of the mask are set."""

    mark: int
    negated: bool = False

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        negation = "! " if self.negated else ""
        return f"-m mark {negation}--mark {self.mark:#08x}/{self.mark:#08x}"


class ConntrackState(Value, frozen=True):
    """``-m conntrack --ctstate``; states as the kernel names them, joined by commas."""

    states: str
    negated: bool = False

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        negation = "! " if self.negated else ""
        return f"-m conntrack {negation}--ctstate {self.states}"


class Recent(Value, frozen=True):
    """``-m recent``: remembers clients (``seconds`` 0), or asks whether one was seen."""

    name: str
    seconds: int = 0

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        if not self.seconds:
            return f"-m recent --name {self.name} --set"
        return f"-m recent --name {self.name} --rcheck --seconds {self.seconds} --reap"


class Statistic(Value, frozen=True):
    """``-m statistic --mode random``: matches one connection in ``one_in``."""

    one_in: int

    def text(self) -> str:
        """As ``iptables-restore`` reads it, with ten decimals."""
        return f"-m statistic --mode random --probability {1 / self.one_in:.10f}"


class Nfacct(Value, frozen=True):
    """``-m nfacct``: counts into a named object that must exist in the namespace."""

    name: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-m nfacct --nfacct-name {self.name}"


class Other(Value, frozen=True):
    """Options that only other programs' rules have, as they stand."""

    options: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return self.options


class Jump(Value, frozen=True):
    """``-j``: a chain, or a target without options (DROP, REJECT, ACCEPT, RETURN)."""

    target: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-j {self.target}"


class Dnat(Value, frozen=True):
    """``-j DNAT`` to an ``ip:port``, behind the protocol that makes a port legal."""

    destination: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-j DNAT --to-destination {self.destination}"


class SetMark(Value, frozen=True):
    """``-j MARK``: ``or`` sets the bits of the mask, ``xor`` flips them."""

    operation: str
    mark: int

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return f"-j MARK --{self.operation}-mark {self.mark:#08x}"


class Masquerade(Value, frozen=True):
    """``-j MASQUERADE``."""

    random_fully: bool

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return "-j MASQUERADE --random-fully" if self.random_fully else "-j MASQUERADE"


class OtherTarget(Value, frozen=True):
    """A target that only other programs' rules have, with its options."""

    options: str

    def text(self) -> str:
        """As ``iptables-restore`` reads it."""
        return self.options


Match = (
    Comment
    | Protocol
    | Source
    | Destination
    | DestinationPort
    | DestinationPorts
    | InInterface
    | AddressType
    | Mark
    | ConntrackState
    | Recent
    | Statistic
    | Nfacct
    | Other
)
Target = Jump | Dnat | SetMark | Masquerade | OtherTarget

DROP = Jump("DROP")
REJECT = Jump("REJECT")
ACCEPT = Jump("ACCEPT")
RETURN = Jump("RETURN")


class Rule(msgspec.Struct, frozen=True, gc=False):
    """Matches in the order of their text, and a target; without one the rule only counts."""

    matches: tuple[Match, ...]
    target: Target | None

    def text(self) -> str:
        """The rule behind ``-A CHAIN``."""
        parts = [match.text() for match in self.matches]
        if self.target is not None:
            parts.append(self.target.text())
        return " ".join(parts)


def rule(*matches: Match, to: Target | None) -> Rule:
    """A rule with these matches and this target."""
    return Rule(matches, to)
