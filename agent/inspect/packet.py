"""A packet, the host that it meets, and what rules have made of it so far."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable

import msgspec

from agent.state.values import Family

_LOOPBACK = {Family.V4: ipaddress.ip_network("127.0.0.0/8"), Family.V6: ipaddress.ip_network("::1")}


class Packet(msgspec.Struct, frozen=True):
    """The first packet of a flow, as it comes to the node or leaves a process of the node.

    Attributes:
        family: IPv4 or IPv6.
        protocol: as ``-p`` names it: ``tcp``, ``udp``, ``sctp``, ``icmp``.
        source: address.
        destination: address.
        port: destination port, 0 if the protocol has none.
        source_port: number, None if it does not matter which.
        interface: by which it comes in; empty if a process of this node sends it; None if it
            comes from elsewhere, by an interface that is not known.
        avoids: interface patterns that are known not to be that of an unknown interface.
        state: of its flow in connection tracking.
        mark: that it has before it meets a rule.
    """

    family: Family
    protocol: str
    source: str
    destination: str
    port: int
    source_port: int | None = None
    interface: str | None = ""
    avoids: tuple[str, ...] = ()
    state: str = "NEW"
    mark: int = 0


def _no_route(_address: str) -> str | None:
    return None


class Host(msgspec.Struct, frozen=True):
    """The node, apart from its rules.

    Attributes:
        addresses: of its interfaces; loopback goes without saying.
        route: the interface by which packets to an address leave, None if that is not known.
        source: the address that the node sends from to another one, None if there is no way;
            None itself if the routes are not known.
    """

    addresses: frozenset[str] = frozenset()
    route: Callable[[str], str | None] = _no_route
    source: Callable[[str], str | None] | None = None

    def is_local(self, family: Family, address: str) -> bool:
        """Whether packets to the address are for this node."""
        return address in self.addresses or ipaddress.ip_address(address) in _LOOPBACK[family]


class Fate(msgspec.Struct, frozen=True):
    """What rules have made of a packet so far.

    Attributes:
        destination: address, perhaps translated.
        port: likewise.
        mark: the packet's.
        translated: ``ip:port`` that the destination was translated to, empty for none.
        masqueraded: the source was translated to an address of the node.
        source_translated: the source was translated otherwise, to this.
        tracked: connection tracking knows the flow.
        touched: targets whose effect on later rules is not modelled, such as CONNMARK.
    """

    destination: str
    port: int
    mark: int
    translated: str = ""
    masqueraded: bool = False
    source_translated: str = ""
    tracked: bool = True
    touched: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=65536)
def number(address: str) -> int:
    """An address as a number."""
    return int(ipaddress.ip_address(address))


@functools.lru_cache(maxsize=65536)
def mask_and_value(cidr: str) -> tuple[int, int]:
    """What a range's addresses have in common: mask and value, as numbers.

    The mask may be any, as in ``10.0.0.1/255.0.0.255``.

    Raises:
        ValueError: it is no range.
    """
    address, slash, mask = cidr.partition("/")
    base = ipaddress.ip_address(address)
    width = base.max_prefixlen
    if not slash:
        bits = (1 << width) - 1
    elif mask.isdecimal():
        if int(mask) > width:
            raise ValueError(f"{cidr!r} has a prefix that is too long")
        bits = ((1 << int(mask)) - 1) << (width - int(mask))
    else:
        bits = int(ipaddress.ip_address(mask))
    return bits, int(base) & bits


def contains(cidr: str, address: str) -> bool:
    """Whether an address is in a range, of the same family."""
    mask, value = mask_and_value(cidr)
    return number(address) & mask == value


def split_endpoint(text: str) -> tuple[str, int]:
    """Address and port of ``ip:port`` or ``[ip]:port``; the port is 0 if there is none."""
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    else:
        address, port = text, ""
    return address, int(port) if port.isdecimal() else 0
