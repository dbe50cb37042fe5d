"""What each kind of value reads, refuses and prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.durations import format_duration, parse_duration
from agent.config.errors import BadValueError
from agent.config.values import (
    Addresses,
    Choice,
    Duration,
    Families,
    HostPort,
    Interface,
    Many,
    NodeName,
    Number,
    Paths,
    Ranges,
    Switch,
    Text,
    Url,
    ValueType,
    split_host_port,
)

READ = [
    (Text(), " a b ", "a b"),
    (NodeName(), " Node-A.Example ", "node-a.example"),
    (NodeName(), "", ""),
    (Interface(), "cni0", "cni0"),
    (Url(), "https://192.0.2.10:6443/", "https://192.0.2.10:6443"),
    (Url(), "https://[2001:db8::1]:6443", "https://[2001:db8::1]:6443"),
    (Url(), "", ""),
    (Choice("a", "b", read_as={"c": "b"}), "c", "b"),
    (Switch(), True, True),
    (Switch(), "False", False),
    (Number(0, 31), 14, 14),
    (Number(-5, 5), " -3 ", -3),
    (Duration(zero=True), 0, 0.0),
    (Duration(zero=True), "0", 0.0),
    (Duration(zero=False), "1m30s", 90.0),
    (HostPort(10256), "", ""),
    (HostPort(10256), "0.0.0.0:1", "0.0.0.0:1"),
    (HostPort(10256), "127.0.0.1", "127.0.0.1:10256"),
    (HostPort(10256), "2001:db8::1", "[2001:db8::1]:10256"),
    (HostPort(10256), "[::1]", "[::1]:10256"),
    (HostPort(10256), "[::]:80", "[::]:80"),
    (HostPort(10256), ":80", "[::]:80"),
    (HostPort(10256), "127.0.0.1:0", "127.0.0.1:0"),
    (Many(), "a, b,,c", ("a", "b", "c")),
    (Many(), ["a,b", "c"], ("a", "b", "c")),
    (Paths(), "a,b", ("a", "b")),
    (Addresses(), "192.0.2.010,2001:DB8::0:1", ("192.0.2.10", "2001:db8::1")),
    (Ranges(pair=True), "10.244.0.7/16,fd00::/48", ("10.244.0.0/16", "fd00::/48")),
    (Ranges(word="primary"), ["primary"], ("primary",)),
    (
        Ranges(word="primary"),
        ["192.0.2.0/24", "198.51.100.0/24"],
        ("192.0.2.0/24", "198.51.100.0/24"),
    ),
    (Families(), "auto", ()),
    (Families(), ["ipv6", "IPv4", "IPv6"], ("IPv6", "IPv4")),
]

REFUSED = [
    (Text(), 5, "5 is not text; put it in quotes"),
    (Text(), "a\nb", "holds control characters"),
    (NodeName(), "node_a", "is not a Node's name"),
    (NodeName(), "a" * 254, "is not a Node's name"),
    (Interface(), "sixteen-letters-", "is not an interface name"),
    (Interface(), "a/b", "is not an interface name"),
    (Url(), "192.0.2.10:6443", "is not a URL"),
    (Url(), "https://", "is not a URL"),
    (Url(), "https://host:port", "is not a URL"),
    (Url(), "ftp://host", "is not a URL"),
    (Choice("a", "b"), "c", "'c' is not one of a, b"),
    (Switch(), "perhaps", "is neither true nor false"),
    (Switch(), 1, "1 is neither true nor false"),
    (Number(0, 31), 32, "32 is not from 0 to 31"),
    (Number(0, 31), "1.5", "is not a whole number"),
    (Number(0, 31), True, "is not a whole number"),
    (Duration(zero=True), 30, '30 has no unit; 30 seconds are "30s"'),
    (Duration(zero=True), 1.5, "is not a duration"),
    (Duration(zero=True), "-1s", "is not a duration"),
    (Duration(zero=True), "5 s", "is not a duration"),
    (Duration(zero=True), False, "is not a duration"),
    (Duration(zero=False), "0s", "must be longer than 0"),
    (HostPort(1), "localhost:80", "is not IP:port"),
    (HostPort(1), "80", "is not IP:port"),
    (HostPort(1), "::1:80443", "is not IP:port"),
    (HostPort(1), "127.0.0.1:65536", "is not a port"),
    (HostPort(1), "127.0.0.1:", "is not a port"),
    (HostPort(1), "[::1]80x", "is not a port"),
    (Many(), {"a": 1}, "is not a list of words"),
    (Many(), ["a", 1], "is not a list of words"),
    (Addresses(), "192.0.2.1,192.0.2.2", "more than one IPv4 address"),
    (Addresses(), "192.0.2.256", "'192.0.2.256' is not an IP address"),
    (Ranges(), "192.0.2.0", "is not a range"),
    (Ranges(pair=True), "10.0.0.0/8,192.0.2.0/24", "more than one IPv4 range"),
    (Ranges(word="primary"), "primary,192.0.2.0/24", "cannot stand together"),
    (Ranges(), "primary", "'primary' is not a range"),
    (Families(), "IPv5", "'IPv5' is not one of auto, IPv4, IPv6"),
    (Families(), ["auto", "IPv4"], "'auto' is not one of"),
]


@pytest.mark.parametrize(("kind", "raw", "value"), READ)
def test_reads(kind: ValueType, raw: object, value: object) -> None:
    """A value of its kind is read into canonical form, and what is printed reads the same."""
    assert kind.read(raw) == value
    assert kind.read(kind.show(kind.read(raw))) == value


@pytest.mark.parametrize(("kind", "raw", "complaint"), REFUSED)
def test_refuses(kind: ValueType, raw: object, complaint: str) -> None:
    """What is not of the kind is refused with words that say what was expected."""
    with pytest.raises(BadValueError) as refusal:
        kind.read(raw)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("30s", 30.0),
        ("1m30s", 90.0),
        ("2h22m", 8520.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("500ms", 0.5),
        ("7us", 0.000007),
        ("7\u00b5s", 0.000007),
        ("7\u03bcs", 0.000007),
        ("8ns", 0.000000008),
        ("1s1s", 2.0),
    ],
)
def test_parses_go_durations(text: str, seconds: float) -> None:
    """Everything that Go's ParseDuration takes and is not negative is read."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", ".", ".s", "s", "1", "-1s", "1d", "1 s", "1s ", "9999999h", "9" * 5000]
)
def test_refuses_what_is_no_go_duration(text: str) -> None:
    """Text without a unit, with an unknown one, or longer than Go can hold is refused."""
    with pytest.raises(BadValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (30.0, "30s"),
        (90.0, "1m30s"),
        (86400.0, "24h0m0s"),
        (3600.5, "1h0m0.5s"),
        (1.25, "1.25s"),
        (0.5, "500ms"),
        (0.0000015, "1.5us"),
        (0.000000008, "8ns"),
    ],
)
def test_prints_durations_as_go_does(seconds: float, text: str) -> None:
    """Durations look as kube-proxy prints them (Go's Duration.String, with us for the sign)."""
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_durations_survive_printing(microseconds: int) -> None:
    """A printed duration reads as the same duration."""
    seconds = microseconds / 10**6
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


def test_a_list_of_paths_is_taken_as_it_stands() -> None:
    """A file may have a comma in its name when it stands in a list."""
    assert Paths().read(["with,comma", "b"]) == ("with,comma", "b")


def test_splits_bind_addresses() -> None:
    """Brackets are no part of the host."""
    assert split_host_port("0.0.0.0:10256") == ("0.0.0.0", 10256)
    assert split_host_port("[::1]:10249") == ("::1", 10249)
