from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.state.healthports import HealthPorts
from agent.state.values import Family
from tests.given import given
from tests.parity.__main__ import main
from tests.parity.case import build, differences, load_cases
from tests.parity.written import load_written

if TYPE_CHECKING:
    from tests.parity.case import Case

ROOT = Path(__file__).parents[2]
BESIDE = ROOT.parent / "shared/golden/cases.jsonl.gz"
WRITTEN = load_written()


def golden_file() -> Path:
    """Recorded states: those that ONENTH_GOLDEN names, or those beside the clone."""
    named = given("ONENTH_GOLDEN")
    path = Path(named) if named else BESIDE
    if not named and not path.exists():
        pytest.skip(f"no recorded states: ONENTH_GOLDEN is not set, and there is no {BESIDE}")
    return path


def health(case: Case) -> tuple[dict[str, int], dict[str, int]]:
    """Health check node ports, and local ready endpoints where there are any."""
    store, rules = build(case)
    ports = HealthPorts(rules.node.family)
    ports.update(store.snapshot(0).records)
    ready = {str(key): count for key, count in ports.ready.items() if count}
    return {str(key): port for key, port in ports.ports.items()}, ready


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_states_written_down_from_documentation(case: Case) -> None:
    """The rules are those that kube-proxy documents, and health checks as well."""
    assert not (difference := differences(case)), difference
    assert health(case) == (
        case.get("healthCheckNodePorts", {}),
        case.get("localReadyEndpoints", {}),
    )


def test_there_are_states_for_both_families() -> None:
    """Nobody removes the states by accident."""
    families = [case["config"]["ipFamily"] for case in WRITTEN.values()]

    assert len(families) >= 60
    assert set(families) == {family.value for family in Family}


def test_all_recorded_states() -> None:
    """Every recorded state comes out rule for rule; the first ones that do not are shown."""
    cases = load_cases(golden_file())
    wrong = [difference for case in cases if (difference := differences(case))]

    assert cases
    assert not wrong, f"{len(wrong)} of {len(cases)} states differ:\n" + "\n\n".join(wrong[:3])


def test_health_checks_of_all_recorded_states() -> None:
    """Health check node ports and the counts behind them are the recorded ones."""
    cases = load_cases(golden_file())
    wrong = [
        case["name"]
        for case in cases
        if health(case) != (case["healthCheckNodePorts"], case["localReadyEndpoints"])
    ]

    assert wrong == []


def lines(cases: list[Case]) -> str:
    return "".join(f"{json.dumps(case)}\n" for case in cases)


def change_a_rule(case: Case) -> None:
    case["expected"]["nat"]["KUBE-MARK-MASQ"] = ["-j MARK --or-mark 0x008000"]


def change_the_order(case: Case) -> None:
    case["expected"]["nat"]["KUBE-POSTROUTING"].reverse()


def leave_a_chain_out(case: Case) -> None:
    del case["expected"]["filter"]["KUBE-NODEPORTS"]


def add_a_chain(case: Case) -> None:
    case["expected"]["nat"]["KUBE-SVC-AAAAAAAAAAAAAAAA"] = []


def leave_an_object_out(case: Case) -> None:
    case["services"].clear()


@pytest.mark.parametrize(
    ("spoil", "shown"),
    [
        (change_a_rule, "-nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x008000"),
        (change_the_order, "+nat -A KUBE-POSTROUTING -m mark ! --mark"),
        (leave_a_chain_out, "+filter :KUBE-NODEPORTS"),
        (add_a_chain, "-nat :KUBE-SVC-AAAAAAAAAAAAAAAA"),
        (leave_an_object_out, "-nat :KUBE-SVC-"),
    ],
)
def test_the_comparison_sees_what_differs(spoil: Any, shown: str) -> None:
    """A comparison that finds nothing has looked: each kind of difference is shown as a diff."""
    case = copy.deepcopy(WRITTEN["cluster-ip: two endpoints, pods told by a range"])
    spoil(case)
    difference = differences(case)

    assert "case cluster-ip: two endpoints" in difference
    assert shown in difference


def test_shared_chains_are_compared_without_their_order() -> None:
    """kube-proxy writes them in map order; only the last rule's place has a meaning."""
    case = copy.deepcopy(WRITTEN["node: two Services in one namespace and one name in two"])
    rules = case["expected"]["nat"]["KUBE-SERVICES"]
    rules[0], rules[1] = rules[1], rules[0]

    assert differences(case) == ""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m tests.parity FILE`` counts, prints diffs, and its status says what it found."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    cases = [copy.deepcopy(WRITTEN["node: an empty cluster"]) for _ in range(2)]
    good.write_text(lines(cases), "utf-8")
    change_a_rule(cases[1])
    bad.write_text(lines(cases), "utf-8")

    assert main([str(good)]) == 0
    assert capsys.readouterr().out == "2 of 2 states equal\n"
    assert main([str(bad)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("case node: an empty cluster")
    assert out.endswith("1 of 2 states equal\n")
    assert main([]) == 2
