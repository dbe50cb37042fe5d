"""What is told of a chain at a glance is what reading it word by word tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.inspect import tables
from agent.inspect.compare import compare
from agent.inspect.tables import read_tables
from agent.inspect.usual import UsualEndpoint, UsualLottery, usual
from agent.inspect.verify import verify
from agent.rules.printed import printed
from agent.rules.words import ParseError
from agent.state.values import Family
from agent.sync.plan import Planner
from tests.fakes.dumps import Broken, rules_for, sample_store, saved, survey
from tests.unit.test_inspect_verify import FAULTS

if TYPE_CHECKING:
    from agent.inspect.compare import Change
    from agent.inspect.findings import Finding

RULES = rules_for(sample_store())
SOUND = saved(RULES)
#: Words that only small clusters have in rules of endpoints.
COMMENT = re.compile(
    r"^(-A KUBE-(?:SEP-\S+ .*?|SVC-\S+|SVL-\S+)) -m comment --comment"
    r' "[a-z/:]+(?: -> [^"]*)?"',
    re.MULTILINE,
)

SEP = "KUBE-SEP-KZ2AHDPWGJUWU6GP"
MARKING = '-s 10.64.0.1/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ'
TRANSLATING = (
    '-p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.64.0.1:8080'
)


def _run(chain: str, *rules: str) -> str:
    return "".join(f"-A {chain} {rule}\n" for rule in rules)


def _plain(text: str) -> str:
    """A dump as in a large cluster: rules of endpoints carry no comments."""
    return COMMENT.sub(r"\1", text)


def _told(text: str) -> tuple[list[Finding], list[Change]] | str:
    """What is wrong, and what the agent would change; or why that cannot be told."""
    try:
        held = survey(text)
        found = verify(held, tcp_be_liberal=False)
        return found, compare(held, RULES, Planner(RULES).jumps())
    except ParseError as error:
        return str(error)


def _both_ways(text: str) -> tuple[object, object]:
    """What is told with a glance, and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "usual", lambda _chain, _run: None)
        slowly = _told(text)
    return _told(text), slowly


# Endpoints -----------------------------------------------------------------------------------


def test_a_usual_endpoint_is_told_by_its_text() -> None:
    """Its address, protocol and comment."""
    found = usual(SEP, _run(SEP, MARKING, TRANSLATING))

    assert found == UsualEndpoint("10.64.0.1", "10.64.0.1:8080", "tcp", "shop/web:http", "")


@pytest.mark.parametrize(
    ("marking", "translating"),
    [
        (MARKING.replace("10.64.0.1", "10.64.0.2"), TRANSLATING),
        (MARKING.replace("-s", "! -s"), TRANSLATING),
        (MARKING.replace("/32", "/24"), TRANSLATING),
        (MARKING.replace("MARK-MASQ", "MARK-DROP"), TRANSLATING),
        (MARKING.replace("shop/web:http", "shop/wob:http"), TRANSLATING),
        (MARKING.replace("shop/web:http", 'shop/web:http\\"'), TRANSLATING),
        (MARKING, TRANSLATING.replace("-m tcp", "-m udp")),
        (MARKING, TRANSLATING.replace("-p tcp", "-p tcp -i eth0")),
        (MARKING, TRANSLATING.replace("-m tcp", "-m tcp --dport 80")),
        (MARKING, TRANSLATING.replace(":8080", ":8080 --random")),
        (MARKING, TRANSLATING.replace(":8080", ":8080-8090")),
        (TRANSLATING, MARKING),
    ],
)
def test_anything_else_is_no_usual_endpoint(marking: str, translating: str) -> None:
    """One word more, less or other, and the chain is read like any other."""
    assert usual(SEP, _run(SEP, marking, translating)) is None


def test_three_rules_are_no_usual_endpoint() -> None:
    """Nor is one, nor one of another chain."""
    assert usual(SEP, _run(SEP, MARKING, TRANSLATING, TRANSLATING)) is None
    assert usual(SEP, _run(SEP, TRANSLATING)) is None
    assert usual("KUBE-XYZ", _run("KUBE-XYZ", MARKING, TRANSLATING)) is None


# Lotteries -----------------------------------------------------------------------------------

SVC = "KUBE-SVC-67NZLRHBNDSAWJRO"
A, B, C = (f"KUBE-SEP-{letter * 16}" for letter in "ABC")
MASQUERADE = (
    '! -s 10.64.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP"'
    " -m tcp --dport 80 -j KUBE-MARK-MASQ"
)
DICE = [
    f"-m statistic --mode random --probability 0.33333333349 -j {A}",
    f"-m statistic --mode random --probability 0.50000000000 -j {B}",
    f"-j {C}",
]
ASKING = [
    f"-m recent --rcheck --seconds 60 --reap --name {one} --mask 255.255.255.255 --rsource -j {one}"
    for one in (A, B, C)
]


def test_a_usual_lottery_is_told_by_its_text() -> None:
    """Its endpoints, whether it marks packets, and for how long it remembers clients."""
    assert usual(SVC, _run(SVC, *DICE)) == UsualLottery("", (A, B, C), 0)
    assert usual(SVC, _run(SVC, DICE[2])) == UsualLottery("", (C,), 0)
    sticky = usual(SVC, _run(SVC, MASQUERADE, *ASKING, *DICE))

    assert sticky == UsualLottery(MASQUERADE, (A, B, C), 60)
    ours = sticky.as_written()
    assert [printed(text, Family.V4) for text in ours] == [*ASKING, *DICE]


@pytest.mark.parametrize(
    "rules",
    [
        [MASQUERADE],
        [],
        [DICE[0], DICE[1]],
        [DICE[1], DICE[0], DICE[2]],
        [DICE[0].replace("0.33333333349", "0.33333333348"), *DICE[1:]],
        [*DICE[:2], DICE[0].replace(A, C)],
        [DICE[0], DICE[1].replace(B, A), DICE[2]],
        [*DICE, f"-j {A}"],
        [*DICE, MASQUERADE],
        [DICE[0], MASQUERADE, *DICE[1:]],
        ["-j RETURN", *DICE],
        [MASQUERADE, MASQUERADE, *DICE],
        [MASQUERADE.replace("MARK-MASQ", "MARK-DROP"), *DICE],
        [*DICE[:2], f"-g {C}"],
        [*DICE[:2], "-j KUBE-SEP-C"],
        [*DICE[:2], f"-j {C}CC"],
        [*DICE[:2], f"-j {C[:-2]} C"],
        [*ASKING, *DICE[:2]],
        [*ASKING[:2], *DICE],
        [ASKING[1], ASKING[0], ASKING[2], *DICE],
        [ASKING[0].replace(f"-j {A}", f"-j {B}"), *ASKING[1:], *DICE],
        [ASKING[0].replace("60", "61"), *ASKING[1:], *DICE],
        [*[one.replace("60", "0") for one in ASKING], *DICE],
        [*[one.replace("255 ", "0 ") for one in ASKING], *DICE],
        [*DICE, *ASKING],
    ],
)
def test_anything_else_is_no_usual_lottery(rules: list[str]) -> None:
    """Other chances, another order, an endpoint twice, clients that are sent elsewhere."""
    assert usual(SVC, _run(SVC, *rules)) is None


def test_a_branch_of_a_tree_is_no_lottery() -> None:
    """Whatever it holds."""
    assert usual("KUBE-SVC-TREE-ABC", _run("KUBE-SVC-TREE-ABC", *DICE)) is None


# Both ways -----------------------------------------------------------------------------------


def test_nearly_all_chains_are_usual_ones() -> None:
    """Else the rest would prove nothing: of endpoints and of lotteries, with affinity and not."""
    nat = read_tables(_plain(SOUND), Family.V4).tables["nat"]
    own = {name: chain.usual for name, chain in nat.items() if name.startswith("KUBE-S")}
    kinds = [type(found) for name, found in own.items() if name != "KUBE-SERVICES"]

    assert set(kinds) == {UsualEndpoint, UsualLottery}
    assert {found.seconds for found in own.values() if isinstance(found, UsualLottery)} == {
        0,
        10800,
    }
    assert _told(_plain(SOUND)) == _both_ways(_plain(SOUND))[1]
    assert isinstance(told := _told(_plain(SOUND)), tuple)
    assert told[0] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_large_cluster_is_found_either_way(name: str) -> None:
    """One thing that is broken, where chains are told at a glance."""
    dump = Broken(SOUND)
    FAULTS[name].break_it(dump)
    quickly, slowly = _both_ways(_plain(str(dump)))

    assert quickly == slowly
    if name != "a comment that names another endpoint":
        assert isinstance(quickly, tuple)
        assert quickly[0] != []


LINES = _plain(SOUND).split("\n")
NUMBERS = st.integers(0, len(LINES) - 1)


@given(
    st.lists(
        st.tuples(st.sampled_from(["drop", "swap", "copy", "cut"]), NUMBERS, NUMBERS),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_done_to_lines_both_ways_agree(changes: list[tuple[str, int, int]]) -> None:
    """Lines that are gone, moved, copied, or have lost a character."""
    lines = list(LINES)
    for act, one, other in changes:
        if act == "drop":
            lines[one] = ""
        elif act == "swap":
            lines[one], lines[other] = lines[other], lines[one]
        elif act == "copy":
            lines.insert(one, lines[other])
        else:
            lines[one] = lines[one][: other % 100] + lines[one][other % 100 + 1 :]
    quickly, slowly = _both_ways("\n".join(lines))

    assert quickly == slowly
