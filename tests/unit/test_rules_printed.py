from __future__ import annotations

from pathlib import Path

import pytest

from agent.inspect.tables import read_tables
from agent.inspect.usual import UsualEndpoint
from agent.rules.parse import canonical, read_rule
from agent.rules.printed import printed, printed_share
from agent.state.values import Family
from tests.fakes.dumps import rules_for, sample_store
from tests.parity.case import build
from tests.parity.written import load_written

DUMPS = Path(__file__).parents[1] / "data/dumps"
WRITTEN = load_written()
MASK = "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource"


def _ours() -> dict[str, tuple[str, ...]]:
    """Chains that the saved dumps hold, with their rules in our words."""
    services = rules_for(sample_store()).services.values()
    return dict(pair for ports in services for one in ports.values() for pair in one.chains)


@pytest.mark.parametrize("name", ["iptables-nft", "iptables-legacy"])
def test_what_the_tools_print_is_told_to_the_letter(name: str) -> None:
    """Lotteries, portals and endpoints, with affinity and without, as both backends saved them."""
    tables = read_tables((DUMPS / f"{name}.txt").read_text())
    lotteries = 0
    for chain, texts in _ours().items():
        held = tables.tables["nat"][chain]
        if chain.startswith("KUBE-SEP-"):
            assert isinstance(held.usual, UsualEndpoint), held
            assert held.usual.as_written() == texts
        elif chain.startswith(("KUBE-SVC-", "KUBE-SVL-")):
            lotteries += 1
            assert [printed(text, Family.V4) for text in texts] == [e.text for e in held.entries]
    assert lotteries > 4
    portals = [text for _, text in rules_for(sample_store()).shared(("nat", "KUBE-SERVICES"))]
    found = {printed(text, Family.V4) for text in portals[:-1]}
    assert found < {entry.text for entry in tables.entries("nat", "KUBE-SERVICES")}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            "-m recent --name KUBE-SEP-X --rcheck --seconds 60 --reap -j KUBE-SEP-X",
            f"-m recent --rcheck --seconds 60 --reap --name KUBE-SEP-X {MASK} -j KUBE-SEP-X",
        ),
        (
            "-m comment --comment ns/a:b -m tcp -p tcp -d fd00::1 --dport 80 -j KUBE-EXT-X",
            '-d fd00::1/128 -p tcp -m comment --comment "ns/a:b" -m tcp --dport 80 -j KUBE-EXT-X',
        ),
    ],
)
def test_of_ipv6_as_well(ours: str, theirs: str) -> None:
    """With its own masks and prefixes."""
    assert printed(ours, Family.V6) == theirs


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("-m tcp -p tcp --dport 80 -j A", "-p tcp -m tcp --dport 80 -j A"),
        (
            "-m udp -p udp -d 10.96.0.1 --dport 53 -j A",
            "-d 10.96.0.1/32 -p udp -m udp --dport 53 -j A",
        ),
        (
            "-m tcp -p tcp -d 10.0.0.0/8 --dport 80 -j A",
            "-d 10.0.0.0/8 -p tcp -m tcp --dport 80 -j A",
        ),
        (
            "-m comment --comment a -m tcp -p tcp -d 10.96.0.1 --dport 80 ! -s 10.64.0.0/10 -j A",
            (
                '! -s 10.64.0.0/10 -d 10.96.0.1/32 -p tcp -m comment --comment "a"'
                " -m tcp --dport 80 -j A"
            ),
        ),
        (
            "-m tcp -p tcp --dport 80 ! -s 10.64.0.0/10 -j A",
            "! -s 10.64.0.0/10 -p tcp -m tcp --dport 80 -j A",
        ),
        (
            '-m comment --comment "->" -m statistic --mode random --probability 0.3333333333 -j A',
            (
                '-m comment --comment "->" -m statistic --mode random'
                " --probability 0.33333333349 -j A"
            ),
        ),
        (
            '-m comment --comment "a -> b" -m recent --name K --rcheck --seconds 60 --reap -j K',
            (
                '-m comment --comment "a -> b" -m recent --rcheck --seconds 60 --reap --name K'
                " --mask 255.255.255.255 --rsource -j K"
            ),
        ),
        ("-m comment --comment a -j A", '-m comment --comment "a" -j A'),
    ],
)
def test_each_kind_of_which_there_are_many(ours: str, theirs: str) -> None:
    """Addresses come first and have their prefix, comments are quoted, masks are spelt."""
    assert printed(ours, Family.V4) == theirs


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "-j KUBE-MARK-MASQ",
        "-m comment --comment a",
        '-m comment --comment "a b"',
        "-m recent --name K --set -j A",
        "-m recent --name K --set ! -i eth0 -j A",
        "-m recent --name K --rcheck --seconds 60 --reap -i eth0 -j A",
        '-m comment --comment "a b" -m addrtype --dst-type LOCAL -m tcp -p tcp --dport 80 -j A',
    ],
)
def test_anything_else_stays_as_it_is(rule: str) -> None:
    """It is read for its meaning then."""
    assert printed(rule, Family.V4) == rule


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_told_never_means_anything_else(name: str) -> None:
    """Of every rule of the written-down states, read back; so equal text is equal meaning."""
    case = WRITTEN[name]
    _, rules = build(case)
    for chains in rules.tables().values():
        for texts in chains.values():
            for text in texts:
                theirs = printed(text, Family(case["config"]["ipFamily"]))
                assert canonical(read_rule(theirs)) == canonical(read_rule(text))


def test_shares_as_the_tools_print_them() -> None:
    """As multiples of 2^-31, with eleven decimals."""
    assert [printed_share(one_in) for one_in in (1, 2, 3, 1000)] == [
        "1.00000000000",
        "0.50000000000",
        "0.33333333349",
        "0.00100000016",
    ]
