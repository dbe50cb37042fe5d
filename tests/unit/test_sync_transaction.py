from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.sync.transaction import Block, Line, Transaction
from tests.fakes.cluster import key
from tests.fakes.kernel import FakeKernel

if TYPE_CHECKING:
    from agent.cluster.objects import Key


@pytest.fixture
def transaction() -> Transaction:
    nat = Block("nat")
    nat.write("TWO", ["-p tcp -j ONE", "-j ONE"], key("b"))
    nat.write("ONE", ["-j ACCEPT"], key("a"))
    nat.write("SHARED", ["-j TWO"])
    mangle = Block("mangle")
    mangle.write("EMPTY", [])
    return Transaction([mangle, nat])


def test_text(transaction: Transaction) -> None:
    """Tables in order, chains from the last to the first, then rules from the first to the last."""
    assert transaction.text() == (
        "*mangle\n"
        ":EMPTY - [0:0]\n"
        "COMMIT\n"
        "*nat\n"
        ":TWO - [0:0]\n"
        ":SHARED - [0:0]\n"
        ":ONE - [0:0]\n"
        "-A ONE -j ACCEPT\n"
        "-A SHARED -j TWO\n"
        "-A TWO -p tcp -j ONE\n"
        "-A TWO -j ONE\n"
        "COMMIT\n"
    )


@pytest.mark.parametrize(
    ("line", "service"),
    [
        (1, None),  # *mangle
        (3, None),  # COMMIT
        (5, key("b")),  # :TWO
        (6, None),  # :SHARED
        (7, key("a")),  # :ONE
        (8, key("a")),
        (9, None),
        (10, key("b")),
        (11, key("b")),
        (12, None),  # COMMIT
        (13, None),
        (0, None),
        (-1, None),
        (None, None),
        (10**9, None),
    ],
)
def test_a_line_belongs_to_a_service(
    transaction: Transaction, line: int | None, service: Key | None
) -> None:
    """Counted from 1 as the tools do; lines of nobody, and lines that are not there, are None."""
    assert transaction.service_at(line) == service


def test_the_line_of_a_service_is_where_the_text_has_it(transaction: Transaction) -> None:
    """``lines`` and ``text`` agree about every number."""
    texts = transaction.text().split("\n")

    assert [line.text for line in transaction.lines()] == texts[:-1]


def test_services(transaction: Transaction) -> None:
    """Those with a chain or a rule in it."""
    assert transaction.services() == {key("a"), key("b")}


def test_a_deletion_belongs_to_a_chain() -> None:
    """The table is that of the part in which the line stands; other lines delete nothing."""
    transaction = Transaction([Block("filter"), Block("nat")])
    for block in transaction.blocks:
        block.delete("OLD")

    assert [transaction.deleted_at(line) for line in (3, 7)] == [("filter", "OLD"), ("nat", "OLD")]
    assert {transaction.deleted_at(line) for line in (1, 2, 4, 5, 6, 8, 9, 0, None)} == {None}
    assert transaction.chains() == {("filter", "OLD"), ("nat", "OLD")}


def test_deleting_empties_the_chain_first() -> None:
    """A chain that still has rules can be deleted in one block."""
    kernel = FakeKernel()
    kernel.tamper("nat", ":OLD - [0:0]", "-A OLD -j RETURN")
    block = Block("nat")
    block.delete("OLD")
    kernel.restore(Transaction([block]).text())

    assert kernel.chain("nat", "OLD") is None


def test_blocks_know_whether_they_say_anything() -> None:
    """An empty block is false; one with a chain or a line is not."""
    assert not Block("nat")
    assert Block("nat", {"ONE": None})
    assert Block("nat", {}, [Line("-X ONE")])
    assert Transaction([]).text() == ""


def test_blocks_share_nothing() -> None:
    """Filling one leaves a new one empty."""
    Block("nat").write("ONE", ["-j ACCEPT"])

    assert not Block("nat")


def test_a_block_is_the_same_in_whatever_order_it_was_written() -> None:
    """Chains from the last name to the first, rules from the first; a chain's own keep theirs."""
    one, other = Block("nat"), Block("nat")
    for block, chains in ((one, ("C", "A", "B")), (other, ("B", "C", "A"))):
        for chain in chains:
            block.write(chain, ["-j Z", "-j Y"])
    text = Transaction([one]).text()

    assert text == Transaction([other]).text()
    assert [line[1] for line in text.splitlines() if line[0] == ":"] == ["C", "B", "A"]
    assert [line[3:] for line in text.splitlines() if line.startswith("-A ")] == [
        f"{chain} -j {to}" for chain in "ABC" for to in "ZY"
    ]
