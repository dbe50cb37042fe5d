"""Rules that stand whatever the Services are: jumps, mark, masquerade, forward, canaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.rules import names
from agent.rules.parse import canonical
from agent.rules.rule import (
    ACCEPT,
    DROP,
    RETURN,
    AddressType,
    Comment,
    ConntrackState,
    Destination,
    Jump,
    Mark,
    Masquerade,
    Nfacct,
    Rule,
    SetMark,
    Source,
    rule,
)
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.state.values import NodeView

COUNTER_INVALID = "ct_state_invalid_dropped_pkts"
LAST_RULE = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"

#: Chains that exist as long as the agent has run, by table; order is that of their creation.
BASE_CHAINS: dict[str, tuple[str, ...]] = {
    "filter": (
        names.SERVICES,
        names.EXTERNAL_SERVICES,
        names.FORWARD,
        names.NODEPORTS,
        names.PROXY_FIREWALL,
    ),
    "nat": (names.SERVICES, names.NODEPORTS, names.POSTROUTING, names.MARK_MASQ),
}
CANARY_TABLES = ("mangle", "nat", "filter")


class BaseJump(msgspec.Struct, frozen=True):
    """A jump from a built-in chain; it is put at the front, so later ones come first."""

    table: str
    source: str
    rule: Rule


def _jump(table: str, source: str, chain: str, comment: str, *, new: bool = False) -> BaseJump:
    state = (ConntrackState("NEW"),) if new else ()
    return BaseJump(table, source, rule(*state, Comment(comment), to=Jump(chain)))


_EXTERNAL = "kubernetes externally-visible service portals"
_PORTALS = "kubernetes service portals"
_BALANCER = "kubernetes load balancer firewall"
JUMPS: tuple[BaseJump, ...] = (
    _jump("filter", "INPUT", names.EXTERNAL_SERVICES, _EXTERNAL, new=True),
    _jump("filter", "FORWARD", names.EXTERNAL_SERVICES, _EXTERNAL, new=True),
    _jump("filter", "INPUT", names.NODEPORTS, "kubernetes health check service ports"),
    _jump("filter", "FORWARD", names.SERVICES, _PORTALS, new=True),
    _jump("filter", "OUTPUT", names.SERVICES, _PORTALS, new=True),
    _jump("filter", "FORWARD", names.FORWARD, "kubernetes forwarding rules"),
    _jump("filter", "INPUT", names.PROXY_FIREWALL, _BALANCER, new=True),
    _jump("filter", "OUTPUT", names.PROXY_FIREWALL, _BALANCER, new=True),
    _jump("filter", "FORWARD", names.PROXY_FIREWALL, _BALANCER, new=True),
    _jump("nat", "OUTPUT", names.SERVICES, _PORTALS),
    _jump("nat", "PREROUTING", names.SERVICES, _PORTALS),
    _jump("nat", "POSTROUTING", names.POSTROUTING, "kubernetes postrouting rules"),
)
#: Jumps into the kubelet's chain, needed only while we write its rule ourselves. They are never
#: taken away, as in kube-proxy: the kubelet has the same, and route_localnet stays switched on.
KUBELET_JUMPS: tuple[BaseJump, ...] = (
    BaseJump("filter", "INPUT", rule(to=Jump(names.KUBELET_FIREWALL))),
    BaseJump("filter", "OUTPUT", rule(to=Jump(names.KUBELET_FIREWALL))),
)


def out_of_place(jumps: Iterable[BaseJump], present: Sequence[Rule | None]) -> list[BaseJump]:
    """Jumps from one chain that stand where other ones should.

    Each is put at the front, so the last one comes first. The kubelet's own may stand anywhere.

    Args:
        jumps: all of them, each of which is in the chain.
        present: the chain's rules, canonical ones where they can be read.
    """
    wanted = [jump for jump in reversed([*jumps]) if jump not in KUBELET_JUMPS]
    places = [present.index(canonical(jump.rule)) for jump in wanted]
    moved = zip(wanted, places, sorted(places), strict=True)
    return [jump for jump, place, right in moved if place != right]


def masquerade_mark(node: NodeView) -> int:
    """The mark of packets to masquerade."""
    return 1 << node.masquerade_bit


def static_chains(node: NodeView) -> dict[tuple[str, str], list[Rule]]:
    """Chains by (table, chain) that hold the same rules whatever the Services are."""
    mark = masquerade_mark(node)
    chains = {
        ("filter", names.FORWARD): _forward(node, mark),
        ("nat", names.POSTROUTING): [
            rule(Mark(mark, negated=True), to=RETURN),
            # Cleared, or a packet that meets this chain again in a tunnel is masqueraded twice.
            rule(to=SetMark("xor", mark)),
            rule(
                Comment("kubernetes service traffic requiring SNAT"),
                to=Masquerade(node.random_fully),
            ),
        ],
        ("nat", names.MARK_MASQ): [rule(to=SetMark("or", mark))],
    }
    if needs_localnet_guard(node):
        chains["filter", names.KUBELET_FIREWALL] = [localnet_guard()]
    return chains


def needs_localnet_guard(node: NodeView) -> bool:
    """Whether node ports answer on 127.0.0.1, which takes route_localnet (CVE-2020-8558)."""
    return node.family is Family.V4 and node.localhost_node_ports


def localnet_guard() -> Rule:
    """Neighbours must not reach what listens on loopback; the kubelet writes the same rule."""
    return rule(
        Comment("block incoming localnet connections"),
        Destination("127.0.0.0/8"),
        Source("127.0.0.0/8", negated=True),
        ConntrackState("RELATED,ESTABLISHED,DNAT", negated=True),
        to=DROP,
    )


def _forward(node: NodeView, mark: int) -> list[Rule]:
    rules: list[Rule] = []
    if node.drop_invalid:
        count = (Nfacct(COUNTER_INVALID),) if node.count_invalid else ()
        rules.append(rule(ConntrackState("INVALID"), *count, to=DROP))
    rules += [
        rule(Comment("kubernetes forwarding rules"), Mark(mark), to=ACCEPT),
        rule(
            Comment("kubernetes forwarding conntrack rule"),
            ConntrackState("RELATED,ESTABLISHED"),
            to=ACCEPT,
        ),
    ]
    return rules


def node_port_tail(node: NodeView) -> list[Rule]:
    """The rules behind all others of KUBE-SERVICES: what is for this node may be a node port."""
    comment = Comment(LAST_RULE)
    to = Jump(names.NODEPORTS)
    localhost = node.family is Family.V4 and node.localhost_node_ports
    if node.node_port_ips is None:
        loopback = "127.0.0.0/8" if node.family is Family.V4 else "::1/128"
        spared = () if localhost else (Destination(loopback, negated=True),)
        return [rule(comment, AddressType("dst"), *spared, to=to)]
    return [
        rule(comment, Destination(ip), to=to)
        for ip in node.node_port_ips
        if localhost or not is_loopback(ip)
    ]


def is_loopback(ip: str) -> bool:
    """Whether a canonical address is loopback."""
    return ip == "::1" or ip.startswith("127.")
