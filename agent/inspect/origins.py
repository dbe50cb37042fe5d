"""Where a packet comes from, for people who say "a pod", "the node" or "outside"."""

from __future__ import annotations

import enum
import ipaddress
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.survey import is_lottery
from agent.inspect.tables import target_name
from agent.rules import names
from agent.rules.rule import Destination, InInterface, Source
from agent.state.addresses import parse_ip
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.inspect.packet import Host
    from agent.inspect.survey import Survey
    from agent.rules.rule import Rule

#: Addresses for documentation (RFC 5737, RFC 3849): nobody's.
OUTSIDE = {Family.V4: "203.0.113.7", Family.V6: "2001:db8:ffff::7"}
NODE = {Family.V4: "192.0.2.1", Family.V6: "2001:db8::1"}
#: An address of no endpoint that is likely, in the range of pods.
_POD_OFFSET = 200
_POD = {Family.V4: "10.255.255.254", Family.V6: "fdff:ffff::fffe"}


class OriginError(ValueError):
    """Text that names no origin of a packet."""


class From(enum.Enum):
    """Who sends the packet; the value is what people say."""

    POD = "pod"
    NODE = "node"
    OUTSIDE = "outside"


class Origin(msgspec.Struct, frozen=True):
    """Who sends a packet.

    Attributes:
        label: for people.
        source: address.
        interface: by which it comes; empty if the node sends it, None if unknown.
        avoids: interfaces by which it does not come.
        assumed: what is taken for granted about it, in a sentence; empty if nothing is.
    """

    label: str
    source: str
    interface: str | None
    avoids: tuple[str, ...] = ()
    assumed: str = ""


class Pods(msgspec.Struct, frozen=True):
    """How the rules tell traffic of pods: by range, by interface, or not at all."""

    cidr: str = ""
    interface: str = ""


def pods_of(survey: Survey) -> Pods:
    """What the masquerade rules say of pods."""
    for rule in _telling(survey):
        for match in rule.matches:
            if isinstance(match, Source) and "/" in match.cidr:
                return Pods(cidr=match.cidr)
            if isinstance(match, InInterface):
                return Pods(interface=match.name)
    return Pods()


def _telling(survey: Survey) -> Iterator[Rule]:
    """Rules that treat pods differently from others: marking, and bypassing a policy."""
    for name, chain in survey.tables.tables.get("nat", {}).items():
        if is_lottery(name) or name.startswith(names.EXT):
            for entry in chain.entries:
                target = target_name(entry.rule.target)
                if target == names.MARK_MASQ or is_lottery(target):
                    yield entry.rule


def node_address(survey: Survey, host: Host) -> str:
    """An address of the node on which node ports answer, a made-up one if none is known.

    Of several it is the one that the node shows to the world.
    """
    family = survey.tables.family
    for entry in survey.tables.entries("nat", names.SERVICES):
        if target_name(entry.rule.target) == names.NODEPORTS:
            for match in entry.rule.matches:
                if isinstance(match, Destination) and not match.negated:
                    return match.cidr
    mine = [a for a in sorted(host.addresses) if _is_good(family, a)]
    shown = host.source(OUTSIDE[family]) if host.source else None
    return shown if shown in mine else mine[0] if mine else NODE[family]


def _is_good(family: Family, address: str) -> bool:
    parsed = parse_ip(address)
    if parsed is None or parsed[0] is not family:
        return False
    ip = ipaddress.ip_address(parsed[1])
    return not (ip.is_loopback or ip.is_link_local)


def origin(
    text: str, survey: Survey, host: Host, interface: str = "", destination: str = ""
) -> Origin:
    """Who sends a packet.

    Args:
        text: ``pod``, ``node``, ``outside`` or an address.
        survey: of the tables, for what they say of pods.
        host: the node.
        interface: by which the packet comes, if it was given.
        destination: address that it is sent to; the node's source depends on it.

    Raises:
        OriginError: the text is none of these, or an address of the other family.
    """
    family = survey.tables.family
    pods = pods_of(survey)
    avoids = (pods.interface,) if pods.interface else ()
    if text == From.POD.value:
        source = _pod_address(family, pods)
        name = interface or pods.interface.replace("+", "0") or host.route(source)
        return Origin(f"a pod ({source})", source, name)
    if text == From.NODE.value:
        return _node(survey, host, destination)
    if text == From.OUTSIDE.value:
        source = OUTSIDE[family]
        return Origin(
            f"outside ({source})",
            source,
            interface or host.route(source),
            () if interface else avoids,
        )
    parsed = parse_ip(text)
    if parsed is None:
        raise OriginError(f"{text!r} is neither pod, node, outside nor an address")
    if parsed[0] is not family:
        raise OriginError(f"{text} is not an {family.value} address, as the target is")
    source = parsed[1]
    if host.is_local(family, source):
        return Origin(f"this node ({source})", source, "")
    return Origin(source, source, interface or host.route(source))


def _node(survey: Survey, host: Host, destination: str) -> Origin:
    """A process of the node: the kernel's route to the destination chooses the source."""
    source, assumed = None, ""
    if host.source is not None and destination:
        source = host.source(destination)
        if source is None:
            assumed = (
                f"This node has no route to {destination}: connections of its own fail before they"
                " meet a rule. The rest is as if it had one"
            )
    else:
        assumed = (
            "The node's source address is assumed, since its routes are not known (--node-address"
            " ADDR --from ADDR says it)"
        )
    source = source or node_address(survey, host)
    return Origin(f"this node ({source})", source, "", assumed=assumed)


def _pod_address(family: Family, pods: Pods) -> str:
    if not pods.cidr:
        return _POD[family]
    network = ipaddress.ip_network(pods.cidr, strict=False)
    return str(network[min(_POD_OFFSET, network.num_addresses - 1)])
