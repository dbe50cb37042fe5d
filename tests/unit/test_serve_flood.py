"""A flood of the agent's ports has a bound: in processor time, connections and threads."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.serve.http import HttpServer
from agent.serve.loop import BURST, SHARE, Allowance
from agent.serve.wire import Request, Response, text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


class Clocks:
    """Time that passes and processor time that is spent, by hand."""

    def __init__(self) -> None:
        self.now = self.spent = 100.0
        self.allowance = Allowance(0.1, 0.2, lambda: self.now, lambda: self.spent)

    def after(self, seconds: float, work: float = 0.0) -> float:
        self.now += seconds
        self.spent += work
        return self.allowance.overdrawn()


def test_short_work_is_never_held_up() -> None:
    """A probe of a millisecond every second, for an hour, uses a hundredth of what is earned."""
    clocks = Clocks()
    assert {clocks.after(1.0, 0.001) for _ in range(3600)} == {0.0}


def test_what_was_saved_can_be_spent_at_once() -> None:
    """0.2 s are saved at first; 0.25 s of work are 0.05 s too much: half a second at a tenth."""
    clocks = Clocks()
    assert clocks.after(0.0) == 0
    assert clocks.after(0.0, 0.15) == 0
    assert clocks.after(0.0, 0.1) == pytest.approx(0.5)
    assert clocks.after(0.3) == pytest.approx(0.2)
    assert clocks.after(0.3) == 0


def test_no_more_is_saved_than_the_burst() -> None:
    """After a quiet day, a flood gets 0.2 s of processor time and not a tenth of a day."""
    clocks = Clocks()
    clocks.after(0.0)
    clocks.after(86_400.0)
    assert clocks.after(0.0, 0.19) == 0
    assert clocks.after(0.0, 0.02) == pytest.approx(0.1)


def hello(_: Request) -> Response:
    return text(200, "hello")


@contextlib.contextmanager
def flooded(port: int, path: str, connections: int) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.soak.flooder", "127.0.0.1", str(port), path]
    with subprocess.Popen(
        [*argv, str(connections)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is under way
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("path", ["/hello", ""], ids=["requests", "idle"])
def test_a_flood_gets_its_share_and_no_more(path: str) -> None:
    """For three seconds of flood: a tenth of a core, one thread, and real requests are answered."""
    server = HttpServer("test", "127.0.0.1:0", {"/hello": hello})
    server.start()
    port = server.port
    assert port is not None
    (thread,) = [one for one in threading.enumerate() if one.name == "serve-test"]
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    before = threading.active_count()
    try:
        with flooded(port, path, 200):
            started, used = time.monotonic(), time.clock_gettime(clock)
            time.sleep(3)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/hello")
            assert connection.getresponse().read() == b"hello\n"
            connection.close()
            used = time.clock_gettime(clock) - used
            seconds = time.monotonic() - started
            threads = threading.active_count()
    finally:
        server.stop()
    # What was accepted before is answered whatever it costs: 128 exchanges.
    assert used < SHARE * seconds + BURST + 0.1
    assert threads == before
