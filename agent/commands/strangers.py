"""What can be said of a target that no rule is for, or of a sender that rules keep out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.aim import meant_ports, node_port_of
from agent.inspect.packet import split_endpoint
from agent.inspect.reasons import reasons
from agent.rules import names
from agent.rules.rule import Source
from agent.state.addresses import contains

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.commands.expected import Expected
    from agent.commands.sources import Held
    from agent.inspect.aim import Aim, Goal
    from agent.state.store import Record
    from agent.state.values import ServicePort


def of_nothing(held: Sequence[Held]) -> str:
    """That there are no rules of Services at all; empty if there are."""
    if any(one.survey.is_held() for one in held):
        return ""
    where = " and ".join(one.where for one in held)
    return (
        f"there are no rules of a Service proxy in {where}. onenth, or kube-proxy in its iptables"
        " mode, writes them in the network namespace of the node"
    )


def of_address(aim: Aim, goal: Goal, held: Held, expected: Expected | None) -> Iterator[str]:
    """Sentences about an address or a node port.

    Args:
        aim: what was asked for.
        goal: where the packet was sent to.
        held: the family's tables.
        expected: what they should hold, None if that is not known.
    """
    nothing = of_nothing([held])
    yield f"No rule of a Service is for {goal.label}{nothing and f': {nothing}'}"
    yield from _as_endpoint(goal, held)
    service = node_port_of(aim, held.survey) if aim.address else ""
    if service:
        here = f"if {aim.address} is the node's, say --node-address {aim.address}"
        not_here = f"{aim.address} is no address of this node"
        yield f"{aim.port} is a node port of {service}; {here if held.path else not_here}"
    if expected is None:
        return
    for record, port in _ports(expected):
        if _is_for(port, goal):
            yield from _should_be_there(record, port, expected)
            return
    yield f"According to {expected.source}, no Service has it"


def _as_endpoint(goal: Goal, held: Held) -> Iterator[str]:
    """A sentence about the Services that an address is an endpoint of."""
    survey = held.survey
    wanted = (goal.address, goal.port)
    mine = {
        survey.service_of(name)
        for name in held.tables.tables.get("nat", {})
        if name.startswith(names.SEP) and split_endpoint(survey.endpoint_of(name)) == wanted
    }
    if found := ", ".join(sorted(mine - {""})):
        yield f"It is an endpoint of {found}: who connects to it directly needs no rule"


def of_sender(source: str, goal: Goal, held: Held) -> Iterator[str]:
    """A sentence about the source ranges of a load balancer that keep a sender out."""
    chains = {
        portal.target
        for portal in held.survey.portals
        if portal.service == goal.service
        and portal.address == goal.address
        and portal.target.startswith(names.FW)
    }
    ranges = [
        match.cidr
        for chain in chains
        for entry in held.tables.entries("nat", chain)
        for match in entry.rule.matches
        if type(match) is Source and not match.negated
    ]
    if ranges and not any(_may_hold(cidr, source) for cidr in ranges):
        yield f"{source} is in none of the source ranges: {', '.join(ranges)}"


def _may_hold(cidr: str, ip: str) -> bool:
    try:
        return contains(cidr, ip)
    except ValueError:  # somebody's rule, with a mask that is no prefix
        return True


def of_service(aim: Aim, families: Iterable[Expected]) -> Iterator[str]:
    """Sentences about a Service, each once.

    Args:
        aim: what was asked for.
        families: what they should hold.
    """
    others: set[str] = set()
    source = ""
    for expected in families:
        source = expected.source
        mine = [(r, port) for r, port in _ports(expected) if str(r.key) == aim.service]
        others |= {f"{port.port_name or '(no name)'} ({port.port})" for _, port in mine}
        meant = meant_ports(aim, [(one[1].port_name, one[1].port, one) for one in mine])
        if meant:
            yield from _should_be_there(*meant[0], expected)
            return
    if others:
        ports = ", ".join(sorted(others))
        yield f"According to {source}, it has no port {aim.port_name}; its ports: {ports}"
    elif source:
        text = "there is no such Service, or none that a proxy serves (headless, ExternalName)"
        yield f"According to {source}, {text}"


def _ports(expected: Expected) -> Iterator[tuple[Record, ServicePort]]:
    family = expected.rules.node.family
    return ((record, port) for record in expected.store for port in record.service_ports(family))


def _is_for(port: ServicePort, goal: Goal) -> bool:
    if port.protocol != goal.protocol:
        return False
    if not goal.address:
        return port.node_port == goal.port
    addresses = (port.cluster_ip, *port.external_ips, *port.load_balancer_ips)
    return port.port == goal.port and goal.address in addresses


def _should_be_there(record: Record, port: ServicePort, expected: Expected) -> Iterator[str]:
    family = expected.rules.node.family.value
    yield (
        f"According to {expected.source}, {port.name} should have rules for it in {family}:"
        " onenth verify tells what is missing"
    )
    for reason in reasons(record, port, expected.rules.node):
        yield f"It has no endpoint, because: {reason}"
