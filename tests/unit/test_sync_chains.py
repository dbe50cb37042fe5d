from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.rules.static import LAST_RULE
from agent.sync.chains import write_chain
from agent.sync.transaction import Block
from tests.fakes.cluster import key

if TYPE_CHECKING:
    from agent.rules.dispatch import OwnedRules

LAST = f'-m comment --comment "{LAST_RULE}" -j KUBE-NODEPORTS'


def rules(*numbers: int, last: bool = True) -> OwnedRules:
    found: OwnedRules = [((key(f"s{n}"), "", "tcp"), f"-d 10.0.0.{n} -j S{n}") for n in numbers]
    return [*found, (None, LAST)] if last else found


def texts(some: OwnedRules) -> tuple[str, ...]:
    return tuple(text for _, text in some)


def write(wanted: OwnedRules, held: OwnedRules | None) -> tuple[list[str], list[str], list[str]]:
    """Chains and lines of the block, and what the chain holds then."""
    block = Block("nat")
    result = write_chain(block, "CHAIN", wanted, None if held is None else texts(held))
    assert sorted(result) == sorted(texts(wanted))
    return list(block.chains), [line.text for line in block.lines], list(result)


def test_what_is_there_is_not_written() -> None:
    """The same rules in the same order are no lines."""
    assert write(rules(1, 2), rules(1, 2))[:2] == ([], [])


@pytest.mark.parametrize("held", [None, rules(1), rules(*range(200, 240))])
def test_a_chain_of_unknown_or_few_rules_is_written_whole(held: OwnedRules | None) -> None:
    """It is emptied and filled."""
    assert write(rules(1, 2), held) == (
        ["CHAIN"],
        ["-A CHAIN -d 10.0.0.1 -j S1", "-A CHAIN -d 10.0.0.2 -j S2", f"-A CHAIN {LAST}"],
        list(texts(rules(1, 2))),
    )


def test_a_long_chain_is_edited() -> None:
    """One rule goes and two come: three lines, and the last rule stays last."""
    held, wanted = rules(*range(1, 101)), rules(*range(2, 103))
    chains, lines, result = write(wanted, held)

    assert chains == []
    assert lines == [
        "-D CHAIN -d 10.0.0.1 -j S1",
        "-I CHAIN -d 10.0.0.102 -j S102",
        "-I CHAIN -d 10.0.0.101 -j S101",
    ]
    assert result[:3] == ["-d 10.0.0.101 -j S101", "-d 10.0.0.102 -j S102", "-d 10.0.0.2 -j S2"]
    assert result[-1] == LAST


def pair(number: int, count: str = "-m nfacct") -> OwnedRules:
    """The two rules of a node port: one counts, the other leads away."""
    owner = (key(f"n{number}"), "", "tcp")
    return [(owner, f"--dport {number} {count}"), (owner, f"--dport {number} -j EXT")]


def test_rules_of_one_service_port_keep_their_order() -> None:
    """A node port's counting rule comes before the one that leads away, however it came in."""
    held = rules(*range(1, 101))
    _, lines, result = write([*held, *pair(30080)], held)

    assert lines == ["-I CHAIN --dport 30080 -j EXT", "-I CHAIN --dport 30080 -m nfacct"]
    assert result[:2] == ["--dport 30080 -m nfacct", "--dport 30080 -j EXT"]


def test_half_of_a_service_port_is_never_inserted() -> None:
    """If one of its two rules changes, the chain is written whole: the other one stands behind."""
    held = [*pair(30080), *rules(*range(1, 101))]
    wanted = [*pair(30080, "-m other"), *rules(*range(1, 101))]

    assert write(wanted, held)[0] == ["CHAIN"]


def test_many_changes_are_written_whole() -> None:
    """33 edits of a hundred rules are no longer less."""
    held = rules(*range(1, 101))

    assert write(rules(*range(1, 133)), held)[0] == []
    assert write(rules(*range(1, 134)), held)[0] == ["CHAIN"]


def test_the_last_rule_is_never_inserted() -> None:
    """A chain that lacks it, or has another, is written whole."""
    held = rules(*range(1, 101), last=False)

    assert write(rules(*range(1, 101)), held)[0] == ["CHAIN"]
    assert write(rules(*range(1, 100), last=False), rules(*range(1, 101)))[0] == ["CHAIN"]


def test_doubled_rules_are_written_whole() -> None:
    """Deleting one of two equal rules by its text would leave the other."""
    held = [*rules(*range(1, 101)), *rules(1, last=False)]

    assert write(rules(*range(2, 101)), held)[0] == ["CHAIN"]


def test_inserted_lines_belong_to_their_service() -> None:
    """So that a refusal finds whom it is for; deletions are nobody's."""
    block = Block("nat")
    write_chain(block, "CHAIN", rules(*range(2, 102)), texts(rules(*range(1, 101))))

    assert [line.service for line in block.lines] == [None, key("s101")]
