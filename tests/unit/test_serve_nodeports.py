"""Health check node ports, over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from agent.cluster.objects import Key
from agent.serve.nodeports import HealthCheckPorts, PortFailure, answer

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = Key("shop", "a"), Key("shop", "b")
LOCAL = "127.0.0.1"


class Node:
    """The ports of one node, with what they told."""

    def __init__(self) -> None:
        self.healthy = True
        self.failures: list[PortFailure] = []
        self.ports = HealthCheckPorts(lambda: self.healthy, self.failures.append, [LOCAL])

    def sync(self, wanted: dict[Key, int], local_ready: dict[Key, int]) -> None:
        self.ports.sync(wanted, local_ready).result(5)


@pytest.fixture(name="node")
def _node() -> Iterator[Node]:
    node = Node()
    node.ports.start()
    yield node
    node.ports.stop()


def free_ports(count: int, host: str = LOCAL) -> list[int]:
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.create_server((host, 0))) for _ in range(count)]
        return [holder.getsockname()[1] for holder in holders]


def ask(port: int, path: str = "/", host: str = LOCAL) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("count", "healthy", "status"),
    [(0, True, 503), (1, True, 200), (3, True, 200), (3, False, 503), (0, False, 503)],
)
def test_answers_as_kube_proxy_does(count: int, status: int, *, healthy: bool) -> None:
    """200 takes a local ready endpoint and a healthy agent; the weight is told in any case."""
    response = answer(A, count, healthy=healthy)
    assert response.status == status
    assert response.content_type == "application/json"
    assert response.headers == (("X-Load-Balancing-Endpoint-Weight", str(count)),)
    assert response.body.decode() == (
        '{\n\t"service": {\n\t\t"namespace": "shop",\n\t\t"name": "a"\n\t},\n'
        f'\t"localEndpoints": {count},\n\t"serviceProxyHealthy": {str(healthy).lower()}\n}}'
    )


def test_a_port_follows_its_service(node: Node) -> None:
    """A port answers on every path, follows counts down to zero, and closes with its Service."""
    first, second = free_ports(2)
    node.sync({A: first, B: second}, {A: 2})
    status, body, headers = ask(first, "/any/path")
    assert status == 200
    assert json.loads(body)["localEndpoints"] == 2
    assert headers["X-Load-Balancing-Endpoint-Weight"] == "2"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(second)[0] == 503
    node.sync({A: first, B: second}, {B: 1})
    assert ask(first)[0] == 503
    assert ask(second)[0] == 200
    node.sync({B: second}, {B: 1})
    with pytest.raises(ConnectionRefusedError):
        ask(first)
    assert node.failures == []
    assert node.ports.ports == 1


def test_the_agents_health_shows_at_once(node: Node) -> None:
    """Nothing needs to be synced for a port to say that the agent is unhealthy."""
    (port,) = free_ports(1)
    node.sync({A: port}, {A: 1})
    assert ask(port)[0] == 200
    node.healthy = False
    status, body, _ = ask(port)
    assert status == 503
    assert json.loads(body)["serviceProxyHealthy"] is False


def test_a_changed_port_moves(node: Node) -> None:
    """Another number closes the old port and opens the new one."""
    old, new = free_ports(2)
    node.sync({A: old}, {A: 1})
    node.sync({A: new}, {A: 1})
    assert ask(new)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(old)


def test_a_port_can_change_hands_in_one_sync(node: Node) -> None:
    """Two Services that swap their ports both get them: closing comes before opening."""
    first, second = free_ports(2)
    node.sync({A: first, B: second}, {A: 1, B: 2})
    node.sync({A: second, B: first}, {A: 1, B: 2})
    assert json.loads(ask(second)[1])["service"]["name"] == "a"
    assert json.loads(ask(first)[1])["service"]["name"] == "b"
    assert node.failures == []


def test_a_taken_port_is_reported_once_and_tried_again(node: Node) -> None:
    """Another program's port costs one report and nobody else anything; later it is had."""
    (other,) = free_ports(1)
    with socket.create_server((LOCAL, 0)) as holder:
        taken = holder.getsockname()[1]
        for _ in range(3):
            node.sync({A: taken, B: other}, {A: 1, B: 1})
        assert ask(other)[0] == 200
        assert [(one.service, one.port, one.address) for one in node.failures] == [
            (A, taken, LOCAL)
        ]
        assert "in use" in node.failures[0].reason
        assert node.ports.failing == 1
    node.sync({A: taken, B: other}, {A: 1, B: 1})
    assert ask(taken)[0] == 200
    assert node.ports.failing == 0
    node.sync({B: other}, {})
    with socket.create_server((LOCAL, taken)):
        node.sync({A: taken, B: other}, {})
    assert [failure.port for failure in node.failures] == [taken, taken]


def test_two_services_that_want_one_port(node: Node) -> None:
    """The API forbids it; here one of them gets the port and the other is reported."""
    (port,) = free_ports(1)
    node.sync({B: port, A: port}, {A: 1, B: 2})
    assert json.loads(ask(port)[1])["service"]["name"] == "a"
    assert [failure.service for failure in node.failures] == [B]


@pytest.mark.parametrize("port", [70000, 0, -1])
def test_an_impossible_port_is_a_failure_like_others(node: Node, port: int) -> None:
    """A number that is no port is reported, not raised."""
    node.sync({A: port}, {})
    assert [failure.port for failure in node.failures] == [port]


def test_an_address_that_is_not_there_is_a_failure(node: Node) -> None:
    """Of several addresses, those that exist are served."""
    (port,) = free_ports(1)
    node.ports.set_addresses([LOCAL, "192.0.2.1"])
    node.sync({A: port}, {A: 1})
    assert ask(port)[0] == 200
    assert [failure.address for failure in node.failures] == ["192.0.2.1"]


def test_addresses_can_change(node: Node) -> None:
    """Ports move to other addresses with the next sync."""
    (port,) = free_ports(1)
    node.sync({A: port}, {A: 1})
    node.ports.set_addresses(["127.0.0.2"])
    node.sync({A: port}, {A: 1})
    assert ask(port, host="127.0.0.2")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(port)
    node.ports.set_addresses(None)
    node.sync({A: port}, {A: 1})
    assert ask(port)[0] == 200
    assert ask(port, host="127.0.0.3")[0] == 200


def test_many_ports_are_one_thread(node: Node) -> None:
    """A hundred Services cost no thread more than one."""
    before = threading.active_count()
    ports = free_ports(100)
    services = {Key("shop", f"s{index}"): port for index, port in enumerate(ports)}
    node.sync(services, dict.fromkeys(services, 1))
    assert {ask(port)[0] for port in ports} == {200}
    assert threading.active_count() == before


def test_syncing_never_waits_for_clients(node: Node) -> None:
    """With every connection slot held by silent clients, a sync is accepted at once."""
    first, second = free_ports(2)
    node.sync({A: first}, {A: 1})
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((LOCAL, first), timeout=5))
        start = time.monotonic()
        done = node.ports.sync({A: first, B: second}, {A: 1, B: 1})
        assert time.monotonic() - start < 0.1
        done.result(5)
        assert ask(second)[0] == 200


def test_syncs_in_quick_succession_end_in_the_last(node: Node) -> None:
    """Syncs that nobody waits for are applied in order, without getting into each other's way."""
    ports = free_ports(5)
    for port in ports * 10:
        last = node.ports.sync({A: port}, {A: 1})
    last.result(5)
    assert ask(ports[-1])[0] == 200
    assert node.ports.ports == 1
    assert node.failures == []
