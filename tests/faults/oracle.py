"""What the kernel must hold: what a fresh agent would write, as the kernel itself words it.

The rules are compiled anew from the objects that the API server holds, as at the start of an
agent, restored into an empty network namespace with the same backend, and listed there. So both
sides are the tool's own text, and no parser of the agent's comes between.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from agent.cluster.objects import EndpointSlice, Kind, Node, Service, convert
from agent.kernel import facts as kernel_facts
from agent.kernel import nfacct
from agent.kernel.detect import choose
from agent.kernel.iptables import probe
from agent.kernel.sysctl import ROUTE_LOCALNET, Sysctls
from agent.rules.ruleset import RuleSet
from agent.state.node import NodeInfo, NodeSettings, node_info, node_view
from agent.state.store import Store
from agent.state.values import Family
from agent.sync.render import render
from tests.fakes.store import BY_KIND
from tests.kernel.inside import NamespaceRunner
from tests.kernel.running import iptables, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.demo.namespaces import Namespace
    from agent.kernel.iptables import Capabilities
    from agent.rules.ruleset import Layout
    from agent.state.values import NodeView
    from tests.fakes.apiserver import FakeAPIServer
    from tests.kernel.running import Tables

#: Marks chains and rules that somebody else owns, who must not notice anything.
FOREIGN = "FOREIGN"
LEFT_OVER = "should not be there"
_KINDS = {"Service": Kind.SERVICE, "EndpointSlice": Kind.SLICE, "Node": Kind.NODE}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the agent of a run is set."""

    backend: str
    layout: Layout
    families: tuple[Family, ...]
    node: NodeSettings


def clean(namespace: Namespace) -> None:
    """Leave nothing in any table of either backend."""
    for family in ("IPv4", "IPv6"):
        held = iptables(namespace, "legacy", "save", family=family)
        for table in [line[1:] for line in held.splitlines() if line.startswith("*")]:
            for verb in ("-F", "-X"):
                iptables(namespace, "legacy", "-t", table, verb, family=family)
    namespace.run(["nft", "flush", "ruleset"])


class Oracle:
    """Works out what should be, in a namespace of its own.

    Args:
        scratch: an empty namespace.
        node: the namespace of the agent.
    """

    def __init__(self, scratch: Namespace, node: Namespace) -> None:
        self._scratch = scratch
        self._node = node
        self._capabilities: dict[str, Capabilities] = {}

    def expected(
        self, settings: Settings, api: FakeAPIServer, *, counters: bool
    ) -> dict[Family, Tables]:
        """The tables of each family, without what built-in chains and others hold."""
        store = Store(settings.node.name)
        objects = _objects(api)
        store.replace_services([obj for obj in objects if isinstance(obj, Service)])
        store.replace_slices([obj for obj in objects if isinstance(obj, EndpointSlice)])
        nodes = [obj for obj in objects if isinstance(obj, Node)]
        mine = [obj for obj in nodes if obj.metadata.name == settings.node.name]
        info = node_info(mine[0]) if mine else NodeInfo()
        clean(self._scratch)
        found = {}
        for family in settings.families:
            view = self._view(settings, family, info, counters=counters)
            rules = RuleSet(view, settings.layout)
            rules.update(store.snapshot(0).records, store)
            self._restore(settings.backend, family, render(rules))
            found[family] = ours(tables(self._scratch, settings.backend, family.value))
        return found

    def _view(
        self, settings: Settings, family: Family, info: NodeInfo, *, counters: bool
    ) -> NodeView:
        capabilities = self._probe(settings.backend)
        if not counters:
            capabilities = dataclasses.replace(capabilities, counters=frozenset())

        def ask() -> Any:
            sysctls = Sysctls()
            localnet = bool(sysctls.read_int(ROUTE_LOCALNET).value)
            return kernel_facts.Facts(capabilities, sysctls, localnet=localnet, unreadable=_raise)(
                family
            )

        return node_view(family, settings.node, info, self._node.call(ask))

    def _probe(self, backend: str) -> Capabilities:
        """What the agent will find out about this machine when it starts."""
        if backend not in self._capabilities:
            runner = NamespaceRunner(self._scratch)
            choice = choose(backend, runner)
            made = self._scratch.call(kernel_facts.make_counters)[0]
            found = probe(choice.tool, choice.reason, runner=runner, counters=made)
            self._capabilities[backend] = found
        for counter in kernel_facts.COUNTERS:
            self._scratch.call(nfacct.ensure, counter)
        return self._capabilities[backend]

    def _restore(self, backend: str, family: Family, text: str) -> None:
        name = "iptables-restore" if family is Family.V4 else "ip6tables-restore"
        program = [f"xtables-{backend}-multi", name, "--noflush", "-w"]
        self._scratch.run(program, stdin=text)


def ours(held: Tables) -> Tables:
    """Chains of ours, and of built-in chains the jumps to them, in order."""
    found: Tables = {}
    for table, chains in held.items():
        kept = {
            chain: rules if chain.startswith("KUBE-") else [r for r in rules if "-j KUBE-" in r]
            for chain, rules in chains.items()
            if FOREIGN not in chain
        }
        kept = {c: rules for c, rules in kept.items() if rules or c.startswith("KUBE-")}
        if kept:
            found[table] = kept
    return found


def differences(wanted: Tables, held: Tables) -> list[str]:
    """What is not as it should be, a line each; empty if all is right."""
    found = []
    for table in sorted(wanted.keys() | held.keys()):
        left, right = wanted.get(table, {}), held.get(table, {})
        for chain in sorted(left.keys() | right.keys()):
            if chain not in right:
                found.append(f"{table} {chain}: missing")
            elif chain not in left:
                found.append(f"{table} {chain}: {LEFT_OVER}")
            elif not _same(chain, left[chain], right[chain]):
                lacks = [rule for rule in left[chain] if rule not in right[chain]]
                extra = [rule for rule in right[chain] if rule not in left[chain]]
                found.append(f"{table} {chain}: lacks {lacks}, holds {extra}")
    return found


def _same(chain: str, wanted: Sequence[str], held: Sequence[str]) -> bool:
    """Equal; in dispatch chains, Services may stand in any order in front of the node ports."""
    if list(wanted) == list(held):
        return True
    if not chain.startswith(("KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL", "KUBE-PROXY-F")):
        return False
    tails = [[rule for rule in rules if "KUBE-NODEPORTS" in rule] for rules in (wanted, held)]
    return sorted(wanted) == sorted(held) and (not tails[1] or held[-1] == tails[1][-1])


def _objects(api: FakeAPIServer) -> list[Any]:
    found = []
    for name, kind in _KINDS.items():
        resource = BY_KIND[name]
        keys = api.store.keys()
        for of, namespace, obj in keys:
            stored = api.store.get(resource, namespace, obj) if of == name else None
            if stored is not None:
                found.append(convert(kind, stored.content))
    return found


def _raise(error: Exception) -> None:
    raise error
