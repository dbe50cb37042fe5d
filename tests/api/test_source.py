from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from agent.cluster.client import make_client
from agent.cluster.feed import Event, Replaced, SourceFailed
from agent.cluster.kube import KubeSource
from agent.cluster.objects import Kind
from tests.api.helpers import FAST
from tests.fakes.apiserver import FakeAPIServer, Fault, write_kubeconfig
from tests.fakes.objects import service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.api.helpers import Notes, Sink

    Start = Callable[..., tuple[KubeSource, Sink]]


def _threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("watch-")}


@pytest.mark.parametrize("state", ["watching", "no answer", "waiting to retry", "asked to wait"])
def test_stop_is_prompt_and_final(server: FakeAPIServer, source: Start, state: str) -> None:
    """Whatever the threads wait for, stop ends them in well under a second, for good."""
    if state == "no answer":
        server.silence()
    if state == "waiting to retry":
        server.fail(Fault(status=500), times=None)
    if state == "asked to wait":
        server.fail(Fault(status=429, retry_after="60"), times=None)
    source_, sink = source(listed=state == "watching", backoff_first=30.0, read_timeout=60.0)
    sink.wait(lambda: len(server.requests) >= 3)
    assert _threads() == {"watch-Service", "watch-EndpointSlice", "watch-Node"}

    started = time.monotonic()
    source_.stop()
    assert time.monotonic() - started < 0.5
    assert _threads() == set()
    count = len(sink.events)
    server.put(service("late"))
    time.sleep(0.2)
    assert len(sink.events) == count


def test_a_thread_that_dies_ends_the_source(server: FakeAPIServer, tmp_path: Path) -> None:
    """An exception that nobody expected comes out as SourceFailed, not refused."""
    client = make_client(str(write_kubeconfig(tmp_path / "kubeconfig", server)))
    source = KubeSource(client, node_name="here", settings=FAST)
    failures: list[SourceFailed] = []
    failed = threading.Event()

    def put(event: Event) -> None:
        if isinstance(event, SourceFailed):
            failures.append(event)
            failed.set()
        elif isinstance(event, Replaced) and event.kind is Kind.NODE:
            raise ZeroDivisionError("surprise")

    source.start(put)
    assert failed.wait(5)
    source.stop()
    assert [str(f.error) for f in failures] == ["surprise"]
    assert not failures[0].refused


def test_one_connection_for_each_kind(server: FakeAPIServer, source: Start, notes: Notes) -> None:
    """All pages and watches of the process's life go through three connections."""
    server.put(*(service(f"s{i}") for i in range(10)))
    _, sink = source(watch_min=1.0, watch_max=1.0)
    sink.wait(lambda: len(notes.ended) >= 3)

    assert len(server.requests) >= 9
    assert len({request.connection for request in server.requests}) == 3


def test_the_observer_hears_of_everything(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """Lists with their sizes, watches, events and contacts are reported by kind."""
    server.put(service("a"), service("b"))
    _, sink = source()
    sink.wait(lambda: server.watching("services"))
    server.put(service("c"))
    sink.wait(lambda: notes.events)

    assert sorted(notes.lists, key=str) == [
        (Kind.NODE, 1),
        (Kind.SERVICE, 2),
        (Kind.SLICE, 0),
    ]
    assert Kind.SERVICE in notes.started
    assert [kind for kind, _ in notes.events] == [Kind.SERVICE]
    assert set(notes.contacts) == set(Kind)


def test_a_source_starts_once(source: Start) -> None:
    """A second start is a mistake of the caller."""
    source_, sink = source()

    with pytest.raises(RuntimeError, match="started once"):
        source_.start(sink.put)
