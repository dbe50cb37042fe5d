"""A full sync in parts over rules that are there: what is right is left alone."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from agent.rules import names, radix
from agent.rules.ruleset import Layout, RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync import apply
from agent.sync.apply import Outcome, Syncer, SyncSettings
from agent.sync.port import ReadError, RestoreError
from tests.fakes.cluster import NODE, endpoint_slice, key, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.walk import Packet, fate

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES = 7
TABLES = ("nat", "filter", "mangle")
SVC, SEP = "KUBE-SVC-67NZLRHBNDSAWJRO", "KUBE-SEP-CABXVTEVWWXCT3SI"  # shop/web:http


class World:
    """Seven Services, of which ``web`` is one, written in parts of two."""

    def __init__(self) -> None:
        self.store = Store(NODE)
        self.kernel = FakeKernel()
        for number in range(1, SERVICES):
            self.put(f"s{number}", number)
        self.put("web", 100, "10.0.0.1", "10.0.0.2")
        self.syncer = self.restarted()

    def put(self, name: str, number: int, *ips: str) -> None:
        self.store.put_service(service(name, f"10.96.0.{number}"))
        self.store.put_slice(endpoint_slice(*(ips or [f"10.0.1.{number}"]), service=name))

    def restarted(self, layout: Layout = "flat") -> Syncer:
        """Another process, which knows nothing of what is there."""
        rules = RuleSet(NodeView(Family.V4, NODE), layout)
        return Syncer(rules, self.kernel, SyncSettings(2, 3), lambda: 0.0)

    def tables(self) -> dict[str, dict[str, list[str]]]:
        return {table: self.kernel.texts(table) for table in TABLES}

    def full(self) -> tuple[Outcome, str]:
        """A full sync, and all that it sent."""
        before = len(self.kernel.inputs)
        outcome = self.syncer.sync(self.store, full=True)
        return outcome, "".join(self.kernel.inputs[before:])


@pytest.fixture(params=["the same process", "another process"])
def world(request: pytest.FixtureRequest) -> World:
    """Everything has been written once."""
    made = World()
    made.full()
    if request.param == "another process":
        made.syncer = made.restarted()
    return made


def test_rules_that_are_right_are_not_written(world: World) -> None:
    """No chain of a Service and no dispatch chain is in what is sent, and all stay."""
    before = world.tables()
    outcome, sent = world.full()

    assert "KUBE-SVC-" not in sent
    assert "KUBE-SEP-" not in sent
    assert ":KUBE-SERVICES" not in sent.partition("*nat")[2].rpartition("*filter")[0]
    assert outcome.deleted == 0
    assert world.tables() == before


@pytest.mark.parametrize(
    ("damage", "written"),
    [
        (f":{SVC} - [0:0]", SVC),  # emptied
        (f"-A {SVC} -j ACCEPT", SVC),
        (f"-D {SEP} -m comment --comment shop/web:http -s 10.0.0.1 -j KUBE-MARK-MASQ", SEP),
        ("-A KUBE-SERVICES -j RETURN", "KUBE-SERVICES"),
        (":KUBE-SERVICES - [0:0]", "KUBE-SERVICES"),
        (":KUBE-MARK-MASQ - [0:0]", "KUBE-MARK-MASQ"),
    ],
)
def test_what_is_wrong_is_written_alone(world: World, damage: str, written: str) -> None:
    """Whatever somebody did to one chain, a full sync rights that one."""
    before = world.tables()
    world.kernel.tamper("nat", damage)
    _, sent = world.full()

    assert world.tables() == before
    assert f":{written} - [0:0]\n" in sent
    for chain in (SVC, SEP, "KUBE-SERVICES"):
        assert (f"-A {chain} " in sent) == (chain == written)


def test_a_changed_service_is_written_with_its_full_sync(world: World) -> None:
    """What changed since, and what changed while no process ran, goes in as in any full sync."""
    world.put("web", 100, "10.0.0.2", "10.0.0.3")
    world.put("s1", 1, "10.0.9.9")
    world.store.delete_service(next(r.key for r in world.store if r.key.name == "s2"))
    _, sent = world.full()
    other = World()
    other.store = world.store
    other.full()

    assert world.tables() == other.tables()
    assert "10.0.1.3:" not in sent  # of s3


def test_all_is_written_where_nothing_can_be_read(world: World) -> None:
    """A nat table that the tool cannot print is no reason not to right it."""
    save = world.kernel.save

    def fail(table: str) -> str:
        if table == "nat":
            raise ReadError("table nat is incompatible")
        return save(table)

    before = world.tables()
    with mock.patch.object(world.kernel, "save", fail):
        _, sent = world.full()

    assert sent.count("\n-A KUBE-SEP-") == 2 * (SERVICES + 1)
    assert world.tables() == before


@pytest.mark.parametrize("names", ["own", "commit"])
def test_a_refusal_in_between_loses_nothing(world: World, names: str) -> None:
    """A Service that is refused is set aside with its rule in a dispatch chain that was right."""
    world.kernel.tamper("nat", f"-A {SVC} -j ACCEPT")
    world.kernel.refuse(f"-A {SVC} ", names=names)
    outcome, _ = world.full()

    assert [key.name for key in outcome.set_aside] == ["web"]
    assert fate(world.kernel, Packet("10.96.0.100", 80)) == {"untranslated": 1}
    assert fate(world.kernel, Packet("10.96.0.1", 80)) == {"to 10.0.1.1:8080": 1}
    assert SVC not in world.kernel.texts("nat")


# Branches of a tree ---------------------------------------------------------------------------


@pytest.fixture
def forest() -> Iterator[World]:
    """A world whose packets find their Service through a tree; nothing has been written."""
    with (
        mock.patch.multiple(radix, LIMIT=2, INLINE=1),
        mock.patch.object(apply, "_BRANCH_RULES", 4),
    ):
        world = World()
        for number in (17, 18, 19, 33, 34, 35, 49, 50, 51):  # three below each of three prefixes
            world.put(f"s{number}", number)
        for number in (1, 2, 3):  # so that those hang below a branch themselves
            world.store.put_service(service(f"far{number}", f"10.96.1.{number}"))
            world.store.put_slice(endpoint_slice(f"10.0.2.{number}", service=f"far{number}"))
        world.syncer = world.restarted("tree")
        yield world


def test_branches_are_written_in_parts_before_the_switch(forest: World) -> None:
    """Nothing leads to a branch before the last transaction, which then has none to write."""
    _, sent = forest.full()
    branches = {chain for chain in forest.kernel.texts("nat") if chain.startswith(names.TREE)}
    *parts, switch = forest.kernel.inputs

    assert len(branches) == 6
    assert sum(f":{names.TREE}" in part for part in parts) > 1
    assert "-A KUBE-SERVICES" not in "".join(parts)
    assert f":{names.TREE}" not in switch
    assert all(sent.count(f":{branch} ") == 1 for branch in branches)
    assert fate(forest.kernel, Packet("10.96.0.100", 80)) == {
        "to 10.0.0.1:8080": Fraction(1, 2),
        "to 10.0.0.2:8080": Fraction(1, 2),
    }


def test_branches_that_are_right_are_not_written(forest: World) -> None:
    """A full sync of another process over its rules sends none."""
    forest.full()
    before = forest.tables()
    forest.syncer = forest.restarted("tree")
    _, sent = forest.full()

    assert f":{names.TREE}" not in sent
    assert forest.tables() == before


def test_a_refused_branch_is_left_to_the_switch(forest: World) -> None:
    """There the Service at fault is found; it is set aside, and all others are programmed."""
    forest.kernel.refuse(r"-d 10\.96\.0\.2 --dport 80 -j KUBE-SVC")
    outcome, _ = forest.full()

    assert outcome.set_aside.keys() == {key("s2")}
    for number in (1, 3, 4, 5, 6):
        found = fate(forest.kernel, Packet(f"10.96.0.{number}", 80))
        assert found == {f"to 10.0.1.{number}:8080": 1}


def test_branches_that_a_failed_sync_left_are_used_or_deleted(forest: World) -> None:
    """They stand there with nothing that leads to them; meanwhile a Service has gone."""
    forest.kernel.refuse("-j KUBE-POSTROUTING", names="none")  # our jump, in the switch
    with pytest.raises(RestoreError):
        forest.full()
    left = {chain for chain in forest.kernel.texts("nat") if chain.startswith(names.TREE)}
    forest.kernel.heal()
    for number in range(2, SERVICES):
        forest.store.delete_service(key(f"s{number}"))
    forest.full()
    held = {chain for chain in forest.kernel.texts("nat") if chain.startswith(names.TREE)}

    assert left
    assert held < left
    assert fate(forest.kernel, Packet("10.96.0.1", 80)) == {"to 10.0.1.1:8080": 1}
    assert forest.syncer.planner.accepted.stale == set()
