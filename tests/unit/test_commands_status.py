from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import msgspec
import pytest
import structlog.testing
from click.testing import CliRunner

from agent.cli import cli
from agent.cluster.feed import Rejected
from agent.cluster.objects import Kind
from agent.commands.status import StatusError, as_text, decode, default_url, fetch
from agent.config.load import defaults
from agent.serve.http import HttpServer
from agent.serve.reasons import Reasons
from agent.serve.status import StatusRecorder
from agent.serve.statuspage import page, status_routes
from agent.serve.statusvalues import Facts, StatusSnapshot
from agent.serve.wire import Request
from agent.state.services import Problem
from agent.state.values import Family
from tests.fakes import cluster
from tests.fakes.world import V4, World, dual, upsert

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = Facts("0.1.0", "node-a", "manifests", "nft", "1.8.9", "configured", "6.1", "3.11")
EVIL = "<script>document.title='broken'</script> & \"quotes\""


class Watched(World):
    """A world whose controller is watched by a recorder."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = StatusRecorder(
            self.notes,
            FACTS,
            tuple(Family),
            Reasons(tuple(Family)),
            monotonic=lambda: self.now,
            wall=lambda: 1_700_000_000 + self.now,
        )
        self.controller._observer = self.recorder

    @property
    def status(self) -> StatusSnapshot:
        """What is remembered now."""
        return self.recorder.snapshot()


@pytest.fixture(name="world")
def _world() -> Watched:
    world = Watched()
    world.list_all(dual(), cluster.endpoint_slice("10.64.0.1", "10.64.0.2"))
    return world


def test_everything_is_passed_on(world: Watched) -> None:
    """The next observer is told all that the recorder is told."""
    names = {told[0] for told in world.notes.told}

    assert names >= {"changed", "listed", "relisted", "node", "view", "queued", "starting"}
    assert names >= {"synced", "health_ports", "flows"}


def test_a_first_sync_says_why_it_ran(world: Watched) -> None:
    """The lists came; both families are written, and nothing waits."""
    status = world.status

    assert {(one.family, one.accepted, one.full) for one in status.syncs} == {
        ("IPv4", True, True),
        ("IPv6", True, True),
    }
    assert "first lists (3)" in status.syncs[0].why
    assert status.lists == ("Service", "EndpointSlice", "Node")
    assert status.queue == {"Service": 0, "EndpointSlice": 0}
    v4 = status.families[0]
    assert (v4.services, v4.endpoints, v4.dispatch, v4.synced) == (1, 2, "flat", True)
    assert v4.waiting_seconds is None
    assert v4.rules["nat"] > 0


def test_a_later_sync_names_what_changed(world: Watched) -> None:
    """A change waits until the sync that takes it in, which names it."""
    world.controller.handle(upsert(cluster.endpoint_slice("10.64.0.3")))
    world.now += 0.5

    waiting = world.status
    assert waiting.queue == {"Service": 0, "EndpointSlice": 1}
    assert waiting.families[0].waiting_seconds == 0.5

    world.wait()
    assert world.status.syncs[0].why == ("EndpointSlice changed",)
    assert world.status.families[0].waiting_seconds is None


def test_a_failed_sync_is_shown_with_its_retry(world: Watched) -> None:
    """Why it failed and when it is tried again; the next one says that it is a retry."""
    world.kernels[V4].fail_next(1)
    world.controller.handle(upsert(cluster.endpoint_slice("10.64.0.4")))
    world.wait()

    failed = world.status.syncs[0]
    assert not failed.accepted
    assert failed.error.startswith("busy: ")
    assert failed.retry_seconds is not None
    assert failed.retry_seconds > 0
    assert world.status.families[0].failures == 1

    world.later(60.0)
    accepted = next(one for one in world.status.syncs if one.family == "IPv4")
    assert accepted.accepted
    assert "the last sync failed" in accepted.why
    assert world.status.families[0].failures == 0


def test_a_service_that_is_set_aside_is_named(world: Watched) -> None:
    """With what the kernel said, and when it is tried again."""
    world.kernels[V4].refuse("10.96.0.7")
    world.handle(upsert(dual("bad", 7)), upsert(cluster.endpoint_slice(service="bad")))
    for _ in range(3):
        world.later(5.0)

    (aside,) = world.status.families[0].set_aside
    assert aside.service == "shop/bad"
    assert aside.refusals == 1
    assert 0 < aside.retry_seconds <= 30


def test_an_audit_that_found_something_is_a_reason(world: Watched) -> None:
    """What was lost is named, and the sync that mends it says why it ran."""
    world.kernels[V4].flush("nat")
    world.later(31.0)

    (audit,) = [one for one in world.status.audits if one.differences]
    assert audit.family == "IPv4"
    assert audit.differences is not None
    assert audit.differences > 3
    assert len(audit.first) == 3
    reasons = {why for sync in world.status.syncs for why in sync.why}
    assert "the kernel had lost something" in reasons


def test_objects_with_problems_are_named_until_they_are_settled(world: Watched) -> None:
    """As the log does, but for as long as the problem lasts."""
    recorder = world.recorder
    recorder.rejected(Rejected(Kind.SERVICE, cluster.key("bad"), "no good"))
    recorder.problem(Kind.SLICE, Problem(cluster.key("odd"), "one part"))
    recorder.problem(Kind.SLICE, Problem(cluster.key("odd"), "another"))

    assert [(one.kind, one.object, one.reasons) for one in world.status.unusable] == [
        ("Service", "shop/bad", ("no good",)),
        ("EndpointSlice", "shop/odd", ("one part", "another")),
    ]

    recorder.settled(Kind.SLICE, cluster.key("odd"))
    recorder.relisted(Kind.SERVICE, ())
    assert world.status.unusable == ()


def test_what_is_remembered_is_bounded(world: Watched) -> None:
    """A thousand syncs and problems do not fill the memory."""
    for number in range(1000):
        world.recorder.rejected(Rejected(Kind.SERVICE, cluster.key(f"s{number}"), "x" * 5000))
        world.controller.handle(upsert(cluster.endpoint_slice(f"10.64.1.{number % 250}")))
        world.wait()

    status = world.status
    assert len(status.syncs) == 20
    assert len(status.unusable) == 100
    assert len(msgspec.json.encode(status)) < 100_000


# Over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(name="server")
def _server(world: Watched) -> Iterator[str]:
    """An agent's server with hostile names in its status; gives the URL."""
    world.recorder.rejected(Rejected(Kind.SERVICE, cluster.key("bad"), EVIL))
    # What the server logs is not to be mixed with what a command prints.
    with structlog.testing.capture_logs():
        server = HttpServer("status", "127.0.0.1:0", status_routes(world.recorder.snapshot))
        server.start()
        assert server.port is not None
        yield f"http://127.0.0.1:{server.port}"
        server.stop()


def test_who_does_not_ask_for_html_gets_json(server: str, world: Watched) -> None:
    """As the command reads it back."""
    with urllib.request.urlopen(f"{server}/statusz") as answer:  # noqa: S310 (http)
        body = answer.read()

    assert json.loads(body)["facts"]["node"] == "node-a"
    assert decode(body).families == world.status.families


def test_the_page_stands_alone_and_escapes_everything(world: Watched) -> None:
    """No script, no link to anything, and its policy forbids both."""
    world.recorder.rejected(Rejected(Kind.SERVICE, cluster.key("bad"), EVIL))
    handle = status_routes(world.recorder.snapshot)["/statusz"]
    answer = handle(Request("GET", "/statusz", {"accept": "text/html,application/xhtml+xml"}))
    text = answer.body.decode()

    assert answer.content_type.startswith("text/html")
    assert "default-src 'none'" in dict(answer.headers)["Content-Security-Policy"]
    assert "<script" not in text
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)
    assert "&lt;script&gt;" in text


def _chromium() -> str:
    """The browser; hack/setup.sh installs it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no chromium here, and hack/setup.sh could not install it (apt-get, as root)")


def test_the_page_works_in_a_browser(server: str) -> None:
    """A real one reads it as it is meant, reports nothing to its console, and runs no script."""
    command = [
        _chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
    ]
    command += ["--disable-background-networking", "--dump-dom", f"{server}/statusz"]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)

    assert "<title>onenth on node-a</title>" in seen.stdout
    assert "<h2>Latest syncs</h2>" in seen.stdout
    assert "EndpointSlice" in seen.stdout
    assert "&lt;script&gt;document.title='broken'&lt;/script&gt; &amp;" in seen.stdout
    assert ":CONSOLE:" not in seen.stderr


# The command ---------------------------------------------------------------------------------


def test_the_command_shows_one_screen(server: str) -> None:
    """Backend, versions, syncs and why, problems, counters: within 80 columns."""
    result = CliRunner().invoke(cli, ["status", "--url", server])

    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())
    assert "nft 1.8.9: configured" in result.output
    assert "first lists (3)" in " ".join(result.output.split())
    assert "Service shop/bad" in result.output
    assert "syncs 2" in " ".join(result.output.split())


def test_the_command_gives_json(server: str) -> None:
    """What the agent said, as it said it."""
    result = CliRunner().invoke(cli, ["status", "--url", f"{server}/statusz", "-o", "json"])

    assert json.loads(result.output)["facts"]["backend"] == "nft"


def test_no_agent_is_an_error_that_says_who_was_asked() -> None:
    """And what to look at."""
    result = CliRunner().invoke(cli, ["status", "--url", "http://127.0.0.1:9"])

    assert result.exit_code == 1
    assert "nothing answers /statusz at http://127.0.0.1:9" in result.output


@pytest.mark.parametrize("url", ["127.0.0.1:9", "ftp://x", "http://", "http://x:notaport"])
def test_what_is_no_url_is_refused(url: str) -> None:
    """Without asking anybody."""
    with pytest.raises(StatusError, match="is not a URL"):
        fetch(url, 0.1)


def test_another_servers_answer_is_no_status(server: str) -> None:
    """A 404, or JSON of something else, is said to be that."""
    with pytest.raises(StatusError, match="answered 404"):
        fetch(f"{server}/other", 2)
    with pytest.raises(StatusError, match="not an agent's status"):
        decode(b'{"kind": "Pod"}')


def test_the_url_comes_from_the_configuration() -> None:
    """The agent's own address; the loopback, where it is every address."""
    config = defaults()
    everywhere = msgspec.structs.replace(config, metrics_bind_address="0.0.0.0:9999")
    nowhere = msgspec.structs.replace(config, metrics_bind_address="")

    assert default_url(config) == "http://127.0.0.1:10249"
    assert default_url(everywhere) == "http://127.0.0.1:9999"
    with pytest.raises(StatusError, match="metricsBindAddress is empty"):
        default_url(nowhere)


def test_a_busy_agent_still_fits_on_a_screen(world: Watched) -> None:
    """Many problems and syncs are cut, with how many there are."""
    for number in range(50):
        world.recorder.rejected(Rejected(Kind.SERVICE, cluster.key(f"s{number}"), "no good"))
    lines = list(as_text(world.status))

    assert "  ... and 45 more" in lines
    assert len(lines) < 60


def test_another_program_that_keeps_writing_is_told(world: Watched) -> None:
    """Three looks find that somebody flushed the table: of this family, until it is over."""
    for _ in range(3):
        world.kernels[V4].flush("nat")
        world.later(31)
    during = list(as_text(world.status))
    headline = page(world.status)
    for _ in range(10):
        world.later(31)

    assert [one.contested for one in world.status.families] == [False, False]
    assert sum("another program keeps writing these rules" in line for line in during) == 1
    assert "another program keeps writing our rules" in headline
    assert "another program" not in "\n".join(as_text(world.status))


def test_the_headline_tells_the_state(world: Watched) -> None:
    """At a glance: all well, waiting, failing."""
    assert "the kernel holds what it should" in page(world.status)

    world.controller.handle(upsert(cluster.endpoint_slice("10.64.0.9")))
    assert "changes wait for the kernel" in page(world.status)
