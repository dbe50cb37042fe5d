"""Cluster states with the rules expected for them, and how the two are compared."""

from __future__ import annotations

import difflib
import gzip
import json
from typing import TYPE_CHECKING, Any

from agent.cluster.objects import LABEL_ZONE, EndpointSlice, Kind, Service, convert
from agent.rules.ruleset import RuleSet, Tables
from agent.rules.static import LAST_RULE
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_view
from agent.state.store import Store
from agent.state.values import Family, NodeView

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Case = dict[str, Any]

#: kube-proxy writes these in map order; their rules match different packets.
UNORDERED = {"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"}


def load_cases(path: Path) -> list[Case]:
    """Cases of a file of JSON lines, gzipped or not."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def case_node(config: dict[str, Any]) -> NodeView:
    """The node that a case describes."""
    detect = config["detectLocal"]
    mode, value = detect.get("mode", ""), detect.get("value", "")
    settings = NodeSettings(
        name=config["nodeName"],
        ips=(config["nodeIP"],),
        masquerade_bit=int(config["masqueradeMark"], 16).bit_length() - 1,
        masquerade_all=config["masqueradeAll"],
        localhost_node_ports=config["localhostNodePorts"],
        detect_mode=mode,
        cluster_cidrs=tuple(value.split(",")),
        bridge=value,
        prefix=value,
        node_port_addresses=tuple(config["nodePortAddresses"]),
    )
    facts = KernelFacts(
        tcp_liberal=config["conntrackTCPLiberal"],
        random_fully=config["randomFully"],
        count_invalid=config["nfacct"],
        count_localhost=config["nfacct"],
        addresses=tuple(config["nodeAddresses"]),
    )
    info = NodeInfo(
        pod_cidrs=(value,) if mode == "NodeCIDR" else (),
        zone=config["topologyLabels"].get(LABEL_ZONE, ""),
    )
    return node_view(Family(config["ipFamily"]), settings, info, facts)


def build(case: Case) -> tuple[Store, RuleSet]:
    """The store and the rule set for a case, as one full sync sees them."""
    node = case_node(case["config"])
    store = Store(_tracker_name(case))
    services = [convert(Kind.SERVICE, obj) for obj in case["services"]]
    slices = [convert(Kind.SLICE, obj) for obj in case["endpointSlices"]]
    store.replace_services([obj for obj in services if isinstance(obj, Service)])
    store.replace_slices([obj for obj in slices if isinstance(obj, EndpointSlice)])
    rules = RuleSet(node)
    rules.update(store.snapshot(0).records, store)
    return store, rules


def _tracker_name(case: Case) -> str:
    """The node name by which the recorded proxy told its local endpoints.

    kube-proxy's endpoint tracker has a node name of its own, and in some recordings it was not
    the node's: no endpoint counted as local then, whatever its nodeName. The recording tells:
    it has neither a chain of local endpoints nor a count of local ready ones.
    """
    name: str = case["config"]["nodeName"]
    if case.get("written"):  # by hand, for a proxy that knows its node
        return name
    knows = case.get("localReadyEndpoints") or any(
        chain.startswith("KUBE-SVL-") for chain in case["expected"]["nat"]
    )
    return name if knows else ""


def normalise(tables: Tables) -> Tables:
    """The same tables with rules sorted where their order has no meaning."""
    return {
        table: {
            chain: _sorted(rules) if chain in UNORDERED else list(rules)
            for chain, rules in chains.items()
        }
        for table, chains in tables.items()
    }


def _sorted(rules: Iterable[str]) -> list[str]:
    tail = [rule for rule in rules if LAST_RULE in rule]
    units: list[tuple[str, ...]] = []
    held: tuple[str, ...] = ()
    for rule in rules:
        if rule in tail:
            continue
        if "-d 127.0.0.0/8 --dport" in rule:  # stays in front of the rule behind it
            held = (rule,)
        else:
            units.append((*held, rule))
            held = ()
    ordered = sorted(units, key=lambda unit: unit[-1])
    return [rule for unit in ordered for rule in unit] + sorted(tail)


def differences(case: Case) -> str:
    """A readable diff between what is expected and what we write; empty if they are equal."""
    _, rules = build(case)
    expected, ours = normalise(case["expected"]), normalise(rules.tables())
    if expected == ours:
        return ""
    left, right = _lines(expected), _lines(ours)
    return "\n".join(
        [
            f"case {case['name']}: config {json.dumps(case['config'])}",
            *difflib.unified_diff(left, right, "kube-proxy", "onenth", lineterm="", n=2),
        ]
    )


def _lines(tables: Tables) -> list[str]:
    return [
        f"{table} {line}"
        for table, chains in sorted(tables.items())
        for chain, rules in sorted(chains.items())
        for line in [f":{chain}", *(f"-A {chain} {rule}" for rule in rules)]
    ]
