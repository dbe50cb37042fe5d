"""A controller on kernels in memory, with a clock that is set by hand, and what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agent.cluster.feed import Replaced, Upserted
from agent.cluster.objects import (
    EndpointSlice,
    Kind,
    Service,
)
from agent.rules.ruleset import RuleSet
from agent.state.flows import UdpServices
from agent.state.healthports import HealthPorts
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_view
from agent.state.store import Store
from agent.state.triggers import TriggerTimes
from agent.state.values import Family
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit
from agent.sync.controller import Controller, FactsChanged, Track
from agent.sync.pace import Pace, PaceSettings
from tests.fakes import cluster
from tests.fakes.cluster import NODE
from tests.fakes.kernel import FakeKernel

if TYPE_CHECKING:
    from agent.cluster.feed import Event
    from agent.cluster.objects import Object
    from agent.rules.ruleset import Layout

V4, V6 = Family.V4, Family.V6
EPOCH = 1_000_000.0


class Notes:
    """An observer that remembers what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.told.append((name, *args, *kwargs.values()))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """What was told under a name."""
        return [told[1:] for told in self.told if told[0] == name]

    def families(self, name: str) -> list[Family]:
        """The families that something was told of."""
        return [
            args[0].rules.node.family if name == "synced" else args[0] for args in self.of(name)
        ]


class World:
    """A controller with kernels in memory and a clock that is set by hand."""

    def __init__(self, layout: Layout = "flat", **settings: Any) -> None:
        self.now = 100.0
        self._layout = layout
        self.facts = KernelFacts(addresses=("192.0.2.10/24", "2001:db8::10/64"))
        self.notes: Any = Notes()
        self.kernels = {family: FakeKernel(family) for family in Family}
        self.settings = NodeSettings(name=NODE, **settings)
        self.store = Store(NODE)
        self.pace = PaceSettings(min_period=1.0, check_period=30.0)
        self.tracks = {family: self._track(family) for family in Family}
        self.controller = Controller(
            store=self.store,
            tracks=list(self.tracks.values()),
            settings=self.settings,
            facts=lambda _: self.facts,
            observer=self.notes,
            clock=lambda: self.now,
        )

    def _track(self, family: Family) -> Track:
        def clock() -> float:
            return self.now

        view = node_view(family, self.settings, NodeInfo(), self.facts)
        health, udp = HealthPorts(family), UdpServices(family)
        syncer = Syncer(
            RuleSet(view, self._layout),
            self.kernels[family],
            SyncSettings(None),
            clock,
            (health, udp),
        )
        pace = Pace(self.pace, clock, lambda: 0.0)
        return Track(family, syncer, pace, Audit(syncer), TriggerTimes(EPOCH), health, udp)

    def handle(self, *events: Event | FactsChanged) -> None:
        """Take events in, and do what is due."""
        for event in events:
            self.controller.handle(event)
        self.controller.step()

    def list_all(self, *objects: Object) -> None:
        """Hand over the first lists."""
        self.handle(*lists(*objects))

    def wait(self) -> float:
        """Let time pass until there is work, and do it; returns the seconds that passed."""
        before = self.now
        until = self.controller.wait_until()
        assert until is not None
        self.now = max(self.now, until)
        self.controller.step()
        return self.now - before

    def later(self, seconds: float) -> None:
        """Let time pass, and do what is due then."""
        self.now += seconds
        self.controller.step()

    def restores(self, family: Family = V4) -> int:
        """Restores so far."""
        return len(self.kernels[family].inputs)

    def nat(self, family: Family = V4) -> str:
        """The rules of the nat table."""
        return str(self.kernels[family].texts("nat"))


def lists(*objects: Object) -> list[Replaced]:
    """A whole list of each kind."""
    return [
        Replaced(Kind.SERVICE, tuple(obj for obj in objects if isinstance(obj, Service))),
        Replaced(Kind.SLICE, tuple(obj for obj in objects if isinstance(obj, EndpointSlice))),
        Replaced(Kind.NODE, (cluster.node(),)),
    ]


def dual(name: str = "web", number: int = 1) -> Service:
    """A Service in both families."""
    ips = [f"10.96.0.{number}", f"fd00:96::{number}"]
    return cluster.service(name, ips[0], clusterIPs=ips, ipFamilies=["IPv4", "IPv6"])


def upsert(obj: Object) -> Upserted:
    """An event of a Service or a slice."""
    return Upserted(Kind.SERVICE if isinstance(obj, Service) else Kind.SLICE, obj)


def annotate(obj: EndpointSlice, annotations: dict[str, str]) -> EndpointSlice:
    metadata = msgspec.structs.replace(obj.metadata, annotations=annotations)
    return msgspec.structs.replace(obj, metadata=metadata)


def udp_service(**port: Any) -> Service:
    """A Service with a UDP port, perhaps with a node port too."""
    kind = "NodePort" if port else "ClusterIP"
    return cluster.service(
        type=kind, ports=[{"name": "dns", "port": 53, "protocol": "UDP", **port}]
    )


def udp_slice(*endpoints: str) -> EndpointSlice:
    return cluster.endpoint_slice(
        *endpoints, ports=[{"name": "dns", "port": 5353, "protocol": "UDP"}]
    )
