from __future__ import annotations

import importlib
from operator import attrgetter
from pathlib import Path

import pytest

from tests.mutants.judge import Excuse, Mutant, excuses, faults, normal, report

LEFT = Path(__file__).parents[1] / "mutants/left.toml"
CHANGE = "- x = 1\n+ x = 2"
KNOWN = [Excuse("agent.state.store.Store.forget", CHANGE, "why not")]


def mutants(noticed: int, *left: Mutant) -> list[Mutant]:
    one = Mutant("agent.rules.radix.x_f__mutmut_1", "agent.rules.radix.f", "killed")
    return [one] * noticed + list(left)


def left(change: str = CHANGE, status: str = "survived") -> Mutant:
    return Mutant("agent.state.store.forget__1", "agent.state.store.Store.forget", status, change)


def test_each_mutant_that_is_left_is_explained() -> None:
    """Every entry has a reason and names a function that there is."""
    for excuse in excuses(LEFT):
        *module, name = excuse.function.split(".", 3)
        assert callable(attrgetter(name)(importlib.import_module(".".join(module)))), excuse


def test_what_makes_a_run_fail() -> None:
    """Nothing run, something without a verdict, something unexplained, and five in a hundred."""
    explained = {(excuse.function, excuse.change) for excuse in KNOWN}

    assert list(faults(mutants(20, left()), explained)) == []
    assert list(faults([], explained)) == ["there are no mutants: nothing was run"]
    assert list(faults(mutants(20, left("- a\n+ b", "no tests")), explained)) == [
        "\nleft, and not explained: agent.state.store.forget__1\n- a\n+ b"
    ]
    assert list(faults(mutants(20, left(status="not checked")), explained)) == [
        "1 have no verdict; run it again"
    ]
    assert list(faults(mutants(19, left()), explained)) == [
        "5.0% are left, and it should be less than 5 %"
    ]


def test_the_report() -> None:
    """By module, and what is explained but is not left any more."""
    stale = Excuse("agent.rules.radix.f", "- y\n+ z", "no more")
    elsewhere = Excuse("agent.rules.names.f", "- y\n+ z", "was not run")

    assert list(report(mutants(30, left()), [*KNOWN, stale, elsewhere])) == [
        "                                    mutants    noticed       left  explained",
        "agent.rules.radix                        30         30          0          0",
        "agent.state.store                         1          0          1          1",
        "all                                      31         30          1          1",
        "\nexplained, but not left: agent.rules.radix.f\n- y\n+ z",
    ]


def test_a_change_is_told_by_its_lines_alone() -> None:
    """Wherever in the file it is, and however deep."""
    diff = (
        "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n def f():\n-        x = 1\n+        x = 2\n     y\n"
    )

    assert normal(diff) == normal("\n  -x = 1\n  +   x = 2\n") == CHANGE


@pytest.mark.parametrize(
    "entry",
    [
        'function = "f"\nchanges = ["- a"]',
        'function = "f"\nwhy = "w"',
        'changes = ["- a"]\nwhy = "w"',
        'function = "f"\nchanges = ["a"]\nwhy = "w"',
        'function = "f"\nchanges = ["- a"]\nwhy = " "',
    ],
)
def test_an_entry_that_explains_nothing(tmp_path: Path, entry: str) -> None:
    """A function, at least one change, and a reason."""
    path = tmp_path / "left.toml"
    path.write_text(f"[[left]]\n{entry}\n", "utf-8")

    with pytest.raises(ValueError, match="an entry needs a function, changes and a why"):
        excuses(path)
