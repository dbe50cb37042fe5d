"""What the kernel should hold in one family, kept up to date Service by Service.

The compiled chains of a Service are kept until the Service, its endpoints or the node change;
so an update costs what changed. Nothing here knows what the kernel holds: that is the
planner's business (``agent.sync.plan``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

from agent.rules.dispatch import (
    ChainId,
    Dispatch,
    FlatDispatch,
    OwnedRules,
    Owner,
    TreeDispatch,
)
from agent.rules.edges import differing
from agent.rules.endpoints import EndpointChains
from agent.rules.service import Compiled, Place, compile_port
from agent.rules.static import BASE_CHAINS, node_port_tail, static_chains
from agent.state.selection import select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.cluster.objects import Key
    from agent.rules.endpoints import Chain
    from agent.state.store import Record
    from agent.state.values import NodeView

#: Above this number of endpoints, ready or not, rules of endpoints carry no comments.
LARGE_CLUSTER = 1000
#: ``dispatch: auto`` grows a tree above so many service ports, and is flat again below so many.
TREE_ABOVE = 200
FLAT_BELOW = 150

ServiceChains = dict[Owner, Compiled]
#: Chains that are new or have other rules, and names of those that are gone.
Differences = tuple[list["Chain"], list[str]]
Tables = dict[str, dict[str, list[str] | tuple[str, ...]]]
Layout = Literal["auto", "flat", "tree"]


class RuleSet:
    """The rules of one family. Owned by one thread.

    Attributes:
        node: what rules depend on besides Services.
        services: compiled service ports by Service; Services without any are absent.
        dispatch: their portals, in the layout in force.
        set_aside: Services whose rules the kernel refused; they are compiled to nothing.
        comments: whether rules of endpoints carry comments.
    """

    def __init__(self, node: NodeView, layout: Layout = "flat") -> None:
        self.node = node
        self.services: dict[Key, ServiceChains] = {}
        self.set_aside: set[Key] = set()
        self.comments = True
        self._layout = layout
        self._totals = _Totals()
        self._made = EndpointChains()
        self._endpoints: dict[Key, int] = {}
        self._total_endpoints = 0
        self._changed: set[ChainId] = set()
        self._gone: set[ChainId] = set()
        self.dispatch: Dispatch = self._new_dispatch(tree=layout == "tree")

    @property
    def tree(self) -> bool:
        """Whether packets find their Service through a tree."""
        return isinstance(self.dispatch, TreeDispatch)

    @property
    def total_endpoints(self) -> int:
        """Endpoints of all service ports, ready or not."""
        return self._total_endpoints

    def update(self, records: Iterable[Record], everything: Iterable[Record]) -> set[Key]:
        """Compile the records that changed; all of them if that changes how rules are written.

        Args:
            records: what changed.
            everything: all records, also those that changed; only looked at when the cluster gets
                large or small.

        Returns:
            The Services whose chains may differ from before.
        """
        changed = tuple(records)
        for record in changed:
            self._count(record)
        comments = self._total_endpoints <= LARGE_CLUSTER
        if comments == self.comments:
            touched = {record.key for record in changed if self._compile(record)}
        else:
            self.comments = comments
            touched = self.recompile(everything)
        self._choose_layout()
        return touched

    def recompile(self, everything: Iterable[Record], node: NodeView | None = None) -> set[Key]:
        """Compile everything anew, perhaps for a node that has changed."""
        self.node = node or self.node
        self._changed = {*static_chains(self.node), Place.NAT_SERVICES.value}
        return {record.key for record in everything if self._compile(record)}

    def _count(self, record: Record) -> None:
        """Keep the number of endpoints; also of what is set aside, so that others stay as is."""
        key, family = record.key, self.node.family
        ports = record.service_ports(family)
        counts = record.endpoint_counts(family) if ports else {}
        total = sum(counts.get((port.port_name, port.protocol), 0) for port in ports)
        self._total_endpoints += total - self._endpoints.pop(key, 0)
        if total:
            self._endpoints[key] = total

    def _compile(self, record: Record) -> bool:
        """Compile one record; tells whether anything differs from before."""
        key, family = record.key, self.node.family
        compiled: ServiceChains = {}
        ports = record.service_ports(family) if key not in self.set_aside else ()
        endpoints = record.endpoints(family) if ports else {}
        for port in ports:
            mine = endpoints.get((port.port_name, port.protocol), ())
            selection = select(port, mine, self.node.name, self.node.zone)
            owner = (key, port.port_name, port.protocol)
            compiled[owner] = compile_port(
                port, selection, self.node, self._made, comments=self.comments
            )
        return self._replace(key, compiled)

    def _replace(self, key: Key, compiled: ServiceChains) -> bool:
        before = self.services.get(key, {})
        if before == compiled:
            return False
        for owner in before.keys() - compiled.keys():
            self.dispatch.put(owner, ())
            self._made.forget(owner)
        for owner, chains in compiled.items():
            known = before.get(owner)
            if known is None or known.portals != chains.portals:
                self.dispatch.put(owner, chains.portals)
        self._totals.replace(before.values(), compiled.values())
        if compiled:
            self.services[key] = compiled
        else:
            del self.services[key]
        return True

    # The layout --------------------------------------------------------------------------

    def _new_dispatch(self, *, tree: bool) -> Dispatch:
        return TreeDispatch(self.node.family.host_bits) if tree else FlatDispatch()

    def _choose_layout(self) -> None:
        """Change over between flat and tree; in between, what is stays."""
        if self._layout != "auto":
            return
        ports = self._totals.ports
        tree = ports > (FLAT_BELOW if self.tree else TREE_ABOVE)
        if tree == self.tree:
            return
        _, gone = self.dispatch.take_changes()
        left = gone | set(self.dispatch.chains())
        self.dispatch = self._new_dispatch(tree=tree)
        for compiled in self.services.values():
            for owner, chains in compiled.items():
                self.dispatch.put(owner, chains.portals)
        self._gone |= left - set(self.dispatch.chains())

    # Shared chains -----------------------------------------------------------------------

    def take_changes(self) -> tuple[set[ChainId], set[ChainId]]:
        """Shared chains that changed, and those that are gone, since this was last called."""
        changed, gone = self.dispatch.take_changes()
        changed |= self._changed
        gone = (gone | self._gone) - changed
        self._changed, self._gone = set(), set()
        return changed, gone

    def shared_ids(self) -> Iterable[ChainId]:
        """All chains that are not of one Service."""
        return [*self.dispatch.chains(), *static_chains(self.node)]

    def shared(self, chain: ChainId) -> OwnedRules:
        """Rules of one chain that is not of one Service, with their owners (None: nobody)."""
        static = static_chains(self.node).get(chain)
        if static is not None:
            return [(None, rule.text()) for rule in static]
        rules = self.dispatch.rules(chain)
        if chain == Place.NAT_SERVICES.value:
            rules += [(None, rule.text()) for rule in node_port_tail(self.node)]
        return rules

    # Numbers -----------------------------------------------------------------------------

    @property
    def own_count(self) -> int:
        """Number of chains that are of one Service."""
        return self._totals.chains

    def counts(self) -> dict[str, int]:
        """Number of rules by table."""
        counts = {"filter": self.dispatch.count("filter"), "nat": self.dispatch.count("nat")}
        for (table, _), rules in static_chains(self.node).items():
            counts[table] += len(rules)
        counts["nat"] += self._totals.rules + len(node_port_tail(self.node))
        return counts

    def without_local_endpoints(self) -> tuple[int, int]:
        """Service ports whose internal, and whose external traffic is dropped here."""
        return self._totals.no_local_internal, self._totals.no_local_external

    def tables(self) -> Tables:
        """Everything, as table -> chain -> rules; for comparing and for people."""
        tables: Tables = {table: {} for table in BASE_CHAINS}
        for table, chain in self.shared_ids():
            tables[table][chain] = [text for _, text in self.shared((table, chain))]
        for compiled in self.services.values():
            tables["nat"].update(own_chains(compiled))
        return tables


class _Totals:
    """Sums over all service ports, kept as they change."""

    def __init__(self) -> None:
        self.ports = self.chains = self.rules = 0
        self.no_local_internal = self.no_local_external = 0

    def replace(self, before: Iterable[Compiled], after: Iterable[Compiled]) -> None:
        for sign, compiled in ((-1, before), (1, after)):
            for port in compiled:
                self.ports += sign
                self.chains += sign * len(port.chains)
                self.rules += sign * port.rules
                self.no_local_internal += sign * port.no_local_internal
                self.no_local_external += sign * port.no_local_external


def chains_of(compiled: Mapping[Owner, Compiled]) -> Iterator[Chain]:
    """The nat chains of one Service, all its ports, with their rules."""
    return itertools.chain.from_iterable([port.chains for port in compiled.values()])


def own_chains(compiled: Mapping[Owner, Compiled]) -> dict[str, tuple[str, ...]]:
    """The same by name."""
    return dict(chains_of(compiled))


def differences(before: ServiceChains, after: ServiceChains) -> Differences:
    """Chains of a Service that are new or have other rules, and names of those that are gone.

    Service ports have no chain in common: a chain's name says whose it is.
    """
    written: list[Chain] = []
    gone: list[str] = []
    for owner in {**after, **before}:
        old, new = before.get(owner), after.get(owner)
        put, left = differing(old.chains if old else (), new.chains if new else ())
        written += put
        gone += left
    return written, gone
