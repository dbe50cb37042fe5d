"""What ``iptables-save`` prints for a state, and ways to break it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.inspect.survey import Survey
from agent.inspect.tables import read_tables
from agent.rules.ruleset import Layout, RuleSet
from agent.rules.static import CANARY_TABLES, JUMPS
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_view
from agent.state.store import Store
from agent.state.values import Family
from agent.sync.render import render
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.kernelpart import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TABLES = ("mangle", "nat", "filter")
#: Endpoints of the sample, in the order of their text.
IPS = ("10.64.0.1", "10.64.0.2", "10.64.1.3")


def sample_store(*left_out: str, endpoints: Sequence[str] = IPS) -> Store:
    """A store with a Service of every kind.

    Args:
        left_out: names of Services to leave out.
        endpoints: of ``shop/web``.
    """
    store = Store(NODE)
    local = [endpoint(ip, node=NODE if ip.startswith("10.64.0.") else "node-b") for ip in IPS]
    http = {"name": "http", "port": 80}
    services = [
        service("web", "10.96.0.1", type="NodePort", ports=[{**http, "nodePort": 30080}]),
        service(
            "api",
            "10.96.0.2",
            type="LoadBalancer",
            ports=[{**http, "nodePort": 30081}],
            ingress=["198.51.100.2"],
            externalTrafficPolicy="Local",
            healthCheckNodePort=32000,
            loadBalancerSourceRanges=["192.0.2.0/24"],
            externalIPs=["203.0.113.2"],
        ),
        service("sticky", "10.96.0.3", ports=[http], sessionAffinity="ClientIP"),
        service("empty", "10.96.0.4", ports=[http]),
        service("dns", "10.96.0.5", ports=[{"name": "dns", "port": 53, "protocol": "UDP"}]),
    ]
    store.replace_services([one for one in services if one.metadata.name not in left_out])
    store.replace_slices(
        [
            endpoint_slice(*endpoints),
            endpoint_slice(*local, service="api"),
            endpoint_slice(*IPS, service="sticky"),
            endpoint_slice(
                *IPS[:2],
                service="dns",
                ports=[{"name": "dns", "port": 5353, "protocol": "UDP"}],
            ),
        ]
    )
    return store


def rules_for(store: Store, *, layout: Layout = "flat", mode: str = "ClusterCIDR") -> RuleSet:
    """The rules of an IPv4 node for a store."""
    settings = NodeSettings(
        NODE, ips=("192.0.2.10",), detect_mode=mode, cluster_cidrs=("10.64.0.0/16",), bridge="cbr0"
    )
    facts = KernelFacts(addresses=("192.0.2.10/24",))
    rules = RuleSet(node_view(Family.V4, settings, NodeInfo(), facts), layout)
    rules.update(store.snapshot(0).records, store)
    return rules


def saved(rules: RuleSet) -> str:
    """What the kernel prints when it holds these rules."""
    kernel = FakeKernel(rules.node.family)
    kernel.restore(render(rules))
    return "".join(kernel.save(table) for table in TABLES)


def as_dump(expected: Mapping[str, Mapping[str, Iterable[str]]]) -> str:
    """A dump with these chains, as they are written, and all that stands whatever they are."""
    lines: list[str] = []
    for table in TABLES:
        chains = expected.get(table, {})
        lines += [f"*{table}", *(f":{chain} ACCEPT [0:0]" for chain in BUILT_IN[table])]
        if table in CANARY_TABLES:
            lines.append(":KUBE-PROXY-CANARY - [0:0]")
        lines += [f":{chain} - [0:0]" for chain in chains]
        for jump in reversed(JUMPS):
            if jump.table == table:
                lines.append(f"-A {jump.source} {jump.rule.text()}")
        lines += [f"-A {chain} {rule}" for chain, rules in chains.items() for rule in rules]
        lines.append("COMMIT")
    return "\n".join([*lines, ""])


def survey(text: str, family: Family = Family.V4) -> Survey:
    """A survey of a dump."""
    return Survey(read_tables(text, family))


class Broken:
    """A dump that is being broken, line by line; each method changes the first line that fits."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def __str__(self) -> str:
        return "\n".join([*self.lines, ""])

    def find(self, pattern: str, after: str = "") -> int:
        """Number of the first line (from 0) that the pattern is found in, behind another one."""
        start = self.find(after) + 1 if after else 0
        for number in range(start, len(self.lines)):
            if re.search(pattern, self.lines[number]):
                return number
        raise AssertionError(f"no line fits {pattern!r}")

    def drop(self, pattern: str, after: str = "") -> str:
        """Take a line away, and return it."""
        return self.lines.pop(self.find(pattern, after))

    def drop_all(self, pattern: str) -> None:
        """Take all lines away that fit."""
        self.find(pattern)
        self.lines = [line for line in self.lines if not re.search(pattern, line)]

    def replace(self, pattern: str, new: str, after: str = "", within: str = "") -> None:
        """Replace a part of a line; the line is the first that ``within`` fits, if it is given."""
        number = self.find(within or pattern, after)
        changed = re.sub(pattern, new, self.lines[number], count=1)
        assert changed != self.lines[number]
        self.lines[number] = changed

    def insert(self, line: str, before: str) -> None:
        """Put a line in front of another one."""
        self.lines.insert(self.find(before), line)

    def append(self, line: str, behind: str) -> None:
        """Put a line behind another one."""
        self.lines.insert(self.find(behind) + 1, line)
