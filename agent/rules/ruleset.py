"""What the kernel should hold in one family, kept up to date Service by Service.

The compiled chains of a Service are kept until the Service, its endpoints or the node change;
so an update costs what changed. Nothing here knows what the kernel holds: that is the
planner's business (``agent.sync.plan``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.rules.dispatch import Dispatch, Owner
from agent.rules.service import Compiled, Place, compile_port
from agent.rules.static import BASE_CHAINS, node_port_tail, static_chains
from agent.state.selection import select

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.cluster.objects import Key
    from agent.state.store import Record
    from agent.state.values import NodeView

#: Above this number of endpoints, ready or not, rules of endpoints carry no comments.
LARGE_CLUSTER = 1000

ServiceChains = dict[Owner, Compiled]
Tables = dict[str, dict[str, list[str] | tuple[str, ...]]]


class RuleSet:
    """The rules of one family. Owned by one thread.

    Attributes:
        node: what rules depend on besides Services.
        services: compiled service ports by Service; Services without any are absent.
        dispatch: their portals.
        set_aside: Services whose rules the kernel refused; they are compiled to nothing.
    """

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.services: dict[Key, ServiceChains] = {}
        self.dispatch = Dispatch()
        self.set_aside: set[Key] = set()
        self.comments = True
        self._endpoints: dict[Key, int] = {}
        self._total_endpoints = 0

    @property
    def total_endpoints(self) -> int:
        """Endpoints of all service ports, ready or not."""
        return self._total_endpoints

    def update(self, records: Iterable[Record], everything: Iterable[Record]) -> set[Key]:
        """Compile the records that changed; all of them if that changes how rules are written.

        Args:
            records: what changed.
            everything: all records, only looked at when the cluster gets large or small.

        Returns:
            The Services whose chains may differ from before.
        """
        touched = {record.key for record in records if self._compile(record)}
        comments = self._total_endpoints <= LARGE_CLUSTER
        if comments != self.comments:
            self.comments = comments
            touched |= self.recompile(everything)
        return touched

    def recompile(self, everything: Iterable[Record], node: NodeView | None = None) -> set[Key]:
        """Compile everything anew, perhaps for a node that has changed."""
        self.node = node or self.node
        return {record.key for record in everything if self._compile(record)}

    def _compile(self, record: Record) -> bool:
        """Compile one record; tells whether anything differs from before."""
        key, family = record.key, self.node.family
        compiled: ServiceChains = {}
        count = 0
        ports = record.service_ports(family)
        endpoints = record.endpoints(family) if ports else {}
        for port in ports:
            mine = endpoints.get((port.port_name, port.protocol), ())
            count += len(mine)
            if key not in self.set_aside:
                selection = select(port, mine, self.node.name, self.node.zone)
                owner = (key, port.port_name, port.protocol)
                compiled[owner] = compile_port(port, selection, self.node, comments=self.comments)
        self._total_endpoints += count - self._endpoints.pop(key, 0)
        if count:
            self._endpoints[key] = count
        return self._replace(key, compiled)

    def _replace(self, key: Key, compiled: ServiceChains) -> bool:
        before = self.services.get(key, {})
        if before == compiled:
            return False
        for owner in before.keys() - compiled.keys():
            self.dispatch.set(owner, ())
        for owner, chains in compiled.items():
            self.dispatch.set(owner, chains.portals)
        if compiled:
            self.services[key] = compiled
        else:
            del self.services[key]
        return True

    def place_rules(self, place: Place) -> list[tuple[Owner | None, str]]:
        """Rules of one dispatch chain with their owners; the node-port tail has none."""
        rules: list[tuple[Owner | None, str]] = list(self.dispatch.rules(place))
        if place is Place.NAT_SERVICES:
            rules += [(None, rule.text()) for rule in node_port_tail(self.node)]
        return rules

    def shared_chains(self) -> dict[tuple[str, str], list[tuple[Owner | None, str]]]:
        """Rules of all chains that are not of one Service, by (table, chain), with owners."""
        chains = {place.value: self.place_rules(place) for place in Place}
        for place, rules in static_chains(self.node).items():
            chains[place] = [(None, rule.text()) for rule in rules]
        return chains

    def counts(self) -> dict[str, int]:
        """Number of rules by table."""
        own = sum(port.rules for ports in self.services.values() for port in ports.values())
        counts = {"filter": 0, "nat": own}
        for place in Place:
            counts[place.value[0]] += self.dispatch.count(place)
        for (table, _), rules in static_chains(self.node).items():
            counts[table] += len(rules)
        counts["nat"] += len(node_port_tail(self.node))
        return counts

    def without_local_endpoints(self) -> tuple[int, int]:
        """Service ports whose internal, and whose external traffic is dropped here."""
        ports = [port for ports in self.services.values() for port in ports.values()]
        internal = sum(port.no_local_internal for port in ports)
        return internal, sum(port.no_local_external for port in ports)

    def tables(self) -> Tables:
        """Everything, as table -> chain -> rules; for comparing and for people."""
        tables: Tables = {table: {} for table in BASE_CHAINS}
        for (table, chain), rules in self.shared_chains().items():
            tables[table][chain] = [text for _, text in rules]
        for compiled in self.services.values():
            tables["nat"].update(own_chains(compiled))
        return tables


def own_chains(compiled: Mapping[Owner, Compiled]) -> dict[str, tuple[str, ...]]:
    """The nat chains of one Service, all its ports."""
    return {chain: rules for port in compiled.values() for chain, rules in port.chains}
