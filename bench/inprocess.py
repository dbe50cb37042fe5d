"""The agent's controller in this process, as the daemon puts it together, with its real reports."""

from __future__ import annotations

import contextlib
import io
import time
from typing import TYPE_CHECKING

import msgspec

from agent import logs
from agent.cluster.events import NoRecorder
from agent.cluster.feed import Replaced
from agent.cluster.objects import Kind, Node, decode
from agent.cluster.wire import read_line
from agent.serve.health import HealthState
from agent.serve.metered import MeteredKernel
from agent.serve.metrics import Metrics
from agent.serve.nodeports import HealthCheckPorts
from agent.serve.reasons import Reasons
from agent.serve.report import Reporter
from agent.state.flows import UdpServices
from agent.state.healthports import HealthPorts
from agent.state.node import KernelFacts, NodeSettings
from agent.state.store import Store
from agent.state.triggers import TriggerTimes
from agent.state.values import Family
from agent.sync.audit import Audit
from agent.sync.controller import Controller, Track
from agent.sync.pace import Pace, PaceSettings
from bench import objects
from bench.bed import Recording, syncer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.cluster.feed import Event
    from agent.kernel.detect import Backend
    from agent.sync.port import Kernel
    from bench.bed import Layout

_SETTINGS = NodeSettings(
    name=objects.NODE, cluster_cidrs=(objects.CLUSTER_CIDR,), detect_mode="ClusterCIDR"
)
_NEVER = 86_400.0
_FACTS = KernelFacts(addresses=(f"{objects.NODE_IP}/24",))


class InProcess:
    """A controller of one family that syncs at once whenever something changes.

    Attributes:
        kernel: records what is restored.
        controller: it.
    """

    def __init__(self, kernel: Kernel, backend: Backend, layout: Layout = "auto") -> None:
        """Nothing is written before ``list_all``."""
        families = (Family.V4,)
        metrics = Metrics(families)
        health = HealthState(60.0, families)
        self._ports = HealthCheckPorts(lambda: True, lambda _failure: None)
        reporter = Reporter(
            metrics,
            health,
            self._ports,
            lambda _family, _table: None,
            recorder=NoRecorder(),
            reasons=Reasons(families),
            node_name=objects.NODE,
            watches_node=True,
        )
        self.kernel = Recording(MeteredKernel(kernel, Family.V4, metrics))
        ports, udp = HealthPorts(Family.V4), UdpServices(Family.V4)
        writer = syncer(self.kernel, backend, layout, (ports, udp))
        # A change that meets an audit waits for it; audits are measured apart.
        periods = PaceSettings(min_period=0.0, check_period=_NEVER, full_period=None)
        pace = Pace(periods, time.monotonic, lambda: 0.0)
        track = Track(Family.V4, writer, pace, Audit(writer), TriggerTimes(time.time()), ports, udp)
        self.controller = Controller(
            store=Store(objects.NODE),
            tracks=[track],
            settings=_SETTINGS,
            facts=lambda _family: _FACTS,
            observer=reporter,
            clock=time.monotonic,
        )

    def list_all(self, services: int, endpoints: int) -> None:
        """Take in the made-up cluster, write it, and learn what it looks like.

        The last is what an agent does in its first half minute.
        """
        node = decode(Kind.NODE, msgspec.json.encode(objects.node()))
        if not isinstance(node, Node):
            raise TypeError(node)
        self.handle(Replaced(Kind.NODE, (node,)))
        listed, slices = objects.decoded(services, endpoints)
        self.handle(Replaced(Kind.SERVICE, listed))
        self.handle(Replaced(Kind.SLICE, slices))
        audit = self.controller.tracks[0].audit
        while audit.learning:
            audit.run()

    def start(self) -> None:
        """Start the thread."""
        self._ports.start()

    def stop(self) -> None:
        """End the thread."""
        self._ports.stop()

    def take_in(self, line: tuple[Kind, bytes]) -> None:
        """A line of a watch; nothing is written yet."""
        found = read_line(*line)
        if found.event is not None:
            self.controller.handle(found.event)

    def settle(self) -> None:
        """Write what was taken in."""
        self.controller.step()

    def handle(self, event: Event) -> None:
        """One event, and all that it leads to."""
        self.controller.handle(event)
        self.controller.step()


@contextlib.contextmanager
def running(kernel: Kernel, backend: Backend, layout: Layout = "auto") -> Iterator[InProcess]:
    """A controller whose log goes nowhere, with its thread for health check ports."""
    logs.setup("json", stream=io.StringIO())
    made = InProcess(kernel, backend, layout)
    made.start()
    try:
        yield made
    finally:
        made.stop()
