"""The chains of endpoints (KUBE-SEP-...), one for each.

A Service of a thousand endpoints that loses one has 999 chains that are as they were. To name
them anew (a hash each) would take most of the time of its compilation, so those of large service
ports are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from agent.rules import names
from agent.rules.rule import Comment, Dnat, Jump, Match, Protocol, Recent, Rule, Source, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.cluster.objects import Key
    from agent.state.values import Endpoint, ServicePort

#: Rules of a chain.
Texts = tuple[str, ...]
_Owner = tuple["Key", str, str]
#: A chain and its rules.
Chain = tuple[str, Texts]
#: With more endpoints than this, a service port's chains are kept; of so many service ports.
_MANY, _MOST = 64, 64
#: Holes for an endpoint's address, its ``ip:port`` and its chain.
_IP, _ADDRESS, _CHAIN = "\x01", "\x02", "\x03"
_TO_MARK = Jump(names.MARK_MASQ)


class EndpointChains:
    """Makes the chains of service ports' endpoints, of one family. Owned by one rule set."""

    def __init__(self) -> None:
        #: Of the large ones that were made last: what their rules are like, and their chains.
        self._kept: OrderedDict[_Owner, tuple[Texts, dict[str, Chain]]] = OrderedDict()

    def make(
        self, port: ServicePort, endpoints: Sequence[Endpoint], *, comments: bool
    ) -> list[Chain]:
        """The chain of each endpoint, in their order.

        Args:
            port: the service port.
            endpoints: those that need a chain, each address once.
            comments: whether their rules carry comments.
        """
        owner = (port.service, port.port_name, port.protocol)
        like = tuple([one.text() for one in _rules(port, comments=comments)])
        kept, known = self._kept.pop(owner, (like, {}))
        if kept != like:
            known = {}
        name, protocol = port.name, port.protocol
        for endpoint in [one for one in endpoints if one.address not in known]:
            known[endpoint.address] = _fill(like, name, protocol, endpoint)
        chains = [known[endpoint.address] for endpoint in endpoints]
        if len(chains) > _MANY:
            if len(known) > 2 * len(chains):  # those that are gone
                known = {one.address: known[one.address] for one in endpoints}
            self._kept[owner] = like, known
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return chains

    def forget(self, owner: _Owner) -> None:
        """A service port is gone."""
        self._kept.pop(owner, None)


def _rules(port: ServicePort, *, comments: bool) -> list[Rule]:
    """The rules of an endpoint's chain, with holes."""
    comment: tuple[Match, ...] = (Comment(port.name),) if comments else ()
    sticky = (Recent(_CHAIN),) if port.affinity_seconds else ()
    return [
        rule(*comment, Source(_IP), to=_TO_MARK),
        rule(*comment, *sticky, Protocol(port.protocol), to=Dnat(_ADDRESS)),
    ]


def _fill(like: Texts, name: str, protocol: str, endpoint: Endpoint) -> Chain:
    """Fill the holes."""
    to_mark, rewrite = like
    address = endpoint.address
    chain = names.SEP + names.service_hash(name, protocol, address)
    rewritten = rewrite.replace(_ADDRESS, address).replace(_CHAIN, chain)
    return chain, (to_mark.replace(_IP, endpoint.ip), rewritten)
