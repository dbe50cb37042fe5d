"""What one Service may cost a node, whatever the API holds.

The chains of a Service are its ports times its endpoints, and its rules in shared chains its ports
times its addresses; neither has a bound in the API. iptables-nft takes 0.5 s of CPU for
5,000 chains, 2 s for 10,000 and 30 s for 20,000 (legacy: 0.1, 0.2 and 0.5 s), and a restore that
does not end in time stops all Services. So a Service gets so much and no more, the same in both
backends; it works with that, and is named. Kubernetes itself is tested with far less
(https://github.com/kubernetes/community/blob/main/sig-scalability/configs-and-limits/thresholds.md).

Which endpoints a node uses, of more than it can: this node's first, for policy Local, then ready
ones, then by a hash of the node's name and the address. So each node uses another part, all of them
get traffic, and a change of one endpoint changes no other.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from agent.state.endpoints import PortId, SliceState
    from agent.state.values import Endpoint, Family

    T = TypeVar("T")

#: Ports of one Service, in the object's order.
MOST_PORTS = 1000
#: Endpoints of one Service in one family, each counted once for every port.
MOST_ENDPOINTS = 10_000
#: Addresses, and source ranges, of one Service, each counted once for every port.
MOST_TARGETS = 10_000


def first(
    items: tuple[T, ...], most: int, what: str, report: Callable[[str], None]
) -> tuple[T, ...]:
    """As many as there may be, and say so if there are more."""
    if len(items) > most:
        report(f"it has {len(items)} {what}, of which {most} are used")
    return items[:most]


def entries(one: SliceState) -> int:
    """How many endpoints a slice has, each counted once for every port."""
    return len(one.ports) * len(one.endpoints)


def bounded(
    slices: Iterable[SliceState], family: Family, wanted: Collection[PortId], node_name: str
) -> list[SliceState]:
    """The slices of a family, with no more endpoints than a Service may have.

    Args:
        slices: of one Service.
        family: which.
        wanted: the Service's ports.
        node_name: this node.
    """
    mine = [one for one in slices if one.family is family]
    if sum(map(entries, mine)) <= MOST_ENDPOINTS:
        return mine
    prices: dict[str, int] = {}
    ranks: dict[str, tuple[bool, bool, bytes]] = {}
    seed = hashlib.blake2b(node_name.encode("utf-8", "replace"), digest_size=16).digest()
    for one in mine:
        price = _price(one, wanted)
        for endpoint in one.endpoints:
            prices[endpoint.ip] = prices.get(endpoint.ip, 0) + price
            rank = _rank(endpoint, seed)
            ranks[endpoint.ip] = min(rank, ranks.get(endpoint.ip, rank))
    left, chosen = MOST_ENDPOINTS, set[str]()
    for ip in sorted(prices, key=lambda one: ranks[one]):
        left -= prices[ip]
        if left < 0:
            break
        chosen.add(ip)
    return [_only(one, wanted, chosen) for one in mine]


def _price(one: SliceState, wanted: Collection[PortId]) -> int:
    return sum((name, protocol) in wanted for name, protocol, _ in one.ports)


def _rank(endpoint: Endpoint, seed: bytes) -> tuple[bool, bool, bytes]:
    digest = hashlib.blake2b(endpoint.ip.encode(), key=seed, digest_size=8).digest()
    return (not endpoint.local, not endpoint.ready, digest)


def _only(one: SliceState, wanted: Collection[PortId], chosen: Collection[str]) -> SliceState:
    return msgspec.structs.replace(
        one,
        ports=tuple(port for port in one.ports if port[:2] in wanted),
        endpoints=tuple(endpoint for endpoint in one.endpoints if endpoint.ip in chosen),
    )
