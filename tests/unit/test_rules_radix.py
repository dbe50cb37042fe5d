from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rules import radix
from agent.rules.radix import ROOT, Branch, Entry, Radix
from tests.fakes.cluster import key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.rules.dispatch import Owner

OWNER: Owner = (key(), "", "tcp")


def name(branch: Branch) -> str:
    return f"B{branch.bits}-{branch.value:x}"


def tree(address_bits: int = 32) -> Radix:
    return Radix(address_bits, name)


def entry(of: Radix, address: str, port: int, protocol: str = "tcp", position: int = 0) -> Entry:
    text = f"{address} {protocol} {port} {position}"
    return Entry(of.key(address, protocol, port), OWNER, position, text)


def filled(ports: Iterable[tuple[str, int]], address_bits: int = 32) -> Radix:
    found = tree(address_bits)
    for address, port in ports:
        found.add(entry(found, address, port))
    found.flush()
    return found


def texts(of: Radix, branch: Branch = ROOT) -> list[str]:
    return [text for _, text in of.chains[branch]]


def test_few_rules_stand_in_the_root() -> None:
    """Up to 32 rules are one chain, in the order of their keys."""
    found = filled((f"10.0.0.{last}", 80) for last in range(32, 0, -1))

    assert list(found.chains) == [ROOT]
    assert texts(found)[:2] == ["10.0.0.1 tcp 80 0", "10.0.0.2 tcp 80 0"]


def test_many_rules_hang_below_the_prefix_that_they_share() -> None:
    """33 rules of one /24 are split by the half byte behind what they share."""
    found = filled((f"10.96.7.{last}", 80) for last in range(33))

    assert texts(found) == [
        "-d 10.96.7.0/28 -j B28-a60070",
        "-d 10.96.7.16/28 -j B28-a60071",
        "10.96.7.32 tcp 80 0",
    ]
    assert texts(found, Branch(28, 0xA60070)) == [f"10.96.7.{n} tcp 80 0" for n in range(16)]


def test_ports_of_one_address_are_told_apart_by_protocol_and_range() -> None:
    """Below a whole address come the protocol and ranges of ports."""
    found = tree()
    for port in range(4096, 4096 + 40):
        found.add(entry(found, "10.96.0.1", port))
    for port in range(3):
        found.add(entry(found, "10.96.0.1", port + 1, "udp"))
    found.flush()

    assert texts(found) == [
        "-m tcp -p tcp -d 10.96.0.1 -j B36-a6000010",
        "-m udp -p udp -d 10.96.0.1 -j B36-a6000011",
    ]
    tcp = found.chains[Branch(36, 0xA6000010)]
    assert [text for _, text in tcp] == [
        f"-m tcp -p tcp -d 10.96.0.1 --dport {first}:{first + 15} -j B48-a60000101{n:02x}"
        for n, first in enumerate((4096, 4112))
    ] + ["-m tcp -p tcp -d 10.96.0.1 --dport 4128:4143 -j B48-a6000010102"]


def test_ports_of_another_protocol() -> None:
    """A range of ports is one of the protocol's."""
    found = tree()
    for port in range(4096, 4096 + 33):
        found.add(entry(found, "10.96.0.1", port, "udp"))
    found.flush()

    assert texts(found) == [
        "-m udp -p udp -d 10.96.0.1 --dport 4096:4111 -j B48-a6000011100",
        "-m udp -p udp -d 10.96.0.1 --dport 4112:4127 -j B48-a6000011101",
        "10.96.0.1 udp 4128 0",
    ]


def test_rules_without_an_address() -> None:
    """Node ports are told apart by protocol and port alone."""
    found = filled((("", 30000 + n) for n in range(33)), 0)

    assert texts(found) == [
        "-m tcp -p tcp --dport 30000:30015 -j B16-753",
        "-m tcp -p tcp --dport 30016:30031 -j B16-754",
        " tcp 30032 0",
    ]


def test_ipv6() -> None:
    """Addresses of 128 bits, with their prefixes written short."""
    found = filled(((f"fd00::{n:x}", 80) for n in range(1, 40)), 128)

    assert texts(found) == [
        "-d fd00::/124 -j B124-fd00000000000000000000000000000",
        "-d fd00::10/124 -j B124-fd00000000000000000000000000001",
        "-d fd00::20/124 -j B124-fd00000000000000000000000000002",
    ]


def test_rules_for_one_destination_are_never_split() -> None:
    """However many match the same packets, they stand together in their order."""
    found = tree()
    for position in range(50):
        found.add(entry(found, "10.96.0.1", 80, position=position))
    found.flush()

    assert texts(found) == [f"10.96.0.1 tcp 80 {position}" for position in range(50)]


def test_a_rule_that_is_not_there_cannot_be_removed() -> None:
    """That would be a fault of the caller, and is not passed over."""
    found = filled([("10.0.0.1", 80)])

    with pytest.raises(KeyError, match="tcp 81"):
        found.remove(entry(found, "10.0.0.1", 81))


def test_one_rule_more_concerns_its_way_alone() -> None:
    """Of 640 rules in a tree, adding one changes a single chain, until that has to be split."""
    found = filled((f"10.96.{a}.{b}", 80) for a in range(32) for b in range(20))
    leaf = Branch(24, 0xA6005)
    found.add(entry(found, "10.96.5.7", 81))

    assert found.flush() == ({leaf}, set())
    assert found.flush() == (set(), set())
    for port in range(82, 94):
        found.add(entry(found, "10.96.5.7", port))
    assert found.flush() == ({leaf, Branch(28, 0xA60050), Branch(28, 0xA60051)}, set())


def test_a_branch_goes_with_all_below_it() -> None:
    """And comes back with it; nothing of it is kept in between."""
    branches = {Branch(28, 0xA00000), Branch(32, 0xA000001), Branch(36, 0xA0000010)}
    with mock.patch.multiple(radix, LIMIT=2, INLINE=1):
        found = filled([("10.0.0.1", 80), ("10.0.0.17", 80)])
        more = [
            entry(found, "10.0.0.1", 81),
            entry(found, "10.0.0.1", 80, "udp"),
            entry(found, "10.0.0.2", 80),
        ]
        for _ in range(2):
            for one in more:
                found.add(one)
            assert found.flush() == (branches | {ROOT}, set())
            assert found.chains.keys() == branches | {ROOT}
            assert found.count == 2 + 2 + 2 + 2
            for one in more:
                found.remove(one)
            assert found.flush() == ({ROOT}, branches)
            assert texts(found) == ["10.0.0.1 tcp 80 0", "10.0.0.17 tcp 80 0"]
            assert (found.count, list(found._children), found._jumps) == (2, [ROOT], {})


def test_branches_of_two_sides_go_at_once() -> None:
    """Each with all below it, whichever side the first rule is on that is looked at."""
    with mock.patch.multiple(radix, LIMIT=2, INLINE=1):
        found = filled([("10.0.0.1", 80), ("10.1.0.1", 80)])
        more = [
            entry(found, f"10.{side}.0.{last}", port, protocol)
            for side in (0, 1)
            for last, port, protocol in ((1, 81, "tcp"), (1, 80, "udp"), (2, 80, "tcp"))
        ]
        branches = {
            Branch(bits, 0xA000_0010 + (side << 20) >> 36 - bits)
            for side in (0, 1)
            for bits in (16, 32, 36)
        }
        for one in more:
            found.add(one)
        assert found.flush() == (branches | {ROOT}, set())
        for one in more:
            found.remove(one)
        assert found.flush() == ({ROOT}, branches)
        assert (found.count, list(found._children), found._jumps) == (2, [ROOT], {})


def test_a_branch_goes_and_leaves_what_is_below_it() -> None:
    """The one below hangs from the one above then, as it is."""
    upper, lower = Branch(28, 0xA00000), Branch(32, 0xA000001)
    with mock.patch.multiple(radix, LIMIT=2, INLINE=1):
        found = filled([("10.0.0.1", 80), ("10.0.0.1", 81), ("10.0.0.2", 80), ("10.0.0.17", 80)])
        found.remove(entry(found, "10.0.0.17", 80))
        assert found.flush() == ({ROOT}, {upper})
        assert texts(found) == ["-d 10.0.0.1 -j B32-a000001", "10.0.0.2 tcp 80 0"]
        assert texts(found, lower) == ["10.0.0.1 tcp 80 0", "10.0.0.1 tcp 81 0"]
        assert (found.count, list(found._jumps)) == (4, [lower])


def test_single_ports_are_told_apart() -> None:
    """A branch of one port names it, and not a range of one."""
    with mock.patch.multiple(radix, LIMIT=2, INLINE=1):
        found = tree()
        for port, position in ((80, 0), (80, 1), (81, 0)):
            found.add(entry(found, "10.0.0.1", port, position=position))
        found.flush()

    assert texts(found) == [
        "-m tcp -p tcp -d 10.0.0.1 --dport 80 -j B52-a00000100050",
        "10.0.0.1 tcp 81 0",
    ]


def test_many_rules_at_once_change_what_differs() -> None:
    """A tree that is built anew has the branches that it had, and those have not changed."""
    found = filled((f"10.96.7.{last}", 80) for last in range(33))
    for last in range(65):
        found.add(entry(found, f"10.97.{last}.1", 80))
    changed, gone = found.flush()

    assert {ROOT, Branch(16, 0xA60)} < changed
    assert changed.isdisjoint({Branch(28, 0xA60070), Branch(28, 0xA60071)})
    assert gone == set()
    assert found.count == sum(map(len, found.chains.values()))
    for last in range(65):
        found.remove(entry(found, f"10.97.{last}.1", 80))
    assert found.flush() == ({ROOT}, changed - {ROOT})
    assert found.count == 35


ADDRESSES = st.sampled_from([f"10.{a}.0.{b}" for a in (0, 96, 97) for b in (1, 2, 17, 18, 200)])
RULES = st.tuples(ADDRESSES, st.sampled_from([53, 80, 8080]), st.sampled_from(["tcp", "udp"]))
#: Rules to be there, one set after the other; None forgets to look in between.
HISTORIES = st.lists(st.tuples(st.sets(RULES, max_size=30), st.booleans()), max_size=6)


@given(HISTORIES, st.integers(1, 4), st.integers(0, 2), st.sampled_from([0, 64]))
def test_the_tree_depends_on_the_rules_alone(
    history: list[tuple[set[tuple[str, int, str]], bool]], limit: int, inline: int, many: int
) -> None:
    """Whatever came and went, and whenever it was looked at, the chains are those of a tree that
    was built at once, and what is reported as changed and gone is what differs."""
    with mock.patch.multiple(radix, LIMIT=limit, INLINE=inline, _MANY=many):
        grown, known, seen = tree(), set[tuple[str, int, str]](), {ROOT: tree().chains[ROOT]}
        for rules, look in history:
            for address, port, protocol in rules - known:
                grown.add(entry(grown, address, port, protocol))
            for address, port, protocol in known - rules:
                grown.remove(entry(grown, address, port, protocol))
            known = rules
            if not look:
                continue
            changed, gone = grown.flush()
            for branch in gone:
                del seen[branch]
            seen |= {branch: grown.chains[branch] for branch in changed}
            fresh = tree()
            for address, port, protocol in rules:
                fresh.add(entry(fresh, address, port, protocol))
            fresh.flush()

            assert grown.chains == fresh.chains == seen
            assert grown.count == sum(map(len, grown.chains.values()))


@given(st.sets(RULES, max_size=30), st.integers(1, 4), st.integers(0, 2))
def test_every_rule_is_in_the_tree_once(
    rules: set[tuple[str, int, str]], limit: int, inline: int
) -> None:
    """No rule is lost or doubled, and every branch is jumped to exactly once."""
    with mock.patch.multiple(radix, LIMIT=limit, INLINE=inline):
        found = tree()
        for address, port, protocol in rules:
            found.add(entry(found, address, port, protocol))
        found.flush()
    lines = [text for texts_ in found.chains.values() for _, text in texts_]
    jumps = [text.rpartition("-j ")[2] for text in lines if "-j " in text]

    assert sorted(text for text in lines if "-j " not in text) == sorted(
        f"{address} {protocol} {port} 0" for address, port, protocol in rules
    )
    assert sorted(jumps) == sorted(name(branch) for branch in found.chains if branch != ROOT)
