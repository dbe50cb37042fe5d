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

_OCTET = r"0*([0-9]{1,3})"
_V4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_V4 = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_V6 = re.compile(r"[0-9A-Fa-f:.]{2,}")
#: Zeros in front of another digit of the same part.
_LEADING_ZEROS = re.compile(r"(?<![0-9A-Fa-f])0+(?=[0-9A-Fa-f])")
_PREFIX = re.compile(r"0*([0-9]{1,3})")
#: What the API server allows no endpoint to be: this host, or a link. Canonical text.
_NO_ENDPOINT = re.compile(
    r"127\.|169\.254\.|224\.0\.0\.|0\.0\.0\.0$|::1?$|fe[89ab][0-9a-f]:|ff[0-9a-f]2:"
)
#: Longer text is no address, whatever it says.
_LONGEST = 256
#: Bits in front of the IPv4 address in an IPv4-mapped IPv6 one.
_MAPPED = 96
_FAMILIES = {4: Family.V4, 6: Family.V6}


@functools.lru_cache(maxsize=65536)
def parse_ip(text: str) -> tuple[Family, str] | None:
    """Family and canonical text of an address, or None if it is not one.

    Blanks around it are dropped, leading zeros are decimal, and an IPv4-mapped IPv6 address is
    the IPv4 address that it holds, as in Kubernetes. Zones (``%eth0``) are refused.
    """
    if _CANONICAL_V4.fullmatch(text):  # as nearly all are
        return Family.V4, text
    address = _read(text.strip())
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return None if address is None else (_FAMILIES[address.version], str(address))


def _read(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if len(text) > _LONGEST:
        return None
    try:
        if found := _V4.fullmatch(text):
            return ipaddress.IPv4Address(bytes(map(int, found.groups())))
        if ":" in text and _V6.fullmatch(text):
            return ipaddress.IPv6Address(_LEADING_ZEROS.sub("", text))
    except ValueError:
        pass  # too large an octet, too many parts, and the like
    return None


@functools.lru_cache(maxsize=4096)
def parse_cidr(text: str) -> tuple[Family, str] | None:
    """Family and canonical text of a range, or None if it is not one.

    Reads what ``parse_ip`` reads, and clears host bits. A range of IPv4-mapped IPv6 addresses
    is one of IPv4, and a wider one that has IPv6 addresses as well is one of IPv6.
    """
    text, slash, prefix = text.strip().partition("/")
    address, length = _read(text), _PREFIX.fullmatch(prefix)
    if not slash or address is None or length is None:
        return None
    bits = int(length[1])
    if bits > address.max_prefixlen:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped and bits >= _MAPPED:
        address, bits = address.ipv4_mapped, bits - _MAPPED
    network = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    return _FAMILIES[network.version], str(network)


def prefix_length(cidr: str) -> int:
    """Length of a canonical range's prefix."""
    return int(cidr.rpartition("/")[2])


def can_be_endpoint(ip: str) -> bool:
    """Whether a canonical address is one that a Service may lead to.

    Loopback and link-local addresses mean something else on every node: what only listens for its
    own host, or a cloud's metadata server, must not be reached through a Service.
    """
    return _NO_ENDPOINT.match(ip) is None


def contains(cidr: str, ip: str) -> bool:
    """Whether a canonical range holds a canonical address; never across families."""
    network, address = ipaddress.ip_network(cidr), ipaddress.ip_address(ip)
    return network.version == address.version and address in network
