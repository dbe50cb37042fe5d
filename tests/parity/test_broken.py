"""Every state with one thing broken: ``verify`` finds it against the objects, and names it right.

A way takes one line that fits a pattern, drawn by the state's name, and breaks it. The finding must
be about the chain that the line belongs to, or name it (a chain that nothing leads to any more).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.inspect.compare import compare
from agent.inspect.differences import differences, merge
from agent.inspect.verify import verify
from agent.state.values import Family
from agent.sync.plan import Planner
from tests.fakes.dumps import as_dump, survey
from tests.given import given
from tests.parity.case import build, load_cases
from tests.parity.test_parity import WRITTEN, golden_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.inspect.findings import Finding
    from agent.rules.ruleset import RuleSet
    from tests.parity.case import Case

#: One of so many recorded states is enough for every day.
SHARE = 10
SERVICE = r"^-A KUBE-SV[CL]-\S+ "
PORTAL = r"^-A KUBE-(SERVICES|NODEPORTS|EXTERNAL-SERVICES) .*--dport"


class Way(NamedTuple):
    """How to break a line: the lines that come in its place."""

    pattern: str
    instead: Callable[[str], list[str]]


def dropped(pattern: str) -> Way:
    return Way(pattern, lambda _line: [])


def twice(pattern: str) -> Way:
    return Way(pattern, lambda line: [line, line])


def other(pattern: str, part: str, becomes: str) -> Way:
    return Way(pattern, lambda line: [re.sub(part, becomes, line)])


def with_stranger(pattern: str, rule: str) -> Way:
    """A rule of somebody else in front."""
    return Way(pattern, lambda line: [f"-A {line.split(' ')[1]} {rule}", line])


MARKED = "-m mark --mark 0x1/0x1"
WAYS = {
    "a jump is gone": dropped(r"^-A (PREROUTING|OUTPUT|INPUT|FORWARD|POSTROUTING) .*KUBE-"),
    "a chance is gone": dropped(rf"{SERVICE}.*statistic"),
    "the last chance is gone": dropped(rf"{SERVICE}(?!.*(statistic|recent)).*-j KUBE-SEP"),
    "another chance": other("--probability", r"--probability \S+", "--probability 0.12340000000"),
    "no chance": other("--probability", r"-m statistic --mode random --probability \S+ ", ""),
    "a chance twice": twice(rf"{SERVICE}.*-j KUBE-SEP"),
    "another endpoint's port": other("--to-destination", r":\d+$", ":1"),
    "translated twice": twice("^-A KUBE-SEP-.*DNAT"),
    "no translation": dropped("^-A KUBE-SEP-.*DNAT"),
    "no mark in an endpoint's chain": dropped("^-A KUBE-SEP-.*MARK-MASQ"),
    "a stranger drops": with_stranger("^-A KUBE-(SVC|SVL|EXT|FW|SEP)-", f"{MARKED} -j DROP"),
    "a stranger returns": with_stranger("^-A KUBE-SERVICES", f"{MARKED} -j RETURN"),
    "an address twice": twice(PORTAL),
    "an address is gone": dropped(PORTAL),
    "another port": other(PORTAL, r"--dport \d+", "--dport 1"),
    "leads elsewhere": other("^-A KUBE-SERVICES .*-j KUBE-S", r"-j KUBE-\S+", "-j KUBE-MARK-MASQ"),
    "no way to node ports": dropped("^-A KUBE-SERVICES .*NODEPORTS"),
    "no mark": dropped("^-A KUBE-MARK-MASQ"),
    "no masquerading": dropped("^-A KUBE-POSTROUTING"),
    "no forwarding": dropped("^-A KUBE-FORWARD"),
    "no mark from outside": dropped("^-A KUBE-EXT-.*MARK-MASQ"),
    "no way on from outside": dropped(r"^-A KUBE-EXT-\S+ -j KUBE-S"),
    "not refused": dropped("^-A KUBE-(SERVICES|EXTERNAL-SERVICES).*-j (REJECT|DROP)"),
    "accepted": other("-j REJECT", "-j REJECT.*", "-j ACCEPT"),
    "no drop of other sources": dropped("^-A KUBE-PROXY-FIREWALL"),
    "open to all sources": other(r"^-A KUBE-FW-\S+ .*-s ", r"(! )?-s \S+ ", ""),
    "nobody is remembered": other("recent.*--set", r"-m recent --name \S+ --set ", ""),
    "nobody is recognised": dropped("--rcheck"),
    "remembered for too short": other("--rcheck", r"--seconds \d+", "--seconds 7"),
    "a comment that lies": other(rf"{SERVICE}.*->", r'-> [^" ]+:(\d+)', r"-> 9.9.9.9:\1"),
    "no canary": dropped("^:KUBE-PROXY-CANARY"),
    "no health checks": dropped("health check node port"),
    "an orphan": Way("^:KUBE-MARK-MASQ", lambda line: [line, ":KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]"]),
}


def all_findings(text: str, case: Case, rules: RuleSet) -> list[Finding]:
    held = survey(text, Family(case["config"]["ipFamily"]))
    jumps = [jump for jump in Planner(rules).jumps() if jump.rule.matches]
    changes = compare(held, rules, jumps)
    alone = verify(held, tcp_be_liberal=case["config"]["conntrackTCPLiberal"])
    return merge(alone, differences(held, rules, changes), rules)


def names_it(finding: Finding, before: str, after: Iterable[str]) -> bool:
    """Whether a finding is about the chain that was broken, or one that the line leads to."""
    lines = [before, *after]
    broken = {line.removeprefix("-A ").lstrip(":").split(" ")[0] for line in lines}
    return finding.chain in broken | set(re.findall(r"KUBE-[A-Z0-9-]+", before))


def missed(cases: Iterable[Case], counts: Counter[str]) -> list[str]:
    """Breakages that were not found, or not named."""
    wrong: list[str] = []
    for case in cases:
        _, rules = build(case)
        lines = as_dump(case["expected"]).splitlines()
        sound = set(all_findings("\n".join([*lines, ""]), case, rules))
        draw = random.Random(case["name"])  # noqa: S311  which line, not a secret
        for name, way in WAYS.items():
            fitting = [at for at, line in enumerate(lines) if re.search(way.pattern, line)]
            if not fitting:
                continue
            at = draw.choice(fitting)
            instead = way.instead(lines[at])
            if instead == [lines[at]]:
                continue
            text = "\n".join([*lines[:at], *instead, *lines[at + 1 :], ""])
            counts[name] += 1
            new = [one for one in all_findings(text, case, rules) if one not in sound]
            if not any(names_it(one, lines[at], instead) for one in new):
                wrong.append(f"{case['name']}: {name}: {lines[at]}: {new}")
    return wrong


def test_every_state_broken_in_every_way_that_fits() -> None:
    """In the states written down here, each of thirty ways fits somewhere and is found."""
    counts: Counter[str] = Counter()

    assert missed(WRITTEN.values(), counts) == []
    assert len(WAYS) >= 30
    assert WAYS.keys() == counts.keys()


@pytest.mark.timeout(600)
def test_recorded_states_broken_in_every_way_that_fits() -> None:
    """Likewise those recorded of kube-proxy: a share of them, or all if asked for."""
    cases = load_cases(golden_file())
    counts: Counter[str] = Counter()

    assert missed(cases[:: 1 if given("ONENTH_ALL_STATES") else SHARE], counts) == []
    assert len(counts) >= 30
