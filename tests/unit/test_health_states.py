"""One table: every state that an agent can be in, and what each of its ports says in it.

Asked over real sockets. The node's part comes from a Node object, as the API server sends it.
kube-proxy's meaning: ``/healthz`` is about sending traffic to this node, ``/livez`` about this
process, and a health check node port about one Service on this node. ``/readyz`` is ours: rules
were written from complete lists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import socket
from typing import TYPE_CHECKING, Any

import pytest

from agent.cluster.objects import Key
from agent.serve.health import HealthState
from agent.serve.http import HttpServer
from agent.serve.nodeports import HealthCheckPorts
from agent.serve.routes import probe_routes
from agent.state.node import node_info
from agent.state.values import Family
from tests.fakes.cluster import node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT = 60.0
V4, V6 = Family.V4, Family.V6
WEB = Key("shop", "web")
GONE: dict[str, Any] = {}
PRESENT: dict[str, Any] = {"name": "node-a"}
TAINTED = {"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}}
CORDONED = {
    "spec": {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable"}]}
}


class Agent:
    """What the agent's threads tell of it, by hand; and its servers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.day = 1_777_636_800.0
        self.state = HealthState(
            TIMEOUT, [V4, V6], monotonic=lambda: self.now, wall=lambda: self.day
        )
        self.ports = HealthCheckPorts(lambda: self.state.healthy, lambda _: None, ["127.0.0.1"])
        self.server = HttpServer("health", "127.0.0.1:0", probe_routes(self.state))

    def queue(self, *families: Family) -> None:
        for family in families or (V4, V6):
            self.state.queued(family)

    def sync(self, *families: Family) -> None:
        for family in families or (V4, V6):
            self.state.updated(family)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def see(self, parts: dict[str, Any]) -> None:
        """The Node as it is now; nothing for none."""
        found = node_info(node(**parts)) if parts else None
        self.state.set_eligible(eligible=found is not None and not found.deleting)

    def start(self) -> None:
        """Lists are complete and the first sync is asked for."""
        self.state.lists_complete()
        self.queue()

    def run(self) -> None:
        """The usual case: started, and everything was written."""
        self.start()
        self.sync()


def jump(agent: Agent, seconds: float) -> None:
    """The time of day is set anew."""
    agent.run()
    agent.day += seconds


def heal(agent: Agent) -> None:
    """Hours late, then accepted."""
    agent.run()
    agent.queue(V4)
    agent.wait(7200)
    agent.sync(V4)


def late(agent: Agent, *families: Family) -> None:
    """A change has waited for twice syncPeriod."""
    agent.run()
    agent.queue(*families)
    agent.wait(TIMEOUT)


def young(agent: Agent) -> None:
    """A change waits, not for long yet."""
    agent.run()
    agent.queue()
    agent.wait(TIMEOUT - 0.1)


def idle(agent: Agent) -> None:
    """A quiet cluster."""
    agent.run()
    agent.wait(86_400)


def first_late(agent: Agent) -> None:
    """The first sync does not come about."""
    agent.start()
    agent.wait(TIMEOUT)


def half_late(agent: Agent) -> None:
    """The first sync comes about in one family."""
    agent.start()
    agent.sync(V4)
    agent.wait(TIMEOUT)


def seen(agent: Agent, parts: dict[str, Any], before: Callable[[Agent], None]) -> None:
    """Something is true, and the Node is as it is."""
    before(agent)
    agent.see(parts)


@dataclasses.dataclass(frozen=True)
class Row:
    """A state; how it comes about; the status of each port with and without a local endpoint."""

    state: str
    story: Callable[[Agent], None]
    healthz: int
    livez: int
    readyz: int
    local: int
    elsewhere: int = 503


TABLE = [
    # Before the first rules: nothing is late, so nobody should restart it or take the node away.
    Row("started, no list is complete", lambda _: None, 200, 200, 503, 200),
    Row("an hour without an API server", lambda a: a.wait(3600), 200, 200, 503, 200),
    Row("lists complete, first sync runs", Agent.start, 200, 200, 503, 200),
    Row("first sync fails for a minute", first_late, 503, 503, 503, 503),
    Row("first sync fails in one family", half_late, 503, 503, 503, 503),
    # At work.
    Row("all written", Agent.run, 200, 200, 200, 200),
    Row("idle for a day", idle, 200, 200, 200, 200),
    Row("a change waits, not for long", young, 200, 200, 200, 200),
    Row("a change waits for too long", late, 503, 503, 200, 503),
    Row("the same in one family", lambda a: late(a, V6), 503, 503, 200, 503),
    Row("late for hours, then accepted", heal, 200, 200, 200, 200),
    Row("the clock jumps forward", lambda a: jump(a, 86_400), 200, 200, 200, 200),
    Row("the clock jumps back", lambda a: jump(a, -86_400), 200, 200, 200, 200),
    # The Node: load balancers go, the process stays, and its endpoints may serve to the end.
    Row("Node present", lambda a: seen(a, PRESENT, Agent.run), 200, 200, 200, 200),
    Row("Node cordoned", lambda a: seen(a, CORDONED, Agent.run), 200, 200, 200, 200),
    Row("Node missing", lambda a: seen(a, GONE, Agent.run), 503, 200, 200, 200),
    Row(
        "Node being deleted",
        lambda a: seen(a, {"deletionTimestamp": "2026-05-01T12:00:00Z"}, Agent.run),
        503, 200, 200, 200,
    ),
    Row("autoscaler removes the Node", lambda a: seen(a, TAINTED, Agent.run), 503, 200, 200, 200),
    Row("Node missing and changes late", lambda a: seen(a, GONE, late), 503, 503, 200, 503),
    Row(
        "Node came back",
        lambda a: seen(a, PRESENT, lambda a: seen(a, GONE, Agent.run)),
        200, 200, 200, 200,
    ),
]  # fmt: skip


def ask(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


@pytest.fixture(name="agent")
def _agent() -> Iterator[Agent]:
    agent = Agent()
    agent.server.start()
    agent.ports.start()
    yield agent
    agent.ports.stop()
    agent.server.stop()


@pytest.mark.parametrize("row", TABLE, ids=[row.state for row in TABLE])
def test_what_every_port_says(agent: Agent, row: Row) -> None:
    """Each state has one right answer on each port; a Service without local endpoints gets 503."""
    row.story(agent)
    port = agent.server.port
    assert port is not None
    with socket.create_server(("127.0.0.1", 0)) as holder:
        check = holder.getsockname()[1]
    found = {path: ask(port, f"/{path}") for path in ("healthz", "livez", "readyz")}
    for name, count in (("local", 2), ("elsewhere", 0)):
        agent.ports.sync({WEB: check}, {WEB: count}).result(5)
        found[name] = ask(check, "/")
    assert found == {
        name: getattr(row, name) for name in ("healthz", "livez", "readyz", "local", "elsewhere")
    }
