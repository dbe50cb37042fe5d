from __future__ import annotations

import io
import json
import queue
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing
import yaml

from agent.cluster.content import Manifests, Severity
from agent.cluster.feed import Event, Replaced, SourceFailed
from agent.cluster.manifests import ManifestError, ManifestSource, load
from agent.cluster.objects import LABEL_HEADLESS, LABEL_PROXY_NAME, Key, Kind, key_of
from tests.fakes.objects import endpoint_slice, node, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def _write(path: Path, *objects: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all(objects))
    return path


def _names(manifests: Manifests) -> list[str]:
    return [str(key_of(obj)) for obj in manifests.services]


def test_files_folders_and_both_languages(tmp_path: Path) -> None:
    """YAML of several documents, JSON, and all below a folder that ends rightly and is visible."""
    _write(tmp_path / "a.yaml", service("one"), service("two"), node("n"))
    _write(tmp_path / "deep" / "er" / "b.yml", endpoint_slice("one", "10.0.0.1"))
    (tmp_path / "c.json").write_text(json.dumps(service("three")))
    _write(tmp_path / "notes.txt", service("text"))
    _write(tmp_path / ".hidden.yaml", service("hidden"))
    _write(tmp_path / "..2026_01_01" / "a.yaml", service("old"))
    got = load([tmp_path])

    assert _names(got) == ["default/one", "default/two", "default/three"]
    assert [str(key_of(obj)) for obj in got.slices] == ["default/one"]
    assert [str(key_of(obj)) for obj in got.nodes] == ["n"]
    assert (got.rejected, got.problems, got.ignored) == ((), (), 0)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads manifests from the standard input."""
    text = yaml.safe_dump(service("s")).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert _names(load(["-"])) == ["default/s"]


def test_lists_are_unfolded(tmp_path: Path) -> None:
    """A List, typed lists whose items have no kind, null items and a List in a List."""
    bare = {k: v for k, v in service("typed").items() if k not in {"kind", "apiVersion"}}
    lists: list[dict[str, Any]] = [
        {"kind": "List", "apiVersion": "v1", "items": [service("a"), node("n")]},
        {"kind": "ServiceList", "apiVersion": "v1", "items": [bare]},
        {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": None},
        {"kind": "List", "items": [{"kind": "List", "items": [service("inner")]}]},
    ]
    got = load([_write(tmp_path / "a.yaml", *lists)])

    assert _names(got) == ["default/a", "default/typed", "default/inner"]
    assert len(got.nodes) == 1
    assert got.problems == ()


def test_a_list_in_json_says_what_it_says_in_yaml(tmp_path: Path) -> None:
    """Good and bad, of ours and of others, with and without a namespace; and the text is whole."""
    plain, null, numbered, bad = (service(name) for name in ("plain", "null", "number", "bad"))
    del plain["metadata"]["namespace"]
    null["metadata"]["namespace"] = None
    numbered["metadata"]["namespace"] = 7
    bad["spec"]["ports"][0]["port"] = "http"
    placed = node("n")
    placed["metadata"]["namespace"] = "x"
    theirs = service("theirs", labels={LABEL_PROXY_NAME: "x"})
    items = [
        *(service("a"), endpoint_slice("a", "10.0.0.1"), plain, null, numbered, bad, placed),
        *(theirs, service("v2") | {"apiVersion": "v2"}, {"kind": "Service"}, {"kind": 5}, {}, 7),
        *(None, "text", {"kind": "Deployment"}, {"kind": "List", "items": [service("inner")]}),
        {key: value for key, value in service("bare").items() if key == "kind"},
        service("a") | {"apiVersion": None},
    ]
    whole = {"kind": "List", "apiVersion": "v1", "items": items}
    (tmp_path / "a.json").write_text(json.dumps(whole))
    got = load([tmp_path / "a.json"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.json").write_text(yaml.safe_dump(whole))
    same = load([tmp_path / "b" / "a.json"])

    assert _names(got) == ["default/a", "default/plain", "default/null", "default/inner"]
    keys = ["default/bad", "None", "None", "None"]  # what has no name comes last
    assert [str(one.key) for one in got.rejected] == keys
    assert (got.services, got.slices, got.nodes) == (same.services, same.slices, same.nodes)
    assert [(one.kind, one.key) for one in got.rejected] == [
        (one.kind, one.key) for one in same.rejected
    ]
    assert [one.message.replace("/b/", "/") for one in same.problems] == [
        one.message for one in got.problems
    ]
    assert got.ignored == same.ignored == 1
    text = json.dumps(whole).encode()
    for broken in (text + b"x", text[:-1], text.replace(b'"text"', b'"\xff"')):
        (tmp_path / "a.json").write_bytes(broken)
        assert load([tmp_path / "a.json"]).services == ()


def test_other_kinds_are_counted_and_ignored(tmp_path: Path) -> None:
    """Deployments, and what is named Service in another API group, are no business of ours."""
    others = [
        {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "s"}},
        service("knative") | {"apiVersion": "serving.knative.dev/v1"},
        {"kind": "AllowList", "apiVersion": "example.com/v1"},
    ]
    got = load([_write(tmp_path / "a.yaml", *others, service("s"))])

    assert _names(got) == ["default/s"]
    assert got.ignored == 3
    assert got.problems == ()


_OLD = "discovery.k8s.io/v1beta1"


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        (
            endpoint_slice("old") | {"apiVersion": _OLD},
            f"EndpointSlice with apiVersion {_OLD} is skipped: discovery.k8s.io/v1 is read",
        ),
        (service("a") | {"apiVersion": "v2"}, "Service with apiVersion v2 is skipped: v1 is read"),
        (
            service("a") | {"kind": "Servize"},
            "kind Servize is unknown and skipped; did you mean Service?",
        ),
        (
            endpoint_slice("a") | {"kind": "EndpointSlices"},
            "kind EndpointSlices is unknown and skipped; did you mean EndpointSlice?",
        ),
    ],
)
def test_a_slip_in_a_kind_of_ours_is_an_error(
    tmp_path: Path, slip: dict[str, Any], said: str
) -> None:
    """Nobody else has kinds in these groups, so it is no business of others."""
    got = load([_write(tmp_path / "a.yaml", service("s"), slip)])

    assert _names(got) == ["default/s"]
    assert [(one.message, one.severity.value) for one in got.problems] == [(said, "error")]


def test_labelled_objects_are_absent(tmp_path: Path) -> None:
    """What a selector would leave out at an API server is left out here; a Node never is."""
    headless = endpoint_slice("h", "10.0.0.1")
    headless["metadata"]["labels"][LABEL_HEADLESS] = ""
    labelled_node = node("n")
    labelled_node["metadata"]["labels"][LABEL_PROXY_NAME] = "x"
    theirs = service("theirs", labels={LABEL_PROXY_NAME: "x"})
    got = load([_write(tmp_path / "a.yaml", theirs, headless, labelled_node)])

    assert (got.services, got.slices) == ((), ())
    assert len(got.nodes) == 1


def test_namespaces_have_kubectl_s_default(tmp_path: Path) -> None:
    """No namespace is ``default``; a Node has none whatever it says."""
    plain, other = service("plain"), service("s", namespace="other")
    del plain["metadata"]["namespace"]
    null = service("null")
    null["metadata"]["namespace"] = None
    placed = node("n")
    placed["metadata"]["namespace"] = "x"
    got = load([_write(tmp_path / "a.yaml", plain, other, null, placed)])

    assert _names(got) == ["default/plain", "other/s", "default/null"]
    assert key_of(got.nodes[0]) == Key("", "n")


def test_one_bad_object_costs_only_itself(tmp_path: Path) -> None:
    """It is rejected with its file and line; so is one without metadata, which has no name."""
    bad = service("bad")
    bad["spec"]["ports"][0]["port"] = "http"
    path = _write(tmp_path / "a.yaml", service("a"), bad, {"kind": "Service"}, service("z"))
    got = load([path])

    assert _names(got) == ["default/a", "default/z"]
    assert [rejected.key for rejected in got.rejected] == [Key("default", "bad"), None]
    line = path.read_text().splitlines().index("---") + 2
    assert f"({path}:{line})" in got.rejected[0].reason
    assert "port" in got.rejected[0].reason


def test_yaml_traps_are_data(tmp_path: Path) -> None:
    """Unquoted dates and words are text; a number with a leading zero is no port, and no crash."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "kind: Service\nmetadata:\n  name: s\n  creationTimestamp: 2026-01-01T00:00:00Z\n"
        "  labels: {switch: on, day: 2026-01-01}\nspec: {ports: [{port: 80}]}\n---\n"
        "kind: Service\nmetadata: {name: octal}\nspec: {ports: [{port: 010}]}\n"
    )
    got = load([path])

    assert [s.metadata.labels for s in got.services] == [{"switch": "on", "day": "2026-01-01"}]
    assert [r.key for r in got.rejected] == [Key("default", "octal")]


def test_the_last_of_two_counts(tmp_path: Path) -> None:
    """The same object twice is the later one's, with a warning that names both places."""
    first = _write(tmp_path / "a.yaml", service("s", port=1))
    second = _write(tmp_path / "b.yaml", service("x"), service("s", port=2))
    got = load([tmp_path])

    assert [s.spec.ports[0].port for s in got.services if s.spec.ports] == [2, 80]
    (problem,) = got.problems
    assert problem.severity is Severity.WARNING
    assert str(problem).startswith(f"{second}:")
    assert f"{first}:1" in problem.message
    again = {s.metadata.name: s for s in load([second, first]).services}
    assert [port.port for port in again["s"].spec.ports or ()] == [1]


def test_a_broken_file_is_a_problem_with_a_line(tmp_path: Path) -> None:
    """What does not parse, or is no object, is named by file and line; other files are read."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: Service\nmetadata: {name: lost}\nspec: [\n---\n")
    odd = tmp_path / "odd.yaml"
    odd.write_text("just text\n---\n- a\n---\nmetadata: {name: s}\n---\nkind: List\nitems: 7\n")
    _write(tmp_path / "z.yaml", service("good"))
    got = load([tmp_path])

    assert _names(got) == ["default/good"]
    places = [str(problem).split(": ", 1)[0] for problem in got.problems]
    assert places == [f"{broken}:4", f"{odd}:1", f"{odd}:3", f"{odd}:5", f"{odd}:7"]
    assert {problem.severity for problem in got.problems} == {Severity.ERROR}


def test_lists_within_lists_end(tmp_path: Path) -> None:
    """A List that holds itself is a problem, not an endless loop."""
    path = tmp_path / "a.yaml"
    path.write_text("&l\nkind: List\nitems: [*l]\n")

    (problem,) = load([path]).problems
    assert "lists in one another" in problem.message


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """It is most likely a mistake, so it is not taken for an empty folder."""
    missing = tmp_path / "nowhere"
    with pytest.raises(ManifestError, match="nowhere does not exist"):
        load([missing])
    with pytest.raises(ManifestError, match="nowhere does not exist"):
        ManifestSource([missing]).start(lambda _: None)
    with pytest.raises(ManifestError, match="cannot be watched"):
        ManifestSource(["-"]).start(lambda _: None)


class _Feed:
    """A source on a folder, and what it says."""

    def __init__(self, *paths: Path, node_name: str | None = None) -> None:
        self.source = ManifestSource(
            paths, node_name=node_name, poll_seconds=0.02, settle_seconds=0.02
        )
        self.events: queue.Queue[Event] = queue.Queue()
        self.source.start(self.events.put)

    def next(self) -> Event:
        return self.events.get(timeout=5)

    def replaced(self) -> Replaced:
        event = self.next()
        assert isinstance(event, Replaced)
        return event

    def first(self) -> dict[Kind, Replaced]:
        """Take the three lists of the start."""
        return {event.kind: event for event in (self.replaced() for _ in Kind)}

    def names(self) -> set[str]:
        """Take one more list, and give the names in it."""
        return {obj.metadata.name for obj in self.replaced().objects}

    def quiet(self, seconds: float = 0.15) -> bool:
        """Whether nothing comes for a while."""
        try:
            self.events.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture(name="logs")
def _logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.fixture(name="feed")
def _feed(logs: list[Any]) -> Iterator[Callable[..., _Feed]]:
    assert logs == []
    feeds: list[_Feed] = []

    def make(*paths: Path, node_name: str | None = None) -> _Feed:
        feeds.append(_Feed(*paths, node_name=node_name))
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.source.stop()


def test_the_start_says_all_three_kinds(tmp_path: Path, feed: Callable[..., _Feed]) -> None:
    """A Replaced for each kind comes first, also of what there is none; only this Node counts."""
    _write(tmp_path / "a.yaml", service("s"), node("here"), node("elsewhere"))
    lists = feed(tmp_path, node_name="here").first()

    assert [obj.metadata.name for obj in lists[Kind.SERVICE].objects] == ["s"]
    assert lists[Kind.SLICE].objects == ()
    assert [obj.metadata.name for obj in lists[Kind.NODE].objects] == ["here"]


def test_an_empty_folder_is_three_empty_lists_once(
    tmp_path: Path, feed: Callable[..., _Feed], logs: list[Any]
) -> None:
    """Nothing there is something to say, but only once."""
    source = feed(tmp_path)

    assert {len(event.objects) for event in source.first().values()} == {0}
    assert source.quiet()
    assert [entry["event"] for entry in logs] == ["manifests read"]


def test_changes_make_whole_new_lists(tmp_path: Path, feed: Callable[..., _Feed]) -> None:
    """A changed, added or deleted file sends the kinds that differ, whole, and no others."""
    _write(tmp_path / "a.yaml", service("a"))
    source = feed(tmp_path)
    source.first()
    _write(tmp_path / "b.yaml", service("b"))
    assert source.names() == {"a", "b"}
    _write(tmp_path / "a.yaml", service("a", port=81))
    event = source.replaced()
    assert event.kind is Kind.SERVICE
    assert len(event.objects) == 2
    (tmp_path / "b.yaml").unlink()
    assert source.names() == {"a"}
    (tmp_path / "a.yaml").touch()
    (tmp_path / "a.yaml").write_text((tmp_path / "a.yaml").read_text() + "# a comment\n")
    assert source.quiet()


def test_same_size_and_times_do_not_hide_a_change(
    tmp_path: Path, feed: Callable[..., _Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content decides: two writes within a clock tick, of one length, are two contents."""
    now = time.time_ns()
    monkeypatch.setattr("agent.cluster.manifests._stamp", lambda _: (now, now, 1, 1, 1))
    path = _write(tmp_path / "a.yaml", service("a"))
    source = feed(tmp_path)
    source.first()
    path.write_text(path.read_text().replace("name: a", "name: b"))

    assert source.names() == {"b"}


def test_a_configmap_s_swap_of_symlinks_is_a_change(
    tmp_path: Path, feed: Callable[..., _Feed]
) -> None:
    """Mounted ConfigMaps change by swapping the ..data symlink; versions are not read twice."""
    _write(tmp_path / "..v1" / "a.yaml", service("one"))
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    source = feed(tmp_path)
    assert len(source.first()[Kind.SERVICE].objects) == 1
    _write(tmp_path / "..v2" / "a.yaml", service("two"))
    (tmp_path / "..tmp").symlink_to("..v2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    shutil.rmtree(tmp_path / "..v1")

    assert source.names() == {"two"}


@pytest.mark.parametrize("text", ["kind: [\n", "", "\n \n"], ids=["syntax", "empty", "blank"])
def test_a_file_that_breaks_keeps_what_it_said(
    tmp_path: Path, feed: Callable[..., _Feed], logs: list[Any], text: str
) -> None:
    """A syntax error, or a file cut to nothing, is told once; mending it is a change again."""
    path = _write(tmp_path / "a.yaml", service("a"))
    source = feed(tmp_path)
    source.first()
    path.write_text(text)
    assert source.names() == {"a"}
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["file"] for entry in errors] == [str(path)]
    assert "what it said last stays in force" in errors[0]["error"]
    # Other files still count meanwhile.
    _write(tmp_path / "b.yaml", service("b"))
    assert source.names() == {"a", "b"}
    path.write_text("# nothing here any more\n")
    assert source.names() == {"b"}


def test_a_path_that_vanishes_keeps_what_it_said(
    tmp_path: Path, feed: Callable[..., _Feed], logs: list[Any]
) -> None:
    """A folder or a file that was asked for and is away, say for a moment, deletes nothing."""
    folder, file = tmp_path / "folder", _write(tmp_path / "f.yaml", service("f"))
    _write(folder / "a.yaml", service("a"))
    source = feed(folder, file)
    source.first()
    folder.rename(tmp_path / "away")
    assert source.names() == {"a", "f"}
    file.unlink()
    assert source.names() == {"a", "f"}
    told = {entry["file"] for entry in logs if entry["log_level"] == "error"}
    assert {str(folder), str(file)} <= told
    (tmp_path / "away").rename(folder)
    assert source.names() == {"a", "f"}
    _write(file, service("g"))
    assert source.names() == {"a", "g"}


def test_a_file_that_is_being_written_is_waited_for(
    tmp_path: Path, feed: Callable[..., _Feed]
) -> None:
    """A writer that takes its time, without a pause, is seen when it is done."""
    path = _write(tmp_path / "a.yaml", service("s0"))
    source = feed(tmp_path)
    source.first()
    with path.open("w") as file:
        for i in range(20):
            file.write(yaml.safe_dump(service(f"s{i}")) + "---\n")
            file.flush()
            time.sleep(0.005)

    assert source.names() == {f"s{i}" for i in range(20)}


def test_rejected_objects_are_part_of_the_list(tmp_path: Path, feed: Callable[..., _Feed]) -> None:
    """An object that becomes unusable leaves the list and is named in it."""
    path = _write(tmp_path / "a.yaml", service("a"), service("b"))
    source = feed(tmp_path)
    source.first()
    _write(path, service("a"), service("b") | {"spec": 7})
    event = source.replaced()

    assert [obj.metadata.name for obj in event.objects] == ["a"]
    assert [rejected.key for rejected in event.rejected] == [Key("default", "b")]


def test_a_file_that_says_nothing_any_more_is_named(
    tmp_path: Path, feed: Callable[..., _Feed]
) -> None:
    """What it said stays in force, and it is listed as unusable until it can be read again."""
    path = _write(tmp_path / "a.yaml", service("a"))
    source = feed(tmp_path)
    source.first()
    path.write_text("kind: Service\nmetadata: {name: a}\nspec: [\n")
    event = source.replaced()

    assert [obj.metadata.name for obj in event.objects] == ["a"]
    (rejected,) = event.rejected
    assert rejected.key == Key("", str(path))
    assert "line 4" in rejected.reason
    path.write_text("")
    assert source.replaced().rejected[0].reason.startswith("it is empty")
    _write(path, service("a"))
    assert source.replaced().rejected == ()


def test_stop_is_prompt(tmp_path: Path, feed: Callable[..., _Feed]) -> None:
    """stop ends the thread at once, however seldom it looks."""
    source = feed(tmp_path)
    source.first()
    source.source.stop()

    assert "manifests" not in {thread.name for thread in threading.enumerate()}


def test_a_thread_that_dies_says_so(tmp_path: Path, logs: list[Any]) -> None:
    """An exception that nobody expected comes out as SourceFailed, not refused."""
    failures: queue.Queue[SourceFailed] = queue.Queue()

    def put(event: Event) -> None:
        if not isinstance(event, SourceFailed):
            raise ZeroDivisionError("surprise")
        failures.put(event)

    source = ManifestSource([tmp_path])
    source.start(put)
    failed = failures.get(timeout=5)
    source.stop()

    assert str(failed.error) == "surprise"
    assert not failed.refused
    assert logs[-1]["event"] == "manifest thread died"
