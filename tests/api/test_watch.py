from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from agent.cluster.feed import Deleted, Rejected, Upserted
from agent.cluster.objects import LABEL_HEADLESS, LABEL_PROXY_NAME, Key, Kind
from agent.cluster.observe import WatchEnd
from tests.fakes.apiserver import FakeAPIServer, Fault
from tests.fakes.objects import endpoint_slice, node, service

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.cluster.kube import KubeSource
    from tests.api.helpers import Notes, Sink

    Start = Callable[..., tuple[KubeSource, Sink]]


def _watching(server: FakeAPIServer, sink: Sink, plural: str = "services") -> None:
    """Wait until a watch is open."""
    sink.wait(lambda: server.watching(plural))


def test_changes_arrive(server: FakeAPIServer, source: Start) -> None:
    """An object that is added, changed and deleted comes as two upserts and a deletion."""
    _, sink = source()
    server.put(service("s", port=80))
    server.put(service("s", port=81))
    server.delete("Service", "s")
    sink.wait(lambda: len(sink.of(Kind.SERVICE)) == 4)

    added, changed, deleted = sink.of(Kind.SERVICE)[1:]
    assert isinstance(added, Upserted)
    assert isinstance(changed, Upserted)
    assert [added.object.spec.ports[0].port, changed.object.spec.ports[0].port] == [80, 81]  # type: ignore[union-attr,index]
    assert deleted == Deleted(Kind.SERVICE, Key("default", "s"))


@pytest.mark.parametrize(
    ("label", "kinds"),
    [(LABEL_PROXY_NAME, (Kind.SERVICE, Kind.SLICE)), (LABEL_HEADLESS, (Kind.SLICE,))],
)
def test_a_label_deletes_and_its_removal_adds(
    server: FakeAPIServer, source: Start, label: str, kinds: tuple[Kind, ...]
) -> None:
    """Labelling a live Service, and its slice, equals deleting it; removing the label, adding.

    That a Service calls itself headless says nothing.
    """
    plain, labelled = endpoint_slice("s", "10.0.0.1"), endpoint_slice("s", "10.0.0.1")
    labelled["metadata"]["labels"][label] = "x"
    server.put(service("s"), plain)
    _, sink = source()
    server.put(service("s", labels={label: "x"}), labelled)
    sink.wait(lambda: not any(sink.names(kind) for kind in kinds))
    server.put(plain, service("s"))

    sink.wait(lambda: sink.names(Kind.SERVICE) == sink.names(Kind.SLICE) == {"s"})
    for kind in kinds:
        assert [type(e) for e in sink.of(kind)[1:]] == [Deleted, Upserted]


def test_another_node_s_changes_do_not_come(server: FakeAPIServer, source: Start) -> None:
    """Only this Node is watched."""
    _, sink = source()
    server.put(node("elsewhere", "192.0.2.77"), node("here", "192.0.2.78"))
    sink.wait(lambda: len(sink.of(Kind.NODE)) == 2)

    assert sink.names(Kind.NODE) == {"here"}


def test_a_watch_asks_for_bookmarks_and_a_random_end(server: FakeAPIServer, source: Start) -> None:
    """allowWatchBookmarks is set, and timeoutSeconds is drawn from five to ten minutes."""
    _, sink = source()
    _watching(server, sink)

    query = server.seen("watch", "services")[0].query
    assert query["allowWatchBookmarks"] == "true"
    # The tests' luck is always the longest.
    assert query["timeoutSeconds"] == "600"


def test_a_cut_watch_goes_on_where_it_was(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """After a cut the watch resumes from the last event: nothing is lost, nothing is listed."""
    _, sink = source()
    _watching(server, sink)
    server.put(service("a"))
    sink.wait(lambda: sink.names() == {"a"})
    version = server.store.version
    server.bookmark_seconds = 60
    server.cut()
    server.put(service("b"))
    server.delete("Service", "a")

    sink.wait(lambda: sink.names() == {"b"})
    assert sink.lists() == 1
    assert int(server.seen("watch", "services")[-1].query["resourceVersion"]) >= version
    assert WatchEnd.BROKEN in notes.ends()


def test_a_watch_resumes_from_a_bookmark(server: FakeAPIServer, source: Start) -> None:
    """A quiet kind follows the bookmarks, so that compaction does not make it list again."""
    _, sink = source()
    _watching(server, sink)
    server.put(*(node("elsewhere", f"192.0.2.{i}") for i in range(20, 40)))
    version = server.store.version
    # The next bookmark after this carries the present version.
    contact = sink.lists(Kind.SLICE)
    time.sleep(0.3)
    server.compact()
    server.cut()
    sink.wait(lambda: len(server.seen("watch", "services")) >= 2)
    _watching(server, sink)
    server.put(service("s"))

    sink.wait(lambda: sink.names() == {"s"})
    assert server.seen("watch", "services")[1].query["resourceVersion"] == str(version)
    assert sink.lists() == contact == 1


def test_a_silent_watch_is_ended_from_this_side(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """No event and no bookmark for the read timeout: the agent reconnects, resumes, counts it."""
    _, sink = source(read_timeout=0.4)
    _watching(server, sink)
    server.put(service("before"))
    sink.wait(lambda: sink.names() == {"before"})
    server.silence()
    server.put(service("meanwhile"))
    sink.wait(lambda: WatchEnd.SILENT in notes.ends())
    assert sink.names() == {"before"}
    server.speak()

    sink.wait(lambda: sink.names() == {"before", "meanwhile"})
    assert sink.lists() == 1


def test_bookmarks_keep_a_quiet_watch_alive(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """Bookmarks every 0.1 s are enough for a read timeout of 0.4 s, and count as contact."""
    source_, sink = source(read_timeout=0.4)
    _watching(server, sink)
    time.sleep(1.0)

    assert notes.ended == []
    assert max(source_.seconds_since_contact().values()) < 0.4


def test_requests_are_told(server: FakeAPIServer, source: Start, notes: Notes) -> None:
    """Each request with its method, host and status; one that nobody answers as ``<error>``."""
    server.fail(Fault(status=500), verb="list", plural="services")
    _, sink = source()
    _watching(server, sink)
    host = server.url.removeprefix("http://")
    server.stop()
    sink.wait(lambda: ("GET", host, "<error>") in notes.requests)

    assert set(notes.requests) == {("GET", host, code) for code in ("200", "500", "<error>")}
    assert notes.requests.count(("GET", host, "500")) == 1
    assert notes.requests.count(("GET", host, "200")) >= 6  # three lists and three watches


def test_silence_shows(server: FakeAPIServer, source: Start) -> None:
    """The seconds since the last contact grow while nothing comes."""
    source_, sink = source()
    _watching(server, sink)
    server.silence()
    time.sleep(0.5)

    assert min(source_.seconds_since_contact().values()) > 0.3


@pytest.mark.parametrize("as_status", [False, True], ids=["event in a 200", "HTTP 410"])
def test_an_expired_version_lists_again(
    server: FakeAPIServer, source: Start, notes: Notes, *, as_status: bool
) -> None:
    """410 in either form lists again, and the list replaces: what it lacks is deleted."""
    server.gone_as_status = as_status
    server.put(service("a"), service("b"))
    _, sink = source()
    _watching(server, sink)
    server.fail(Fault(cut=True), verb="watch", plural="services", times=5)
    server.cut()
    server.delete("Service", "b")
    server.put(service("c"))
    server.compact()

    sink.wait(lambda: sink.lists() == 2)
    assert sink.names() == {"a", "c"}
    assert WatchEnd.EXPIRED in notes.ends()
    # The other kinds resumed or listed by themselves, and this one's new watch works.
    server.put(service("d"))
    sink.wait(lambda: sink.names() == {"a", "c", "d"})


def test_versions_that_always_expire_do_not_make_a_tight_loop(
    server: FakeAPIServer, source: Start
) -> None:
    """A server that answers each watch with 410 sees lists at growing distances."""
    server.fail(Fault(status=410), verb="watch", plural="services", times=None)
    _, sink = source(backoff_cap=30.0)
    sink.wait(lambda: sink.lists() >= 6)

    at = [request.at for request in server.seen("list", "services")]
    gaps = [late - early for early, late in itertools.pairwise(at)]
    # The first two delays are at most 10 ms, and then each may be twice the one before.
    for gap, expected in zip(gaps, [0.01, 0.01, 0.02, 0.04, 0.08], strict=False):
        assert expected <= gap < expected + 0.15


def test_after_an_outage_a_version_that_expired_waits_no_longer(
    server: FakeAPIServer, source: Start
) -> None:
    """Six failures have made the next delay 1.28 s; an expired version lists within 0.02 s."""
    server.fail(Fault(status=500), verb="watch", plural="services", times=6)
    server.fail(Fault(status=410), verb="watch", plural="services")
    _, sink = source(backoff_first=0.02, backoff_cap=30.0)
    sink.wait(lambda: sink.lists() == 2)

    expired_at = server.seen("watch", "services")[6].at
    assert server.seen("list", "services")[1].at - expired_at < 0.6


def test_another_error_event_lists_again(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """An ERROR event of whatever code, or none at all, ends in a new list."""
    server.put(service("s"))
    _, sink = source()
    for n, status in enumerate((b'{"kind":"Status","code":500,"message":"etcd"}', b'"what"'), 1):
        sink.wait(lambda n=n: notes.started.count(Kind.SERVICE) == n)  # type: ignore[misc]
        server.slip("services", b'{"type":"ERROR","object":' + status + b"}\n")
        sink.wait(lambda n=n: sink.lists() == n + 1)  # type: ignore[misc]

    assert notes.ends() == [WatchEnd.ERROR] * 2
    assert sink.names() == {"s"}


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (b'{"type":"ADDED","object":{"metadata":{"na', WatchEnd.BROKEN),
        (b"<html>proxy says no</html>\n", WatchEnd.GARBLED),
        (b'{"kind":"Status"}\n', WatchEnd.GARBLED),
        (b"\xff\xfe\n", WatchEnd.GARBLED),
    ],
    ids=["half a line", "html", "no type", "binary"],
)
def test_garbage_costs_a_reconnection(
    server: FakeAPIServer, source: Start, notes: Notes, raw: bytes, end: WatchEnd
) -> None:
    """Half a line or garbage ends that watch; the next resumes, and no list is needed."""
    _, sink = source()
    _watching(server, sink)
    server.slip("services", raw, then_cut=True)
    sink.wait(notes.ends)
    server.put(service("s"))

    sink.wait(lambda: sink.names() == {"s"})
    assert notes.ends() == [end]
    assert sink.lists() == 1


def test_half_a_line_at_a_regular_end_is_garbage(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """An answer that is over inside a line is no watch that ended in good order."""
    server.fail(Fault(body=b'{"type":"ADDED","obj'), verb="watch", plural="services")
    _, sink = source()
    sink.wait(notes.ends)

    assert notes.ends() == [WatchEnd.GARBLED]


def test_delays_begin_anew_after_a_healthy_watch(server: FakeAPIServer, source: Start) -> None:
    """Five failures have made the next delay 0.64 s; half a second of watching makes it 0.02."""
    server.fail(Fault(status=500), verb="watch", plural="services", times=5)
    _, sink = source(backoff_first=0.02, backoff_cap=30.0)
    _watching(server, sink)
    time.sleep(0.5)
    cut_at = time.monotonic()
    server.cut()
    sink.wait(lambda: len(server.seen("watch", "services")) == 7)

    assert server.seen("watch", "services")[-1].at - cut_at < 0.4


def test_garbage_again_and_again_lists_again(server: FakeAPIServer, source: Start) -> None:
    """If a resumed watch brings nothing but garbage once more, the version is given up."""
    server.put(service("s"))
    garbage = Fault(body=b"garbage\n")
    server.fail(garbage, verb="watch", plural="services", times=2)
    _, sink = source()

    sink.wait(lambda: sink.lists() == 2)
    server.put(service("t"))
    sink.wait(lambda: sink.names() == {"s", "t"})


def test_an_unknown_type_is_skipped_and_told_once(
    server: FakeAPIServer, source: Start, logs: list[Any]
) -> None:
    """Two events of an unknown type give one warning, and the watch goes on."""
    _, sink = source()
    _watching(server, sink)
    for _ in range(2):
        server.slip("services", b'{"type":"PONDERED","object":{}}\n')

    def told() -> list[str]:
        return [entry["log_level"] for entry in logs if entry.get("type") == "PONDERED"]

    sink.wait(told)
    server.put(service("s"))
    sink.wait(lambda: sink.names() == {"s"})

    assert told() == ["warning"]
    assert len(server.seen("watch", "services")) == 1


def test_an_unusable_object_in_a_watch_costs_only_itself(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """It comes as rejected, the next event comes as usual, and the watch stays open."""
    _, sink = source()
    bad = service("bad")
    bad["spec"]["clusterIP"] = 7
    server.put(bad, service("good"))
    sink.wait(lambda: sink.names() == {"good"})
    server.delete("Service", "bad")
    sink.wait(lambda: len(sink.of(Kind.SERVICE)) == 4)

    rejected = sink.of(Kind.SERVICE)[1]
    assert isinstance(rejected, Rejected)
    assert rejected.key == Key("default", "bad")
    assert "clusterIP" in rejected.reason
    # That it cannot be decoded is no reason to miss its deletion.
    assert sink.of(Kind.SERVICE)[3] == Deleted(Kind.SERVICE, Key("default", "bad"))
    assert notes.ends() == []


def test_repeated_events_change_nothing(server: FakeAPIServer, source: Start) -> None:
    """An old event that comes once more, and a deletion of what is not there, are harmless."""
    server.put(service("s"))
    _, sink = source()
    _watching(server, sink)
    body = b'"object":{"metadata":{"name":"%b","namespace":"default","resourceVersion":"1"}}}\n'
    server.slip("services", b'{"type":"ADDED",' + body % b"s")
    server.slip("services", b'{"type":"DELETED",' + body % b"never")
    sink.wait(lambda: len(sink.of(Kind.SERVICE)) == 3)

    assert sink.names() == {"s"}


def test_a_watch_that_ends_in_good_order_is_followed_by_the_next(
    server: FakeAPIServer, source: Start, notes: Notes
) -> None:
    """When timeoutSeconds is over the next watch resumes at once, on the same connection."""
    _, sink = source(watch_min=1.0, watch_max=1.0)
    sink.wait(lambda: len(notes.ends()) >= 2)

    first, second = server.seen("watch", "services")[:2]
    assert notes.ends()[:2] == [WatchEnd.CLOSED] * 2
    assert 1.0 <= second.at - first.at < 1.3
    assert first.connection == second.connection
    assert sink.lists() == 1


@pytest.mark.parametrize("status", [429, 500, 503, 403, 401])
def test_a_watch_that_is_not_accepted_keeps_its_version(
    server: FakeAPIServer, source: Start, notes: Notes, status: int
) -> None:
    """Overload, outage and refusal after the list are waited out without a new list."""
    server.fail(Fault(status=status), verb="watch", plural="services", times=4)
    _, sink = source()
    _watching(server, sink)
    server.put(service("s"))

    sink.wait(lambda: sink.names() == {"s"})
    assert sink.lists() == 1
    assert sink.failures() == []
    assert set(notes.ends()) == {WatchEnd.ERROR}


def test_a_server_restored_from_a_backup_is_followed(server: FakeAPIServer, source: Start) -> None:
    """A server that has not reached the watch's version says so, and everything is listed."""
    server.put(service("a"))
    _, sink = source()
    _watching(server, sink)
    with server.store.condition:
        server.store.version -= 500
    server.cut()

    sink.wait(lambda: sink.lists() == 2)
    server.put(service("b"))
    sink.wait(lambda: sink.names() == {"a", "b"})
