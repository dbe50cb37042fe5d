from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from agent.rules import ruleset
from agent.rules.ruleset import RuleSet
from agent.rules.static import JUMPS
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync import batches
from agent.sync.apply import Outcome, Syncer, SyncSettings
from agent.sync.audit import Audit
from agent.sync.culprits import PROBE_CHAIN
from agent.sync.port import ReadError, Refusal, RestoreError, Wrapped
from tests.fakes.cluster import NODE, endpoint_slice, key, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.walk import Packet, fate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from agent.state.store import Record

SVC, SEP = "KUBE-SVC-67NZLRHBNDSAWJRO", "KUBE-SEP-CABXVTEVWWXCT3SI"
SEP2 = "KUBE-SEP-MPXWHJSGYP7ZOTSA"
TO = "-m comment --comment"
PORTAL = f'{TO} "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j {SVC}'
REFUSAL = f'{TO} "shop/web:http has no endpoints" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j REJECT'
LAST = (
    f'{TO} "kubernetes service nodeports; NOTE: this must be the last rule in this chain"'
    " -m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS"
)


class World:
    """An agent, a cluster and a kernel, and a clock that stands still."""

    def __init__(
        self, *, batch: int | None = None, backend: str = "nft", node: NodeView | None = None
    ) -> None:
        self.now = 0.0
        self.store = Store(NODE)
        self.kernel = FakeKernel(backend=backend)
        rules = RuleSet(node or NodeView(Family.V4, NODE))
        self.seen: list[str] = []
        self.syncer = Syncer(
            rules, self.kernel, SyncSettings(batch), lambda: self.now, followers=[self]
        )

    def update(self, records: Iterable[Record]) -> None:
        """As a follower: which records came by."""
        self.seen += [record.key.name for record in records]

    def put(self, name: str = "web", number: int = 1, *ips: str, **spec: Any) -> None:
        self.store.put_service(service(name, f"10.96.0.{number}", **spec))
        if ips:
            self.store.put_slice(endpoint_slice(*ips, service=name))

    def several(self, count: int) -> None:
        for number in range(1, count + 1):
            self.put(f"s{number}", number, f"10.0.0.{number}")

    def sync(self, *, full: bool = False) -> Outcome:
        return self.syncer.sync(self.store, full=full)

    def as_one(self) -> bool:
        """Whether the kernel holds what one full sync writes into an empty one."""
        other = World(node=self.syncer.rules.node)
        other.store = self.store
        other.syncer.rules.set_aside = set(self.syncer.rules.set_aside)
        other.sync()
        tables = ("nat", "filter", "mangle")
        return all(self.kernel.texts(t) == other.kernel.texts(t) for t in tables)

    def last_input(self) -> list[str]:
        return self.kernel.inputs[-1].splitlines()


@pytest.fixture
def world() -> World:
    found = World()
    found.put("web", 1, "10.0.0.1")
    found.sync()
    return found


# What is written ------------------------------------------------------------------------------


def test_a_first_sync_writes_everything() -> None:
    """Chains, jumps and canaries are there after one restore."""
    world = World()
    world.put("web", 1, "10.0.0.1")
    outcome = world.sync()
    nat, filters = world.kernel.texts("nat"), world.kernel.texts("filter")

    assert (outcome.full, outcome.services, outcome.transactions) == (True, 1, 1)
    assert {SVC, SEP, "KUBE-SERVICES", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY"} <= nat.keys()
    assert {"KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY"} <= filters.keys()
    assert "KUBE-PROXY-CANARY" in world.kernel.texts("mangle")
    jumps = [r for chain in ("INPUT", "FORWARD", "OUTPUT") for r in filters[chain]]
    jumps += [r for chain in ("PREROUTING", "OUTPUT", "POSTROUTING") for r in nat[chain]]
    assert len(jumps) == len(JUMPS) == 12


def test_a_full_sync_again_changes_nothing() -> None:
    """Jumps are not doubled, and nothing is deleted."""
    world = World()
    world.put("web", 1, "10.0.0.1")
    world.sync()
    before = {table: world.kernel.texts(table) for table in ("nat", "filter", "mangle")}
    outcome = world.sync(full=True)

    assert outcome.full
    assert outcome.deleted == 0
    assert {table: world.kernel.texts(table) for table in before} == before


def test_nothing_to_do_is_nothing_sent(world: World) -> None:
    """A partial sync without a change runs no restore."""
    outcome = world.sync()

    assert (outcome.full, outcome.services, outcome.transactions) == (False, 0, 0)
    assert len(world.kernel.inputs) == 1


def test_a_changed_endpoint_sends_its_service_alone(world: World) -> None:
    """Chains of the Service that differ, and the deletion of what is left, in one table."""
    world.several(3)
    world.sync()
    world.store.put_slice(endpoint_slice("10.0.0.2"))
    outcome = world.sync()

    assert world.last_input() == [
        "*nat",
        f":{SVC} - [0:0]",
        f":{SEP2} - [0:0]",
        f":{SEP} - [0:0]",
        f"-A {SEP2} {TO} shop/web:http -s 10.0.0.2 -j KUBE-MARK-MASQ",
        f"-A {SEP2} {TO} shop/web:http -m tcp -p tcp -j DNAT --to-destination 10.0.0.2:8080",
        f'-A {SVC} {TO} "shop/web:http -> 10.0.0.2:8080" -j {SEP2}',
        f"-X {SEP}",
        "COMMIT",
    ]
    assert (outcome.full, outcome.services, outcome.deleted) == (False, 1, 1)
    assert outcome.lines == {"nat": 4}
    assert world.as_one()


def test_the_last_endpoint_goes(world: World) -> None:
    """The refusal is in force before the nat rules go, and everything is one restore."""
    world.store.put_slice(endpoint_slice())
    world.sync()

    assert world.last_input() == [
        "*filter",
        ":KUBE-SERVICES - [0:0]",
        f"-A KUBE-SERVICES {REFUSAL}",
        "COMMIT",
        "*nat",
        f":{SVC} - [0:0]",
        ":KUBE-SERVICES - [0:0]",
        f":{SEP} - [0:0]",
        f"-A KUBE-SERVICES {LAST}",
        f"-X {SEP}",
        f"-X {SVC}",
        "COMMIT",
    ]
    assert world.as_one()


def test_the_first_endpoint_comes() -> None:
    """The nat rules are there before the refusal is lifted."""
    world = World()
    world.put()
    world.sync()
    world.store.put_slice(endpoint_slice("10.0.0.1"))
    world.sync()
    text = world.last_input()

    assert [line for line in text if line.startswith("*")] == ["*nat", "*filter"]
    assert f"-A KUBE-SERVICES {PORTAL}" in text
    assert text[text.index("*filter") :] == ["*filter", ":KUBE-SERVICES - [0:0]", "COMMIT"]
    assert world.as_one()


BALANCED: dict[str, Any] = {"type": "LoadBalancer", "ingress": ["203.0.113.1"]}
RESTRICTED = BALANCED | {"loadBalancerSourceRanges": ["198.51.100.0/24"]}
LOCAL = BALANCED | {"externalTrafficPolicy": "Local"}
#: What a Service is: its spec (None: it is not there) and its endpoints.
STAGES: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "absent": (None, ()),
    "empty": (BALANCED, ()),
    "open": (BALANCED, ("10.0.0.1",)),
    "elsewhere": (BALANCED, ("10.0.0.2",)),
    "restricted": (RESTRICTED, ("10.0.0.1",)),
    "restricted, empty": (RESTRICTED, ()),
    "local, none here": (LOCAL, ("10.0.0.1",)),
    "local, empty": (LOCAL, ()),
}
LOOKED_AT = [
    Packet(ip, 80, source=source)
    for ip in ("10.96.0.1", "203.0.113.1")
    for source in ("198.51.100.9", "192.0.2.99")
]


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("then", STAGES)
@pytest.mark.parametrize("first", STAGES)
def test_packets_are_treated_as_before_or_as_after(
    first: str, then: str, backend: str, *, full: bool
) -> None:
    """Between any two stages of a Service: refused, dropped, translated or let alone as it was or
    as it will be, at every instant; also when everything is written."""
    world = World(backend=backend)
    seen: list[list[dict[str, Fraction]]] = []

    def look(_table: str = "") -> None:
        seen.append([fate(world.kernel, packet) for packet in LOOKED_AT])

    world.kernel.on_commit = look
    for stage in (first, then):
        spec, ips = STAGES[stage]
        if spec is None:
            world.store.delete_service(key())
        else:
            world.store.put_service(service(**spec))
        world.store.put_slice(endpoint_slice(*ips))
        seen.clear()
        look()
        world.sync(full=full)

        for instant in seen:
            for was, now, will in zip(seen[0], instant, seen[-1], strict=True):
                assert now in (was, will), (seen[0], instant, seen[-1])


def test_a_large_sync_is_written_in_parts() -> None:
    """What chains stand on, then Services in batches, then what leads to them."""
    world = World(batch=2)
    world.several(5)
    outcome = world.sync()
    tables = [
        [line for line in text.splitlines() if line.startswith("*")] for text in world.kernel.inputs
    ]

    assert outcome.transactions == 5
    assert tables == [["*nat"]] * 4 + [["*mangle", "*filter", "*nat"]]
    assert "KUBE-SERVICES" not in "".join(world.kernel.inputs[:4])
    assert world.as_one()


def test_giants_fill_transactions_by_themselves() -> None:
    """Not only Services are counted, but their chains: here two of two chains each."""
    with mock.patch.object(batches, "MOST_CHAINS", 4):
        world = World(batch=100)
        world.several(5)
        outcome = world.sync()
    chains = [text.count("\n:") for text in world.kernel.inputs[1:4]]

    assert outcome.transactions == 5
    assert chains == [4, 4, 2]
    assert world.as_one()


def test_what_is_set_up_for_localhost() -> None:
    """The guard against neighbours, and jumps to it, only with node ports on 127.0.0.1."""
    world = World(node=NodeView(Family.V4, NODE, localhost_node_ports=True))
    world.sync()
    filters = world.kernel.texts("filter")

    assert len(filters["KUBE-FIREWALL"]) == 1
    assert filters["INPUT"].count("-j KUBE-FIREWALL") == 1
    assert filters["OUTPUT"].count("-j KUBE-FIREWALL") == 1
    other = World()
    other.sync()
    assert "KUBE-FIREWALL" not in other.kernel.texts("filter")


def test_the_guard_stays_when_localhost_is_no_longer_wanted() -> None:
    """route_localnet stays switched on as well; but what becomes of the guard is not ours any more.

    The audit does not miss it when the kubelet takes it away.
    """
    world = World(node=NodeView(Family.V4, NODE, localhost_node_ports=True))
    world.sync()
    guarded = world.kernel.texts("filter")
    world.syncer.set_node(world.store, NodeView(Family.V4, NODE))
    world.sync()

    assert world.kernel.texts("filter") == guarded
    world.kernel.tamper("filter", "-F KUBE-FIREWALL")
    assert Audit(world.syncer).run() == []


def test_a_missing_jump_comes_back_in_its_place(world: World) -> None:
    """All jumps of its chain are put in anew at one instant, so their order is as it was.

    Foreign rules keep theirs, also one with the same target, and no chain but this one is touched.
    """
    jump = '-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'
    foreign = ["-p udp -j ACCEPT", "-p tcp -j KUBE-FORWARD"]
    before = world.kernel.texts("filter")
    world.kernel.tamper("filter", f"-D FORWARD {jump}", f"-I FORWARD 2 {foreign[0]}")
    world.kernel.tamper("filter", f"-A FORWARD {foreign[1]}")
    world.kernel.inputs.clear()
    world.sync(full=True)
    after = world.kernel.texts("filter")

    (text,) = world.kernel.inputs
    assert jump in after["FORWARD"]
    assert after["FORWARD"] == [*before["FORWARD"], *foreign]
    assert after["INPUT"] == before["INPUT"]
    assert text.count("*filter") == 1
    assert "INPUT" not in text


def test_followers_see_every_change_once(world: World) -> None:
    """Also when the restore fails: they are told of state, not of success."""
    assert world.seen == ["web"]
    world.kernel.fail_next(1)
    world.put("other", 2)
    with pytest.raises(RestoreError):
        world.sync()
    world.sync()
    assert world.seen == ["web", "other"]


def test_a_new_node_view_is_a_full_sync(world: World) -> None:
    """Everything that depends on the node is written again."""
    view = NodeView(Family.V4, NODE, masquerade_all=True, masquerade_bit=15)
    world.syncer.set_node(world.store, view)
    assert world.syncer.pending == 1
    outcome = world.sync()

    assert outcome.full
    assert world.syncer.pending == 0
    assert world.kernel.texts("nat")["KUBE-MARK-MASQ"] == ["-j MARK --set-xmark 0x8000/0x8000"]
    assert world.kernel.texts("nat")[SVC][0].endswith("-j KUBE-MARK-MASQ")
    assert world.as_one()


# Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [Refusal.BUSY, Refusal.LOCKED, Refusal.BROKEN, Refusal.INPUT])
def test_a_failed_sync_loses_nothing(world: World, refusal: Refusal) -> None:
    """Without any further event the next attempt is full and brings the change (faults 11 a)."""
    world.store.put_slice(endpoint_slice("10.0.0.2"))
    before = world.kernel.texts("nat")
    world.kernel.fail_next(1, refusal)
    with pytest.raises(RestoreError):
        world.sync()
    assert world.kernel.texts("nat") == before
    assert world.syncer.pending == 1
    outcome = world.sync()

    assert outcome.full
    assert outcome.set_aside == {}
    assert world.as_one()


def test_a_failure_in_the_middle_loses_nothing(world: World) -> None:
    """One table was committed, the next one not."""
    world.store.put_slice(endpoint_slice())
    world.kernel.stop_after(1)
    with pytest.raises(RestoreError):
        world.sync()
    assert len(world.kernel.texts("filter")["KUBE-SERVICES"]) == 1
    assert SVC in world.kernel.texts("nat")
    world.sync()
    assert world.as_one()


def test_to_zero_and_back_while_restores_fail(world: World) -> None:
    """Endpoints 1 -> 0 -> 1 with a failure at each step end in the one (faults 11 c)."""
    for ips in ((), ("10.0.0.2",)):
        world.store.put_slice(endpoint_slice(*ips))
        world.kernel.fail_next(1)
        with pytest.raises(RestoreError):
            world.sync()
    world.sync()

    assert world.as_one()
    assert SEP2 in world.kernel.texts("nat")
    assert SEP not in world.kernel.texts("nat")


@pytest.mark.parametrize("batch", [None, 1])
def test_chains_that_others_deleted_before_a_partial_sync(batch: int | None) -> None:
    """That is nobody's fault: no Service is set aside, and a full sync follows (faults 11)."""
    world = World(batch=batch)
    world.several(3)
    world.sync()
    world.kernel.wipe("nat")
    world.put("s4", 4, "10.0.0.4")
    with pytest.raises(RestoreError):
        world.sync()
    outcome = world.sync()

    assert outcome.full
    assert outcome.set_aside == {}
    assert world.syncer.quarantine.entries == {}
    assert world.as_one()


def test_what_cannot_be_read_fails_the_sync() -> None:
    """Without knowing what is there nothing is written; the next attempt works."""
    world = World()
    world.put("web", 1, "10.0.0.1")
    world.kernel.fail_reads(1)
    with pytest.raises(ReadError):
        world.sync()
    assert world.kernel.inputs == []
    world.sync()
    assert world.as_one()


# A Service that the kernel refuses ------------------------------------------------------------

#: By what a Service's line is recognised: in its own chain, or in a shared one of either table.
GUILTY = {
    "its own chain": r"-s 10\.0\.0\.2 -j KUBE-MARK-MASQ",
    "its portal": r"-d 10\.96\.0\.2 --dport 80 -j KUBE-SVC",
    "its refusal": r"-d 10\.96\.0\.2 --dport 80 -j REJECT",
}


@pytest.mark.parametrize("names", ["own", "commit", "none"])
@pytest.mark.parametrize("where", GUILTY)
@pytest.mark.parametrize("batch", [None, 1, 2, 100])
def test_one_service_at_fault_costs_only_itself(where: str, names: str, batch: int | None) -> None:
    """Whether the tool names a line or only says that it failed, and in whichever chain the line
    stands: the Service is found and set aside, and all others are programmed."""
    world = World(batch=batch)
    world.several(5)
    if where == "its refusal":
        world.store.put_slice(endpoint_slice(service="s2"))
    world.kernel.refuse(GUILTY[where], names=names)
    outcome = world.sync()

    assert outcome.set_aside.keys() == {key("s2")}
    assert "injected" in outcome.set_aside[key("s2")].reason
    assert world.syncer.quarantine.entries.keys() == {key("s2")}
    assert PROBE_CHAIN not in world.kernel.texts("nat")
    assert PROBE_CHAIN not in world.kernel.texts("filter")
    assert world.as_one()


def test_several_services_at_fault() -> None:
    """Each is found, the tool naming one at a time."""
    for names in ("own", "commit"):
        world = World(batch=3)
        world.several(9)
        world.kernel.refuse(r"-s 10\.0\.0\.[258] -j", names=names)
        outcome = world.sync()

        assert outcome.set_aside.keys() == {key("s2"), key("s5"), key("s8")}
        assert world.as_one()


def test_a_bad_service_comes_to_good_ones() -> None:
    """The partial sync fails, the full one behind it sets the newcomer aside; traffic goes on."""
    world = World()
    world.several(3)
    world.sync()
    world.kernel.refuse(r"-d 10\.96\.0\.4 ")
    world.put("s4", 4, "10.0.0.4")
    with pytest.raises(RestoreError):
        world.sync()
    outcome = world.sync()

    assert outcome.set_aside.keys() == {key("s4")}
    assert world.as_one()


def test_what_is_set_aside_is_tried_again_when_its_time_has_come() -> None:
    """After half a minute; if it is refused again, after twice that."""
    world = World()
    world.several(2)
    world.kernel.refuse(r"-d 10\.96\.0\.2 ")
    world.sync()
    world.now = 29
    assert world.sync().transactions == 0
    world.now = 30
    with pytest.raises(RestoreError):
        world.sync()
    outcome = world.sync()
    assert outcome.set_aside[key("s2")].refusals == 2
    assert outcome.set_aside[key("s2")].until == 90

    world.now = 90
    world.kernel.heal()
    outcome = world.sync()
    assert outcome.set_aside == {}
    assert world.syncer.quarantine.entries == {}
    assert len(world.kernel.texts("nat")["KUBE-SERVICES"]) == 3
    assert world.as_one()


def test_what_is_set_aside_is_tried_again_when_it_changes() -> None:
    """A Service that was mended does not wait."""
    world = World()
    world.several(2)
    world.kernel.refuse(r"-d 10\.96\.0\.2 ")
    world.sync()
    world.put("s2", 7)
    world.sync()

    assert world.syncer.quarantine.entries == {}
    assert world.as_one()


def test_what_is_set_aside_may_be_deleted() -> None:
    """It is forgotten, and nothing is tried later."""
    world = World()
    world.several(2)
    world.kernel.refuse(r"-d 10\.96\.0\.2 ")
    world.sync()
    world.store.delete_service(key("s2"))
    world.sync()
    world.now = 1000

    assert world.syncer.quarantine.next_due() is None
    assert world.sync().transactions == 0
    assert world.as_one()


def test_a_refused_line_of_nobody_fails_the_sync() -> None:
    """If the kernel does not take what is shared, no Service is blamed."""
    world = World()
    world.several(3)
    world.kernel.refuse("KUBE-POSTROUTING -j MARK")
    with pytest.raises(RestoreError):
        world.sync()
    assert world.syncer.quarantine.entries == {}
    world.kernel.heal()
    world.sync()
    assert world.as_one()


# What is left over ----------------------------------------------------------------------------


def test_chains_of_another_agent_are_taken_over() -> None:
    """What kube-proxy, or an earlier run, left is written over or deleted; others' stay."""
    world = World()
    world.put("web", 1, "10.0.0.1")
    world.kernel.tamper(
        "nat",
        ":KUBE-SERVICES - [0:0]",
        f":{SVC} - [0:0]",
        ":KUBE-SEP-OLDOLDOLDOLDOLDO - [0:0]",
        ":FOREIGN - [0:0]",
        "-A OUTPUT -j FOREIGN",
        '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
        f"-A KUBE-SERVICES -d 10.96.0.1 -j {SVC}",
        f"-A {SVC} -j KUBE-SEP-OLDOLDOLDOLDOLDO",
        "-A KUBE-SEP-OLDOLDOLDOLDOLDO -j RETURN",
    )
    outcome = world.sync()
    nat = world.kernel.texts("nat")

    assert outcome.deleted == 1
    assert "KUBE-SEP-OLDOLDOLDOLDOLDO" not in nat
    assert nat["OUTPUT"] == [
        "-j FOREIGN",
        '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    ]
    assert nat["FOREIGN"] == []


def test_a_chain_that_others_jump_to_is_left_over_and_tried_again(world: World) -> None:
    """It fails neither that sync nor those behind it, and goes when the jump has gone."""
    world.kernel.tamper("nat", f"-A OUTPUT -j {SEP}")
    world.store.put_slice(endpoint_slice("10.0.0.2"))
    with pytest.raises(RestoreError):
        world.sync()
    outcome = world.sync()
    assert outcome.leftover is not None
    assert world.kernel.texts("nat")[SEP] != ["-j RETURN"]

    world.store.put_slice(endpoint_slice("10.0.0.3"))
    outcome = world.sync()
    assert not outcome.full
    assert SEP2 not in world.kernel.texts("nat")
    world.kernel.tamper("nat", f"-D OUTPUT -j {SEP}")
    world.now = 1000
    world.put("other", 2)
    outcome = world.sync()
    assert outcome.leftover is None
    assert SEP not in world.kernel.texts("nat")
    assert world.as_one()


def test_a_left_over_chain_is_tried_again_by_itself(world: World) -> None:
    """After 30 s, 60 s, 120 s: nothing needs to change for that; never while a sync is owed."""
    world.kernel.tamper("nat", f"-A OUTPUT -j {SEP}")
    world.store.put_slice(endpoint_slice("10.0.0.2"))
    with pytest.raises(RestoreError):
        world.sync()
    owed = world.syncer.due_at()
    world.sync()
    waits = []
    for _ in range(3):
        due = world.syncer.due_at()
        assert due is not None
        waits.append(due - world.now)
        world.now = due
        assert world.sync().leftover is not None
    world.kernel.tamper("nat", f"-D OUTPUT -j {SEP}")
    world.now = world.syncer.due_at() or 0
    outcome = world.sync()

    assert owed is None
    assert waits == [30, 60, 120]
    assert (outcome.full, outcome.leftover, outcome.deleted) == (False, None, 1)
    assert world.syncer.due_at() is None
    assert world.as_one()


def test_a_left_over_chain_that_is_wanted_again(world: World) -> None:
    """The endpoint comes back while its chain is still there: it is filled, not deleted."""
    world.kernel.tamper("nat", f"-A OUTPUT -j {SEP}")
    world.store.put_slice(endpoint_slice("10.0.0.2"))
    with pytest.raises(RestoreError):
        world.sync()
    world.sync()
    world.store.put_slice(endpoint_slice("10.0.0.1"))
    outcome = world.sync()

    assert not outcome.full
    assert len(world.kernel.texts("nat")[SEP]) == 2
    world.kernel.tamper("nat", f"-D OUTPUT -j {SEP}")
    assert world.as_one()


def test_a_large_cluster_deletes_once_in_a_while() -> None:
    """At most once per period; an endpoint that comes back keeps its chain (faults 12)."""
    with mock.patch.object(ruleset, "LARGE_CLUSTER", 1):
        world = World()
        world.put("web", 1, "10.0.0.1", "10.0.0.2", "10.0.0.3")
        world.sync()
        world.store.put_slice(endpoint_slice("10.0.0.2", "10.0.0.3"))
        assert world.sync().deleted == 1
        world.now = 10
        world.store.put_slice(endpoint_slice("10.0.0.3", "10.0.0.4"))
        assert world.sync().deleted == 0
        assert SEP2 in world.kernel.texts("nat")
        world.now = 31
        world.store.put_slice(endpoint_slice("10.0.0.2", "10.0.0.3", "10.0.0.4"))
        outcome = world.sync()
        assert (outcome.full, outcome.deleted) == (False, 0)
        assert world.as_one()


@pytest.mark.parametrize(
    "text",
    [
        "-m conntrack [unsupported revision] -j ACCEPT",
        '-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -m string --string "-m" -j REJECT',
        "what a later tool prints",
    ],
)
@pytest.mark.parametrize("chain", ["OUTPUT", "FORWARD", "KUBE-SERVICES", "KUBE-FORWARD"])
def test_a_rule_that_cannot_be_read_stops_nobody(text: str, chain: str) -> None:
    """Rules of other programs, or of other versions, are none of ours: syncs and audits go on."""

    class Odd(Wrapped):
        """A kernel that holds one more rule in a chain of the filter table."""

        def save(self, table: str) -> str:
            odd = f"-A {chain} {text}\nCOMMIT" if table == "filter" else "COMMIT"
            return super().save(table).replace("COMMIT", odd)

        def chain(self, table: str, name: str) -> list[str] | None:
            lines = super().chain(table, name)
            mine = lines is not None and (table, name) == ("filter", chain)
            return [*(lines or ()), f"-A {chain} {text}"] if mine else lines

    world = World(backend="legacy")  # there is nothing but text to go by
    world.put("web", 1, "10.0.0.1")
    world.sync()
    world.syncer.kernel = Odd(world.kernel)
    world.store.put_slice(endpoint_slice())
    world.sync(full=True)
    world.store.put_slice(endpoint_slice("10.0.0.1"))
    world.sync(full=True)
    found = Audit(world.syncer).run()

    assert world.as_one()
    assert [(one.chain, one.what) for one in found] == (
        [(chain, "changed")] if chain.startswith("KUBE-") else []
    )


def test_a_line_end_in_a_foreign_comment_is_not_written_back() -> None:
    """A refusal outlasts the change that translates its target, in the kernel's words; one that
    would be two lines of input does not, since it would fail every sync."""
    refusal = '-d 10.96.0.1/32 -p tcp -m comment --comment "{}" -m tcp --dport 80 -j REJECT'

    class Odd(Wrapped):
        def save(self, table: str) -> str:
            odd = (
                f"-A KUBE-SERVICES {refusal.format(said)}\nCOMMIT"
                if table == "filter"
                else "COMMIT"
            )
            return super().save(table).replace("COMMIT", odd)

    for said, kept in (("a b", True), ("a\nb", False)):
        world = World()
        world.put("web", 1, "10.0.0.1")
        world.sync()
        world.syncer.kernel = Odd(world.kernel)
        world.sync(full=True)
        assert (refusal.format(said) in "".join(world.kernel.inputs)) is kept
        assert SVC in world.kernel.texts("nat")


def test_a_text_that_is_no_table_is_a_failed_read(world: World) -> None:
    """Half an output is not taken for a table with less in it; the sync is tried again."""

    class Cut(Wrapped):
        def save(self, table: str) -> str:
            return super().save(table).partition("COMMIT")[0]

    world.syncer.kernel = Cut(world.kernel)
    with pytest.raises(ReadError, match="reading table filter"):
        world.sync(full=True)
    world.syncer.kernel = world.kernel
    world.sync()
    assert world.as_one()
