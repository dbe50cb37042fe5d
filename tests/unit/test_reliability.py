from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, service
from tests.fakes.kernel import FakeKernel

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
#: Numbers of known faults that are kept as they were given.
KNOWN = {
    1,
    2,
    3,
    4,
    5,
    7,
    9,
    11,
    12,
    13,
    15,
    16,
    18,
    22,
    23,
    24,
    25,
    26,
    27,
    29,
    31,
    33,
    34,
    36,
    37,
    39,
}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{p}::{n}" for p, n in NAMED])
def test_each_test_that_the_page_names_exists(path: str, name: str) -> None:
    """A test that was renamed takes the page along."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    assert name in functions


def test_every_known_fault_has_its_test() -> None:
    """Each row of the table names one at least."""
    section = PAGE.partition("## Known faults of such agents")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| \d+ \|", line)]

    assert {int(row.split("|")[1]) for row in rows} == KNOWN
    assert [row for row in rows if "::test_" not in row] == []
    assert len(NAMED) > 60


def test_affinity_lets_go_of_an_endpoint_that_is_not_ready() -> None:
    """Its rule that asks for known clients goes in the same sync, in both lotteries (faults 26)."""
    store, kernel = Store(NODE), FakeKernel()
    store.put_service(
        service(
            type="NodePort", externalTrafficPolicy="Local", sessionAffinity="ClientIP",
            ports=[{"name": "http", "port": 80, "nodePort": 30080}],
        )
    )  # fmt: skip
    syncer = Syncer(RuleSet(NodeView(Family.V4, NODE)), kernel, SyncSettings(None), lambda: 0.0)

    def asks() -> list[list[str]]:
        chains = kernel.texts("nat").items()
        lotteries = [rules for chain, rules in chains if chain.startswith(("KUBE-SVC", "KUBE-SVL"))]
        return [[rule for rule in rules if "--rcheck" in rule] for rules in lotteries]

    ready = [endpoint(f"10.0.0.{n}", node=NODE) for n in (1, 2)]
    store.put_slice(endpoint_slice(*ready, endpoint("10.0.0.3", node=NODE)))
    syncer.sync(store)
    before = asks()
    store.put_slice(endpoint_slice(*ready, endpoint("10.0.0.3", node=NODE, ready=False)))
    syncer.sync(store)

    assert [len(rules) for rules in before] == [3, 3]
    assert [len(rules) for rules in asks()] == [2, 2]
    assert "10.0.0.3" in str(before)
    assert "10.0.0.3" not in str(asks())
