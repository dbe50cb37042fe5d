"""The schedules of the fault machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.schedule import draw


def test_a_seed_is_a_schedule() -> None:
    """The same seed gives the same schedule, to the letter; another one another."""
    assert draw(7, FAULTS) == draw(7, FAULTS)
    assert draw(7, FAULTS) != draw(8, FAULTS)


def test_fifty_seeds_reach_everything() -> None:
    """The runs that CI makes have every fault, both backends, and every choice of families."""
    schedules = [draw(seed, FAULTS) for seed in range(2720, 2770)]
    drawn = {name for schedule in schedules for step in schedule.steps for name in step.faults}

    assert drawn == FAULTS.keys()
    assert {schedule.backend for schedule in schedules} == {"nft", "legacy"}
    assert {schedule.families for schedule in schedules} == {(0, 1), (0,), (1,)}


def test_a_schedule_keeps_to_what_its_faults_need() -> None:
    """The lock only on legacy, certificates only with TLS, and some faults never beside others."""
    for seed in range(300):
        schedule = draw(seed, FAULTS)
        for step in schedule.steps:
            for fault in (FAULTS[name] for name in step.faults):
                assert fault.backend in {"", schedule.backend}
                assert schedule.tls or "certificate" not in fault.name
                assert len(step.faults) == 1 or not fault.alone
                assert step.seconds >= fault.seconds


def test_only_some() -> None:
    """``only`` draws nothing else; a name that nothing has is told."""
    schedule = draw(3, FAULTS, "tables:")

    assert all(name.startswith("tables:") for step in schedule.steps for name in step.faults)
    with pytest.raises(ValueError, match="nonsense"):
        draw(3, FAULTS, "nonsense")


def test_every_fault_is_documented() -> None:
    """docs/reliability.md says of each what is promised."""
    text = (Path(__file__).parents[2] / "docs/reliability.md").read_text("utf-8")

    assert [name for name in FAULTS if f"`{name}`" not in text] == []
