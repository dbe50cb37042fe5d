"""The walker of ``agent.inspect`` against the kernel: random packets over random states."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.demo.testbed import BRIDGE, CLIENT_IPS, NODE_IPS, Testbed
from agent.inspect.packet import Host, Packet
from agent.inspect.path import End, Outcome
from agent.inspect.tables import Tables, read_tables
from agent.inspect.walk import walk
from agent.state.values import Family
from tests.kernel import randomstate
from tests.kernel.dialer import Call, dial_all
from tests.kernel.randomstate import RANGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace

PODS = 3
#: The same packet is sent so often: the dice decide, and an endpoint that is impossible may show.
TIMES = 6
_UNLIMITED = {
    "ipv4/icmp_ratelimit": 0,
    "ipv6/icmp/ratelimit": 0,
    "ipv4/icmp_msgs_per_sec": 1_000_000,
    "ipv4/icmp_msgs_burst": 1_000_000,
}
_GATEWAYS = {Family.V4: "10.64.0.1", Family.V6: "fd00:10:64::1"}


class Sender(NamedTuple):
    """Who sends, from where, and by which interface of the node (empty: the node itself)."""

    namespace: Namespace
    ips: tuple[str, str]
    interface: str


@pytest.fixture(name="network", scope="module")
def _network() -> Iterator[Testbed]:
    """Pods with servers, and no rules."""
    with Testbed(pods=PODS) as bed:
        bed.serve(protocols=("tcp", "udp"))
        # A refusal that is not sent, for there have been many, looks like a drop.
        for name, value in _UNLIMITED.items():
            bed.node.write_sysctl(f"net/{name}", value)
        yield bed


def _route(family: Family, address: str) -> str:
    pods = "10.64.0." if family is Family.V4 else "fd00:10:64::"
    return BRIDGE if address.startswith(pods) else "eth0"


class Kernel:
    """A node's namespace as the kernel sees it."""

    def __init__(self, bed: Testbed, backend: str) -> None:
        self.bed = bed
        self.backend = backend

    def tool(self, family: Family, what: str) -> str:
        """A program of the backend."""
        return f"{'iptables' if family is Family.V4 else 'ip6tables'}-{self.backend}-{what}"

    def hold(self, texts: dict[Family, str]) -> None:
        """Hold these rules and no others, and know no flow."""
        for family, text in texts.items():
            self.bed.node.run([self.tool(family, "restore")], stdin=text)
        self.bed.node.run(["conntrack", "-F"], check=False)

    def add(self, family: Family, text: str) -> None:
        """Hold these rules as well."""
        self.bed.node.run([self.tool(family, "restore"), "--noflush"], stdin=text)

    def tables(self, family: Family) -> Tables:
        """What the kernel says that it holds."""
        saved = self.bed.node.run([self.tool(family, "save")]).stdout
        return read_tables(saved, family)

    def clear(self) -> None:
        """Hold nothing."""
        empty = "".join(f"*{table}\nCOMMIT\n" for table in ("mangle", "nat", "filter"))
        for family in Family:
            self.bed.node.run([self.tool(family, "restore")], stdin=empty)


@pytest.fixture(name="kernel", params=["nft", "legacy"])
def _kernel(request: pytest.FixtureRequest, network: Testbed) -> Iterator[Kernel]:
    kernel = Kernel(network, request.param)
    yield kernel
    kernel.clear()


def _targets(rng: random.Random, family: Family) -> list[tuple[str, int, str]]:
    """Addresses, ports and protocols: of Services, of nothing, of a pod, of the node."""
    index = list(Family).index(family)
    found: list[tuple[str, int, str]] = []
    for number in range(randomstate.SERVICES):
        for offset, protocol in enumerate(("tcp", "udp")):
            found += [(f"{base}{number + 10}", 80 + offset, protocol) for base in RANGES[family]]
            found.append((NODE_IPS[index], 30000 + number * 2 + offset, protocol))
    found += [(_GATEWAYS[family], 30000, "tcp"), (NODE_IPS[index], 31000, "tcp")]
    found += [("10.64.0.12" if family is Family.V4 else "fd00:10:64::12", 8080, "tcp")]
    return rng.sample(found, len(found) * 2 // 5)


def _senders(bed: Testbed) -> list[Sender]:
    pods = [Sender(pod.namespace, pod.ips, BRIDGE) for pod in bed.pods]
    client = Sender(bed.client, CLIENT_IPS, "eth0")
    return [client, *pods, Sender(bed.node, NODE_IPS, "")]


def _source(sender: Sender, family: Family, address: str) -> str:
    index = list(Family).index(family)
    if sender.interface == "" and _route(family, address) == BRIDGE:
        return _GATEWAYS[family]
    return sender.ips[index]


def _may_be(said: str, outcome: Outcome, source: str, names: dict[str, str]) -> bool:
    """Whether an outcome of the walk is what was seen."""
    answered, _, peer = said.partition(" ")
    if peer:
        ip = outcome.endpoint.rpartition(":")[0].strip("[]")
        # What the node sends from the address that it masquerades as shows no difference.
        same = peer == source and source in _GATEWAYS.values()
        translated = outcome.masqueraded if same else peer != source
        return (
            outcome.end is End.PASSED
            and names.get(ip) == answered
            and translated == outcome.masqueraded
        )
    if outcome.end is End.PASSED:
        # To an address that nobody has, or to the node, where nobody listens; or a pod gets a
        # packet with its own source, which it does not believe.
        ip = outcome.endpoint.rpartition(":")[0].strip("[]")
        return not ip or (ip == source and not outcome.masqueraded)
    return said == {End.REJECTED: "refused", End.DROPPED: "dropped"}.get(outcome.end)


class Expected(NamedTuple):
    """What the walk of a packet gives."""

    packet: Packet
    source: str
    outcomes: frozenset[Outcome]


def _check(kernel: Kernel, rng: random.Random) -> int:
    """Send packets and compare; returns how many."""
    bed = kernel.bed
    names = {ip: pod.name for pod in bed.pods for ip in pod.ips}
    calls: list[tuple[Namespace, dict[str, Call]]] = [(one.namespace, {}) for one in _senders(bed)]
    expected: dict[str, Expected] = {}
    for family in Family:
        tables = kernel.tables(family)
        local = frozenset({NODE_IPS[list(Family).index(family)], _GATEWAYS[family]})
        host = Host(local, lambda address, family=family: _route(family, address))  # type: ignore[misc]  # bound at once
        for number, sender in enumerate(_senders(bed)):
            for address, port, protocol in _targets(rng, family):
                source = _source(sender, family, address)
                packet = Packet(family, protocol, source, address, port, interface=sender.interface)
                if sender.interface == "" and address in local:
                    packet = Packet(family, protocol, address, address, port)
                    source = address
                possible = frozenset(walk(tables, packet, host).leaves())
                for time in range(TIMES):
                    name = f"{number} {address} {port} {protocol} {time}"
                    calls[number][1][name] = Call(address, port, protocol)
                    expected[name] = Expected(packet, source, possible)
    outcomes = dial_all(calls)
    if lost := {
        n
        for n, said in outcomes.items()
        if said == "dropped" and not _fits(expected[n], said, names)
    }:
        # A datagram may get lost while a neighbour is looked for; that does not happen twice.
        outcomes |= dial_all(
            [(ns, {n: c for n, c in one.items() if n in lost}) for ns, one in calls]
        )
    wrong = {
        n: (said, expected[n])
        for n, said in outcomes.items()
        if not _fits(expected[n], said, names)
    }
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in list(wrong.items())[:5])
    return len(outcomes)


def _fits(expected: Expected, said: str, names: dict[str, str]) -> bool:
    """Whether any outcome of the walk is what was seen."""
    # A pod that is called by its own address answers whatever the rules are.
    if said.partition(" ")[0] == names.get(expected.packet.destination):
        return True
    return any(_may_be(said, outcome, expected.source, names) for outcome in expected.outcomes)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_happens_is_possible(kernel: Kernel, seed: int) -> None:
    """Every packet ends at an endpoint that the walk gives, masqueraded or not, or refused."""
    rng = random.Random(seed)  # noqa: S311 (a test's)
    objects = randomstate.services(rng, kernel.bed.pods)
    kernel.hold(randomstate.rules_of(rng, objects))

    assert _check(kernel, rng) > 1000


@pytest.mark.parametrize("seed", [11, 12])
def test_rules_of_others_count_as_well(kernel: Kernel, seed: int) -> None:
    """Chains with gotos, returns, marks, port lists and states do what the walk says."""
    rng = random.Random(seed)  # noqa: S311 (a test's)
    addresses = [ip for pod in kernel.bed.pods for ip in pod.ips] + [*CLIENT_IPS, *NODE_IPS]
    kernel.hold(randomstate.rules_of(rng, randomstate.services(rng, kernel.bed.pods)))
    for family in Family:
        kernel.add(family, randomstate.foreign(rng, family, addresses))

    assert _check(kernel, rng) > 1000
