from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.state.addresses import can_be_endpoint, contains, parse_cidr, parse_ip, prefix_length
from agent.state.values import Family

if TYPE_CHECKING:
    import ipaddress

V4, V6 = Family.V4, Family.V6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1", (V4, "192.0.2.1")),
        (" 192.0.2.1\n", (V4, "192.0.2.1")),
        # Kubernetes reads leading zeros as decimal (faults 9); iptables would read 8.0.0.1.
        ("010.000.000.001", (V4, "10.0.0.1")),
        ("192.0.2.010", (V4, "192.0.2.10")),
        ("0000000192.0.2.1", (V4, "192.0.2.1")),
        ("2001:db8::00001", (V6, "2001:db8::1")),
        ("00064:ff9b::192.0.02.010", (V6, "64:ff9b::c000:20a")),
        ("0.0.0.0", (V4, "0.0.0.0")),
        ("255.255.255.255", (V4, "255.255.255.255")),
        ("::ffff:192.0.2.1", (V4, "192.0.2.1")),
        ("::FFFF:C000:0201", (V4, "192.0.2.1")),
        ("2001:DB8:0:0:0:0:0:1", (V6, "2001:db8::1")),
        ("2001:db8::0001", (V6, "2001:db8::1")),
        (" ::1 ", (V6, "::1")),
        ("::", (V6, "::")),
        ("64:ff9b::192.0.2.1", (V6, "64:ff9b::c000:201")),
        ("0" * 247 + "192.0.2.1", (V4, "192.0.2.1")),  # 256 characters
        ("0" * 248 + "192.0.2.1", None),
    ],
)
def test_an_address_is_read_as_kubernetes_reads_it(
    text: str, expected: tuple[Family, str] | None
) -> None:
    """Blanks, leading zeros and IPv4-mapped addresses come out as one canonical form."""
    assert parse_ip(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "None",
        "256.0.0.1",
        "192.0.2",
        "192.0.2.1.1",
        "192.0.2.-1",
        "192.0. 2.1",
        "0x0a.0.0.1",
        "192.0.2.1/32",
        "192.0.2.1 -j ACCEPT",
        "192.0.2.1\n-A INPUT -j ACCEPT",
        "١٩٢.0.2.1",  # Arabic digits are digits to Python
        "fe80::1%eth0",
        "[::1]",
        "2001:db8::1::",
        "2001:db8::12345",
        ":" * 46,
        "example.com",
        "1" * 100_000,
        "2001:db8::" + "0" * 100_000 + "1",
    ],
)
def test_what_is_no_address_is_none(text: str) -> None:
    """Garbage, names, ranges, scopes and attempts to write rules are refused."""
    assert parse_ip(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.0/24", (V4, "192.0.2.0/24")),
        (" 192.0.2.0/24 ", (V4, "192.0.2.0/24")),
        ("192.0.2.7/24", (V4, "192.0.2.0/24")),
        ("010.1.2.3/8", (V4, "10.0.0.0/8")),
        ("0.0.0.0/0", (V4, "0.0.0.0/0")),
        ("192.0.2.1/32", (V4, "192.0.2.1/32")),
        ("192.0.2.1/033", None),
        ("192.0.2.1/008", (V4, "192.0.0.0/8")),
        ("2001:db8::1/64", (V6, "2001:db8::/64")),
        ("::/0", (V6, "::/0")),
        ("::ffff:192.0.2.7/120", (V4, "192.0.2.0/24")),
        ("::ffff:192.0.2.7/96", (V4, "0.0.0.0/0")),
        ("::ffff:192.0.2.7/95", (V6, "::fffe:0:0/95")),
        ("::ffff:192.0.2.7/0", (V6, "::/0")),
        ("192.0.2.1/0000024", (V4, "192.0.2.0/24")),
    ],
)
def test_a_range_is_canonical_without_host_bits(
    text: str, expected: tuple[Family, str] | None
) -> None:
    """Blanks and host bits go; a mapped range is IPv4, unless it holds IPv6 addresses too."""
    assert parse_cidr(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/24",
        "192.0.2.0",
        "192.0.2.0/",
        "192.0.2.0/33",
        "::/129",
        "192.0.2.0/-1",
        "192.0.2.0/255.255.255.0",
        "192.0.2.0/24/24",
        "192.0.2.0/ 24",
        "192.0.2.0 /24",
        "x/24",
        "fe80::1%eth0/64",
    ],
)
def test_what_is_no_range_is_none(text: str) -> None:
    """A range needs an address and a prefix length that fits it."""
    assert parse_cidr(text) is None


def test_a_range_never_holds_an_address_of_the_other_family() -> None:
    """Containment is by value within a family, and false across families."""
    assert contains("192.0.2.0/24", "192.0.2.255")
    assert not contains("192.0.2.0/24", "192.0.3.0")
    assert contains("::/0", "2001:db8::1")
    assert not contains("::/0", "192.0.2.1")
    assert not contains("0.0.0.0/0", "::1")


def test_prefix_length() -> None:
    """The length behind the slash, in either family."""
    assert prefix_length("192.0.2.0/24") == 24
    assert prefix_length("2001:db8::/48") == 48


@given(st.ip_addresses())
def test_every_address_has_one_form(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """The long and the short form of an address come out the same, and stay the same."""
    parsed = parse_ip(address.exploded)

    assert parsed is not None
    assert parse_ip(str(address)) == parsed
    assert parse_ip(parsed[1]) == parsed


@given(st.text(max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    """Whatever stands in an object, reading it raises nothing, and what comes out is plain."""
    for parsed in (parse_ip(text), parse_cidr(text)):
        if parsed is not None:
            assert set(parsed[1]) <= set("0123456789abcdef.:/")


@pytest.mark.parametrize(
    ("ip", "possible"),
    [
        ("10.0.0.1", True), ("127.0.0.1", False), ("127.9.9.9", False), ("12.7.0.0", True),
        ("169.254.169.254", False), ("169.25.4.1", True), ("0.0.0.0", False), ("0.0.0.1", True),
        ("224.0.0.1", False), ("224.0.1.1", True), ("10.0.0.0", True),
        ("2001:db8::1", True), ("::", False), ("::1", False), ("::2", True), ("::10", True),
        ("fe80::1", False), ("febf::1", False), ("fec0::1", True), ("fe8::1", True),
        ("ff02::1", False), ("ff12::1", False), ("ff05::1", True), ("fd00::1", True),
    ],
)  # fmt: skip
def test_addresses_that_mean_a_host_or_a_link(ip: str, *, possible: bool) -> None:
    """127.0.0.0/8, ::1, 169.254.0.0/16, fe80::/10, link-local multicast and "any" lead nowhere."""
    assert can_be_endpoint(ip) is possible
