"""The walk itself; ``tests/kernel/test_walker.py`` holds it against the kernel."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from agent.inspect.packet import Host, Packet, contains, split_endpoint
from agent.inspect.path import End, Kind, Outcome, Way, outcomes
from agent.inspect.tables import Tables, read_tables
from agent.inspect.walk import TooLongError, walk
from agent.rules.words import ParseError
from agent.state.values import Family
from tests.fakes.dumps import IPS, rules_for, sample_store, saved

DUMPS = Path(__file__).parents[1] / "data/dumps"
HOST = Host(frozenset({"192.0.2.10"}), {"172.17.0.2": "docker0"}.get)
SOUND = read_tables(saved(rules_for(sample_store())), Family.V4)
OTHERS = read_tables((DUMPS / "iptables-nft.txt").read_text("utf-8"))
THIRD = Fraction(1, 3)


def packet(destination: str, port: int = 80, **fields: object) -> Packet:
    """A TCP packet from outside, by eth0."""
    values: dict[str, object] = {"protocol": "tcp", "source": "203.0.113.7", "interface": "eth0"}
    return Packet(Family.V4, destination=destination, port=port, **(values | fields))  # type: ignore[arg-type]  # names of fields


def ends(way: Way) -> dict[tuple[str, str, bool], Fraction]:
    """End, endpoint and masquerading with their chances."""
    found = outcomes(way).usual
    return {(o.end.name, o.endpoint, o.masqueraded): chance for o, chance in found.items()}


def tables(*lines: str, table: str = "filter") -> Tables:
    """A dump of one table with built-in chains."""
    chains = {
        "filter": "INPUT FORWARD OUTPUT",
        "nat": "PREROUTING INPUT OUTPUT POSTROUTING",
        "mangle": "PREROUTING INPUT FORWARD OUTPUT POSTROUTING",
        "raw": "PREROUTING OUTPUT",
    }
    text = [f"*{table}", *(f":{chain} ACCEPT [0:0]" for chain in chains[table].split())]
    user = {line.split()[1] for line in lines} - set(chains[table].split())
    return read_tables("\n".join([*text, *(f":{c} - [0:0]" for c in user), *lines, "COMMIT", ""]))


def test_each_endpoint_gets_exactly_one_nth() -> None:
    """From outside, to the cluster IP: a third each, masqueraded."""
    way = walk(SOUND, packet("10.96.0.1"), HOST)

    assert ends(way) == {("PASSED", f"{ip}:8080", True): THIRD for ip in IPS}


def test_a_pod_is_masqueraded_only_towards_itself() -> None:
    """Its own packets keep their source, but for the third that comes back to it."""
    way = walk(SOUND, packet("10.96.0.1", source="10.64.0.1", interface="cbr0"), HOST)

    assert ends(way) == {
        ("PASSED", "10.64.0.1:8080", True): THIRD,
        ("PASSED", "10.64.0.2:8080", False): THIRD,
        ("PASSED", "10.64.1.3:8080", False): THIRD,
    }


def test_a_local_policy_keeps_traffic_on_the_node_and_its_source() -> None:
    """Two of three endpoints are here; the node itself and pods may use all three."""
    outside = walk(SOUND, packet("192.0.2.10", 30081), HOST)
    node = walk(SOUND, packet("192.0.2.10", 30081, source="192.0.2.10", interface=""), HOST)

    assert ends(outside) == {("PASSED", f"{ip}:8080", False): Fraction(1, 2) for ip in IPS[:2]}
    assert ends(node) == {("PASSED", f"{ip}:8080", True): THIRD for ip in IPS}


def test_who_is_not_in_the_source_ranges_is_dropped() -> None:
    """By the rule of KUBE-PROXY-FIREWALL; who is in them is served."""
    (dropped,) = outcomes(walk(SOUND, packet("198.51.100.2"), HOST)).usual
    served = walk(SOUND, packet("198.51.100.2", source="192.0.2.77"), HOST)

    assert dropped.end is End.DROPPED
    assert str(dropped.by) == "filter KUBE-PROXY-FIREWALL rule 1"
    assert ends(served) == {("PASSED", f"{ip}:8080", False): Fraction(1, 2) for ip in IPS[:2]}


def test_a_service_without_endpoints_is_rejected() -> None:
    """Forwarded and the node's own packets alike."""
    for interface in ("eth0", ""):
        (found,) = outcomes(walk(SOUND, packet("10.96.0.4", interface=interface), HOST)).usual
        assert found.end is End.REJECTED
        assert str(found.by) == "filter KUBE-SERVICES rule 1"


def test_affinity_is_a_way_of_its_own() -> None:
    """A remembered client goes where it was, another one by the dice."""
    way = walk(SOUND, packet("10.96.0.3"), HOST)
    branches = way.branches

    assert [b.kind for b in branches] == [Kind.AFFINITY] * 3 + [Kind.CHANCE] * 3
    assert [b.conditional for b in branches] == [True] * 3 + [False] * 3
    assert ends(way) == {("PASSED", f"{ip}:8080", True): THIRD for ip in IPS}
    assert "10800 s" in branches[0].condition


def test_trees_and_flat_lists_lead_to_the_same_ends() -> None:
    """The layout of the dispatch makes no difference to a packet."""
    many = rules_for(sample_store(), layout="tree")
    tree = read_tables(saved(many), Family.V4)

    for destination, port in (("10.96.0.1", 80), ("192.0.2.10", 30080), ("10.96.0.99", 80)):
        one = packet(destination, port)
        assert ends(walk(SOUND, one, HOST)) == ends(walk(tree, one, HOST))


def test_established_flows_meet_no_nat() -> None:
    """Where they go has been decided; KUBE-FORWARD accepts them."""
    (found,) = outcomes(walk(SOUND, packet("10.96.0.1", state="ESTABLISHED"), HOST)).usual

    assert (found.end, found.endpoint) == (End.PASSED, "")


def test_invalid_packets_are_dropped() -> None:
    """By the first rule of KUBE-FORWARD."""
    (found,) = outcomes(walk(SOUND, packet("10.64.0.1", state="INVALID"), HOST)).usual

    assert str(found.by) == "filter KUBE-FORWARD rule 1"


def test_the_node_to_itself_comes_back_by_loopback() -> None:
    """OUTPUT, POSTROUTING, then INPUT by lo, and no second translation."""
    held = tables("-A INPUT -i lo -p tcp -m tcp --dport 22 -j DROP")
    (found,) = outcomes(walk(held, packet("192.0.2.10", 22, interface=""), HOST)).usual

    assert (found.end, str(found.by)) == (End.DROPPED, "filter INPUT rule 1")


# Rules of others -----------------------------------------------------------------------------


def test_rules_of_others_drop_and_reject() -> None:
    """Docker's user chain, and fail2ban behind a list of ports."""
    banned = packet("10.96.0.1", source="203.0.113.66")
    dropped = {str(outcome.by) for outcome in outcomes(walk(OTHERS, banned, HOST)).usual}
    guessing = packet("192.0.2.10", 22, source="198.51.100.9")
    (rejected,) = outcomes(walk(OTHERS, guessing, HOST)).usual

    assert dropped == {"filter DOCKER-USER rule 1"}
    assert str(rejected.by) == "filter f2b-sshd rule 1"


def test_published_ports_of_others_are_translated() -> None:
    """Docker's DNAT behind addrtype, but not for what comes from its own bridge."""
    way = walk(OTHERS, packet("192.0.2.10", 8088), HOST)
    inside = walk(OTHERS, packet("192.0.2.10", 8088, interface="docker0"), HOST)

    assert {o.endpoint for o in outcomes(way).possible} == {"172.17.0.2:80"}
    assert {o.endpoint for o in outcomes(inside).possible} == {""}


def test_what_rules_alone_do_not_tell_forks_the_way() -> None:
    """A limit may hold or not: both ways are given, and what it depends on is said."""
    way = walk(OTHERS, packet("192.0.2.10", 4444, source="192.0.2.3", interface="eth1"), HOST)
    (may, otherwise) = way.branches

    assert may.kind is Kind.UNKNOWN
    assert "--limit 25/sec" in may.condition
    assert otherwise.condition == ""
    assert {o.end for o in way.leaves()} == {End.PASSED}


def test_untracked_flows_meet_no_nat() -> None:
    """What raw excludes from tracking cannot be translated."""
    one = packet("192.0.2.200", 8472, protocol="udp")
    way = walk(OTHERS, one, HOST)

    assert way.steps[0].detail == "not tracked"


def test_source_translation_of_others_is_named() -> None:
    """SNAT to an address, for a mark with a mask."""
    one = packet("203.0.113.80", source="10.200.1.1", mark=0x2)
    (found,) = outcomes(walk(OTHERS, one, HOST)).usual

    assert found.source == "192.0.2.77"


@pytest.mark.parametrize(
    ("lines", "end", "by"),
    [
        (["-A FORWARD -g A", "-A FORWARD -j DROP", "-A A -j RETURN"], "PASSED", None),
        (["-A FORWARD -j A", "-A FORWARD -j DROP", "-A A -j RETURN"], "DROPPED", "FORWARD rule 2"),
        (["-A FORWARD -j A", "-A A -g B", "-A A -j DROP", "-A B -j LOG"], "PASSED", None),
        (["-A FORWARD -p tcp -m multiport --dports 79,80:90 -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -p tcp -m multiport ! --dports 80 -j DROP"], "PASSED", None),
        (["-A FORWARD -p tcp -m tcp --dport 81:90 -j DROP"], "PASSED", None),
        (["-A FORWARD -p tcp -m tcp ! --dport 81 -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -p icmp -j DROP"], "PASSED", None),
        (["-A FORWARD ! -p udp -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -f -j DROP"], "PASSED", None),
        (["-A FORWARD -m state --state NEW -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -m mark --mark 0x10/0xf0 -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -m mark --mark 0x11 -j DROP"], "PASSED", None),
        (["-A FORWARD -i eth+ -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD ! -i eth0 -j DROP"], "PASSED", None),
        (["-A FORWARD -o docker0 -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -o lo -j DROP"], "PASSED", None),
        (
            ["-A FORWARD -m conntrack --ctorigdst 172.17.0.0/16 -j DROP"],
            "DROPPED",
            "FORWARD rule 1",
        ),
        (["-A FORWARD -s 203.0.113.0/255.255.255.0 -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -s 0.0.113.7/0.0.255.255 -j DROP"], "DROPPED", "FORWARD rule 1"),
        (["-A FORWARD -m addrtype --src-type LOCAL -j DROP"], "PASSED", None),
        (["-A FORWARD -m statistic --mode random ! --probability 1.0 -j DROP"], "PASSED", None),
        (
            ["-A FORWARD -j NFLOG --nflog-group 1", "-A FORWARD -j DROP"],
            "DROPPED",
            "FORWARD rule 2",
        ),
        (["-A FORWARD -j A"], "UNKNOWN", "FORWARD rule 1"),
        (["-A FORWARD -j NFQUEUE --queue-num 0"], "UNKNOWN", "FORWARD rule 1"),
    ],
)
def test_single_rules_of_others(lines: list[str], end: str, by: str | None) -> None:
    """Each match and target does what iptables-extensions(8) says of it."""
    one = packet("172.17.0.2", mark=0x10)
    (found,) = outcomes(walk(tables(*lines), one, HOST)).usual

    assert found.end.name == end
    assert (str(found.by) if found.by else None) == (f"filter {by}" if by else None)


@pytest.mark.parametrize(
    ("target", "mark"),
    [
        ("MARK --set-xmark 0x4/0x4", 0x14),
        ("MARK --set-xmark 0x4/0xffffffff", 0x4),
        ("MARK --set-xmark 0x10/0x0", 0x0),
        ("MARK --set-xmark 0x0/0x10", 0x0),
        ("MARK --set-mark 0x3/0xf", 0x13),
        ("MARK --and-mark 0xf0", 0x10),
        ("CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff", 0x0),
        ("CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff", 0x10),
    ],
)
def test_marks_are_set_as_the_kernel_does(target: str, mark: int) -> None:
    """A later rule sees the new mark, and no other."""
    held = tables(
        f"-A PREROUTING -j {target}",
        f"-A PREROUTING -m mark ! --mark {mark:#x} -j DROP",
        table="mangle",
    )
    (found,) = outcomes(walk(held, packet("172.17.0.2", mark=0x10), HOST)).usual

    assert found.end is End.PASSED


@pytest.mark.parametrize(
    ("target", "endpoint"),
    [
        ("DNAT --to-destination 10.0.0.9", "10.0.0.9:80"),
        ("DNAT --to-destination 10.0.0.9:99 --random", "10.0.0.9:99"),
        ("REDIRECT --to-ports 8080", "127.0.0.1:8080"),
        ("REDIRECT", "127.0.0.1:80"),
    ],
)
def test_translations_of_others(target: str, endpoint: str) -> None:
    """With and without a port."""
    held = tables(f"-A PREROUTING -p tcp -j {target}", table="nat")
    (found,) = outcomes(walk(held, packet("192.0.2.10"), HOST)).usual

    assert found.endpoint == endpoint


def test_a_range_of_endpoints_is_not_guessed() -> None:
    """Which address of a DNAT range is chosen is not in the rules."""
    held = tables("-A PREROUTING -j DNAT --to-destination 10.0.0.1-10.0.0.9", table="nat")
    (found,) = outcomes(walk(held, packet("192.0.2.10"), HOST)).usual

    assert (found.end, found.why) == (End.UNKNOWN, "which of 10.0.0.1-10.0.0.9 is chosen")


def test_a_policy_drops_what_no_rule_decided() -> None:
    """It is named as the chain's policy."""
    held = read_tables("*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
    (found,) = outcomes(walk(held, packet("172.17.0.2"), HOST)).usual

    assert (found.end, str(found.by)) == (End.DROPPED, "filter FORWARD policy")


def test_conditions_that_make_no_difference_are_left_out() -> None:
    """A set that leads into a chain where nothing happens does not fork the way."""
    held = tables(
        "-A FORWARD -m set --match-set a src -j A",
        "-A A -m set --match-set b src -j LOG",
        "-A A -j RETURN",
    )
    way = walk(held, packet("172.17.0.2"), HOST)

    assert (way.branches, way.outcome) == ((), Outcome(End.PASSED))


def test_many_conditions_in_a_row_cost_little() -> None:
    """Ways that meet again are walked once: fifty sets do not make 2^50 ways."""
    lines = [f"-A FORWARD -m set --match-set s{n} src -j C{n}" for n in range(50)]
    lines += [f"-A C{n} -m set --match-set t{n} src -j DROP" for n in range(50)]
    way = walk(tables(*lines), packet("172.17.0.2"), HOST)

    assert {o.end for o in way.leaves()} == {End.PASSED, End.DROPPED}
    assert len(list(way.leaves())) < 200


def test_what_cannot_be_followed_to_its_end_is_said() -> None:
    """More rules than the budget allows, or a loop, end the walk with a reason."""
    for jump in ("-j", "-g"):
        loop = tables("-A FORWARD -j A", f"-A A {jump} B", f"-A B {jump} A")
        with pytest.raises(TooLongError):
            walk(loop, packet("172.17.0.2"), HOST, budget=1000)
    with pytest.raises(TooLongError):
        walk(SOUND, packet("10.96.0.1"), HOST, budget=5)


def test_a_rule_with_an_impossible_value_is_named() -> None:
    """Not a bare ValueError."""
    held = tables("-A FORWARD -s nowhere -j DROP")

    with pytest.raises(ParseError, match="filter FORWARD rule 1: 'nowhere' is not an address"):
        walk(held, packet("172.17.0.2"), HOST)


def test_a_broken_lottery_shows_what_falls_through() -> None:
    """A last rule with 1/2 loses a sixth: it leaves the node untranslated."""
    text = saved(rules_for(sample_store()))
    broken = text.replace(
        "-j KUBE-SEP-43AHXAV7RWTHCVFD",
        "-m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-43AHXAV7RWTHCVFD",
    )
    found = outcomes(walk(read_tables(broken, Family.V4), packet("10.96.0.1"), HOST)).usual

    lost = sum(chance for outcome, chance in found.items() if not outcome.endpoint)
    assert lost == Fraction(1, 6)
    assert sum(found.values()) == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("fd00::1", ("fd00::1", 0)),
        ("10.0.0.1", ("10.0.0.1", 0)),
        ("[fd00::1]", ("fd00::1", 0)),
    ],
)
def test_endpoints_are_split(text: str, parts: tuple[str, int]) -> None:
    """In both families, with and without a port."""
    assert split_endpoint(text) == parts


def test_ranges_of_any_mask_are_understood() -> None:
    """Also one that is no prefix."""
    assert contains("10.0.0.0/8", "10.255.0.1")
    assert not contains("10.0.0.0/9", "10.255.0.1")
    assert contains("0.0.0.7/0.0.0.255", "192.0.2.7")
    assert contains("fd00::/64", "fd00::9")
