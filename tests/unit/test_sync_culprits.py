"""The guilty Service among thousands is found in few tries, and nobody is blamed for nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Outcome, Syncer, SyncSettings
from agent.sync.culprits import culprits
from agent.sync.port import Kernel, Refusal, RestoreError
from tests.fakes.cluster import NODE, endpoint_slice, key, service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

MANY = 5_000


class Questions:
    """Something that refuses what it is told to, and counts."""

    def __init__(self, refuses: Callable[[set[int]], bool]) -> None:
        self.asked = 0
        self._refuses = refuses
        self._accepted: set[int] = set()

    def accepts(self, some: Sequence[int]) -> bool:
        self.asked += 1
        if self._refuses(self._accepted | set(some)):
            return False
        self._accepted |= set(some)
        return True

    def culprits(self, number: int) -> list[int]:
        return culprits(range(number), self.accepts)


@pytest.mark.parametrize("guilty", [0, 1, 2_499, 2_500, 4_998, 4_999])
def test_one_among_five_thousand_takes_few_questions(guilty: int) -> None:
    """At most 2 * log2(5,000) + 1 = 25."""
    questions = Questions(lambda some: guilty in some)

    assert questions.culprits(MANY) == [guilty]
    assert questions.asked <= 2 * math.log2(MANY) + 1


@given(st.integers(1, 200).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))
))  # fmt: skip
def test_several_are_all_found_and_nobody_else(case: tuple[int, set[int]]) -> None:
    """Each costs at most its own questions, and never more than two for every suspect."""
    number, guilty = case
    questions = Questions(lambda some: bool(some & guilty))

    assert set(questions.culprits(number)) == guilty
    most = len(guilty) * (2 * math.log2(number) + 1) if number > 1 else 1
    assert questions.asked <= min(most, 2 * number) + 1


@given(st.sets(st.integers(0, 99), min_size=2, max_size=5))
def test_of_those_guilty_together_one_goes(pact: set[int]) -> None:
    """Refused only when all of them are there: it is enough that one is left out."""
    questions = Questions(lambda some: pact <= some)
    found = questions.culprits(100)

    assert len(found) == 1
    assert set(found) <= pact
    assert questions.asked <= 2 * math.log2(100) + 1


def test_what_is_refused_for_its_size_is_nobodys_fault() -> None:
    """In two halves it is accepted, and nobody is blamed."""
    questions = Questions(lambda _some: False)
    questions.accepts(())

    assert questions.culprits(100) == []
    assert questions.asked <= 2 * math.log2(100) + 2


# Through a sync ---------------------------------------------------------------------------------


class Counting(Kernel):
    """A kernel that takes everything but lines with one of some texts, and counts.

    It keeps no rules: what five thousand Services cost is their text.
    """

    def __init__(self, guilty: Collection[str], *, names: bool) -> None:
        self.tries = 0
        self.guilty = guilty
        self.failing: Refusal | None = None
        self.together: tuple[str, ...] = ()
        self._names = names

    def restore(self, text: str) -> None:
        self.tries += 1
        if self.failing is not None:
            raise RestoreError("not now", self.failing, line=None, stderr="not now")
        if self.together and all(one in text for one in self.together):
            raise RestoreError("refused", Refusal.INPUT, line=None, stderr="injected")
        for guilty in self.guilty:
            before, found, _ = text.partition(guilty)
            if found:
                line = before.count("\n") + 1 if self._names else None
                raise RestoreError("refused", Refusal.INPUT, line=line, stderr="injected")

    def save(self, table: str) -> str:
        return f"*{table}\nCOMMIT\n"

    def chains(self, table: str) -> set[str]:  # noqa: ARG002
        return set()

    def chain(self, table: str, chain: str) -> list[str] | None:  # noqa: ARG002
        return []

    def confirm(self) -> None:
        pass

    def untouched(self) -> bool:
        return False

    def digests(self, table: str, chains: Collection[str]) -> dict[str, bytes] | None:  # noqa: ARG002
        return None


@pytest.fixture(scope="module")
def store() -> Store:
    """Five thousand Services with an endpoint each."""
    found = Store(NODE)
    for n in range(MANY):
        high, low = n // 250, n % 250 + 1
        found.put_service(service(f"s{n}", f"10.96.{high}.{low}"))
        found.put_slice(endpoint_slice(f"10.0.{high}.{low}", service=f"s{n}"))
    return found


def sync(store: Store, kernel: Counting, batch: int | None) -> Outcome:
    syncer = Syncer(RuleSet(NodeView(Family.V4, NODE)), kernel, SyncSettings(batch), lambda: 0.0)
    return syncer.sync(store)


#: Texts of the last Service but one: in its own chain, and in a shared one.
OWN, SHARED = " -s 10.0.19.249 ", " -d 10.96.19.249 "
GUILTY = key("s4998")


@pytest.mark.parametrize("names", [True, False], ids=["line", "no line"])
@pytest.mark.parametrize("where", [OWN, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("batch", [None, 50], ids=["legacy", "nft"])
def test_few_restores_find_the_guilty_among_five_thousand(
    store: Store, batch: int | None, where: str, *, names: bool
) -> None:
    """One more than without it where the tool names the line; else at most 2 * log2(5,000), and
    the handful that a sync in parts takes anyway."""
    kernel = Counting((where,), names=names)
    outcome = sync(store, kernel, batch)

    assert outcome.set_aside.keys() == {GUILTY}
    # Without it: one, or the foundation, a hundred batches and the switch.
    more = kernel.tries - (1 if batch is None else 102)
    assert more <= (1 if names else 2 * math.log2(MANY) + 6), more


def test_two_guilty_ones_at_once(store: Store) -> None:
    """One in its own chains, the other in shared ones, and the kernel names neither."""
    kernel = Counting((OWN, " -d 10.96.3.7 "), names=False)
    outcome = sync(store, kernel, None)

    assert outcome.set_aside.keys() == {GUILTY, key("s756")}
    assert kernel.tries <= 2 * (2 * math.log2(MANY) + 6)


def test_two_that_are_refused_only_together(store: Store) -> None:
    """In shared chains each is fine by itself: one of them goes, and the other works."""
    kernel = Counting((), names=False)
    kernel.together = (SHARED, " -d 10.96.3.7 ")
    outcome = sync(store, kernel, None)

    assert len(outcome.set_aside) == 1
    assert outcome.set_aside.keys() <= {GUILTY, key("s756")}
    assert kernel.tries <= 2 * math.log2(MANY) + 8


@pytest.mark.parametrize("refusal", [Refusal.BUSY, Refusal.LOCKED, Refusal.BROKEN])
@pytest.mark.parametrize("batch", [None, 50], ids=["legacy", "nft"])
def test_a_want_of_memory_or_a_lock_is_nobodys_fault(
    store: Store, batch: int | None, refusal: Refusal
) -> None:
    """One restore fails, and the sync with it; nothing is searched for, nobody is set aside."""
    kernel = Counting((), names=False)
    kernel.failing = refusal
    rules = RuleSet(NodeView(Family.V4, NODE))
    syncer = Syncer(rules, kernel, SyncSettings(batch), lambda: 0.0)
    with pytest.raises(RestoreError):
        syncer.sync(store)

    assert kernel.tries == 1
    assert syncer.quarantine.entries == {}
    kernel.failing = None
    assert syncer.sync(store).set_aside == {}


def test_a_want_of_memory_in_the_middle_of_the_search_blames_nobody(store: Store) -> None:
    """Only what the kernel refused for good counts; the search begins anew with the next sync."""
    kernel = Counting((SHARED,), names=False)
    rules = RuleSet(NodeView(Family.V4, NODE))
    syncer = Syncer(rules, kernel, SyncSettings(None), lambda: 0.0)
    inner = kernel.restore

    def restore(text: str) -> None:
        kernel.failing = Refusal.BUSY if kernel.tries == 8 else None
        inner(text)

    kernel.restore = restore  # type: ignore[method-assign]
    with pytest.raises(RestoreError, match="not now"):
        syncer.sync(store)
    assert syncer.quarantine.entries == {}
    assert syncer.sync(store).set_aside.keys() == {GUILTY}
