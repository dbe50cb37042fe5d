"""The fake is what the other tests believe in, so its own truths are tested, by plain HTTP."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.fakes.apiserver import FakeAPIServer, Fault, UnreadableError, read_manifests
from tests.fakes.objects import node, service

if TYPE_CHECKING:
    from pathlib import Path

_SERVICES = "/api/v1/services"


def _call(server: FakeAPIServer, path: str, method: str = "GET", body: Any = None) -> Any:
    """Send a request; returns the parsed answer, errors' too."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def _watch(server: FakeAPIServer, query: str, path: str = _SERVICES) -> list[tuple[str, str, str]]:
    """Watch to the end; returns type, name and version of each event."""
    url = f"{server.url}{path}?watch=true&{query}"
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
        events = [json.loads(line) for line in answer]
    return [
        (e["type"], e["object"]["metadata"].get("name", ""),
         e["object"]["metadata"].get("resourceVersion", ""))
        for e in events
    ]  # fmt: skip


@pytest.fixture(name="filled")
def _filled(server: FakeAPIServer) -> tuple[FakeAPIServer, int]:
    """A server, and its version before five Services were put."""
    version = server.store.version
    server.put(*(service(f"s{i}") for i in range(5)))
    return server, version


def test_one_counter_stamps_every_write(server: FakeAPIServer) -> None:
    """Writes of different kinds get rising versions; a write that changes nothing gets none."""
    versions = [server.store.put(obj).version for obj in (service("a"), node("n"), service("b"))]
    again = server.store.put(service("b")).version

    assert versions == list(range(versions[0], versions[0] + 3))
    assert again == versions[2]


def test_pages_are_of_one_snapshot(filled: tuple[FakeAPIServer, int]) -> None:
    """What is written between two pages shows in neither; a compacted token is 410."""
    server, _ = filled
    first = _call(server, f"{_SERVICES}?limit=2")
    server.delete("Service", "s4")
    server.put(service("s9"))
    token = first["metadata"]["continue"]
    second = _call(server, f"{_SERVICES}?limit=3&continue={token}")

    assert first["metadata"]["remainingItemCount"] == 3
    names = [item["metadata"]["name"] for item in first["items"] + second["items"]]
    assert names == ["s0", "s1", "s2", "s3", "s4"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
    assert "kind" not in first["items"][0]
    server.compact()
    assert _call(server, f"{_SERVICES}?limit=3&continue={token}")["code"] == 410


def test_selectors(server: FakeAPIServer) -> None:
    """Label and field selectors, and a namespace in the path, choose what is listed."""
    server.put(service("a", labels={"x": "1"}), service("b", labels={"x": "2"}))
    server.put(service("c", namespace="other"))

    def names(path: str) -> list[str]:
        return [item["metadata"]["name"] for item in _call(server, path)["items"]]

    assert names(f"{_SERVICES}?labelSelector=x%3D1") == ["a"]
    assert names(f"{_SERVICES}?labelSelector=x,x!%3D1") == ["b"]
    assert names(f"{_SERVICES}?labelSelector=!x") == ["c"]
    assert names("/api/v1/namespaces/other/services") == ["c"]
    assert names("/api/v1/nodes?fieldSelector=metadata.name%3Dhere") == ["here"]
    assert _call(server, f"{_SERVICES}?fieldSelector=spec.x%3D1")["code"] == 400


def test_a_watch_replays_and_follows(filled: tuple[FakeAPIServer, int]) -> None:
    """From an old version the past comes first; leaving the selector is DELETED, entering ADDED."""
    server, version = filled
    server.put(service("s0", labels={"x": "1"}))
    server.put(service("s0"))
    server.delete("Service", "s1")
    n = version
    query = f"labelSelector=!x&resourceVersion={version}&timeoutSeconds=1"

    assert _watch(server, query) == [
        *(("ADDED", f"s{i}", str(n + i + 1)) for i in range(5)),
        ("DELETED", "s0", str(n + 6)),
        ("ADDED", "s0", str(n + 7)),
        ("DELETED", "s1", str(n + 8)),
    ]


def test_what_is_slipped_in_comes_behind_all_that_happened(server: FakeAPIServer) -> None:
    """A watch never tells a version before an earlier one."""
    old = service("old")
    old["metadata"]["resourceVersion"] = "1"
    query = f"resourceVersion={server.store.version}&timeoutSeconds=1"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        watch = pool.submit(_watch, server, query)
        while not server.watches:
            time.sleep(0.01)
        with server.store.condition:  # the watch sees both at once
            server.slip(
                "services", json.dumps({"type": "MODIFIED", "object": old}).encode() + b"\n"
            )
            version = server.store.put(service("new")).version

        assert watch.result() == [("ADDED", "new", str(version)), ("MODIFIED", "old", "1")]


def test_a_watch_ends_and_has_bookmarks_if_asked(filled: tuple[FakeAPIServer, int]) -> None:
    """timeoutSeconds ends it in good order; bookmarks carry the newest version of any kind."""
    server, _ = filled
    server.put(node("later"))
    version = server.store.version
    started = time.monotonic()
    query = f"resourceVersion={version - 1}&timeoutSeconds=1"
    events = _watch(server, f"{query}&allowWatchBookmarks=true")

    assert 0.9 < time.monotonic() - started < 2
    assert set(events) == {("BOOKMARK", "", str(version))}
    assert 5 <= len(events) <= 10
    assert _watch(server, query) == []


def test_versions_beyond_the_window() -> None:
    """Too old is an ERROR event of 410 or that status, too new is 504, none at all is ADDED."""
    with FakeAPIServer(window=3) as server:
        start = server.store.version
        server.put(*(service(f"s{i}") for i in range(5)))
        old = f"resourceVersion={start + 1}&timeoutSeconds=1"

        assert [kind for kind, _, _ in _watch(server, old)] == ["ERROR"]
        recent = f"resourceVersion={start + 2}&timeoutSeconds=1"
        assert [name for _, name, _ in _watch(server, recent)] == ["s2", "s3", "s4"]
        assert [name for _, name, _ in _watch(server, "timeoutSeconds=1")] == [
            "s0", "s1", "s2", "s3", "s4",
        ]  # fmt: skip
        server.gone_as_status = True
        assert _call(server, f"{_SERVICES}?watch=true&{old}")["code"] == 410
        future = f"{_SERVICES}?watch=true&resourceVersion={start + 100}"
        assert _call(server, future)["code"] == 504


def test_single_objects_and_writes(server: FakeAPIServer) -> None:
    """GET, POST, PUT and DELETE of one object, with the statuses of the API."""
    path = "/api/v1/namespaces/default/services"

    assert _call(server, f"{path}/s")["code"] == 404
    created = _call(server, path, "POST", service("s"))
    assert (created["kind"], created["metadata"]["name"]) == ("Service", "s")
    assert _call(server, path, "POST", service("s"))["code"] == 409
    assert (
        _call(server, f"{path}/s", "PUT", service("s", port=81))["spec"]["ports"][0]["port"] == 81
    )
    assert _call(server, f"{path}/s")["spec"]["ports"][0]["port"] == 81
    assert _call(server, f"{path}/s", "DELETE")["metadata"]["name"] == "s"
    assert _call(server, f"{path}/s", "DELETE")["code"] == 404
    assert _call(server, "/api/v1/pods")["code"] == 404


def test_events_are_recorded(server: FakeAPIServer) -> None:
    """What is posted as an Event is kept for the test to look at."""
    event = {"metadata": {"name": "e", "namespace": "default"}, "reason": "Refused"}
    _call(server, "/apis/events.k8s.io/v1/namespaces/default/events", "POST", event)

    assert [e["reason"] for e in server.events] == ["Refused"]


def test_a_token_is_asked_for(server: FakeAPIServer) -> None:
    """Without the token the answer is 401."""
    server.token = "secret"  # noqa: S105

    assert _call(server, _SERVICES)["code"] == 401


def test_faults_come_as_ordered(server: FakeAPIServer) -> None:
    """A fault meets the requests that it was meant for, as often as it was meant."""
    server.fail(Fault(status=429, retry_after="7"), verb="list", plural="services", times=2)

    assert "items" in _call(server, "/api/v1/nodes")
    assert [_call(server, _SERVICES).get("code") for _ in range(3)] == [429, 429, None]
    server.fail(Fault(cut=True), times=None)
    with pytest.raises((http.client.HTTPException, OSError)):
        _call(server, _SERVICES)
    server.heal()
    assert "items" in _call(server, _SERVICES)


def test_it_serves_a_file_by_itself(tmp_path: Path) -> None:
    """``python -m tests.fakes.apiserver`` serves manifests, and what they change to."""
    manifests = tmp_path / "m.yaml"
    manifests.write_text(yaml.safe_dump_all([service("a"), {"kind": "Deployment"}]))
    command = [sys.executable, "-m", "tests.fakes.apiserver", "--port", "0", "--node", "n"]
    command += ["--manifests", str(manifests), "--write-kubeconfig", str(tmp_path / "kubeconfig")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
            assert config["clusters"][0]["cluster"]["server"] == url
            assert _listed(url, {"a"})
            manifests.write_text(yaml.safe_dump_all([service("b"), service("c")]))
            assert _listed(url, {"b", "c"})
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [\n", ":2: did not find expected node content"),
        ("kind: Servize\n", ": kind Servize; did you mean Service?"),
        ("kind: Service\n", ": a Service without metadata.name"),
        ("just text\n", ": 'just text' has no kind"),
    ],
)
def test_a_slip_in_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    """With the file, and with the line where there is one."""
    path = tmp_path / "m.yaml"
    path.write_text(text)

    with pytest.raises(UnreadableError) as caught:
        read_manifests([path])
    assert str(caught.value).startswith(f"{path}{said}")


def _listed(url: str, names: set[str]) -> bool:
    """Whether the server comes to list these Services."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with urllib.request.urlopen(url + _SERVICES, timeout=5) as answer:  # noqa: S310
            items = json.load(answer)["items"]
        if {item["metadata"]["name"] for item in items} == names:
            return True
        time.sleep(0.05)
    return False
