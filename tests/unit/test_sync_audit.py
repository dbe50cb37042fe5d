from __future__ import annotations

import pytest

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit, Difference, sample_size, take_turns
from agent.sync.port import ReadError, Refusal, RestoreError
from tests.fakes.cluster import NODE, endpoint_slice, key, service
from tests.fakes.kernel import FakeKernel

SVC, SEP = "KUBE-SVC-67NZLRHBNDSAWJRO", "KUBE-SEP-CABXVTEVWWXCT3SI"


@pytest.mark.parametrize(
    ("chains", "expected"),
    [
        (0, 0),
        (1, 1),
        (50, 50),  # never fewer than 100, or all there are
        (100, 100),
        (101, 100),
        (200, 100),  # 49 % would be 98
        (250, 120),  # 50 - 2 = 48 %
        (1000, 420),  # 50 - 8 = 42 %
        (5500, 330),  # 50 - 44 = 6 %
        (5624, 337),  # 50 - 44 = 6 % of 5624 is 337.44
        (5625, 281),  # 50 - 45 = 5 %
        (55000, 2750),  # never less than 5 %
    ],
)
def test_the_size_of_a_sample(chains: int, expected: int) -> None:
    """max(50 - N/125, 5) percent of N with integer division, at least 100 or all."""
    assert sample_size(chains) == expected


def test_namespaces_take_turns() -> None:
    """One Service of each namespace after the other, until each namespace is through."""
    keys = [key(name, space) for space in ("a", "b", "c") for name in "12"]
    keys += [key("3", "a"), key("4", "a")]

    assert [str(one) for one in take_turns(reversed(keys))] == [
        "a/1",
        "b/1",
        "c/1",
        "a/2",
        "b/2",
        "c/2",
        "a/3",
        "a/4",
    ]
    assert take_turns([]) == []


class World:
    """An agent whose rules are in the kernel."""

    def __init__(self, backend: str, services: int = 1, namespaces: int = 1) -> None:
        self.now = 0.0
        self.kernel = FakeKernel(backend=backend)
        self.store = Store(NODE)
        for number in range(services):
            name = "web" if services == 1 else f"s{number:04}"
            space = "shop" if namespaces == 1 else f"n{number % namespaces}"
            ip = f"10.96.{number // 250}.{number % 250 + 1}"
            self.store.put_service(service(name, ip, namespace=space))
            self.store.put_slice(endpoint_slice("10.0.0.1", service=name, namespace=space))
        rules = RuleSet(NodeView(Family.V4, NODE))
        self.syncer = Syncer(rules, self.kernel, SyncSettings(None), lambda: self.now)
        self.syncer.sync(self.store)
        self.audit = Audit(self.syncer)

    def repaired(self) -> list[Difference]:
        """What is left to find after a full sync."""
        self.syncer.sync(self.store, full=True)
        return self.audit.run()


@pytest.fixture(params=["nft", "legacy"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def test_nothing_is_found_where_nothing_happened(world: World) -> None:
    """Neither at first nor later, nor when other programs change what is theirs."""
    assert world.audit.run() == []
    assert world.audit.run() == []
    world.kernel.tamper("nat", ":FOREIGN - [0:0]", "-A FOREIGN -j RETURN", "-A OUTPUT -j FOREIGN")
    assert world.audit.run() == []
    assert world.audit.run() == []


@pytest.mark.parametrize(
    ("table", "lines", "expected"),
    [
        # A rule is gone, changed, added or moved.
        ("nat", [f"-F {SEP}"], Difference("nat", SEP, "changed", key())),
        ("nat", [f"-D {SEP} 1"], Difference("nat", SEP, "changed", key())),
        ("nat", [f"-A {SVC} -j RETURN"], Difference("nat", SVC, "changed", key())),
        ("nat", [f"-I {SVC} -j RETURN"], Difference("nat", SVC, "changed", key())),
        ("nat", ["-F KUBE-MARK-MASQ"], Difference("nat", "KUBE-MARK-MASQ", "changed")),
        ("nat", ["-D KUBE-POSTROUTING 1"], Difference("nat", "KUBE-POSTROUTING", "changed")),
        ("nat", ["-F KUBE-SERVICES"], Difference("nat", "KUBE-SERVICES", "changed")),
        ("filter", ["-F KUBE-FORWARD"], Difference("filter", "KUBE-FORWARD", "changed")),
        ("filter", ["-A KUBE-SERVICES -j DROP"], Difference("filter", "KUBE-SERVICES", "changed")),
        # As many rules as before, but other ones, or in another order.
        (
            "nat",
            [f"-D {SEP} 2", f"-A {SEP} -p tcp -j DNAT --to-destination 10.0.0.9:8080"],
            Difference("nat", SEP, "changed", key()),
        ),
        (
            "nat",
            ["-D KUBE-POSTROUTING 1", "-A KUBE-POSTROUTING -j RETURN"],
            Difference("nat", "KUBE-POSTROUTING", "changed"),
        ),
        (
            "filter",
            ["-D KUBE-FORWARD 1", "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP"],
            Difference("filter", "KUBE-FORWARD", "changed"),
        ),
        # A jump is gone.
        ("nat", ["-F PREROUTING"], Difference("nat", "PREROUTING", "no jump")),
        ("filter", ["-D FORWARD 1"], Difference("filter", "FORWARD", "no jump")),
        # A jump is there twice.
        (
            "nat",
            ['-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'],
            Difference("nat", "PREROUTING", "jump twice"),
        ),
        # Jumps are there once, in another order.
        (
            "filter",
            [
                "-D FORWARD 2",
                '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
            ],
            Difference("filter", "FORWARD", "jump order"),
        ),
        # A canary is gone.
        ("mangle", ["-X KUBE-PROXY-CANARY"], Difference("mangle", "KUBE-PROXY-CANARY", "missing")),
        ("nat", ["-X KUBE-PROXY-CANARY"], Difference("nat", "KUBE-PROXY-CANARY", "missing")),
        ("filter", ["-X KUBE-PROXY-CANARY"], Difference("filter", "KUBE-PROXY-CANARY", "missing")),
        # A chain has another name, and what jumped to it jumps there.
        ("nat", [f"-E {SEP} OTHER"], Difference("nat", SEP, "missing", key())),
        ("nat", ["-E KUBE-MARK-MASQ OTHER"], Difference("nat", "KUBE-MARK-MASQ", "missing")),
        # A chain that is no Service's.
        ("nat", [":KUBE-SVC-AAAA - [0:0]"], Difference("nat", "KUBE-SVC-AAAA", "stray")),
    ],
)
def test_what_others_destroy_is_found_and_repaired(
    world: World, table: str, lines: list[str], expected: Difference
) -> None:
    """Each is named, and a full sync makes it right (faults 16)."""
    world.audit.run()
    world.kernel.tamper(table, *lines)

    assert expected in world.audit.run()
    assert world.repaired() == []


@pytest.mark.parametrize("table", ["nat", "filter"])
def test_a_flushed_table_is_found(world: World, table: str) -> None:
    """A bare -F keeps all chains, the canary too; jumps and rules are missed (faults 16)."""
    world.kernel.flush(table)
    found = world.audit.run()

    assert "no jump" in {difference.what for difference in found}
    assert {difference.table for difference in found} == {table}
    assert world.repaired() == []


def test_a_wiped_table_is_found(world: World) -> None:
    """-F and -X: chains, jumps and canary are missing, and all come back."""
    before = world.kernel.texts("nat")
    world.kernel.wipe("nat")
    found = world.audit.run()

    assert Difference("nat", "KUBE-PROXY-CANARY", "missing") in found
    assert Difference("nat", SVC, "missing", key()) in found
    assert world.repaired() == []
    assert world.kernel.texts("nat") == before


def test_the_kernels_words_are_no_difference(world: World) -> None:
    """What is read back is worded and rounded otherwise; it is compared by meaning."""
    world.store.put_slice(endpoint_slice(*(f"10.0.0.{n}" for n in range(1, 8))))
    world.syncer.sync(world.store)
    world.kernel.tamper("mangle", "-A OUTPUT -j ACCEPT")

    assert world.audit.run() == []
    assert "0.14285714272" in world.kernel.save("nat")


def looked_at(world: World) -> set[str]:
    """Services whose broken chain one round finds, when all of them are broken."""
    return {str(one.service) for one in world.audit.run() if one.service is not None}


def break_everything(world: World) -> None:
    chains = [chain for chain in world.kernel.rules("nat") if chain.startswith("KUBE-SEP-")]
    world.kernel.tamper("nat", *(f"-F {chain}" for chain in chains))


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_the_sample_moves_on_until_all_were_seen(backend: str) -> None:
    """150 Services with 300 chains: 48 % are 144 chains, 72 Services, so three rounds see all."""
    world = World(backend, services=150)
    break_everything(world)
    first, second, third = looked_at(world), looked_at(world), looked_at(world)

    assert (len(first), len(second)) == (72, 72)
    assert first.isdisjoint(second)
    assert len(first | second | third) == 150


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_the_sample_moves_on_when_a_read_fails(backend: str) -> None:
    """What cannot be read does not hold up the rest for ever."""
    world = World(backend, services=150)
    whole = World(backend, services=150)
    for one in (world, whole):
        break_everything(one)
    first = looked_at(whole)
    second = looked_at(whole)
    world.kernel.fail_reads(1)
    with pytest.raises(ReadError):
        world.audit.run()

    assert looked_at(world) == second
    assert first.isdisjoint(second)


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_no_namespace_waits_for_another(backend: str) -> None:
    """Each of three namespaces has its part in each round."""
    world = World(backend, services=150, namespaces=3)
    break_everything(world)

    for _ in range(2):
        by_namespace = [name.partition("/")[0] for name in looked_at(world)]
        assert [by_namespace.count(space) for space in ("n0", "n1", "n2")] == [24, 24, 24]


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_a_deleted_service_does_not_send_the_sample_back(backend: str) -> None:
    """When the Service at which a round ended is gone, the next round goes on behind it."""
    world = World(backend, services=150)
    break_everything(world)
    first = looked_at(world)
    last = max(first)
    world.store.delete_service(key(last.partition("/")[2]))
    world.syncer.sync(world.store)
    second = looked_at(world)

    assert first.isdisjoint(second)


def test_stale_chains_that_could_not_be_deleted_are_no_strays(world: World) -> None:
    """They are known, and tried again when a while has passed."""
    world.kernel.tamper("nat", f"-A OUTPUT -j {SVC}")
    world.store.delete_service(key())
    with pytest.raises(RestoreError) as caught:
        world.syncer.sync(world.store)
    assert caught.value.refusal is Refusal.INPUT
    outcome = world.syncer.sync(world.store)

    assert outcome.leftover is not None
    assert SVC in world.kernel.rules("nat")
    assert world.audit.run() == []
    world.kernel.tamper("nat", f"-D OUTPUT -j {SVC}")
    world.now = 30.0
    world.syncer.sync(world.store)
    assert SVC not in world.kernel.rules("nat")


def test_an_agent_without_services_looks_at_what_is_shared(world: World) -> None:
    """Nothing to sample is no reason not to look."""
    world.store.replace_services([])
    world.syncer.sync(world.store)
    assert world.audit.run() == []
    world.kernel.flush("filter")
    assert world.audit.run() != []


def test_nothing_old_is_kept() -> None:
    """The chains of Services that have changed are not remembered until their turn comes again."""
    world = World("nft", services=300)
    while world.audit.learning:
        world.audit.run()
    world.audit.run()
    for number in range(300):
        name = f"s{number:04}"
        world.store.put_slice(endpoint_slice("10.0.0.2", service=name))
    world.syncer.sync(world.store)
    world.audit.run()

    accepted = world.syncer.planner.accepted.services
    known = {name: token for name, (token, _) in world.audit._known.items() if name in accepted}
    assert known
    assert [name for name, token in known.items() if token is not accepted[name]] == []
