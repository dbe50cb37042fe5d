"""What chains look like is learned while nobody else changes rules, and known from then on."""

from __future__ import annotations

import pytest

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit
from agent.sync.pace import Pace, PaceSettings
from tests.fakes.cluster import NODE, endpoint_slice, service
from tests.fakes.kernel import FakeKernel


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

    def __init__(self, backend: str = "nft") -> None:
        self.kernel = Counted(backend=backend)
        self.store = Store(NODE)
        for number in range(600):
            name, ip = f"s{number:04}", f"10.96.{number // 250}.{number % 250 + 1}"
            self.store.put_service(service(name, ip))
            self.store.put_slice(endpoint_slice("10.0.0.1", service=name))
        rules = RuleSet(NodeView(Family.V4, NODE))
        self.syncer = Syncer(rules, self.kernel, SyncSettings(None), lambda: 0.0)
        self.syncer.sync(self.store)
        self.audit = Audit(self.syncer)

    def others(self) -> None:
        self.kernel.tamper("nat", ":FOREIGN - [0:0]")

    def read(self) -> int:
        """Texts that one round reads, besides built-in chains and canaries (nine)."""
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
    """When others change rules, a round reads the built-in chains and the canaries alone."""
    world = World()
    percent(world)
    world.others()

    assert [world.read() for _ in range(4)] == [9, 9, 9, 9]


def test_learning_ends_when_somebody_else_comes() -> None:
    """Then what was not seen is read as text, and there is no hurry any more."""
    world = World()
    world.audit.run()
    world.others()
    reads = [world.read() for _ in range(3)]

    assert reads[0] > 9
    assert not world.audit.learning
    assert world.read() == 9


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
