"""The HTTP server, over real sockets."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.serve.health import HealthState
from agent.serve.http import BindError, HttpServer
from agent.serve.metrics import Metrics
from agent.serve.routes import metrics_route, probe_routes
from agent.serve.wire import Request, Response, text
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANY = "127.0.0.1:0"


def hello(_: Request) -> Response:
    return text(200, "hello")


def broken(_: Request) -> Response:
    raise RuntimeError("a fault in a handler")


@contextlib.contextmanager
def serving(server: HttpServer) -> Iterator[int]:
    server.start()
    try:
        assert server.port is not None
        yield server.port
    finally:
        server.stop()


def ask(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/hello", 200, b"hello\n"),
        ("GET", "/hello?a=b", 200, b"hello\n"),
        ("HEAD", "/hello", 200, b""),
        ("GET", "/nothing", 404, b"not found; there is /broken, /hello\n"),
        ("POST", "/hello", 405, b"only GET and HEAD\n"),
        ("GET", "/broken", 500, b"this failed; the agent's log says why\n"),
    ],
)
def test_answers(method: str, path: str, status: int, body: bytes) -> None:
    """Paths are answered by their handlers, and everything else by what HTTP has for it."""
    server = HttpServer("test", ANY, {"/hello": hello, "/broken": broken})
    with serving(server) as port:
        got_status, got_body, headers = ask(port, path, method)
        assert (got_status, got_body) == (status, body)
        assert headers["Connection"] == "close"
        assert ask(port, "/hello")[0] == 200


def test_routes_can_be_added() -> None:
    """Another part of the agent can bring a path of its own."""
    server = HttpServer("test", ANY, {})
    with serving(server) as port:
        assert ask(port, "/hello")[0] == 404
        server.add_route("/hello", hello)
        assert ask(port, "/hello")[0] == 200


def test_a_post_with_a_body_gets_its_answer() -> None:
    """The answer arrives although the client is still sending what nobody will read."""
    with (
        serving(HttpServer("test", ANY, {"/hello": hello})) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        client.sendall(b"POST /hello HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100000)
        assert client.recv(100).startswith(b"HTTP/1.1 405 ")


def test_a_request_may_come_in_pieces() -> None:
    """Bytes that trickle in make a request all the same."""
    with (
        serving(HttpServer("test", ANY, {"/hello": hello})) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        for piece in (b"GET /he", b"llo HTTP/1.1\r\nHost: x\r", b"\n\r", b"\n"):
            client.sendall(piece)
            time.sleep(0.02)
        assert client.makefile("rb").read().endswith(b"\r\n\r\nhello\n")


def test_an_endless_request_is_cut() -> None:
    """Headers that do not end are refused before they fill the memory."""
    with (
        serving(HttpServer("test", ANY, {"/hello": hello})) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as client,
    ):
        client.sendall(b"GET /hello HTTP/1.1\r\nX: " + b"a" * 40000)
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")


def test_idle_connections_cannot_starve_it() -> None:
    """With many more silent connections than it holds, a real request is answered at once."""
    server = HttpServer("test", ANY, {"/hello": hello}, max_connections=20, exchange_seconds=30)
    with serving(server) as port, contextlib.ExitStack() as stack:
        before = threading.active_count()
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        start = time.monotonic()
        assert ask(port, "/hello")[0] == 200
        assert time.monotonic() - start < 1
        assert threading.active_count() == before


def test_a_connection_ends_at_its_deadline() -> None:
    """A client that says nothing, and one that never closes, are hung up on."""
    server = HttpServer("test", ANY, {"/hello": hello}, exchange_seconds=0.2)
    with serving(server) as port:
        for request in (b"", b"GET /hello HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(request)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""


def test_many_clients_at_once() -> None:
    """Parallel clients all get their answers, from one thread."""
    codes: list[int] = []
    with serving(HttpServer("test", ANY, {"/hello": hello})) as port:
        clients = [
            threading.Thread(target=lambda: codes.append(ask(port, "/hello")[0])) for _ in range(50)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert codes == [200] * 50


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("0.0.0.0:0", ["127.0.0.1", "::1"]),
        ("[::]:0", ["127.0.0.1", "::1"]),
        ("[::1]:0", ["::1"]),
        ("127.0.0.1:0", ["127.0.0.1"]),
    ],
)
def test_listens_on_both_families(address: str, hosts: list[str]) -> None:
    """Every address means every address of both families; one address means that one."""
    with serving(HttpServer("test", address, {"/hello": hello})) as port:
        for host in ("127.0.0.1", "::1"):
            if host in hosts:
                assert ask(port, "/hello", host=host)[0] == 200
            else:
                with pytest.raises(ConnectionRefusedError):
                    ask(port, "/hello", host=host)


def test_a_taken_address_is_tried_again() -> None:
    """While the port is taken the server waits and counts; it serves once the port is free."""
    failures: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = HttpServer(
            "test",
            f"127.0.0.1:{port}",
            {"/hello": hello},
            retry_seconds=0.05,
            on_bind_failure=lambda: failures.append(1),
        )
        server.start()
        assert server.port is None
        assert eventually(lambda: len(failures) >= 3)
    try:
        assert eventually(lambda: server.port == port)
        assert ask(port, "/hello")[0] == 200
    finally:
        server.stop()


def test_a_taken_address_is_fatal_if_configured() -> None:
    """With hard_fail, start says which address, why, and what can be done."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        server = HttpServer("test", address, {}, hard_fail=True)
        with pytest.raises(BindError, match=f"cannot listen on {address}: .*in use"):
            server.start()
        server.stop()


def test_stopping_frees_the_port_and_the_thread() -> None:
    """After stop the port can be had at once and no thread is left, open connections or not."""
    before = threading.active_count()
    server = HttpServer("test", ANY, {"/hello": hello})
    server.start()
    port = server.port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        server.stop()
        server.stop()
    assert threading.active_count() == before
    again = HttpServer("test", f"127.0.0.1:{port}", {"/hello": hello}, hard_fail=True)
    with serving(again):
        assert ask(port, "/hello")[0] == 200


def test_probes_follow_the_state_and_are_counted() -> None:
    """Each probe answers with its own status and JSON, and every answer is counted."""
    now = [0.0]
    state = HealthState(60, [Family.V4], monotonic=lambda: now[0])
    counts: list[tuple[str, int]] = []
    routes = probe_routes(state, lambda probe, code: counts.append((probe, code)))
    with serving(HttpServer("test", ANY, routes)) as port:
        state.set_eligible(eligible=False)
        state.queued(Family.V4)
        assert ask(port, "/healthz")[0] == 503
        status, body, headers = ask(port, "/livez")
        assert status == 200
        assert json.loads(body)["status"]["IPv4"]["healthy"] is True
        assert headers["Content-Type"] == "application/json"
        assert headers["X-Content-Type-Options"] == "nosniff"
        now[0] = 60.0
        assert ask(port, "/livez")[0] == 503
        assert ask(port, "/readyz")[0] == 503
    assert counts == [("healthz", 503), ("livez", 200), ("livez", 503), ("readyz", 503)]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics"),
    ],
)
def test_metrics_come_as_the_scraper_asks(accept: str, content_type: str) -> None:
    """Format and compression are negotiated, and the content is the same."""
    metrics = Metrics([Family.V4])
    metrics.backend("nft", "1.8.9")
    with serving(HttpServer("test", ANY, {"/metrics": metrics_route(metrics.registry)})) as port:
        status, plain, headers = ask(port, "/metrics", Accept=accept)
        assert status == 200
        assert headers["Content-Type"].startswith(content_type)
        _, packed, headers = ask(port, "/metrics", **{"Accept": accept, "Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert len(packed) < len(plain) / 5
        sample = b'onenth_iptables_backend_info{backend="nft",version="1.8.9"} 1.0'
        assert sample in plain
        assert sample in gzip.decompress(packed)
        if content_type.startswith("text"):
            assert list(text_string_to_metric_families(plain.decode()))
