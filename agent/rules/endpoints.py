"""The chains of endpoints (KUBE-SEP-...), one for each, and the rules that lead to them.

A Service of a thousand endpoints that loses one has 999 chains that are as they were, and nearly as
many rules that lead to them. To name the chains anew (a hash each) would take most of the time of
its compilation, so what was made for large service ports is kept.

A large cluster has a hundred thousand rules that differ in an address, a chain or a number alone.
Those are made once, with a hole (a character that no validated text has) in its place, become
text once, and are filled in.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from agent.rules import names
from agent.rules.edges import edges
from agent.rules.lottery import shares
from agent.rules.rule import Comment, Dnat, Jump, Match, Protocol, Recent, Source, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.cluster.objects import Key
    from agent.state.values import Endpoint, ServicePort

#: Rules of a chain.
Texts = tuple[str, ...]
_Owner = tuple["Key", str, str]
#: A chain and its rules.
Chain = tuple[str, Texts]
#: Of each endpoint's chain.
RULES = 2
#: With more endpoints than this, what was made for a service port is kept; of so many of them.
_MANY, _MOST = 64, 64
#: Holes for an endpoint's address, its ``ip:port`` and its chain.
_IP, _ADDRESS, _CHAIN = "\x01", "\x02", "\x03"
_TO_MARK = Jump(names.MARK_MASQ)


class EndpointChains:
    """Makes the chains of service ports' endpoints, of one family. Owned by one rule set."""

    def __init__(self) -> None:
        #: Of the large ones that were made last.
        self._kept: OrderedDict[_Owner, PortChains] = OrderedDict()

    def make(
        self, port: ServicePort, endpoints: tuple[Endpoint, ...], *, comments: bool
    ) -> PortChains:
        """The chains of a service port's endpoints.

        Args:
            port: the service port.
            endpoints: those that need a chain, each address once.
            comments: whether their rules carry comments.
        """
        owner = (port.service, port.port_name, port.protocol)
        made = PortChains(_like(port, comments=comments), endpoints, self._kept.pop(owner, None))
        if len(endpoints) > _MANY:
            self._kept[owner] = made
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return made

    def forget(self, owner: _Owner) -> None:
        """A service port is gone."""
        self._kept.pop(owner, None)


class _Like(NamedTuple):
    """What all rules of a service port's endpoints are like, with holes.

    Attributes:
        name: of the service port.
        protocol: of it.
        to_mark: the first rule of an endpoint's chain.
        rewrite: the second one.
        ask: whether an endpoint remembers the client; empty without affinity.
        comment: what stands in front of the dice; empty in a large cluster.
    """

    name: str
    protocol: str
    to_mark: str
    rewrite: str
    ask: str
    comment: str


class _Leading(NamedTuple):
    """Rules that lead to some chains: those that ask, and those that throw dice."""

    among: tuple[Chain, ...] = ()
    asking: Texts = ()
    throwing: Texts = ()


class PortChains:
    """What was made for the endpoints of one service port.

    Attributes:
        like: what all of it is like.
        endpoints: those that have a chain.
        chains: of each.
        led: by chain, the rules in it that lead to these.
    """

    __slots__ = ("_changed", "chains", "endpoints", "led", "like")

    def __init__(
        self, like: _Like, endpoints: tuple[Endpoint, ...], before: PortChains | None
    ) -> None:
        """Make the chains, as far as they are not there from before."""
        self.like, self.endpoints = like, endpoints
        self.led: dict[str, _Leading] = {}
        #: The chains of before, and where these begin and end to differ from them.
        self._changed: tuple[tuple[Chain, ...], tuple[int, int, int]] = (), (0, len(endpoints), 0)
        if before is None or before.like != like:
            self.chains = tuple([_chain(like, endpoint) for endpoint in endpoints])
            return
        self.led = before.led
        start, last, held = _between(before.endpoints, endpoints)
        addresses = [endpoint.address for endpoint in before.endpoints[start:held]]
        known = dict(zip(addresses, before.chains[start:held], strict=True))
        new = [known.get(one.address) or _chain(like, one) for one in endpoints[start:last]]
        self.chains = (*before.chains[:start], *new, *before.chains[held:])
        self._changed = before.chains, (start, last, held)

    def lead(self, chain: str, endpoints: tuple[Endpoint, ...]) -> Texts:
        """The rules of a chain that lead to some of the endpoints, each equally likely."""
        among = self._chains_of(endpoints)
        before = self.led.get(chain, _Leading())
        known, changed = self._changed
        same = among is self.chains and before.among is known
        start, last, held = changed if same else _between(before.among, among)
        asking = before.asking
        if self.like.ask:
            asked = self._ask(endpoints[start:last], among[start:last])
            asking = (*asking[:start], *asked, *asking[held:])
        if len(before.among) != len(among):
            start = 0  # a rule's chance follows from the number of those behind it
        some = slice(start, last)
        thrown = self._throw(endpoints[some], shares(len(among))[some], among[some])
        throwing = (*before.throwing[:start], *thrown, *before.throwing[held:])
        self.led[chain] = _Leading(among, asking, throwing)
        return asking + throwing

    def _chains_of(self, endpoints: tuple[Endpoint, ...]) -> tuple[Chain, ...]:
        if len(endpoints) == len(self.endpoints):
            return self.chains
        chosen = set(map(id, endpoints))
        pairs = zip(self.endpoints, self.chains, strict=True)
        return tuple([chain for endpoint, chain in pairs if id(endpoint) in chosen])

    def _ask(self, endpoints: Sequence[Endpoint], among: Sequence[Chain]) -> list[str]:
        like, pairs = self.like.ask, zip(endpoints, among, strict=True)
        return [like.replace(_ADDRESS, e.address).replace(_CHAIN, chain) for e, (chain, _) in pairs]

    def _throw(
        self, endpoints: Sequence[Endpoint], dice: Sequence[str], among: Sequence[Chain]
    ) -> list[str]:
        texts = [share + chain for share, (chain, _) in zip(dice, among, strict=True)]
        like = self.like.comment
        if not like:
            return texts
        pairs = zip(endpoints, texts, strict=True)
        return [like.replace(_ADDRESS, endpoint.address) + text for endpoint, text in pairs]


def _between(before: Sequence[object], after: Sequence[object]) -> tuple[int, int, int]:
    """Where two sequences begin to differ, and where they end to, ``after`` first."""
    start, end = edges(before, after)
    return start, len(after) - end, len(before) - end


def _like(port: ServicePort, *, comments: bool) -> _Like:
    name, seconds = port.name, port.affinity_seconds
    comment: tuple[Match, ...] = (Comment(name),) if comments else ()
    remember = (Recent(_CHAIN),) if seconds else ()
    chosen: tuple[Match, ...] = (Comment(f"{name} -> {_ADDRESS}"),) if comments else ()
    ask = rule(*chosen, Recent(_CHAIN, seconds), to=Jump(_CHAIN)).text() if seconds else ""
    return _Like(
        name,
        port.protocol,
        to_mark=rule(*comment, Source(_IP), to=_TO_MARK).text(),
        rewrite=rule(*comment, *remember, Protocol(port.protocol), to=Dnat(_ADDRESS)).text(),
        ask=ask,
        comment=f"{chosen[0].text()} " if chosen else "",
    )


def _chain(like: _Like, endpoint: Endpoint) -> Chain:
    """Fill the holes of an endpoint's chain."""
    address = endpoint.address
    chain = names.SEP + names.service_hash(like.name, like.protocol, address)
    rewrite = like.rewrite.replace(_ADDRESS, address).replace(_CHAIN, chain)
    return chain, (like.to_mark.replace(_IP, endpoint.ip), rewrite)
