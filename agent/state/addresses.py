"""Addresses and ranges as Kubernetes reads them, written in one canonical form.

Kubernetes reads ``010.8.9.10`` as decimal, while some iptables versions read it as octal or
refuse it; objects stored long ago may hold such text, blanks, or host bits in a range. What
leaves this module is always canonical, or None.
"""

from __future__ import annotations

import functools
import ipaddress
import re

from agent.state.values import Family

_V4 = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})")
_V6 = re.compile(r"[0-9A-Fa-f:.]{2,45}")
_PREFIX = re.compile(r"[0-9]{1,3}")


@functools.lru_cache(maxsize=65536)
def parse_ip(text: str) -> tuple[Family, str] | None:
    """Family and canonical text of an address, or None if it is not one.

    Blanks around it are dropped, leading zeros are decimal, and an IPv4-mapped IPv6 address is
    the IPv4 address that it holds, as in Kubernetes. Zones (``%eth0``) are refused.
    """
    text = text.strip()
    if found := _V4.fullmatch(text):
        octets = [int(octet) for octet in found.groups()]
        if max(octets) > 255:
            return None
        return Family.V4, "{}.{}.{}.{}".format(*octets)
    if ":" not in text or not _V6.fullmatch(text):
        return None
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    if mapped := address.ipv4_mapped:
        return Family.V4, str(mapped)
    return Family.V6, address.compressed


@functools.lru_cache(maxsize=4096)
def parse_cidr(text: str) -> tuple[Family, str] | None:
    """Family and canonical text of a range, or None if it is not one.

    Reads what ``parse_ip`` reads, and clears host bits.
    """
    address, slash, prefix = text.strip().partition("/")
    parsed = parse_ip(address)
    if not slash or parsed is None or not _PREFIX.fullmatch(prefix):
        return None
    family, canonical = parsed
    length = int(prefix)
    if family is Family.V4 and ":" in address:  # an IPv4-mapped range counts 96 bits more
        length -= 96
    if not 0 <= length <= family.host_bits:
        return None
    return family, str(ipaddress.ip_network(f"{canonical}/{length}", strict=False))


def prefix_length(cidr: str) -> int:
    """Length of a canonical range's prefix."""
    return int(cidr.rpartition("/")[2])


def contains(cidr: str, ip: str) -> bool:
    """Whether a canonical range holds a canonical address; never across families."""
    network, address = ipaddress.ip_network(cidr), ipaddress.ip_address(ip)
    return network.version == address.version and address in network
