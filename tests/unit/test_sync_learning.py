"""What chains look like is learned while nobody else changes rules, and known from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync import audit
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit
from agent.sync.pace import Pace, PaceSettings
from tests.fakes.cluster import NODE, endpoint_slice, service
from tests.fakes.kernel import FakeKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.rules.ruleset import Layout

#: Texts that each round reads: canaries.
FIXED = 3
#: Built-in chains, which are read when they are not known.
BUILT_IN = 6


class Counted(FakeKernel):
    """Counts how much text is read."""

    texts_read = 0

    def save(self, table: str) -> str:
        self.texts_read += 1
        return super().save(table)

    def chain(self, table: str, chain: str) -> list[str] | None:
        self.texts_read += 1
        return super().chain(table, chain)


class World:
    """Six hundred Services with two chains each: a round looks at 600 of 1,200."""

    def __init__(self, backend: str = "nft", layout: Layout = "flat", step: int = 1) -> None:
        self.kernel = Counted(backend=backend)
        self.store = Store(NODE)
        for number in range(600):
            at = number * step
            name, ip = f"s{number:04}", f"10.96.{at // 250}.{at % 250 + 1}"
            self.store.put_service(service(name, ip))
            self.store.put_slice(endpoint_slice("10.0.0.1", service=name))
        rules = RuleSet(NodeView(Family.V4, NODE), layout)
        self.syncer = Syncer(rules, self.kernel, SyncSettings(None), lambda: 0.0)
        self.syncer.sync(self.store)
        self.audit = Audit(self.syncer)

    def others(self) -> None:
        self.kernel.tamper("nat", ":FOREIGN - [0:0]")

    def read(self) -> int:
        """Texts that one round reads."""
        before = self.kernel.texts_read
        assert self.audit.run() == []
        return self.kernel.texts_read - before


def percent(world: World) -> int:
    """Rounds until everything has been seen: 41 percent of 1,200 chains at a time."""
    rounds = 1
    while world.audit.run() == [] and world.audit.learning:
        rounds += 1
        assert rounds < 10
    return rounds


def test_everything_is_learned_in_one_lap() -> None:
    """It takes as many rounds as a lap, and no text at all."""
    world = World()
    world.kernel.texts_read = 0

    assert world.audit.learning
    assert percent(world) == 3
    assert world.kernel.texts_read == 0
    assert not world.audit.learning


def test_what_was_learned_needs_no_text_later() -> None:
    """When others change rules, a round reads the canaries alone."""
    world = World()
    percent(world)
    world.others()

    assert [world.read() for _ in range(4)] == [FIXED] * 4


def test_learning_ends_when_somebody_else_comes() -> None:
    """Then what was not seen is read as text, and there is no hurry any more."""
    world = World()
    world.audit.run()
    world.others()
    reads = [world.read() for _ in range(3)]

    assert reads[0] > FIXED
    assert not world.audit.learning
    assert world.read() == FIXED


def test_a_full_sync_lets_learning_go_on() -> None:
    """It knows again that nobody else has been there."""
    world = World()
    world.others()
    world.audit.run()
    learning = world.audit.learning
    world.syncer.sync(world.store, full=True)
    world.audit.run()

    assert (learning, world.audit.learning) == (False, True)


def test_there_is_nothing_to_learn_on_legacy() -> None:
    """It has no digests."""
    world = World("legacy")
    world.audit.run()

    assert not world.audit.learning


@pytest.mark.parametrize(("learn", "expected"), [(None, 130.0), (1.0, 101.0), (60.0, 130.0)])
def test_looks_to_learn_by_come_sooner(learn: float | None, expected: float) -> None:
    """Never later than they would anyway, and only if that is asked for."""
    pace = Pace(PaceSettings(check_period=30.0, learn_period=learn), lambda: 100.0, lambda: 0.0)
    pace.hurry()

    assert pace.check_at() == expected


# Built-in chains ------------------------------------------------------------------------------


def test_built_in_chains_are_read_when_somebody_changed_them() -> None:
    """Once: after that they are known as they are, with our jumps in them just once."""
    world = World()
    percent(world)
    world.kernel.tamper("filter", "-A FORWARD -j ACCEPT")

    assert [world.read() - FIXED for _ in range(3)] == [BUILT_IN, 0, 0]


def test_a_jump_that_is_gone_is_told_until_it_is_there_again() -> None:
    """What is wrong is not what built-in chains are known by."""
    world = World()
    percent(world)
    world.kernel.tamper("filter", "-D FORWARD 1")
    found = [[(one.chain, one.what) for one in world.audit.run()] for _ in range(3)]
    world.syncer.sync(world.store, full=True)
    world.others()

    assert found == [[("FORWARD", "no jump")]] * 3
    assert world.audit.run() == []


# Branches of a tree ---------------------------------------------------------------------------


def branches(world: World) -> list[str]:
    return [chain for chain in world.kernel.texts("nat") if chain.startswith("KUBE-SVC-TREE-")]


def test_branches_take_turns() -> None:
    """Of 171 branches a round looks at 100 (49 percent would be 83), so two rounds see all."""
    world = World(layout="tree", step=70)
    assert len(branches(world)) == 171
    for chain in branches(world):
        world.kernel.tamper("nat", f"-A {chain} -j ACCEPT")
    found = [{one.chain for one in world.audit.run() if one.what == "changed"} for _ in range(2)]

    assert [len(one) for one in found] == [100, 100]
    assert found[0] | found[1] == set(branches(world))


@pytest.mark.usefixtures("large")
def test_branches_that_are_not_known_wait_too() -> None:
    """One that others changed is read with all that came by, in the fourth round."""
    world = World(layout="tree", step=70)
    chain = min(branches(world))
    world.kernel.tamper("nat", f"-A {chain} -j ACCEPT")
    found = [[one.chain for one in world.audit.run()] for _ in range(4)]

    assert found == [[], [], [], [chain]]


# What is not known, in a large cluster ---------------------------------------------------------


@pytest.fixture
def large() -> Iterator[World]:
    """A world that counts as large: three rounds are a lap, and somebody else changes rules."""
    with mock.patch.object(audit, "_LARGE", 1000):
        world = World()
        world.others()
        yield world


def test_what_is_not_known_waits_for_three_rounds(large: World) -> None:
    """Then one text of nat, and filter's five chains, are enough for all that came by."""
    read = [large.read() - FIXED for _ in range(8)]

    assert read == [BUILT_IN, 0, 0, 6, 0, 0, 0, 0]


def test_services_that_change_wait_too(large: World) -> None:
    """Forty that change before each round make a text of the table every fourth round."""
    for _ in range(4):
        large.read()
    read = []
    for turn in range(8):
        for number in range(40):
            ip = f"10.0.1.{turn + 1}"
            large.store.put_slice(endpoint_slice(ip, service=f"s{number * 15:04}"))
        large.syncer.sync(large.store)
        read.append(large.read() - FIXED)

    assert read == [0, 0, 0, 1, 0, 0, 0, 1]


def test_what_waits_is_compared_in_the_end(large: World) -> None:
    """A rule that others added to a chain which is not known is found in the fourth round."""
    chain = next(c for c in large.kernel.texts("nat") if c.startswith("KUBE-SEP-"))
    large.kernel.tamper("nat", f"-A {chain} -j ACCEPT")
    found = [large.audit.run() for _ in range(4)]

    assert found[:3] == [[], [], []]
    assert [(one.chain, one.what) for one in found[3]] == [(chain, "changed")]


def test_what_is_known_and_differs_does_not_wait() -> None:
    """It is read at once, whatever else waits."""
    with mock.patch.object(audit, "_LARGE", 1000):
        world = World()
        percent(world)
        chain = next(c for c in world.kernel.texts("nat") if c.startswith("KUBE-SEP-"))
        world.kernel.tamper("nat", f"-A {chain} -j ACCEPT")
        found = [one.chain for _ in range(3) for one in world.audit.run()]

    assert found == [chain]


def test_a_flushed_table_does_not_wait(large: World) -> None:
    """Chains without a rule are no matter of digests, known or not."""
    large.kernel.flush("nat")

    assert len(large.audit.run()) > 490  # 41 percent of 1,200, and what is shared
