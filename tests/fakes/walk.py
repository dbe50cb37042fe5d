"""What happens to a packet of a new connection in the fake kernel, with exact probabilities.

Written without the product's own walker, like the fake kernel itself. A packet from outside meets
nat PREROUTING and then filter FORWARD or INPUT; one of the node's own nat OUTPUT and filter
OUTPUT. Affinity remembers nobody, so the lottery decides.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.kernel import FakeKernel
    from tests.fakes.kernelrule import KernelRule, Match

REFUSED, DROPPED, UNTRANSLATED = "refused", "dropped", "untranslated"
MAX_DEPTH = 20


@dataclasses.dataclass(frozen=True)
class Packet:
    """The first packet of a connection.

    Attributes:
        destination: address.
        port: number.
        source: address.
        protocol: tcp, udp or sctp.
        interface: by which it comes; empty for the node's own.
        node_ips: the node's addresses.
    """

    destination: str
    port: int
    source: str = "198.51.100.77"
    protocol: str = "tcp"
    interface: str = "eth0"
    node_ips: frozenset[str] = frozenset({"192.0.2.2"})
    marked: bool = False


def fate(kernel: FakeKernel, packet: Packet) -> dict[str, Fraction]:
    """Where it ends, and how likely: ``ip:port`` of an endpoint, or one of the words above."""
    hook = "PREROUTING" if packet.interface else "OUTPUT"
    outcomes: dict[str, Fraction] = {}
    for chance, end, after in _walk(kernel, "nat", hook, packet, 0):
        where = _filter(kernel, end, after)
        outcomes[where] = outcomes.get(where, Fraction(0)) + chance
    return outcomes


def _filter(kernel: FakeKernel, end: str, packet: Packet) -> str:
    if packet.interface:
        hook = "INPUT" if packet.destination in packet.node_ips else "FORWARD"
    else:
        hook = "OUTPUT"
    ((chance, verdict, _),) = _walk(kernel, "filter", hook, packet, 0)
    if chance != 1:
        raise AssertionError(f"the filter table rolls dice about {packet}")
    if verdict in {"REJECT", "DROP"}:
        return REFUSED if verdict == "REJECT" else DROPPED
    return end if end.startswith("to ") else UNTRANSLATED


def _walk(
    kernel: FakeKernel, table: str, chain: str, packet: Packet, depth: int
) -> Iterator[tuple[Fraction, str, Packet]]:
    """Ends of a walk through a chain: probability, verdict (empty: fell through), packet."""
    if depth > MAX_DEPTH:
        raise AssertionError(f"a loop through {chain}")
    inside = [(Fraction(1), packet)]
    for rule in kernel.rules(table)[chain]:
        left: list[tuple[Fraction, Packet]] = []
        for chance, at in inside:
            matching = _probability(rule, at)
            if matching < 1:
                left.append((chance * (1 - matching), at))
            if matching > 0:
                for share, verdict, after in _target(kernel, table, rule, at, depth):
                    if verdict:
                        yield chance * matching * share, verdict, after
                    else:
                        left.append((chance * matching * share, after))
        inside = left
    for chance, at in inside:
        yield chance, "", at


def _target(
    kernel: FakeKernel, table: str, rule: KernelRule, packet: Packet, depth: int
) -> Iterator[tuple[Fraction, str, Packet]]:
    target = rule.target
    if target in kernel.rules(table):
        for chance, verdict, after in _walk(kernel, table, target, packet, depth + 1):
            yield chance, "" if verdict == "RETURN" else verdict, after
    elif target == "DNAT":
        ip, _, port = rule.target_options.rpartition(" ")[2].rpartition(":")
        new = dataclasses.replace(packet, destination=ip.strip("[]"), port=int(port))
        yield Fraction(1), f"to {ip}:{port}", new
    elif target == "MARK":
        yield Fraction(1), "", dataclasses.replace(packet, marked=True)
    else:
        yield Fraction(1), target, packet


def _probability(rule: KernelRule, packet: Packet) -> Fraction:
    """How likely the rule matches."""
    for pair, address in ((rule.source, packet.source), (rule.destination, packet.destination)):
        if pair is not None and (ipaddress.ip_address(address) in pair[0]) == pair[1]:
            return Fraction(0)
    if rule.interface is not None:
        name, negated = rule.interface
        prefix = name.endswith("+") and packet.interface.startswith(name[:-1])
        if (prefix or packet.interface == name) == negated:
            return Fraction(0)
    if rule.protocol is not None and (packet.protocol == rule.protocol[0]) == rule.protocol[1]:
        return Fraction(0)
    chance = Fraction(1)
    for match in rule.matches:
        chance *= _match(match, packet)
    return chance


def _match(match: Match, packet: Packet) -> Fraction:
    for option, value in match.options:
        name = option.lstrip("!")
        if name == "--probability":
            return Fraction(value)
        if _holds(name, value, packet) == option.startswith("!"):
            return Fraction(0)
    return Fraction(1)


def _holds(name: str, value: str, packet: Packet) -> bool:  # noqa: PLR0911  one line for each match
    match name:
        case "--dport":
            first, _, last = value.partition(":")
            return int(first) <= packet.port <= int(last or first)
        case "--src-type":
            return packet.source in packet.node_ips
        case "--dst-type":
            return packet.destination in packet.node_ips
        case "--mark":
            return packet.marked
        case "--ctstate":
            return "NEW" in value.split(",")
        case "--rcheck":
            return False
    return True
