from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.inspect.compare import compare
from agent.inspect.differences import differences, merge
from agent.inspect.findings import Finding, Wrong
from agent.inspect.plan import make_plan
from agent.inspect.tables import read_tables
from agent.inspect.verify import both_hold, verify
from agent.rules import names
from agent.state.store import Store
from agent.state.values import Family
from agent.sync.plan import Planner
from tests.fakes.cluster import NODE, endpoint_slice, service
from tests.fakes.dumps import IPS, Broken, as_dump, rules_for, sample_store, saved, survey
from tests.parity.case import UNORDERED, build
from tests.parity.written import load_written

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.inspect.survey import Survey
    from agent.rules.ruleset import Layout, RuleSet

SOUND = saved(rules_for(sample_store()))
WRITTEN = load_written()

WEB, API, STICKY = "67NZLRHBNDSAWJRO", "RUKNB3TURLFC6SGL", "25FJTMN2OLOPNGWS"
SVC, EXT = f"KUBE-SVC-{WEB}", f"KUBE-EXT-{WEB}"
SEP = "KUBE-SEP-KZ2AHDPWGJUWU6GP"  # shop/web:http at 10.64.0.1:8080


class Fault(NamedTuple):
    """One thing that is broken, and what must be found.

    Attributes:
        kind: of the finding.
        break_it: breaks the dump.
        chain: named in the finding.
        service: likewise.
        number: of the rule at fault, 0 if there is none.
        table: likewise.
    """

    kind: Wrong
    break_it: Callable[[Broken], object]
    chain: str
    service: str = ""
    number: int = 0
    table: str = "nat"


FORWARD_ORDER = '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'


def _swap_forward(dump: Broken) -> None:
    line = dump.drop("-A FORWARD .*KUBE-PROXY-FIREWALL")
    dump.append(line, "-A FORWARD .*KUBE-FORWARD")


def _tail_first(dump: Broken) -> None:
    dump.insert(dump.drop("-A KUBE-SERVICES .*KUBE-NODEPORTS"), "-A KUBE-SERVICES -d")


def _invalid_behind(dump: Broken) -> None:
    dump.append(dump.drop("--ctstate INVALID -j DROP"), "-A KUBE-FORWARD .*RELATED")


def _no_chain(dump: Broken) -> None:
    dump.drop(f"^:{SEP}")
    dump.drop_all(f"-A {SEP}")


def _no_filter_node_ports(dump: Broken) -> None:
    dump.drop("^:KUBE-NODEPORTS", after=r"^\*filter")
    dump.drop_all("--dport 32000")


def _no_firewall_chain(dump: Broken) -> None:
    dump.drop_all(f"^:KUBE-FW-{API}")
    dump.drop_all(f"-A KUBE-FW-{API}")
    dump.drop(f"-j KUBE-FW-{API}")


def _twice(dump: Broken, pattern: str) -> None:
    dump.append(dump.lines[dump.find(pattern)], pattern)


def _sticky_twice(dump: Broken) -> None:
    dump.replace("--seconds 10800", "--seconds 60", within=f"-A KUBE-SVC-{STICKY} .*0.2:8080")


FAULTS = {
    "a wrong probability": Fault(
        Wrong.PROBABILITY,
        lambda d: d.replace("0.33333333349", "0.25000000000", within=f"-A {SVC} .*0.33"),
        SVC,
        "shop/web:http",
        2,
    ),
    "a probability that is nobody's share": Fault(
        Wrong.PROBABILITY,
        lambda d: d.replace("0.33333333349", "0.41000000000", within=f"-A {SVC} .*0.33"),
        SVC,
        "shop/web:http",
        2,
    ),
    "a last rule with a probability": Fault(
        Wrong.LAST_HAS_PROBABILITY,
        lambda d: d.replace(
            "-j KUBE-SEP-43AHX",
            "-m statistic --mode random --probability 0.5 -j KUBE-SEP-43AHX",
            within=f"-A {SVC} .*KUBE-SEP-43AHX",
        ),
        SVC,
        "shop/web:http",
        4,
    ),
    "a middle rule without one": Fault(
        Wrong.CASCADE_ENDS_EARLY,
        lambda d: d.replace(
            "-m statistic --mode random --probability 0.50000000000 ", "", within=f"-A {SVC} .*0.50"
        ),
        SVC,
        "shop/web:http",
        3,
    ),
    "an endpoint with two shares": Fault(
        Wrong.ENDPOINT_TWICE,
        lambda d: d.replace(
            "KUBE-SEP-KEUHPB6KNPQKOBWX", SEP, within=f"-A {SVC} .*KUBE-SEP-KEUHPB6KNPQKOBWX"
        ),
        SVC,
        "shop/web:http",
        3,
    ),
    "a chain that is not there": Fault(Wrong.JUMP_TO_NOTHING, _no_chain, SVC, "shop/web:http", 2),
    "a chain that nothing jumps to": Fault(
        Wrong.ORPHAN_CHAIN,
        lambda d: d.drop(f"-A {SVC} .*-> 10.64.0.1:8080"),
        SEP,
        "shop/web:http",
    ),
    "no jump from PREROUTING": Fault(
        Wrong.JUMP_MISSING, lambda d: d.drop("-A PREROUTING .*KUBE-SERVICES"), "PREROUTING"
    ),
    "a jump twice": Fault(
        Wrong.JUMP_TWICE,
        lambda d: _twice(d, "-A OUTPUT .*KUBE-SERVICES"),
        "OUTPUT",
        number=2,
    ),
    "jumps in another order": Fault(
        Wrong.JUMP_ORDER, _swap_forward, "FORWARD", number=2, table="filter"
    ),
    "a jump for all packets, not for new ones": Fault(
        Wrong.JUMP_DIFFERS,
        lambda d: d.replace("-m conntrack --ctstate NEW ", "", within="-A FORWARD .*KUBE-SERVICES"),
        "FORWARD",
        number=3,
        table="filter",
    ),
    "an ACCEPT in front of the jumps": Fault(
        Wrong.JUMP_SHADOWED,
        lambda d: d.insert("-A PREROUTING -j ACCEPT", "-A PREROUTING .*KUBE-SERVICES"),
        "PREROUTING",
        number=1,
    ),
    "no node-port tail": Fault(
        Wrong.TAIL_MISSING,
        lambda d: d.drop("-A KUBE-SERVICES .*KUBE-NODEPORTS"),
        "KUBE-SERVICES",
    ),
    "a node-port tail that is not last": Fault(
        Wrong.TAIL_NOT_LAST, _tail_first, "KUBE-SERVICES", number=1
    ),
    "two node-port tails": Fault(
        Wrong.TAIL_TWICE,
        lambda d: _twice(d, "-A KUBE-SERVICES .*KUBE-NODEPORTS"),
        "KUBE-SERVICES",
        number=8,
    ),
    "a tail for nobody": Fault(
        Wrong.JUMP_DIFFERS,
        lambda d: d.replace("--dst-type LOCAL", "--dst-type UNICAST", within="KUBE-NODEPORTS$"),
        "KUBE-SERVICES",
        number=7,
    ),
    "no mark": Fault(
        Wrong.MARK_RULE,
        lambda d: d.replace("0x4000/0x4000", "0x0/0x0", within="-A KUBE-MARK-MASQ"),
        "KUBE-MARK-MASQ",
        number=1,
    ),
    "no RETURN for unmarked packets": Fault(
        Wrong.MASQUERADE_RULES,
        lambda d: d.drop("-A KUBE-POSTROUTING .*RETURN"),
        "KUBE-POSTROUTING",
        number=1,
    ),
    "no MASQUERADE": Fault(
        Wrong.MASQUERADE_RULES,
        lambda d: d.drop("-A KUBE-POSTROUTING .*MASQUERADE"),
        "KUBE-POSTROUTING",
    ),
    "another mark is masqueraded": Fault(
        Wrong.MARK_MISMATCH,
        lambda d: d.replace("0x4000/0x4000", "0x80/0x80", within="-A KUBE-POSTROUTING .*RETURN"),
        "KUBE-POSTROUTING",
        number=1,
    ),
    "another mark is accepted": Fault(
        Wrong.MARK_MISMATCH,
        lambda d: d.replace("0x4000/0x4000", "0x80/0x80", within="-A KUBE-FORWARD .*ACCEPT"),
        "KUBE-FORWARD",
        number=2,
        table="filter",
    ),
    "marked packets are not accepted": Fault(
        Wrong.FORWARD_RULES,
        lambda d: d.drop("-A KUBE-FORWARD .*--mark"),
        "KUBE-FORWARD",
        table="filter",
    ),
    "answers are not accepted": Fault(
        Wrong.FORWARD_RULES,
        lambda d: d.drop("-A KUBE-FORWARD .*RELATED"),
        "KUBE-FORWARD",
        table="filter",
    ),
    "INVALID packets pass": Fault(
        Wrong.INVALID_RULE_MISSING,
        lambda d: d.drop("--ctstate INVALID -j DROP"),
        "KUBE-FORWARD",
        table="filter",
    ),
    "INVALID packets are dropped too late": Fault(
        Wrong.RULE_ORDER, _invalid_behind, "KUBE-FORWARD", number=3, table="filter"
    ),
    "an endpoint's chain that does not translate": Fault(
        Wrong.ENDPOINT_BROKEN, lambda d: d.drop(f"-A {SEP} .*DNAT"), SEP, "shop/web:http", 1
    ),
    "an endpoint's chain that translates some packets": Fault(
        Wrong.ENDPOINT_BROKEN,
        lambda d: d.replace("-p tcp", "-d 10.0.0.0/8 -p tcp", within=f"-A {SEP} .*DNAT"),
        SEP,
        "shop/web:http",
        2,
    ),
    "an endpoint that cannot reach itself": Fault(
        Wrong.HAIRPIN, lambda d: d.drop(f"-A {SEP} .*KUBE-MARK-MASQ"), SEP, "shop/web:http"
    ),
    "another endpoint's packets are marked": Fault(
        Wrong.HAIRPIN,
        lambda d: d.replace("10.64.0.1/32", "10.64.0.9/32", within=f"-A {SEP} .*KUBE-MARK-MASQ"),
        SEP,
        "shop/web:http",
        1,
    ),
    "an endpoint's chain that leads elsewhere": Fault(
        Wrong.HASH,
        lambda d: d.replace("10.64.0.1:8080", "10.64.0.1:9090", within=f"-A {SEP} .*DNAT"),
        SEP,
        "shop/web:http",
        2,
    ),
    "a comment that names another endpoint": Fault(
        Wrong.COMMENT,
        lambda d: d.replace("-> 10.64.0.1", "-> 10.64.0.7", within=f"-A {SVC} .*-> 10.64.0.1"),
        SVC,
        "shop/web:http",
        2,
    ),
    "a portal that leads to another Service": Fault(
        Wrong.CROSSED,
        lambda d: d.replace(
            f"KUBE-SVC-{WEB}", f"KUBE-SVC-{STICKY}", within="shop/web:http cluster IP"
        ),
        "KUBE-SERVICES",
        "shop/web:http",
        6,
    ),
    "a portal whose comment names a Service of another hash": Fault(
        Wrong.HASH,
        lambda d: d.replace("shop/web:http", "shop/wab:http", within="-A KUBE-SERVICES .*shop/web"),
        "KUBE-SERVICES",
        "shop/wab:http",
        6,
    ),
    "a portal that leads to the wrong kind of chain": Fault(
        Wrong.PORTAL_TARGET,
        lambda d: d.replace(
            f"KUBE-EXT-{API}", f"KUBE-SVC-{API}", within="-A KUBE-SERVICES .*external IP"
        ),
        "KUBE-SERVICES",
        "shop/api:http",
        2,
    ),
    "a base chain that is not there": Fault(
        Wrong.CHAIN_MISSING,
        _no_filter_node_ports,
        "KUBE-NODEPORTS",
        table="filter",
    ),
    "a canary that is not there": Fault(
        Wrong.CANARY_MISSING,
        lambda d: d.drop("^:KUBE-PROXY-CANARY"),
        "KUBE-PROXY-CANARY",
        table="mangle",
    ),
    "external traffic that falls through": Fault(
        Wrong.FALLS_THROUGH, lambda d: d.drop(f"-A {EXT} -j KUBE-SVC"), EXT, "shop/web:http", 1
    ),
    "external traffic that is not masqueraded": Fault(
        Wrong.MASQUERADE_MISSING,
        lambda d: d.drop(f"-A {EXT} .*KUBE-MARK-MASQ"),
        EXT,
        "shop/web:http",
    ),
    "external traffic for another Service": Fault(
        Wrong.CROSSED,
        lambda d: d.replace(f"-j KUBE-SVC-{WEB}", f"-j KUBE-SVC-{API}", within=f"-A {EXT} -j"),
        EXT,
        "shop/web:http",
        2,
    ),
    "a firewall that does not drop": Fault(
        Wrong.FIREWALL_OPEN,
        lambda d: d.drop("-A KUBE-PROXY-FIREWALL .*DROP"),
        f"KUBE-FW-{API}",
        "shop/api:http",
    ),
    "a firewall that lets everybody pass": Fault(
        Wrong.FIREWALL_OPEN,
        lambda d: d.replace("-s 192.0.2.0/24 ", "", within=f"-A KUBE-FW-{API}"),
        f"KUBE-FW-{API}",
        "shop/api:http",
        1,
    ),
    "a firewall's chain that is not there": Fault(
        Wrong.CONTRADICTION,
        _no_firewall_chain,
        "KUBE-PROXY-FIREWALL",
        "shop/api:http",
        1,
        "filter",
    ),
    "clients that are sent to another endpoint": Fault(
        Wrong.AFFINITY,
        lambda d: d.replace(
            "--name KUBE-SEP-BDH4VBPH4K42ULJU",
            "--name KUBE-SEP-5DP4KT5WVAMEV6AO",
            within=f"-A KUBE-SVC-{STICKY} .*rcheck .*KUBE-SEP-BDH4",
        ),
        f"KUBE-SVC-{STICKY}",
        "shop/sticky:http",
        2,
    ),
    "clients that are not remembered": Fault(
        Wrong.AFFINITY,
        lambda d: d.replace(
            "-m recent --set .* --rsource ", "", within="-A KUBE-SEP-BDH4VBPH4K42ULJU .*DNAT"
        ),
        f"KUBE-SVC-{STICKY}",
        "shop/sticky:http",
        5,
    ),
    "clients that are remembered for different times": Fault(
        Wrong.AFFINITY, _sticky_twice, f"KUBE-SVC-{STICKY}", "shop/sticky:http", 2
    ),
    "the same portal twice": Fault(
        Wrong.PORTAL_TWICE,
        lambda d: _twice(d, "shop/web:http cluster IP"),
        "KUBE-SERVICES",
        "shop/web:http",
        7,
    ),
    "a Service that is refused and served": Fault(
        Wrong.CONTRADICTION,
        lambda d: d.replace("10.96.0.4/32", "10.96.0.1/32", within="shop/empty:http"),
        "KUBE-SERVICES",
        "shop/empty:http",
        1,
        "filter",
    ),
    "a refusal that lets through": Fault(
        Wrong.PORTAL_TARGET,
        lambda d: d.replace("REJECT --reject-with .*", "ACCEPT", within="shop/empty:http"),
        "KUBE-SERVICES",
        "shop/empty:http",
        1,
        "filter",
    ),
    "somebody's rule in a Service's chain": Fault(
        Wrong.FOREIGN_RULE,
        lambda d: d.insert(f"-A {SVC} -s 203.0.113.9/32 -j DROP", f"-A {SVC} "),
        SVC,
        "shop/web:http",
        1,
    ),
    "somebody's rule among the portals": Fault(
        Wrong.FOREIGN_RULE,
        lambda d: d.insert("-A KUBE-SERVICES -d 10.96.0.0/16 -j RETURN", "-A KUBE-SERVICES -d"),
        "KUBE-SERVICES",
        number=1,
    ),
    "a Service's chain that is empty": Fault(
        Wrong.NO_ENDPOINTS, lambda d: d.drop_all(f"-A {SVC} .*->"), SVC, "shop/web:http"
    ),
    "marking behind the dice": Fault(
        Wrong.RULE_ORDER,
        lambda d: d.append(d.drop(f"-A {SVC} .*KUBE-MARK-MASQ"), f"-A {SVC} .*10.64.1.3"),
        SVC,
        "shop/web:http",
        4,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_and_named(name: str) -> None:
    """With one thing broken, a finding has its kind, its table, chain, Service and rule."""
    fault = FAULTS[name]
    dump = Broken(SOUND)
    fault.break_it(dump)

    found = verify(survey(str(dump)), tcp_be_liberal=False)

    named = [(one.kind, one.table, one.chain, one.service, one.number) for one in found]
    assert (fault.kind, fault.table, fault.chain, fault.service, fault.number) in named, found


def test_there_are_more_than_thirty_faults_of_most_kinds() -> None:
    """Nobody removes them by accident."""
    assert len(FAULTS) >= 50
    assert len({fault.kind for fault in FAULTS.values()}) >= 30


@pytest.mark.parametrize("mode", ["ClusterCIDR", "BridgeInterface", ""])
@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_what_the_agent_writes_is_sound(mode: str, layout: str) -> None:
    """Nothing is found in rules as the kernel prints them, in either layout."""
    rules = rules_for(sample_store(), layout="tree" if layout == "tree" else "flat", mode=mode)

    assert verify(survey(saved(rules)), tcp_be_liberal=False) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_what_kube_proxy_writes_is_sound(name: str) -> None:
    """Nothing is found in any of the written-down states."""
    case = WRITTEN[name]
    text = as_dump(case["expected"])
    liberal = case["config"]["conntrackTCPLiberal"]

    found = verify(survey(text, Family(case["config"]["ipFamily"])), tcp_be_liberal=liberal)

    _, rules = build(case)
    assert merge(found, [], rules) == []
    # Only the configuration tells that node ports are meant to be out of reach.
    wanted = [Wrong.TAIL_MISSING] if rules.node.node_port_ips == () else []
    assert [one.kind for one in found] == wanted


def test_the_invalid_rule_is_compared_with_the_sysctl() -> None:
    """With nf_conntrack_tcp_be_liberal the rule is one too many; unknown, nothing is said."""
    held = survey(SOUND)

    assert [one.kind for one in verify(held, tcp_be_liberal=True)] == [Wrong.INVALID_RULE_UNNEEDED]
    assert verify(held, tcp_be_liberal=None) == []


def test_a_kernel_without_service_rules_is_one_finding() -> None:
    """Not one for each rule that is missing."""
    text = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"

    assert [one.kind for one in verify(survey(text))] == [Wrong.NO_RULES]


def test_both_backends_with_service_rules_are_found() -> None:
    """Packets would meet both; an empty other backend is no finding."""
    held = survey(SOUND)
    empty = read_tables("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", Family.V4)

    (found,) = both_hold(held, read_tables(SOUND, Family.V4), "legacy")

    assert found.kind is Wrong.BOTH_BACKENDS
    assert "cleanup --backend legacy" in found.expected
    assert both_hold(held, empty, "legacy") == []


@pytest.mark.parametrize("endpoints", [2, 3, 7, 100, 46_341, 50_000])
def test_shares_are_right_however_many_there_are(endpoints: int) -> None:
    """1/n comes back from the kernel as a multiple of 2^-31 and counts as 1/n."""
    lines = ["*nat", ":KUBE-SVC-X - [0:0]", ":KUBE-SEP-X - [0:0]"]
    for left in (endpoints, endpoints - 1):
        step = round(round(1 / left, 10) * 2**31) / 2**31
        chance = f" -m statistic --mode random --probability {step:.11f}" if left > 1 else ""
        lines.append(f"-A KUBE-SVC-X{chance} -j KUBE-SEP-{left}")
    lines += [f"-A KUBE-SVC-X -j KUBE-SEP-{left}" for left in range(endpoints - 2)]
    text = "\n".join([*lines, "COMMIT", ""])

    found = verify(survey(f"{text}{BASE}"), tcp_be_liberal=False)

    assert not [one for one in found if one.kind is Wrong.PROBABILITY and one.number < 3]


BASE = "*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"


# Against what should be ----------------------------------------------------------------------


def _against(text: str, rules: RuleSet) -> list[Finding]:
    """All findings for a dump that should hold these rules."""
    held = survey(text)
    changes = compare(held, rules, Planner(rules).jumps())
    return merge(verify(held, tcp_be_liberal=False), differences(held, rules, changes), rules)


def test_rules_that_are_as_they_should_be() -> None:
    """No finding against the same state."""
    assert _against(SOUND, rules_for(sample_store())) == []


def test_jumps_in_another_order_are_a_finding_and_a_change() -> None:
    """Found once, though both the rules alone and the comparison tell it."""
    dump = Broken(SOUND)
    _swap_forward(dump)
    rules = rules_for(sample_store())
    held = survey(str(dump))

    assert [one.kind for one in _against(str(dump), rules)] == [Wrong.JUMP_ORDER]
    (change,) = compare(held, rules, Planner(rules).jumps())
    assert (change.table, change.chain, change.moved) == ("filter", "FORWARD", True)


@pytest.mark.parametrize("name", WRITTEN)
def test_recorded_rules_are_what_the_same_state_should_have(name: str) -> None:
    """Each written-down state holds what is expected for its objects."""
    case = WRITTEN[name]
    _, rules = build(case)
    held = survey(as_dump(case["expected"]), Family(case["config"]["ipFamily"]))
    jumps = [jump for jump in Planner(rules).jumps() if jump.rule.matches]

    assert compare(held, rules, jumps) == []


def test_a_stale_endpoint_is_named() -> None:
    """As Service, chain and rule; that the others' shares differ is no finding of its own."""
    (found,) = _against(SOUND, rules_for(sample_store(endpoints=IPS[:2])))

    assert found.kind is Wrong.ENDPOINT_STALE
    assert (found.service, found.chain, found.number) == ("shop/web:http", SVC, 4)
    assert "10.64.1.3:8080" in found.text
    assert "KUBE-SEP-43AHXAV7RWTHCVFD" in found.rule


def test_a_missing_endpoint_is_named() -> None:
    """With the rule that should be there."""
    rules = rules_for(sample_store(endpoints=[*IPS, "10.64.1.4"]))

    (found,) = _against(SOUND, rules)

    assert found.kind is Wrong.ENDPOINT_MISSING
    assert (found.service, found.chain, found.number) == ("shop/web:http", SVC, 0)
    assert "-> 10.64.1.4:8080" in found.expected


def test_a_missing_service_is_one_finding() -> None:
    """Not one for each of its rules."""
    without = saved(rules_for(sample_store("web")))

    (found,) = _against(without, rules_for(sample_store()))

    assert found.kind is Wrong.SERVICE_MISSING
    assert found.service == "shop/web:http"
    assert "-d 10.96.0.1 --dport 80" in found.expected


def test_a_service_that_is_gone_is_one_finding() -> None:
    """Not one for each of its chains."""
    (found,) = _against(SOUND, rules_for(sample_store("web")))

    assert found.kind is Wrong.SERVICE_UNEXPECTED
    assert found.service == "shop/web:http"
    assert "5 chains and 14 rules" in found.text


def test_a_rule_that_differs_is_named_with_what_it_should_be() -> None:
    """A portal for another port than the Service has."""
    dump = Broken(SOUND)
    dump.replace("--dport 53 ", "--dport 54 ", within="-A KUBE-SERVICES .*shop/dns")

    (found,) = _against(str(dump), rules_for(sample_store()))

    assert found.kind is Wrong.RULE_DIFFERS
    assert (found.service, found.chain, found.number) == ("shop/dns:dns", "KUBE-SERVICES", 4)
    assert "--dport 54" in found.rule
    assert "--dport 53" in found.expected


def test_a_missing_rule_of_a_service_is_named() -> None:
    """The external IP's portal is gone, the rest is there."""
    dump = Broken(SOUND)
    dump.drop("shop/api:http external IP")

    (found,) = _against(str(dump), rules_for(sample_store()))

    assert (found.kind, found.service) == (Wrong.RULE_MISSING, "shop/api:http")
    assert "203.0.113.2" in found.expected


def test_findings_are_plain_values_in_json() -> None:
    """Kind and family by name."""
    dump = Broken(SOUND)
    dump.drop("-A PREROUTING .*KUBE-SERVICES")

    (found,) = verify(survey(str(dump)), tcp_be_liberal=False)

    assert json.loads(json.dumps(found.as_json())) == {
        "kind": "jump-missing",
        "family": "IPv4",
        "table": "nat",
        "chain": "PREROUTING",
        "text": "nothing jumps from PREROUTING to KUBE-SERVICES",
        "service": "",
        "rule": "",
        "number": 0,
        "expected": '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    }


# A tree of many Services ---------------------------------------------------------------------


def _many(layout: Layout) -> RuleSet:
    """Three hundred Services with node ports, in a layout."""
    store = Store(NODE)
    numbers = range(300)
    store.replace_services(
        [
            service(
                f"s{n}",
                f"10.96.{n // 250}.{n % 250}",
                type="NodePort",
                ports=[{"name": "http", "port": 80, "nodePort": 30000 + 5 * n}],
            )
            for n in numbers
        ]
    )
    store.replace_slices([endpoint_slice(*IPS, service=f"s{n}") for n in numbers])
    return rules_for(store, layout=layout)


def test_branches_of_a_tree_are_followed() -> None:
    """The portals of a tree are those of the flat list, it is sound, and orphans are found."""
    flat, tree = survey(saved(_many("flat"))), survey(saved(_many("tree")))

    def what(held: Survey) -> set[tuple[str, str, str]]:
        return {(p.root, p.service, p.target) for p in held.portals}

    assert any(names.is_tree_chain(chain) for chain in tree.tables.tables["nat"])
    assert what(tree) == what(flat)
    assert verify(tree, tcp_be_liberal=False) == []

    dump = Broken(saved(_many("tree")))
    branch = dump.drop("-A KUBE-SERVICES .*-j KUBE-SVC-TREE-").rpartition(" ")[2]
    found = verify(survey(str(dump)), tcp_be_liberal=False)
    assert (Wrong.ORPHAN_CHAIN, branch) in {(one.kind, one.chain) for one in found}


def test_the_same_services_in_another_layout_only_move() -> None:
    """A plan from flat to tree and back changes no Service."""
    for before, after in (("flat", "tree"), ("tree", "flat")):
        held = survey(saved(_many("tree" if before == "tree" else "flat")))
        rules = _many("tree" if after == "tree" else "flat")
        changes = compare(held, rules, Planner(rules).jumps())
        plan = make_plan(held, map(str, rules.services), changes)

        assert plan.moved > 500
        assert [group.service for group in plan.groups] == [""]


# Any single rule -----------------------------------------------------------------------------

RULES = [line for line in SOUND.splitlines() if line.startswith("-A ")]


@pytest.mark.parametrize("number", range(len(RULES)))
def test_whatever_single_rule_is_missing_is_found(number: int) -> None:
    """Any rule that is deleted is found, in its chain or with its Service."""
    line = RULES[number]
    dump = Broken(SOUND)
    dump.lines.remove(line)
    chain = line.split()[1]

    found = _against(str(dump), rules_for(sample_store()))

    owner = survey(SOUND).service_of(chain)
    assert any(one.chain == chain or (owner and one.service == owner) for one in found), line


@pytest.mark.parametrize("number", range(0, len(RULES), 2))
def test_whatever_single_rule_is_twice_or_moved_is_found(number: int) -> None:
    """Where order and number mean something: in all chains but the dispatch chains."""
    line = RULES[number]
    chain = line.split()[1]
    twice, last = Broken(SOUND), Broken(SOUND)
    twice.lines.insert(twice.lines.index(line), line)
    same = [one for one in last.lines if one.startswith(f"-A {chain} ")]
    last.lines.remove(line)
    if same[-1] != line:
        last.lines.insert(last.lines.index(same[-1]) + 1, line)

    # The kubelet's jump and rule may be there as often as it likes: they are not only ours.
    if chain != "KUBE-FIREWALL" and not line.endswith("-j KUBE-FIREWALL"):
        assert _against(str(twice), rules_for(sample_store())), line
    ordered = chain not in UNORDERED and not line.endswith("-j KUBE-FIREWALL")
    if ordered and same[-1] != line:
        assert _against(str(last), rules_for(sample_store())), line
