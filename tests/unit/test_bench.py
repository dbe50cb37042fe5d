"""How the benchmark judges its figures, and what it compares with."""

from __future__ import annotations

import pytest

from agent.rules.parse import equal
from agent.rules.ruleset import RuleSet
from bench import figures, objects, storm
from bench.bed import VIEW, store
from bench.figures import Figure
from bench.kubeproxy import one_restore
from tests.fakes.kernel import FakeKernel


@pytest.mark.parametrize(
    ("figure", "verdict", "ratio"),
    [
        (Figure("a", 1.5, "x", 1.5), "held", 1.0),
        (Figure("a", 1.51, "x", 1.5), "MISSED", 1.51 / 1.5),
        (Figure("a", 15.0, "x", 15.0, least=True), "held", 1.0),
        (Figure("a", 10.0, "x", 15.0, least=True), "MISSED", 1.5),
        (Figure("a", 10.0, "x"), "", None),
        (Figure("a", 1, "", 0), "MISSED", None),  # a lost endpoint
    ],
)
def test_verdicts(figure: Figure, verdict: str, ratio: float | None) -> None:
    """A target may be met exactly, and without one there is no verdict; above 1 it is missed."""
    assert figure.verdict == verdict
    assert figure.ratio == (None if ratio is None else pytest.approx(ratio))


@pytest.mark.parametrize(
    ("samples", "taken", "verdict"),
    [
        ([1.0], 1, "held"),
        ([1.4, 1.2, 1.0], 3, "held"),
        ([1.4, 1.4, 1.2, 1.0, 1.0], 4, "MISSED"),  # three times more, and no further
    ],
)
def test_what_misses_is_measured_on(samples: list[float], taken: int, verdict: str) -> None:
    """All samples count: here the mean of all that were taken, of which 1.2 is asked."""
    found: list[float] = []

    def more() -> None:
        found.append(samples[len(found)])

    def judge() -> list[Figure]:
        return [Figure("a", sum(found) / len(found), "x", 1.2), Figure("b", 9.0, "x")]

    more()
    figure, _ = figures.settled(judge, more, 3)

    assert len(found) == taken
    assert figure.verdict == verdict


def test_one_restore_holds_all_rules() -> None:
    """What ours is compared with makes of an empty kernel what the rule set says."""
    state = store(7, 3)
    rules = RuleSet(VIEW, "flat")
    rules.update(state.snapshot(0).records, state)
    kernel = FakeKernel()
    kernel.restore(one_restore(rules))

    for table, chains in rules.tables().items():
        held = kernel.texts(table)
        for chain, texts in chains.items():
            assert equal(tuple(texts), held[chain]), chain
    assert f"-d {objects.cluster_ip(6)} " in one_restore(rules)


def test_a_latency_is_read_from_its_histogram() -> None:
    """Evenly within a bucket: of 100 changes 80 took up to 1 s and all up to 2 s."""
    assert storm._quantile({1.0: 80, 2.0: 100, 4.0: 100}, 0.9) == pytest.approx(1.5)


def test_numbers_have_three_digits() -> None:
    """Up to a thousand; above it, all of them."""
    assert [figures._number(n) for n in (0.12345, 12.345, 1234.5)] == ["0.123", "12.3", "1,234"]
