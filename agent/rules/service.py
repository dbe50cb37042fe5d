"""The chains of one service port: SVC, SVL, EXT, FW and one SEP for each endpoint.

A packet for one of the service port's addresses comes from a dispatch chain (``Portal``):
the cluster IP leads to SVC (policy Cluster) or SVL (Local), everything else to EXT, or to FW
in front of it where source ranges restrict a load balancer. EXT decides about masquerading
and lets this node and its pods bypass a Local policy. SVC and SVL are the lottery over
endpoints, and a SEP rewrites the destination.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from agent.rules import names
from agent.rules.endpoints import RULES, Chain, EndpointChains, PortChains, Texts
from agent.rules.rule import (
    ACCEPT,
    DROP,
    REJECT,
    AddressType,
    Comment,
    Destination,
    DestinationPort,
    InInterface,
    Jump,
    Match,
    Nfacct,
    Protocol,
    Rule,
    Source,
    rule,
)
from agent.state.addresses import contains
from agent.state.values import DetectLocal, NodeView, ServicePort

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.state.selection import Selection

COUNTER_LOCALHOST = "localhost_nps_accepted_pkts"
_TO_MARK = Jump(names.MARK_MASQ)
_FROM_NODE = AddressType("src")
_TO_NODE = AddressType("dst")


class Place(enum.Enum):
    """A dispatch chain; the value is (table, chain)."""

    NAT_SERVICES = ("nat", names.SERVICES)
    NAT_NODEPORTS = ("nat", names.NODEPORTS)
    SERVICES = ("filter", names.SERVICES)
    EXTERNAL = ("filter", names.EXTERNAL_SERVICES)
    NODEPORTS = ("filter", names.NODEPORTS)
    FIREWALL = ("filter", names.PROXY_FIREWALL)

    @property
    def table(self) -> str:
        """The table that it is in."""
        table: str = self.value[0]
        return table

    @property
    def chain(self) -> str:
        """Its name."""
        chain: str = self.value[1]
        return chain


class Portal(msgspec.Struct, frozen=True, gc=False):
    """A rule in a dispatch chain by which packets find the service port.

    ``address`` is the destination that it matches, empty for a node port; ``protocol`` and
    ``port`` are what else it matches.
    """

    place: Place
    address: str
    protocol: str
    port: int
    text: str


class Compiled(msgspec.Struct, frozen=True, gc=False):
    """Everything that one service port puts into the kernel.

    Attributes:
        chains: nat chains of its own, each with the text of its rules, in order.
        portals: its rules in dispatch chains, in order.
        rules: number of rules in ``chains``.
        no_local_internal: traffic to the cluster IP is dropped for want of a local endpoint.
        no_local_external: likewise external traffic.
    """

    chains: tuple[Chain, ...] = ()
    portals: tuple[Portal, ...] = ()
    rules: int = 0
    no_local_internal: bool = False
    no_local_external: bool = False


def compile_port(
    port: ServicePort,
    selection: Selection,
    node: NodeView,
    made: EndpointChains,
    *,
    comments: bool,
) -> Compiled:
    """Compile one service port for this node.

    Args:
        port: the service port.
        selection: its endpoints, as chosen for this node.
        node: this node.
        made: makes the chains of endpoints.
        comments: whether rules of endpoints carry comments; large clusters go without.
    """
    seps = made.make(port, selection.reachable, comments=comments)
    return _Compiler(port, selection, node, seps).run()


class _Compiler:
    """One compilation; holds the names that its rules share."""

    def __init__(
        self,
        port: ServicePort,
        selection: Selection,
        node: NodeView,
        seps: PortChains,
    ) -> None:
        self.port, self.selection, self.node, self.seps = port, selection, node, seps
        self.name = port.name
        digest = names.service_hash(self.name, port.protocol)
        self.svc, self.svl = names.SVC + digest, names.SVL + digest
        self.ext, self.fw = names.EXT + digest, names.FW + digest
        usable = selection.usable
        self.internal = usable and (bool(selection.local) or not port.internal_local)
        self.external = usable and (bool(selection.local) or not port.external_local)
        self.internal_chain = self.svl if port.internal_local else self.svc
        self.restricted = usable and bool(port.load_balancer_ips and port.source_ranges)
        self.protocol = Protocol(port.protocol)

    def run(self) -> Compiled:
        """Compile chains and portals."""
        own = self._own_chains() if self.selection.usable else {}
        seps = self.seps.chains
        return Compiled(
            chains=(*own.items(), *seps),
            portals=tuple(self._portals()),
            rules=sum(map(len, own.values())) + len(seps) * RULES,
            no_local_internal=self.selection.usable and not self.internal,
            no_local_external=self.selection.usable and not self.external,
        )

    # Portals -----------------------------------------------------------------------------

    def _portals(self) -> list[Portal]:
        port = self.port
        portals = [self._cluster_portal()]
        for address in port.external_ips:
            portals += self._external(address, "external IP", self.ext)
        for address in port.load_balancer_ips:
            target = self.fw if self.restricted else self.ext
            portals += self._external(address, "loadbalancer IP", target)
            if self.restricted:
                comment = f"{self.name} traffic not accepted by {self.fw}"
                portals.append(self._portal(Place.FIREWALL, comment, address, DROP))
        if port.node_port:
            portals += self._node_port()
        if port.health_check_node_port:
            portals.append(self._health_check())
        return portals

    def _portal(self, place: Place, comment: str, address: str, target: Jump) -> Portal:
        entry = rule(
            Comment(comment),
            self.protocol,
            Destination(address),
            DestinationPort(self.port.port),
            to=target,
        )
        return Portal(place, address, self.port.protocol, self.port.port, entry.text())

    def _cluster_portal(self) -> Portal:
        address = self.port.cluster_ip
        if self.internal:
            chain = Jump(self.internal_chain)
            return self._portal(Place.NAT_SERVICES, f"{self.name} cluster IP", address, chain)
        return self._portal(Place.SERVICES, *self._refusal_for(address))

    def _refusal_for(self, address: str) -> tuple[str, str, Jump]:
        comment, target = self._refusal()
        return comment, address, target

    def _refusal(self) -> tuple[str, Jump]:
        """REJECT if no node has an endpoint, DROP if only this one has none."""
        if self.selection.usable:
            return f"{self.name} has no local endpoints", DROP
        return f"{self.name} has no endpoints", REJECT

    def _external(self, address: str, what: str, chain: str) -> list[Portal]:
        portals: list[Portal] = []
        if self.selection.usable:
            comment = f"{self.name} {what}"
            portals.append(self._portal(Place.NAT_SERVICES, comment, address, Jump(chain)))
        if not self.external:
            portals.append(self._portal(Place.EXTERNAL, *self._refusal_for(address)))
        return portals

    def _node_port(self) -> list[Portal]:
        portals: list[Portal] = []
        number = self.port.node_port
        to_port = DestinationPort(number)

        def add(place: Place, *matches: Match, to: Jump) -> None:
            text = rule(*matches, to=to).text()
            portals.append(Portal(place, "", self.port.protocol, number, text))

        if self.selection.usable:
            name, chain = Comment(self.name), Jump(self.ext)
            if self.node.localhost_node_ports and self.node.count_localhost:
                loopback, count = Destination("127.0.0.0/8"), Nfacct(COUNTER_LOCALHOST)
                add(Place.NAT_NODEPORTS, name, self.protocol, loopback, to_port, count, to=chain)
            add(Place.NAT_NODEPORTS, name, self.protocol, to_port, to=chain)
        if not self.external:
            comment, target = self._refusal()
            add(Place.EXTERNAL, Comment(comment), _TO_NODE, self.protocol, to_port, to=target)
        return portals

    def _health_check(self) -> Portal:
        number = self.port.health_check_node_port
        entry = rule(
            Comment(f"{self.name} health check node port"),
            Protocol("tcp"),
            DestinationPort(number),
            to=ACCEPT,
        )
        return Portal(Place.NODEPORTS, "", "tcp", number, entry.text())

    # Chains ------------------------------------------------------------------------------

    def _own_chains(self) -> dict[str, Texts]:
        port, selection = self.port, self.selection
        chains: dict[str, Texts] = {}
        if self.internal:
            chains[self.internal_chain] = _texts(self._masquerade_internal())
        if port.externally_accessible:
            chains[self.ext] = _texts(self._external_chain())
        if self.restricted:
            chains[self.fw] = _texts(self._firewall_chain())
        if port.uses_cluster_endpoints and selection.cluster:
            leading = self.seps.lead(self.svc, selection.cluster)
            chains[self.svc] = chains.get(self.svc, ()) + leading
        if port.uses_local_endpoints and selection.local:
            leading = self.seps.lead(self.svl, selection.local)
            chains[self.svl] = chains.get(self.svl, ()) + leading
        return chains

    def _masquerade_internal(self) -> list[Rule]:
        """Traffic to the cluster IP from outside the cluster must come back through us."""
        if self.node.masquerade_all:
            outsiders: tuple[Match, ...] = ()
        elif (match := self._local_match(negated=True)) is not None:
            outsiders = (match,)
        else:
            return []
        return [
            rule(
                Comment(f"{self.name} cluster IP"),
                self.protocol,
                Destination(self.port.cluster_ip),
                DestinationPort(self.port.port),
                *outsiders,
                to=_TO_MARK,
            )
        ]

    def _local_match(self, *, negated: bool) -> Match | None:
        """Traffic of this node's pods, or all other traffic; None if it cannot be told."""
        value = self.node.detect_value
        match self.node.detect_local:
            case DetectLocal.CIDR:
                return Source(value, negated)
            case DetectLocal.BRIDGE:
                return InInterface(value, negated)
            case DetectLocal.PREFIX:
                return InInterface(f"{value}+", negated)
            case None:
                return None

    def _external_chain(self) -> list[Rule]:
        rules: list[Rule] = []

        def add(what: str, *matches: Match, to: Jump) -> None:
            comment = Comment(f"{what} for {self.name} external destinations")
            rules.append(rule(comment, *matches, to=to))

        if not self.port.external_local:
            add("masquerade traffic", to=_TO_MARK)
        else:
            local_pods = self._local_match(negated=False)
            if local_pods is not None:
                add("pod traffic", local_pods, to=Jump(self.svc))
            add("masquerade LOCAL traffic", _FROM_NODE, to=_TO_MARK)
            add("route LOCAL traffic", _FROM_NODE, to=Jump(self.svc))
        if self.external:
            chain = self.svl if self.port.external_local else self.svc
            rules.append(rule(to=Jump(chain)))
        return rules

    def _firewall_chain(self) -> list[Rule]:
        """Who may use the load balancer; the rest falls through and the filter table drops it.

        A node that may must also be able to through an address that its own interface has:
        such a packet never leaves the node, and has the load balancer's address as its source.
        """
        comment = Comment(f"{self.name} loadbalancer IP")
        allowed = list(self.port.source_ranges)
        if self.node.ip and any(contains(cidr, self.node.ip) for cidr in allowed):
            allowed += self.port.load_balancer_ips
        rules = [rule(comment, Source(cidr), to=Jump(self.ext)) for cidr in allowed]
        rest = f"other traffic to {self.name} will be dropped by {names.PROXY_FIREWALL}"
        return [*rules, rule(Comment(rest), to=None)]


def _texts(rules: Iterable[Rule]) -> Texts:
    return tuple(rule.text() for rule in rules)
