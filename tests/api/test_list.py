from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from agent.cluster.client import make_client
from agent.cluster.feed import Rejected, Replaced
from agent.cluster.kube import KubeSource
from agent.cluster.objects import LABEL_HEADLESS, LABEL_PROXY_NAME, EndpointSlice, Key, Kind
from agent.cluster.reflector import RefusedError
from tests.api.helpers import FAST, Sink
from tests.fakes.apiserver import FakeAPIServer, Fault, Request, write_kubeconfig
from tests.fakes.objects import cluster, endpoint_slice, node, service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.helpers import Notes

    Start = Callable[..., tuple[KubeSource, Sink]]


def _continues(request: Request) -> bool:
    return "continue" in request.query


def test_a_list_comes_whole_over_pages(server: FakeAPIServer, source: Start) -> None:
    """Seven Services in pages of three are three requests and one Replaced of seven."""
    server.put(*(service(f"s{i}", f"10.96.0.{i + 1}") for i in range(7)))
    _, sink = source()

    assert [len(e.objects) for e in sink.of(Kind.SERVICE) if isinstance(e, Replaced)] == [7]
    assert sink.names() == {f"s{i}" for i in range(7)}
    requests = server.seen("list", "services")
    assert [r.query["limit"] for r in requests] == ["3", "3", "3"]
    assert [_continues(r) for r in requests] == [False, True, True]
    assert all("resourceVersion" not in r.query for r in requests)


def test_labelled_objects_and_other_nodes_are_absent(server: FakeAPIServer, source: Start) -> None:
    """Objects for another proxy, headless slices and other Nodes never reach the agent."""
    server.put(service("mine"), service("theirs", labels={LABEL_PROXY_NAME: "other"}))
    server.put(service("so-called", labels={LABEL_HEADLESS: ""}))
    headless = endpoint_slice("headless", "10.0.0.1")
    headless["metadata"]["labels"][LABEL_HEADLESS] = ""
    server.put(endpoint_slice("mine", "10.0.0.1"), headless)
    _, sink = source()

    assert sink.names(Kind.SERVICE) == {"mine", "so-called"}
    assert sink.names(Kind.SLICE) == {"mine"}
    assert sink.names(Kind.NODE) == {"here"}


@pytest.mark.parametrize("form", [{"endpoints": None, "ports": None}, {"endpoints": []}, {}])
def test_a_slice_without_endpoints_is_an_empty_slice(
    server: FakeAPIServer, source: Start, form: dict[str, object]
) -> None:
    """Null, absent and empty endpoints mean none; the other slice of the list is unharmed."""
    empty = endpoint_slice("empty")
    del empty["endpoints"], empty["ports"]
    server.put(endpoint_slice("full", "10.0.0.1"), empty | form)
    _, sink = source()

    assert sink.names(Kind.SLICE) == {"empty", "full"}
    got = sink.picture[Kind.SLICE][Key("default", "empty")]
    assert isinstance(got, EndpointSlice)
    assert not got.endpoints
    assert not got.ports


def test_an_unusable_object_costs_only_itself(server: FakeAPIServer, source: Start) -> None:
    """A Service whose ports are text is named as rejected; its neighbours are listed."""
    bad = service("bad")
    bad["spec"]["ports"] = "http"
    server.put(service("a"), bad, service("z"))
    _, sink = source()

    (event,) = sink.of(Kind.SERVICE)
    assert isinstance(event, Replaced)
    assert sink.names() == {"a", "z"}
    assert [r.key for r in event.rejected] == [Key("default", "bad")]
    assert "spec.ports" in event.rejected[0].reason
    assert isinstance(event.rejected[0], Rejected)


def test_pages_that_expire_are_read_again_from_the_first(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """A 410 between pages starts the list anew; nothing is handed on of the half list."""
    server.put(*(service(f"s{i}") for i in range(7)))
    server.fail(Fault(status=410), verb="list", plural="services", when=_continues)
    _, sink = source()

    assert sink.lists() == 1
    assert len(sink.names()) == 7
    assert [kind for kind, _ in notes.failed_lists] == [Kind.SERVICE]
    assert [_continues(r) for r in server.seen("list", "services")] == [
        False, True, False, True, True,
    ]  # fmt: skip


def test_pages_that_always_expire_end_in_a_list_without_pages(
    server: FakeAPIServer, source: Start
) -> None:
    """If two paged lists have expired half-way, the list is asked for in one piece."""
    server.put(*(service(f"s{i}") for i in range(7)))
    server.fail(Fault(status=410), verb="list", plural="services", times=None, when=_continues)
    _, sink = source()

    assert len(sink.names()) == 7
    assert "limit" not in server.seen("list", "services")[-1].query


def test_what_changes_between_pages_is_not_lost(server: FakeAPIServer, source: Start) -> None:
    """The list is of its first page's version, and the watch brings what came after that."""
    server.put(*(service(f"s{i}") for i in range(7)))
    slow = Fault(delay=0.3)
    server.fail(slow, verb="list", plural="services", when=_continues)
    _, sink = source(listed=False)
    sink.wait(lambda: [r for r in server.seen("list", "services") if _continues(r)])
    server.delete("Service", "s6")
    server.put(service("new"))

    sink.wait(lambda: sink.names() == {"s0", "s1", "s2", "s3", "s4", "s5", "new"})
    assert sink.lists() == 1


def test_the_watch_begins_at_the_list_s_version(server: FakeAPIServer, source: Start) -> None:
    """Not at the newest item's: writes of other kinds have moved the counter on since."""
    server.put(service("old"))
    server.put(node("elsewhere", "192.0.2.99"), node("elsewhere", "192.0.2.98"))
    version = server.store.version
    source_, sink = source()
    sink.wait(lambda: server.seen("watch", "services"))

    assert server.seen("watch", "services")[0].query["resourceVersion"] == str(version)
    assert source_.seconds_since_contact().keys() == set(Kind)


def test_an_absent_server_is_waited_for(tmp_path: Path) -> None:
    """A refused connection at the start is tried again until there is a server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    late = FakeAPIServer(port=port)
    late.stop_listening()
    client = make_client(str(write_kubeconfig(tmp_path / "kubeconfig", late)))
    source = KubeSource(client, node_name="here", settings=FAST)
    sink = Sink()
    source.start(sink.put)
    time.sleep(0.3)
    assert sink.events == []
    with FakeAPIServer(port=port) as server:
        server.put(service("s"))
        sink.wait(lambda: sink.names() == {"s"})
        source.stop()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_at_the_start_is_final(server: FakeAPIServer, source: Start, status: int) -> None:
    """401 and 403 for the first list end the source as refused, and say what to do."""
    server.fail(Fault(status=status), plural="endpointslices", times=None)
    _, sink = source(listed=False)
    sink.wait(sink.failures)

    (failed,) = sink.failures()
    assert failed.refused
    assert isinstance(failed.error, RefusedError)
    assert str(status) in str(failed.error)
    assert server.url in str(failed.error)
    assert "list and watch on endpointslices" in str(failed.error)


def test_one_401_is_answered_with_fresh_credentials(server: FakeAPIServer, source: Start) -> None:
    """Credentials are read again and the request is made again before it counts as refused."""
    server.put(service("s"))
    server.fail(Fault(status=401), plural="services")
    _, sink = source()

    assert sink.names() == {"s"}
    assert sink.failures() == []
    assert len(server.seen("list", "services")) == 2


def test_a_later_refusal_is_waited_out(server: FakeAPIServer, source: Start, notes: Notes) -> None:
    """403 for a list after the first is tried again; what is known stays known."""
    server.put(service("s"))
    _, sink = source()
    server.fail(Fault(status=403), verb="list", plural="services", times=3)
    sink.wait(lambda: server.watching("services"))
    server.slip("services", b'{"type":"ERROR","object":{"code":500,"message":"lost"}}\n')

    sink.wait(lambda: sink.lists() == 2)
    assert sink.names() == {"s"}
    assert sink.failures() == []
    assert [kind for kind, _ in notes.failed_lists] == [Kind.SERVICE] * 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=404),
        Fault(cut=True),
        Fault(body=b"<html>welcome</html>"),
        Fault(body=b'{"kind":"ServiceList","metadata":{"resourceVersion":"1"},"items":[{}'),
        Fault(body=b'{"kind":"ServiceList","metadata":{},"items":[]}'),
        Fault(body=b'{"kind":"Status","metadata":{"resourceVersion":"1"},"code":500}'),
    ],
    ids=["500", "404", "cut", "html", "half", "no version", "status"],
)
def test_a_list_that_fails_is_tried_again(
    server: FakeAPIServer, source: Start, notes: Notes, fault: Fault
) -> None:
    """Whatever else comes in place of a list, the next try gets it, and nothing is handed on."""
    server.put(service("s"))
    server.fail(fault, verb="list", plural="services", times=2)
    _, sink = source()

    assert sink.names() == {"s"}
    assert sink.lists() == 1
    assert [kind for kind, _ in notes.failed_lists] == [Kind.SERVICE] * 2


def test_retry_after_is_honoured(server: FakeAPIServer, source: Start) -> None:
    """429 with Retry-After: 1 is not followed by another request within that second."""
    server.fail(Fault(status=429, retry_after="1"), verb="list", plural="services")
    source()

    first, second = server.seen("list", "services")
    assert 1.0 <= second.at - first.at < 1.5


def test_a_large_cluster_comes_whole(server: FakeAPIServer, source: Start) -> None:
    """5,000 Services and 5,000 slices of ten endpoints are listed in seconds, by pages."""
    server.put(*cluster(5000, 10))
    _, sink = source(page_limit=500, listed=False)
    sink.wait(lambda: len(sink.picture) == len(Kind), 30)

    assert len(sink.names(Kind.SERVICE)) == 5000
    slices = sink.picture[Kind.SLICE].values()
    assert sum(len(s.endpoints or ()) for s in slices if isinstance(s, EndpointSlice)) == 50_000
    assert len(server.seen("list", "services")) == 10
