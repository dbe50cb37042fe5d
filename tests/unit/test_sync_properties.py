"""What must hold whatever happens to the cluster, and at every instant in between.

A random history of changes and syncs, with failures, runs against the fake kernel. After each
part that the kernel commits, packets for every address of every Service are walked through the
rules: each must end as it did before the sync or as it will behind it, and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rules import edges, endpoints, names, radix, ruleset
from agent.rules.ruleset import RuleSet
from agent.rules.static import LAST_RULE
from agent.state import store as stores
from agent.state.store import Store
from agent.state.values import DetectLocal, Family, NodeView
from agent.sync import apply, chains
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit
from agent.sync.port import Refusal, RestoreError
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, key, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.kernelpart import RefusedError
from tests.fakes.walk import DROPPED, REFUSED, Packet, fate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from agent.cluster.objects import EndpointSlice, Service
    from agent.rules.ruleset import Layout

NODE_VIEW = NodeView(
    Family.V4, NODE, ip="192.0.2.2", detect_local=DetectLocal.CIDR, detect_value="10.64.0.0/16"
)
#: What the node may become.
NODE_VIEWS = [
    NODE_VIEW,
    NodeView(Family.V4, NODE, ip="192.0.2.2", masquerade_all=True, node_port_ips=("192.0.2.2",)),
    NodeView(Family.V4, NODE, ip="198.51.100.2", node_port_ips=(), drop_invalid=False),
    NodeView(Family.V4, NODE, localhost_node_ports=True, masquerade_bit=15),
]
FOREIGN = (
    ":FOREIGN - [0:0]",
    "-A FOREIGN -p tcp -j RETURN",
    "-A OUTPUT -j FOREIGN",
    "-A OUTPUT -d 203.0.113.200 -j ACCEPT",
)
NAMES = ("a", "b", "c")
UNORDERED = {"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"}
#: Kinds of Service; {n} is the Service's number.
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "headless": {"ip": "None"},
    "two ports": {"ports": [{"name": "http", "port": 80}, {"name": "alt", "port": 81}]},
    "renamed": {"ports": [{"name": "web", "port": 80}]},
    "moved": {"ports": [{"name": "http", "port": 8000}]},
    "affinity": {"sessionAffinity": "ClientIP"},
    "shorter affinity": {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    },
    "internal": {"internalTrafficPolicy": "Local"},
    "node port": {
        "type": "NodePort",
        "ports": [{"name": "http", "port": 80, "nodePort": "3000{n}"}],
    },
    "local node port": {
        "type": "NodePort",
        "ports": [{"name": "http", "port": 80, "nodePort": "3000{n}"}],
        "externalTrafficPolicy": "Local",
    },
    "external": {"externalIPs": ["198.51.100.{n}"]},
    "balanced": {"type": "LoadBalancer", "ingress": ["203.0.113.{n}"]},
    "restricted": {
        "type": "LoadBalancer",
        "ingress": ["203.0.113.{n}"],
        "loadBalancerSourceRanges": ["198.51.100.0/24"],
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": "3100{n}",
    },
}


def fill(value: Any, number: int) -> Any:
    """A spec with a Service's number in place."""
    if isinstance(value, dict):
        return {name: fill(item, number) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, number) for item in value]
    if isinstance(value, str) and "{n}" in value:
        text = value.format(n=number)
        return int(text) if text.isdecimal() else text
    return value


def make_service(name: str, kind: str) -> Service:
    number = NAMES.index(name) + 1
    return service(name, **{"ip": f"10.96.0.{number}"} | fill(SPECS[kind], number))


def make_slice(name: str, owner: str, ends: list[tuple[int, str, bool]]) -> EndpointSlice:
    ports = [{"name": name, "port": 8080} for name in ("http", "alt", "web")]
    entries = []
    for last, state, local in ends:
        going = {"ready": False, "terminating": True} if state == "draining" else {}
        entries.append(
            endpoint(
                f"10.64.0.{last}",
                node=NODE if local else "node-b",
                **({"ready": False} if state == "not ready" else going),
            )
        )
    return endpoint_slice(*entries, name=name, service=owner, ports=ports)


def packets() -> Iterator[tuple[str, Packet]]:
    """Packets for every address that a Service may have, with the Service's name."""
    for number, name in enumerate(NAMES, 1):
        targets = [
            (f"10.96.0.{number}", 80),
            (f"10.96.0.{number}", 81),
            (f"10.96.0.{number}", 8000),
            ("192.0.2.2", 30000 + number),
            (f"198.51.100.{number}", 80),
            (f"203.0.113.{number}", 80),
        ]
        for ip, port in targets:
            yield name, Packet(ip, port, source="192.0.2.99")
            yield name, Packet(ip, port, source="10.64.0.1", interface="cali1")
            yield name, Packet(ip, port, source="192.0.2.2", interface="")
        yield name, Packet(f"203.0.113.{number}", 80, source="198.51.100.77")


PACKETS = list(packets())
Fates = list["dict[str, Fraction]"]


def fates(kernel: FakeKernel) -> Fates:
    return [fate(kernel, packet) for _, packet in PACKETS]


def translated(outcome: dict[str, Fraction]) -> bool:
    return all(end.startswith("to ") for end in outcome)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def prepared(backend: str) -> FakeKernel:
    """A kernel with rules of other programs."""
    kernel = FakeKernel(backend=backend)
    for table in ("nat", "filter"):
        kernel.tamper(table, *FOREIGN)
    return kernel


@dataclasses.dataclass(frozen=True)
class Setup:
    """How the agent writes, and limits small enough to be reached."""

    batch: int | None
    backend: str
    layout: Layout
    large: int
    edit_from: int
    many: int

    @contextlib.contextmanager
    def limits(self) -> Iterator[None]:
        """Let few Services and endpoints do what else many do."""
        with (
            mock.patch.multiple(ruleset, LARGE_CLUSTER=self.large, TREE_ABOVE=2, FLAT_BELOW=1),
            mock.patch.multiple(radix, LIMIT=2, INLINE=1),
            mock.patch.object(stores, "_MANY", self.many),
            mock.patch.object(endpoints, "_MANY", self.many),
            mock.patch.multiple(edges, _FIRST_STEP=1, _OWN=1),
            mock.patch.object(chains, "EDIT_FROM", self.edit_from),
            mock.patch.object(apply, "_BRANCH_RULES", 2),
        ):
            yield


@dataclasses.dataclass
class World:
    """A cluster, an agent and a kernel."""

    setup: Setup
    node: NodeView = NODE_VIEW
    store: Store = dataclasses.field(default_factory=lambda: Store(NODE))
    clock: Clock = dataclasses.field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.kernel = prepared(self.setup.backend)
        self.kernel.on_commit = self.check
        self.syncer = self.agent(self.kernel, self.setup.layout)
        self.failed = False
        self.before: Fates = fates(self.kernel)
        self.after: Fates = []

    def agent(self, kernel: FakeKernel, layout: Layout) -> Syncer:
        rules = RuleSet(self.node, layout)
        return Syncer(rules, kernel, SyncSettings(self.setup.batch), self.clock)

    def fresh(self) -> FakeKernel:
        """What one full sync of the present state makes of an empty kernel."""
        kernel = prepared(self.setup.backend)
        # By itself, the layout depends on the past as well.
        layout: Layout = "tree" if self.syncer.rules.tree else "flat"
        self.agent(kernel, layout).sync(self.store)
        return kernel

    def change(self, operation: str, what: Any) -> None:
        if operation == "put_service":
            self.store.put_service(make_service(*what))
        elif operation == "put_slice":
            self.store.put_slice(make_slice(*what))
        elif operation == "relist":
            services, slices = what
            self.store.replace_services([make_service(*one) for one in services])
            self.store.replace_slices([make_slice(*one) for one in slices])
        elif operation == "set_node":
            self.node = NODE_VIEWS[what]
            self.syncer.set_node(self.store, self.node)
        elif operation == "restart":
            self.syncer = self.agent(self.kernel, self.setup.layout)
        else:
            getattr(self.store, operation)(key(what))

    def sync(self, fault: str, *, full: bool) -> bool:
        """One sync; tells whether it succeeded. Only what was injected may fail."""
        self.before, self.after = fates(self.kernel), fates(self.fresh())
        self.clock.now += 7
        if fault.startswith("behind "):
            self.kernel.stop_after(int(fault[7:]))
        elif fault:
            self.kernel.fail_next(1, Refusal(fault))
        try:
            self.syncer.sync(self.store, full=full)
        except RestoreError as error:
            if "injected" not in str(error) and "stopped behind" not in str(error):
                raise
            self.failed = True
            return False
        finally:
            self.kernel.heal()
        assert fates(self.kernel) == self.after
        self.failed = False
        return True

    def check(self, table: str) -> None:
        """After each committed part: each packet ends as before or as behind the sync."""
        assert (
            self.kernel.texts(table)["OUTPUT"][-2:]
            == [
                "-j FOREIGN",
                "-d 203.0.113.200/32 -j ACCEPT",
            ]
            or table == "mangle"
        )
        assert self.kernel.texts(table).get("FOREIGN") == (
            ["-p tcp -j RETURN"] if table != "mangle" else None
        )
        if self.after:
            self.check_packets()

    def check_packets(self) -> None:
        now = fates(self.kernel)
        for (name, packet), was, will, found in zip(
            PACKETS, self.before, self.after, now, strict=True
        ):
            if found in (was, will):
                continue
            # After a failure, a refusal may come a moment early or go a moment late.
            refused = set(found) <= {REFUSED, DROPPED}
            if self.failed and refused and not (translated(was) and translated(will)):
                continue
            # In parts, a Service's own chains come before its portals: it may be met by an old
            # address with its new endpoints, but always with a whole lottery.
            whole = [
                fate_
                for fates_ in (self.before, self.after)
                for (owner, _), fate_ in zip(PACKETS, fates_, strict=True)
                if owner == name
            ]
            assert self.setup.batch is not None, (packet, was, found, will)
            assert found in whole, (packet, was, found, will)
            assert translated(found), (packet, was, found, will)


SERVICES = st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(SPECS)))
SLICES = st.tuples(
    st.sampled_from(["s", "t", "u"]),
    st.sampled_from(NAMES),
    st.lists(
        st.tuples(
            st.integers(1, 4), st.sampled_from(["ready", "draining", "not ready"]), st.booleans()
        ),
        max_size=3,
        unique_by=lambda end: end[0],
    ),
)
CHANGES = st.one_of(
    st.tuples(st.just("put_service"), SERVICES),
    st.tuples(st.just("put_slice"), SLICES),
    st.tuples(st.just("delete_service"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete_slice"), st.sampled_from(["s", "t", "u"])),
    st.tuples(st.just("set_node"), st.sampled_from(range(len(NODE_VIEWS)))),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(
        st.just("relist"), st.tuples(st.lists(SERVICES, max_size=3), st.lists(SLICES, max_size=3))
    ),
)
FAULTS = st.sampled_from(
    ["", "", "", "busy", "locked", "broken", "behind 0", "behind 1", "behind 2", "behind 3"]
)
ROUNDS = st.lists(
    st.tuples(st.lists(CHANGES, min_size=1, max_size=4), FAULTS, st.booleans()), max_size=6
)


def owned(kernel: FakeKernel) -> dict[str, dict[str, list[str]]]:
    """All chains; those whose rules have no order among them are sorted.

    The kubelet's chain, which it shares with us, and the ways to it are never taken away.
    """
    way = f"-j {names.KUBELET_FIREWALL}"
    return {
        table: {
            chain: sorted(rules) if chain in UNORDERED else [r for r in rules if r != way]
            for chain, rules in kernel.texts(table).items()
            if chain != names.KUBELET_FIREWALL
        }
        for table in ("nat", "filter", "mangle")
    }


SETUPS = st.builds(
    Setup,
    batch=st.sampled_from([None, 1, 2, 50]),
    backend=st.sampled_from(["nft", "legacy"]),
    layout=st.sampled_from(["flat", "tree", "auto"]),
    large=st.sampled_from([3, 1000]),
    edit_from=st.sampled_from([1, 64]),
    many=st.sampled_from([0, 64]),
)


@settings(max_examples=60)
@given(SETUPS, ROUNDS)
def test_any_history_ends_like_one_full_sync(
    setup: Setup, rounds: list[tuple[list[tuple[str, Any]], str, bool]]
) -> None:
    """Whatever changed, in whatever groups, with whatever failures: packets always meet a whole
    Service as it was or will be, and in the end the kernel holds what one full sync writes."""
    with setup.limits():
        world = World(setup)
        for changes, fault, full in rounds:
            for operation, what in changes:
                world.change(operation, what)
            if not world.sync(fault, full=full):
                assert world.syncer.needs_full
        world.clock.now += 1000  # stale chains of a large cluster may go again

        assert world.sync("", full=False)
        assert owned(world.kernel) == owned(world.fresh())
        last = [LAST_RULE in text for text in world.kernel.texts("nat")["KUBE-SERVICES"]]
        assert last == sorted(last)


@settings(max_examples=40)
@given(
    SETUPS,
    st.lists(st.lists(CHANGES, min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(NAMES),
    st.sampled_from(["own", "commit", "none"]),
    st.sampled_from(["", "-j KUBE-MARK-MASQ", "-j REJECT", "-m recent", "cluster IP"]),
)
def test_whatever_the_kernel_refuses_of_one_service_costs_no_other(
    setup: Setup, rounds: list[list[tuple[str, Any]]], bad: str, blamed: str, what: str
) -> None:
    """Any of its lines, named or not, at any time: at the latest the second attempt goes in, the
    Service is set aside if it has such a line, and all others work as if nothing was."""
    with setup.limits():
        world = World(setup)
        world.kernel.on_commit = lambda _table: None
        world.kernel.refuse(f"shop/{bad}:.*{what}", names=blamed)
        for changes in rounds:
            for operation, argument in changes:
                world.change(operation, argument)
            with contextlib.suppress(RestoreError):
                world.syncer.sync(world.store)
            if world.syncer.needs_full:
                world.syncer.sync(world.store)
            expected = fates(world.fresh())
            for (name, packet), found, will in zip(
                PACKETS, fates(world.kernel), expected, strict=True
            ):
                assert found == will or name == bad, (packet, found, will)
            assert world.syncer.quarantine.entries.keys() <= {key(bad)}


TAMPERING = st.tuples(
    st.sampled_from(["-F", "-D", "-A", "-I", "-E"]), st.integers(0, 999), st.integers(0, 9)
)


@settings(max_examples=60)
@given(SETUPS, st.lists(CHANGES, max_size=8), st.lists(TAMPERING, min_size=1, max_size=3))
def test_an_audit_finds_whatever_was_changed(
    setup: Setup, changes: list[tuple[str, Any]], tampering: list[tuple[str, int, int]]
) -> None:
    """Rules deleted, added and moved, chains emptied and renamed: found exactly if something of
    ours is different, and repaired by a full sync."""
    with setup.limits():
        world = World(setup)
        for operation, argument in changes:
            world.change(operation, argument)
        world.kernel.on_commit = lambda _table: None
        world.syncer.sync(world.store)
        audit = Audit(world.syncer)
        assert audit.run() == []
        before = owned(world.kernel)
        for verb, which, position in tampering:
            tamper(world.kernel, verb, which, position)
        different = owned(world.kernel) != before
        found = audit.run()

        assert bool(found) == different
        world.syncer.sync(world.store, full=True)
        if not any(verb == "-E" for verb, _, _ in tampering):  # the other name stays
            assert owned(world.kernel) == before
        assert audit.run() == []


def tamper(kernel: FakeKernel, verb: str, which: int, position: int) -> None:
    """Change one of our chains, if there is what to change."""
    for table in ("nat", "filter"):
        chains = [chain for chain in sorted(kernel.rules(table)) if chain.startswith("KUBE-")]
        chains = [chain for chain in chains if chain not in {*UNORDERED, names.CANARY}]
        if not chains:
            continue
        chain = chains[which % len(chains)]
        rules = len(kernel.rules(table)[chain])
        line = {
            "-F": f"-F {chain}",
            "-D": f"-D {chain} {position % rules + 1}" if rules else f"-F {chain}",
            "-A": f"-A {chain} -s 203.0.113.9 -j RETURN",
            "-I": f"-I {chain} -s 203.0.113.9 -j RETURN",
            "-E": f"-E {chain} OTHER-{which}-{position}",
        }[verb]
        with contextlib.suppress(RefusedError):
            kernel.tamper(table, line)
