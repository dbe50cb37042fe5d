"""How connections were shared out: from the counters of the kernel's own rules.

Only the first packet of a flow meets the nat table, so a rule of a lottery that has counted a
packet has sent one new connection to its endpoint. Rules that ask for remembered clients count
apart: those connections did not meet the dice, and say nothing about them.

A chain is written as a whole, so its counters begin together, and are comparable at any time.
They begin anew when the chain is written again: a number that is smaller than before is a new
beginning, never a negative rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.inspect.chance import p_value
from agent.inspect.packet import split_endpoint
from agent.inspect.survey import service_in
from agent.rules import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_HASH = 16
_DICE = {"SVC", "SVL"}
_PORTALS = {"SER", "NOD"}  # SERVICES, NODEPORTS; trees hang below them
#: Fewer connections than this for each endpoint tell nothing (the usual rule for chi-square).
ENOUGH = 5
#: How unlikely an uneven split must be to be called no chance, over all lotteries together.
UNLIKELY = 0.01

#: Protocol, address (empty for a node port), port.
Portal = tuple[str, str, int]
#: Protocol, address, port.
EndpointId = tuple[str, str, int]


class Lottery(msgspec.Struct, frozen=True):
    """The dice of one chain.

    Attributes:
        chain: its name; a service port may have one for all and one for local endpoints.
        service: ``namespace/name:port``.
        protocol: ``tcp``, ``udp`` or ``sctp``.
        endpoints: ``ip:port`` in the order of the rules.
        thrown: new connections that the dice sent to each.
        returned: connections of remembered clients to each.
    """

    chain: str
    service: str
    protocol: str
    endpoints: tuple[str, ...]
    thrown: tuple[int, ...]
    returned: tuple[int, ...]

    @property
    def local(self) -> bool:
        """Whether it is among the endpoints of this node only."""
        return self.chain.startswith(names.SVL)

    @property
    def total(self) -> int:
        """All new connections."""
        return sum(self.thrown) + sum(self.returned)


class Sample(msgspec.Struct, frozen=True):
    """All lotteries of one family at one moment.

    Attributes:
        lotteries: by chain.
        portals: service port behind each address and node port.
    """

    lotteries: dict[str, Lottery]
    portals: dict[Portal, str]


def read_sample(text: str) -> Sample:
    """Read the output of ``iptables-save -c``; other lines than those of Services are skipped."""
    reader = _Reader()
    for line in text.split("\n"):
        start = line.find("] -A KUBE-")
        if start > 0:
            reader.take(line, start)
    return reader.sample()


class _Reader:
    """Collects what lines say."""

    def __init__(self) -> None:
        self._dice: dict[str, list[tuple[str, int, bool]]] = {}
        self._endpoints: dict[str, str] = {}
        self._services: dict[str, tuple[str, str]] = {}
        self._portals: dict[Portal, str] = {}

    def take(self, line: str, start: int) -> None:
        """Take in a rule; ``start`` is where the counters end."""
        kind = line[start + 10 : start + 13]
        if kind in _PORTALS or line.startswith(names.TREE, start + 5):
            self._take_portal(line)
        elif kind in _DICE:
            before, _, target = line.rpartition(" -j ")
            if target.startswith(names.SEP):
                chain = line[start + 5 :].split(" ", 1)[0]
                count = int(line[1 : line.index(":")])
                sticky = "-m recent " in before
                self._dice.setdefault(chain, []).append((target, count, sticky))
        elif kind == "SEP":
            before, _, destination = line.rpartition(" --to-destination ")
            if before:
                self._endpoints[line[start + 5 :].split(" ", 1)[0]] = destination.strip()

    def _take_portal(self, line: str) -> None:
        before, _, target = line.rpartition(" -j ")
        if not names.is_service_chain(target):
            return
        _, _, comment = before.partition("--comment ")
        quoted = comment.startswith('"')
        comment = comment[1:].partition('"')[0] if quoted else comment.partition(" ")[0]
        words = before.split()
        protocol = _behind(words, "-p")
        address = _behind(words, "-d").partition("/")[0]
        port = _behind(words, "--dport")
        service = service_in(comment)
        if not (service and protocol and port.isdecimal()):
            return
        self._services.setdefault(target[-_HASH:], (service, protocol))
        if not address.startswith("127."):
            self._portals[protocol, address, int(port)] = service

    def sample(self) -> Sample:
        """All that was taken in."""
        lotteries: dict[str, Lottery] = {}
        for chain, rules in self._dice.items():
            service, protocol = self._services.get(chain[-_HASH:], ("", ""))
            thrown = {sep: count for sep, count, sticky in rules if not sticky}
            returned = {sep: count for sep, count, sticky in rules if sticky}
            lotteries[chain] = Lottery(
                chain,
                service or chain,
                protocol,
                tuple(self._endpoints.get(sep, sep) for sep in thrown),
                tuple(thrown.values()),
                tuple(returned.get(sep, 0) for sep in thrown),
            )
        return Sample(lotteries, self._portals)


def _behind(words: Sequence[str], option: str) -> str:
    try:
        return words[words.index(option) + 1]
    except (ValueError, IndexError):
        return ""


# Over time ---------------------------------------------------------------------------------


def since(before: Lottery | None, now: Lottery) -> Lottery:
    """What has been counted between two samples of a chain."""
    if before is None or before.endpoints != now.endpoints or _is_new(before, now):
        return now
    return msgspec.structs.replace(
        now,
        thrown=tuple(b - a for a, b in zip(before.thrown, now.thrown, strict=True)),
        returned=tuple(b - a for a, b in zip(before.returned, now.returned, strict=True)),
    )


def _is_new(before: Lottery, now: Lottery) -> bool:
    """Whether the chain has been written again."""
    pairs = zip((*before.thrown, *before.returned), (*now.thrown, *now.returned), strict=True)
    return any(new < old for old, new in pairs)


class Share(msgspec.Struct, frozen=True):
    """One endpoint of a lottery.

    Attributes:
        endpoint: ``ip:port``.
        per_second: new connections.
        thrown: by the dice, over the whole time.
        share: of all that the dice have sent, 0 to 1; None before the first one.
        established: connections now; None if they were not counted.
    """

    endpoint: str
    per_second: float
    thrown: int
    share: float | None
    established: int | None


class Row(msgspec.Struct, frozen=True):
    """One lottery, as it is shown.

    Attributes:
        family: IPv4 or IPv6.
        service: ``namespace/name:port``.
        protocol: of the Service.
        local: among the endpoints of this node only.
        per_second: new connections, remembered clients included.
        thrown: connections that the dice have shared out, over the whole time.
        expected: the share that each endpoint should have, as text: ``1/3``.
        p: probability that fair dice split at least so unevenly; None for too few connections.
        fair: whether that is chance; None for too few connections.
        established: connections now; None if they were not counted.
        endpoints: one by one.
    """

    family: str
    service: str
    protocol: str
    local: bool
    per_second: float
    thrown: int
    expected: str
    p: float | None
    fair: bool | None
    established: int | None
    endpoints: tuple[Share, ...]


Established = dict[tuple[str, EndpointId], int]


def rows(
    family: str,
    totals: Mapping[str, Lottery],
    latest: Mapping[str, Lottery],
    seconds: float,
    established: Established | None,
) -> list[Row]:
    """Rows of one family, in no order.

    Args:
        family: its name.
        totals: connections over the whole time, by chain.
        latest: connections since the last sample, by chain.
        seconds: between the last two samples.
        established: connections by service port and endpoint; None if they were not counted.
    """
    tests = {chain: _p(one) for chain, one in totals.items()}
    tested = sum(p is not None for p in tests.values())
    found: list[Row] = []
    for chain, one in totals.items():
        p = tests[chain]
        fair = None if p is None else p * tested >= UNLIKELY
        found.append(_row(family, one, latest.get(chain), seconds, established, (p, fair)))
    return found


def _p(lottery: Lottery) -> float | None:
    count = len(lottery.thrown)
    if count < 2 or sum(lottery.thrown) < ENOUGH * count:
        return None
    return p_value(lottery.thrown)


def _row(  # noqa: PLR0917  one call
    family: str,
    one: Lottery,
    recent: Lottery | None,
    seconds: float,
    established: Established | None,
    test: tuple[float | None, bool | None],
) -> Row:
    total = sum(one.thrown)
    shares: list[Share] = []
    for position, endpoint in enumerate(one.endpoints):
        new = recent.thrown[position] + recent.returned[position] if recent is not None else 0
        shares.append(
            Share(
                endpoint,
                new / seconds if seconds else 0.0,
                one.thrown[position],
                one.thrown[position] / total if total else None,
                _count(established, one, endpoint),
            )
        )
    counts = [share.established for share in shares]
    return Row(
        family,
        one.service,
        one.protocol,
        one.local,
        recent.total / seconds if recent is not None and seconds else 0.0,
        total,
        f"1/{len(one.endpoints)}",
        test[0],
        test[1],
        None if established is None else sum(count or 0 for count in counts),
        tuple(shares),
    )


def _count(established: Established | None, one: Lottery, endpoint: str) -> int | None:
    if established is None:
        return None
    return established.get((one.service, (one.protocol, *split_endpoint(endpoint))), 0)


def attribute(
    flows: Iterable[tuple[Portal, EndpointId]], portals: Mapping[Portal, str]
) -> Established:
    """Count flows by service port and endpoint; those to no Service are left out.

    Args:
        flows: where each flow was sent, and who answers.
        portals: service port behind each address and node port.
    """
    found: Established = {}
    for (protocol, address, port), endpoint in flows:
        service = portals.get((protocol, address, port)) or portals.get((protocol, "", port))
        if service is not None:
            key = (service, endpoint)
            found[key] = found.get(key, 0) + 1
    return found


class Meter:
    """Follows one family from sample to sample.

    Attributes:
        totals: connections over the whole time, by chain; a chain with other endpoints than
            before begins anew.
        latest: connections since the last sample.
    """

    def __init__(self, *, since_written: bool) -> None:
        """Begin.

        Args:
            since_written: the first sample counts as a whole, from when the chains were written;
                else only what comes after it.
        """
        self.totals: dict[str, Lottery] = {}
        self.latest: dict[str, Lottery] = {}
        self._since_written = since_written
        self._before: dict[str, Lottery] | None = None

    def take(self, sample: Sample) -> None:
        """Take in a sample."""
        first = self._before is None
        before = self._before or {}
        self.latest = (
            {}
            if first
            else {chain: since(before.get(chain), now) for chain, now in sample.lotteries.items()}
        )
        counted = sample.lotteries if first and self._since_written else self.latest
        totals: dict[str, Lottery] = {}
        for chain, now in sample.lotteries.items():
            new = counted.get(chain) or _nothing(now)
            known = self.totals.get(chain)
            kept = known is not None and known.endpoints == now.endpoints
            totals[chain] = _sum(known, new) if kept and known is not None else new
        self.totals = totals
        self._before = dict(sample.lotteries)


def _nothing(lottery: Lottery) -> Lottery:
    zeros = (0,) * len(lottery.endpoints)
    return msgspec.structs.replace(lottery, thrown=zeros, returned=zeros)


def _sum(one: Lottery, other: Lottery) -> Lottery:
    return msgspec.structs.replace(
        other,
        thrown=tuple(a + b for a, b in zip(one.thrown, other.thrown, strict=True)),
        returned=tuple(a + b for a, b in zip(one.returned, other.returned, strict=True)),
    )
