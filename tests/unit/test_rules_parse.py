from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rules import parse
from agent.rules import rule as rules
from agent.rules.parse import (
    ParseError,
    canonical,
    equal,
    parse_rule,
    parse_save,
    read_rule,
)
from agent.rules.static import JUMPS, KUBELET_JUMPS, node_port_tail, static_chains
from agent.rules.words import tokens
from agent.state.values import DetectLocal, Family, NodeView
from tests.fakes.cluster import NODE
from tests.fakes.kernelrule import parse as kernel_parse
from tests.fakes.kernelrule import words
from tests.parity.case import build
from tests.parity.written import load_written

if TYPE_CHECKING:
    from agent.rules.rule import Match, Rule, Target
    from agent.rules.ruleset import RuleSet

# Rules that we can write ----------------------------------------------------------------------

LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,6}[a-z0-9])?", fullmatch=True)
NAMES = st.builds("{}/{}:{}".format, LABELS, LABELS, LABELS)
CHAINS = st.from_regex(r"KUBE-(SVC|SEP|EXT|FW|SVL)-[A-Z2-7]{16}", fullmatch=True)
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(str)
CIDRS = st.one_of(
    V4,
    V6,
    st.tuples(st.integers(1, 223), st.integers(8, 31)).map(lambda t: f"{t[0]}.0.0.0/{t[1]}"),
    st.integers(32, 127).map("2001:db8::/{}".format),
)
INTERFACES = st.from_regex(r"[a-z][a-z0-9]{0,12}\+?", fullmatch=True)
PORTS = st.integers(1, 65535)
MARKS = st.integers(0, 31).map(lambda bit: 1 << bit)
SOME_STATES = st.sampled_from(["INVALID", "NEW", "RELATED,ESTABLISHED", "RELATED,ESTABLISHED,DNAT"])
COMMENTS = st.one_of(NAMES, st.builds("{} {}".format, NAMES, st.sampled_from(["-> x", "has no y"])))
SINGLE: list[st.SearchStrategy[Match]] = [
    st.builds(rules.Comment, COMMENTS),
    st.builds(rules.Source, CIDRS, st.booleans()),
    st.builds(rules.Destination, CIDRS, st.booleans()),
    st.builds(rules.InInterface, INTERFACES, st.booleans()),
    st.builds(rules.AddressType, st.sampled_from(["src", "dst"])),
    st.builds(rules.Mark, MARKS, st.booleans()),
    st.builds(rules.ConntrackState, SOME_STATES, st.booleans()),
    st.builds(rules.Recent, CHAINS, st.integers(0, 86400)),
    st.builds(rules.Statistic, st.integers(2, 20_000)),
    st.builds(rules.Nfacct, st.sampled_from(["ct_state_invalid_dropped_pkts", "other"])),
]
PROTOCOLS = st.builds(rules.Protocol, st.sampled_from(["tcp", "udp", "sctp"]))
DESTINATIONS = st.one_of(
    st.builds("{}:{}".format, V4, PORTS), st.builds("[{}]:{}".format, V6, PORTS)
)
TARGETS: st.SearchStrategy[Target | None] = st.one_of(
    st.none(),
    st.builds(
        rules.Jump, st.one_of(CHAINS, st.sampled_from(["DROP", "REJECT", "ACCEPT", "RETURN"]))
    ),
    st.builds(rules.Dnat, DESTINATIONS),
    st.builds(rules.SetMark, st.sampled_from(["or", "xor"]), MARKS),
    st.builds(rules.Masquerade, st.booleans()),
)


@st.composite
def any_rule(draw: st.DrawFn) -> Rule:
    """Each kind of match at most once, and a port only behind a protocol."""
    matches = [draw(one) for one in SINGLE if draw(st.booleans())]
    if draw(st.booleans()):
        matches.append(draw(PROTOCOLS))
        if draw(st.booleans()):
            matches.append(draw(st.builds(rules.DestinationPort, PORTS)))
    return rules.Rule(tuple(matches), draw(TARGETS))


@settings(max_examples=300)
@given(any_rule())
def test_reading_is_the_inverse_of_writing(rule: Rule) -> None:
    """Whatever rule can be rendered is read back as it was, match for match."""
    assert parse_rule(rule.text()) == rule
    assert parse_rule(rule.text()).text() == rule.text()


@settings(max_examples=300)
@given(any_rule())
def test_what_the_kernel_prints_means_what_was_written(rule: Rule) -> None:
    """Through a kernel, which orders, completes and rounds, a rule keeps its meaning."""
    text = rule.text()
    family = 6 if any(":" in m.cidr for m in rule.matches if hasattr(m, "cidr")) else 4
    if isinstance(rule.target, rules.Dnat):
        family = 6 if "[" in text else 4
    cidrs = [m.cidr for m in rule.matches if isinstance(m, rules.Source | rules.Destination)]
    if any((":" in cidr) != (family == 6) for cidr in cidrs):
        return
    if isinstance(rule.target, rules.Dnat) and "-p " not in text:
        return
    if any(cidr in {"0.0.0.0/0", "::/0"} for cidr in cidrs):
        return
    printed = kernel_parse(words(text), family).text()

    assert canonical(parse_rule(printed)) == canonical(rule)
    assert equal([text], [printed])


def all_our_rules() -> list[str]:
    """Every rule of the written states, and the standing ones of nodes of every kind."""
    found: set[str] = set()
    for case in load_written().values():
        found |= texts_of(build(case)[1])
    for family in Family:
        for detect in (None, *DetectLocal):
            node = NodeView(family, NODE, detect_local=detect, localhost_node_ports=True)
            chains = static_chains(node).values()
            found |= {rule.text() for chain in chains for rule in [*chain, *node_port_tail(node)]}
    return sorted(found | {jump.rule.text() for jump in JUMPS + KUBELET_JUMPS})


def texts_of(found: RuleSet) -> set[str]:
    tables = found.tables().values()
    return {text for chains in tables for texts in chains.values() for text in texts}


def test_every_rule_of_ours_is_read_back_as_it_is() -> None:
    """Nothing becomes foreign words on its way back; a prefix that says nothing goes."""
    texts = all_our_rules()

    assert len(texts) > 100
    for text in texts:
        read = parse_rule(text)
        assert read.text() == text.replace("::1/128", "::1")
        foreign = [m for m in read.matches if isinstance(m, rules.Other)]
        assert not foreign, text
        assert not isinstance(read.target, rules.OtherTarget), text


# What each part says --------------------------------------------------------------------------

S, D, O = rules.Source, rules.Destination, rules.Other  # noqa: E741  the letters of the options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-s 10.0.0.1/32", [S("10.0.0.1")]),
        ("! -s 10.0.0.0/8", [S("10.0.0.0/8", negated=True)]),
        ("-d 10.0.0.1/255.255.255.255", [D("10.0.0.1")]),
        ("! -d fd00::1/128", [D("fd00::1", negated=True)]),
        ("-d ::1.2.3.4/128 -s ::1.2.0.0/112", [D("::102:304"), S("::102:0/112")]),
        ("-d ::1.2.3.4.5/128", [D("::1.2.3.4.5")]),
        (
            "-i eth0 ! -i cali+",
            [rules.InInterface("eth0"), rules.InInterface("cali+", negated=True)],
        ),
        ("-p tcp", [rules.Protocol("tcp")]),
        ("-p 6", [rules.Protocol("tcp")]),
        ("-p 17", [rules.Protocol("udp")]),
        ("-p 132", [rules.Protocol("sctp")]),
        ("-p icmp", [O("-p icmp")]),
        ("! -p tcp", [O("! -p tcp")]),
        ("-p tcp -m tcp --dport 80", [rules.Protocol("tcp"), rules.DestinationPort(80)]),
        ("-m udp --dport 80:90", [rules.DestinationPorts(80, 90)]),
        ("-m tcp --dport http", [O("--dport http")]),
        ("-m tcp --dport :90", [O("--dport :90")]),
        ("-m tcp --dport 80:", [O("--dport 80:")]),
        ("-m tcp ! --dport 80", [O("! --dport 80")]),
        ("-m tcp ! --dport 80:90", [O("! --dport 80:90")]),
        ("-m comment --comment a", [rules.Comment("a")]),
        ('-m comment ! --comment "a b"', [O('! --comment "a b"')]),
        ("-m mark --mark 0x4000/0x4000", [rules.Mark(0x4000)]),
        ("-m mark ! --mark 0x4000/0x4000", [rules.Mark(0x4000, negated=True)]),
        ("-m mark --mark 0x1/0xff", [O("-m mark --mark 0x1/0xff")]),
        ("-m mark ! --mark 0x1", [O("-m mark ! --mark 0x1")]),
        ("-m mark ! --mark 0x1/0x3", [O("-m mark ! --mark 0x1/0x3")]),
        (
            "-m conntrack ! --ctstate FOO,DNAT,SNAT,UNTRACKED,ESTABLISHED,RELATED,NEW,INVALID,BAR",
            [
                rules.ConntrackState(
                    "INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED,SNAT,DNAT,FOO,BAR", negated=True
                )
            ],
        ),
        ("-m addrtype --src-type LOCAL", [rules.AddressType("src", "LOCAL")]),
        ("-m addrtype --dst-type UNICAST", [rules.AddressType("dst", "UNICAST")]),
        ("-m addrtype ! --dst-type LOCAL", [O("-m addrtype ! --dst-type LOCAL")]),
        ("-m addrtype ! --src-type LOCAL", [O("-m addrtype ! --src-type LOCAL")]),
        ("-m nfacct --nfacct-name n", [rules.Nfacct("n")]),
        ("-m nfacct ! --nfacct-name n", [O("-m nfacct ! --nfacct-name n")]),
        ("-m statistic --mode random --probability 0.5", [rules.Statistic(2)]),
        (
            "-m statistic --mode random --probability 0.4",
            [O("-m statistic --mode random --probability 0.4")],
        ),
        ("-m statistic --mode nth --every 2", [O("-m statistic --mode nth --every 2")]),
        ("-m recent -s ::1", [O("-m recent"), S("::1")]),
        ("-m statistic -s ::1", [O("-m statistic"), S("::1")]),
        ("-m recent --set", [rules.Recent("DEFAULT")]),
        ("-m recent --set --name K --rsource", [rules.Recent("K")]),
        ("-m recent --set --name K --seconds 5", [O("-m recent --set --name K --seconds 5")]),
        ("-m recent --rcheck --reap --name K", [O("-m recent --rcheck --reap --name K")]),
        ("-m recent --seconds 60 --rcheck --reap --name K", [rules.Recent("K", 60)]),
        (
            "-m recent --rcheck --reap --seconds 6 --mask 255.255.0.0 -s ::1",
            [O("-m recent --rcheck --reap --seconds 6 --mask 255.255.0.0"), S("::1")],
        ),
        ("-m recent --set --mask 255.255.0.0", [O("-m recent --set --mask 255.255.0.0")]),
        ("-s ::1 -c 5 300 -d ::2", [S("::1"), D("::2")]),
        ("-o eth0 -f -4 -s ::1", [O("-o eth0"), O("-f"), O("-4"), S("::1")]),
        ("--foo a b ! --bar c --baz", [O("--foo a b"), O("! --bar c"), O("--baz")]),
        ("--foo a -s ::1", [O("--foo a"), S("::1")]),
        ("[unsupported revision] -s ::1", [O("[unsupported revision]"), S("::1")]),
        ("-s ::1 ! [unsupported revision]", [S("::1"), O("! [unsupported revision]")]),
        (
            "-m set --match-set b src ! --match-set c dst -m comment --comment a",
            [O("-m set --match-set b src ! --match-set c dst"), rules.Comment("a")],
        ),
        (
            "-m set --match-set b src ! -s ::1",
            [O("-m set --match-set b src"), S("::1", negated=True)],
        ),
        ("-m socket -s ::1", [O("-m socket"), S("::1")]),
        ('-m string --string "a b" -o eth0', [O('-m string --string "a b"'), O("-o eth0")]),
    ],
)
def test_what_each_match_says(text: str, expected: list[Match]) -> None:
    """One value for each form; what we never write is kept word for word, by its extension."""
    assert read_rule(text) == rules.Rule(tuple(expected), None)
    assert read_rule(f"{text} -j A") == rules.Rule(tuple(expected), rules.Jump("A"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-j DROP", rules.DROP),
        ("-j MASQUERADE", rules.Masquerade(random_fully=False)),
        ("-j MASQUERADE --random-fully", rules.Masquerade(random_fully=True)),
        ("-j MASQUERADE --random", rules.OtherTarget("-j MASQUERADE --random")),
        ("-j DNAT --to-destination 10.0.0.1:80", rules.Dnat("10.0.0.1:80")),
        ("-j DNAT --to-destination [::1.2.3.4]:80", rules.Dnat("[::102:304]:80")),
        ("-j DNAT --to-destination [fd00::1]:80", rules.Dnat("[fd00::1]:80")),
        ("-j MARK --or-mark 0x10", rules.SetMark("or", 16)),
        ("-j MARK --xor-mark 0x10", rules.SetMark("xor", 16)),
        ("-j MARK --set-xmark 0x10/0x10", rules.SetMark("or", 16)),
        ("-j MARK --set-xmark 0x10/0x0", rules.SetMark("xor", 16)),
        ("-j MARK --set-xmark 0x10/0xff", rules.OtherTarget("-j MARK --set-xmark 0x10/0xff")),
        ("-j MARK --set-xmark 0x10", rules.OtherTarget("-j MARK --set-xmark 0x10")),
        ("-j MARK --and-mark 0x10", rules.OtherTarget("-j MARK --and-mark 0x10")),
        ("-j REJECT --reject-with icmp-port-unreachable", rules.REJECT),
        (
            "-j REJECT --reject-with tcp-reset",
            rules.OtherTarget("-j REJECT --reject-with tcp-reset"),
        ),
        ("-g A", rules.OtherTarget("-g A")),
        ('-j LOG --log-prefix "a b"', rules.OtherTarget('-j LOG --log-prefix "a b"')),
    ],
)
def test_what_each_target_says(text: str, expected: Target) -> None:
    """Likewise for targets."""
    assert read_rule(f"-s ::1 {text}") == rules.Rule((S("::1"),), expected)


def test_the_order_of_matches_when_compared() -> None:
    """By kind; only those of which a rule may have several are then ordered by their text."""
    matches = (
        *(rules.Protocol("tcp"), S("10.0.0.1"), D("10.0.0.2"), rules.DestinationPort(80)),
        *(rules.DestinationPorts(1, 2), rules.InInterface("eth0"), rules.Recent("K")),
        *(rules.Comment("a"), rules.Comment("b"), rules.AddressType("dst"), rules.Mark(1)),
        *(rules.ConntrackState("NEW"), rules.Statistic(2), rules.Nfacct("n"), O("-o x"), O("-o y")),
    )

    assert canonical(rules.Rule(matches[::-1], rules.DROP)) == rules.Rule(matches, rules.DROP)
    assert canonical(rules.Rule((D("::1"), S("::1")), None)).matches == (S("::1"), D("::1"))
    two = rules.Rule((S("10.0.0.2"), S("10.0.0.1")), None)
    assert canonical(two) == two


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-s", "the rule ends behind '-s': -s"),
        ("-s ::1 -m", "the rule ends behind '-m': -s ::1 -m"),
        ("! -s", "the rule ends behind '-s': ! -s"),
        ("-m set --foo !", "the rule ends behind '!': -m set --foo !"),
        ("-m recent --name", "the rule ends behind '--name': -m recent --name"),
        ("-s ::1 stray -j A", "'stray' stands where an option should: -s ::1 stray -j A"),
        ("! stray -j A", "'stray' stands where an option should: ! stray -j A"),
        ("-f stray", "'stray' stands where an option should: -f stray"),
        ("-X A", "'-X' stands where an option should: -X A"),
        ("-m mark --mark x/1", "'x' is not a number: -m mark --mark x/1"),
        (f"-X {'a' * 117}", f"'-X' stands where an option should: -X {'a' * 117}"),
        (f"-X {'a' * 118}", f"'-X' stands where an option should: -X {'a' * 117}..."),
        (f"-s {'a' * 118} -d", f"the rule ends behind '-d': -s {'a' * 117}..."),
    ],
)
def test_what_is_said_of_garbage(text: str, message: str) -> None:
    """What is wrong, and the rule, of which 120 characters are shown."""
    with pytest.raises(ParseError) as caught:
        read_rule(text)
    assert str(caught.value) == message


# What the tools print -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            (
                '-m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1'
                " --dport 80 ! -s 10.64.0.0/10 -j KUBE-MARK-MASQ"
            ),
            (
                "! -s 10.64.0.0/10 -d 10.96.0.1/32 -p tcp -m comment --comment"
                ' "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ'
            ),
        ),
        (
            "-m statistic --mode random --probability 0.3333333333 -j A",
            "-m statistic --mode random --probability 0.33333333349 -j A",
        ),
        (
            "-m statistic --mode random --probability 0.0010000000 -j A",
            "-m statistic --mode random --probability 0.00099999988 -j A",
        ),
        ("-j MARK --or-mark 0x004000", "-j MARK --set-xmark 0x4000/0x4000"),
        ("-j MARK --xor-mark 0x004000", "-j MARK --set-xmark 0x4000/0x0"),
        (
            "-m mark ! --mark 0x004000/0x004000 -j RETURN",
            "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        ),
        (
            "-m recent --name KUBE-SEP-A --rcheck --seconds 60 --reap -j KUBE-SEP-A",
            (
                "-m recent --rcheck --seconds 60 --reap --name KUBE-SEP-A --mask 255.255.255.255"
                " --rsource -j KUBE-SEP-A"
            ),
        ),
        (
            (
                "-m comment --comment shop/web -m recent --name KUBE-SEP-A --set -m tcp -p tcp"
                " -j DNAT --to-destination [fd00::1]:8080"
            ),
            (
                '-p tcp -m comment --comment "shop/web" -m recent --set --name KUBE-SEP-A'
                " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -m tcp"
                " -j DNAT --to-destination [fd00::1]:8080"
            ),
        ),
        ("-j REJECT", "-j REJECT --reject-with icmp-port-unreachable"),
        ("-j REJECT", "-j REJECT --reject-with icmp6-port-unreachable"),
        (
            (
                "-d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"
                " -j DROP"
            ),
            (
                "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"
                " -j DROP"
            ),
        ),
        ("-s fd00::1 -j A", "-s fd00::1/128 -j A"),
        # What inet_ntop makes of an address whose first 96 bits are 0.
        ("-d ::102:304 -j A", "-d ::1.2.3.4/128 -j A"),
        ("-s ::102:0/112 -j A", "-s ::1.2.0.0/112 -j A"),
        (
            "-m tcp -p tcp -j DNAT --to-destination [::506:708]:80",
            "-p tcp -m tcp -j DNAT --to-destination [::5.6.7.8]:80",
        ),
        ("-m udp -p udp --dport 53 -j A", "-p 17 -m udp --dport 53 -j A"),
        ("-m conntrack --ctstate DNAT,NEW -j A", "-m conntrack --ctstate NEW,DNAT -j A"),
        ("-d 10.96.0.1 -j A", "-d 10.96.0.1/255.255.255.255 -j A"),
    ],
)
def test_the_tools_say_the_same_in_other_words(ours: str, theirs: str) -> None:
    """Both backends complete, round and reorder; the meaning is found equal."""
    assert equal([ours], [theirs])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-d 10.96.0.1 -j A", "-d 10.96.0.2 -j A"),
        ("-d 10.96.0.1 -j A", "! -d 10.96.0.1 -j A"),
        ("-d 10.96.0.1 -j A", "-s 10.96.0.1 -j A"),
        ("-d 10.96.0.0/24 -j A", "-d 10.96.0.0/25 -j A"),
        ("-p tcp -m tcp --dport 80 -j A", "-p udp -m udp --dport 80 -j A"),
        ("-p tcp -m tcp --dport 80 -j A", "-p tcp -m tcp --dport 81 -j A"),
        ("-p tcp -j A", "-j A"),
        ("-j A", "-j B"),
        ("-j A", "-g A"),
        ("-j A", ""),
        ("-j REJECT", "-j REJECT --reject-with tcp-reset"),
        ("-j MARK --or-mark 0x4000", "-j MARK --or-mark 0x8000"),
        ("-j MARK --or-mark 0x4000", "-j MARK --set-xmark 0x4000/0xffffffff"),
        ("-j MASQUERADE", "-j MASQUERADE --random-fully"),
        (
            "-m statistic --mode random --probability 0.5000000000 -j A",
            "-m statistic --mode random --probability 0.50000000100 -j A",
        ),
        (
            "-m statistic --mode random --probability 0.0010000000 -j A",
            "-m statistic --mode random --probability 0.0010010010 -j A",
        ),
        (
            "-m recent --name K --rcheck --seconds 60 --reap -j A",
            "-m recent --rcheck --seconds 61 --reap --name K --mask 255.255.255.255 --rsource -j A",
        ),
        (
            "-m recent --name K --rcheck --seconds 60 --reap -j A",
            "-m recent --rcheck --seconds 60 --reap --name K --mask 255.255.255.0 --rsource -j A",
        ),
        (
            "-m recent --name K --rcheck --seconds 60 --reap -j A",
            "-m recent --rcheck --seconds 60 --name K --mask 255.255.255.255 --rsource -j A",
        ),
        ("-m recent --name K --set -j A", "-m recent --update --name K -j A"),
        ("-m recent --name K --set -j A", "-m recent --set --name K --rdest -j A"),
        ("-i cali+ -j A", "-i cali -j A"),
        ("-m comment --comment a -j A", "-m comment --comment b -j A"),
        ("-m conntrack --ctstate NEW -j A", "-m conntrack ! --ctstate NEW -j A"),
        ("-j DNAT --to-destination 10.0.0.1:80", "-j DNAT --to-destination 10.0.0.1:81"),
        ("-j DNAT --to-destination 10.0.0.1:80", "-j DNAT --to-destination 10.0.0.1:80 --random"),
    ],
)
def test_what_means_something_else_is_not_equal(one: str, other: str) -> None:
    """Each change that a packet would notice is noticed."""
    assert not equal([one], [other])


def test_order_and_number_of_rules_count() -> None:
    """Rules of a chain are compared one by one."""
    assert equal(["-j A", "-j B"], ["-j A", "-j B"])
    assert not equal(["-j A", "-j B"], ["-j B", "-j A"])
    assert not equal(["-j A"], ["-j A", "-j A"])
    assert not equal([], ["-j A"])
    assert not equal(["-j A"], ["what is no rule"])
    assert equal([], [])


# Rules of others ------------------------------------------------------------------------------

FOREIGN = [
    "-p tcp -m multiport --dports 80,443 -j ACCEPT",
    "-m set --match-set blocked src -j DROP",
    "-m recent --update --seconds 10 --hitcount 3 --name ssh --rsource -j DROP",
    '-m limit --limit 5/min -j LOG --log-prefix "denied: " --log-level 7',
    "! -p tcp -j ACCEPT",
    "-p icmp -m icmp --icmp-type 8 -j ACCEPT",
    "-o eth0 -j MASQUERADE --to-ports 1024-65535",
    '-s 10.0.0.0/8 -m comment --comment "it\'s \\"quoted\\" \\\\ here" -j RETURN',
    "-p tcp -m tcp --dport 8000:9000 -j ACCEPT",
    "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j TCPMSS --clamp-mss-to-pmtu",
    "-m statistic --mode nth --every 3 --packet 0 -j ACCEPT",
    "-m mark --mark 0x1 -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
    "-f -j DROP",
    "-g OTHER",
]


@pytest.mark.parametrize("text", FOREIGN)
def test_rules_of_others_are_kept(text: str) -> None:
    """Reading loses nothing: what is written again is read as the same rule, word for word."""
    read = read_rule(text)

    assert read_rule(read.text()) == read
    assert sorted(read.text().split()) == sorted(text.split()) or equal([text], [read.text()])


def test_rules_of_others_are_not_ours() -> None:
    """None of them is mistaken for a rule that we write, nor for another of them."""
    ours = {canonical(parse_rule(text)) for text in all_our_rules()}
    theirs = {canonical(parse_rule(text)) for text in FOREIGN}

    assert len(theirs) == len(FOREIGN)
    assert ours.isdisjoint(theirs)


@pytest.mark.parametrize(
    "text",
    [
        "-d",
        "!",
        "-m",
        "-j",
        "-m comment --comment",
        "-m statistic --mode random --probability high -j A",
        "-m statistic --mode random --probability 2 -j A",
        "-j MARK --or-mark many",
        "-m mark --mark x/y -j A",
        '-m comment --comment "open -j A',
        "hello world",
        "ACCEPT",
    ],
)
def test_garbage_is_refused(text: str) -> None:
    """What no tool prints is an error that shows the text, never a guess."""
    with pytest.raises(ParseError) as caught:
        parse_rule(text)
    assert text[text.find('"') + 1 :] in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_a_rule_or_a_parse_error(text: str) -> None:
    """No other exception comes out, whatever the kernel may hold."""
    try:
        read = read_rule(text)
    except ParseError:
        return
    assert read_rule(read.text()) == read


WORDS = st.sampled_from(
    [
        "-m",
        "!",
        "-d",
        "-s",
        "10.0.0.1/32",
        "-p",
        "tcp",
        "--dport",
        "80",
        "-j",
        "A",
        "recent",
        "--set",
        "--name",
        "K",
        "statistic",
        "--mode",
        "random",
        "--probability",
        "0.5",
        "comment",
        '"a b"',
        "--comment",
        "mark",
        "--mark",
        "0x4/0x4",
        "conntrack",
        "--ctstate",
        "NEW",
        "-g",
        "-f",
        "-c",
        "MARK",
        "--set-xmark",
        "0x4/0x0",
        "--seconds",
        "60",
        "--rcheck",
        "--reap",
        "set",
        '"',
        "\\",
    ]
)


@settings(max_examples=300)
@given(st.lists(WORDS, max_size=10).map(" ".join))
def test_words_in_any_order_are_a_rule_or_a_parse_error(text: str) -> None:
    """Half rules, doubled options and options without their module raise nothing else."""
    try:
        read = read_rule(text)
    except ParseError:
        return
    assert isinstance(read, rules.Rule)


# Whole tables ---------------------------------------------------------------------------------

SAVED = """\
# Generated by iptables-save v1.8.9 (nf_tables) on Sun Nov 29 20:50:00 2026
*filter
:INPUT ACCEPT [10:600]
:KUBE-SERVICES - [0:0]
[5:300] -A INPUT -j KUBE-SERVICES
-A INPUT
COMMIT
# Completed on Sun Nov 29 20:50:00 2026
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SVC-A - [0:0]
-A KUBE-SVC-A -m comment --comment "a b" -j ACCEPT
COMMIT
"""


def test_a_saved_text() -> None:
    """Tables, chains with and without rules, and rules without counters and chain."""
    assert parse_save(SAVED) == {
        "filter": {"INPUT": ["-j KUBE-SERVICES", ""], "KUBE-SERVICES": []},
        "nat": {"PREROUTING": [], "KUBE-SVC-A": ['-m comment --comment "a b" -j ACCEPT']},
    }
    assert parse_save("") == {}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-A INPUT -j A\n", 1),
        ("*nat\n-A INPUT -j A\nCOMMIT\n", 2),
        ("*nat\nhello\nCOMMIT\n", 2),
        ("*nat\n:A - [0:0]\n", None),
        ("*nat\nCOMMIT\n:A - [0:0]\n", 3),
        ("*nat\n*filter\nCOMMIT\n", 2),
        ("iptables-save: command not found\n", 1),
        ('*nat\n:A - [0:0]\n-A A -m comment --comment "open\nCOMMIT\n', 3),
    ],
)
def test_a_text_that_is_cut_or_something_else_is_refused(text: str, line: int | None) -> None:
    """The error names the line; half a table is never taken for a whole one."""
    with pytest.raises(ParseError, match=f"line {line}" if line else "COMMIT"):
        parse_save(text)


NEARLY_USUAL = [
    "-m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-AAAA",
    "-m statistic --mode random --probability 0.3 -j KUBE-SEP-AAAA",
    "-m statistic --mode random --probability 0.00000000000 -j KUBE-SEP-AAAA",
    "-m statistic --mode random --probability 1.00000000000 -j KUBE-SEP-AAAA",
    "-m statistic --mode random --probability 0.5 -j DROP",
    "-m statistic --mode random --probability 0.5 -g KUBE-SEP-AAAA",
    "-m statistic --mode random --probability 0.5 -m recent --set -j KUBE-SEP-AAAA",
    "-m statistic --mode random --probability 0.5 -j KUBE-SEP-AAAA -j KUBE-SEP-BBBB",
    "-j KUBE-SEP-AAAA",
    "-j MASQUERADE --random-fully",
    "-j REJECT --reject-with icmp-port-unreachable",
    (
        "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-AAAA --mask 255.255.255.255"
        " --rsource -j KUBE-SEP-AAAA"
    ),
    (
        "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-AAAA"
        " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j KUBE-SEP-BBBB"
    ),
    (
        "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-AAAA --mask 255.255.255.0"
        " --rsource -j KUBE-SEP-AAAA"
    ),
    (
        "-m recent --rcheck --seconds 10800 --name KUBE-SEP-AAAA --mask 255.255.255.255"
        " --rsource -j KUBE-SEP-AAAA"
    ),
    (
        "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-AAAA --mask 255.255.255.255"
        " --rsource -j RETURN"
    ),
]


@pytest.mark.parametrize("text", NEARLY_USUAL)
def test_usual_words_are_read_as_word_by_word(text: str) -> None:
    """Rules of which there are most are told by their text, and mean what their words mean."""
    assert parse.read_rule(text) == parse._read_words(tokens(text))


@pytest.mark.parametrize("text", ["0.x3333333", "1.5", "-0.5", "nan"])
def test_a_chance_that_is_none_is_told_with_its_rule(text: str) -> None:
    """As word by word, though its rule looks like a usual one."""
    rule = f"-m statistic --mode random --probability {text} -j KUBE-SEP-AAAA"
    with pytest.raises(ParseError) as caught:
        parse.read_rule(rule)
    assert str(caught.value).endswith(f": {rule}")


def test_which_rules_are_told_by_their_text() -> None:
    """Those of a lottery with and without affinity; all others are read word by word."""
    assert [NEARLY_USUAL.index(text) for text in NEARLY_USUAL if parse._usual(text)] == [
        0, 8, 11, 12,
    ]  # fmt: skip
