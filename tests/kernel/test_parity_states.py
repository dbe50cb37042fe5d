"""The states of ``tests/parity``, written with the real tools and read back.

A tenth of the recorded states is enough for every day; ONENTH_ALL_STATES=1 takes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kernel import detect, nfacct
from agent.kernel.detect import Backend
from agent.kernel.errors import NetlinkError
from agent.kernel.facts import COUNTERS
from agent.kernel.iptables import Iptables
from agent.kernel.tools import SubprocessRunner
from agent.rules.parse import canonical, parse_rule
from agent.state.values import Family
from agent.sync.render import render
from tests.given import given
from tests.kernel.inside import NamespaceRunner
from tests.kernel.running import tables
from tests.parity.case import UNORDERED, build, load_cases
from tests.parity.test_parity import WRITTEN, golden_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agent.demo.namespaces import Namespace
    from tests.parity.case import Case

#: Empties what the state before left behind, in the same run of the tool.
WIPE = "".join(f"*{table}\n-F\n-X\nCOMMIT\n" for table in ("filter", "nat", "mangle"))
BUILT_IN = {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "KUBE-PROXY-CANARY"}
BACKENDS = pytest.mark.parametrize("backend", list(Backend), ids=lambda backend: backend.value)
SHARE = 10


def not_as_meant(namespace: Namespace, backend: Backend, cases: list[Case]) -> list[str]:
    """Write one state after the other; returns the names of those that read back differently."""
    tool = detect.installed(SubprocessRunner())[backend]
    if tool is None:
        pytest.skip(f"{backend.program} is not installed")
    for counter in COUNTERS:
        try:
            namespace.call(nfacct.ensure, counter)
        except NetlinkError as error:
            pytest.skip(f"this kernel has no packet counters: {error}")
    kernels = {
        family: Iptables(tool, family, runner=NamespaceRunner(namespace)) for family in Family
    }
    wrong = []
    for case in cases:
        _, rules = build(case)
        kernels[rules.node.family].restore(WIPE + render(rules))
        held = tables(namespace, backend.value, rules.node.family.value)
        written = meaning(rules.tables())
        expected = meaning(case["expected"], UNORDERED)
        if meaning(held) != written or meaning(held, UNORDERED) != expected:
            wrong.append(f"{case['name']}: {held}")
    return wrong


def meaning(
    found: Mapping[str, Mapping[str, Sequence[str]]], unordered: Collection[str] = ()
) -> dict[tuple[str, str], list[str]]:
    """Rules of our chains in one form, sorted in those chains whose order has no meaning."""
    return {
        (table, chain): sorted(texts) if chain in unordered else texts
        for table in ("filter", "nat")
        for chain, rules in found[table].items()
        if chain not in BUILT_IN
        for texts in [[repr(canonical(parse_rule(rule))) for rule in rules]]
    }


@BACKENDS
def test_the_kernel_holds_what_was_meant(namespace: Namespace, backend: Backend) -> None:
    """Every state written down here is accepted, and reads back as the rules that it expects."""
    assert not_as_meant(namespace, backend, list(WRITTEN.values())) == []


@BACKENDS
@pytest.mark.timeout(600)
def test_the_kernel_holds_recorded_states(namespace: Namespace, backend: Backend) -> None:
    """Likewise the states recorded of kube-proxy: a share of them, or all if asked for."""
    cases = load_cases(golden_file())
    share = 1 if given("ONENTH_ALL_STATES") else SHARE

    assert not_as_meant(namespace, backend, cases[::share]) == []
    assert cases
