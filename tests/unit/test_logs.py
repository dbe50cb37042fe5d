"""What a log line looks like, and that logging never hurts."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from agent import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    config = structlog.get_config()
    yield
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_have_time_level_and_event_first() -> None:
    """One object a line: when in UTC, how bad, what, then the rest."""
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    logs.get(component="test").info("synced", services=3, family="IPv4")
    (line,) = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {
        "level": "info",
        "event": "synced",
        "component": "test",
        "services": 3,
        "family": "IPv4",
    }


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("console", io.StringIO(), False),
    ],
)
def test_the_format_fits_the_reader(log_format: Any, stream: io.StringIO, *, is_json: bool) -> None:
    """People at a terminal get text, everybody else JSON, unless told otherwise."""
    logs.setup(log_format, stream=stream)
    logs.get().info("hello")
    assert stream.getvalue().startswith("{") is is_json


def test_exceptions_are_values_without_local_variables() -> None:
    """In JSON an exception is a list of dicts, and it holds no variable of the failed code."""
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    secret = "hunter" + "2"
    try:
        [][len(secret)]
    except IndexError:
        logs.get().exception("lost")
    (line,) = lines(stream)
    assert line["exception"][0]["exc_type"] == "IndexError"
    assert line["exception"][0]["frames"][-1]["name"].startswith("test_exceptions_are_values")
    assert secret not in stream.getvalue()


@pytest.mark.parametrize(("verbosity", "events"), [(0, ["a"]), (3, ["a"]), (4, ["b", "a"])])
def test_verbosity(verbosity: int, events: list[str]) -> None:
    """Debugging details appear from klog's level for them on."""
    stream = io.StringIO()
    logs.setup("json", verbosity, stream)
    log = logs.get()
    log.debug("b")
    log.info("a")
    assert [line["event"] for line in lines(stream)] == events


def test_libraries_are_heard_from_warning_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What libraries log by the standard library comes out as lines of ours, once each."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's fail on bad messages
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    logs.setup("json", stream=stream)
    logging.getLogger("urllib3.pool").warning("retry %d", 3)
    logging.getLogger("urllib3.pool").info("chatter")
    logging.getLogger("odd").warning("%d", "x")
    assert [(line["event"], line["logger"]) for line in lines(stream)] == [
        ("retry 3", "urllib3.pool"),
        ("%d", "odd"),
    ]


def test_values_cannot_steer_a_terminal() -> None:
    """Control characters in values from outside are escaped, on the console too."""
    stream = Terminal()
    logs.setup("console", stream=stream)
    logs.get().info("\x1b[2Jevil\nline", reason="\x1b]0;title\x07")
    text = stream.getvalue()
    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"\xff", float("nan"), 2**70, {1: 2}, "\ud800", ValueError("x")]
)
def test_any_value_can_be_logged(value: object) -> None:
    """Nothing that is logged can make logging fail or break the line."""
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    logs.get().info("odd", value=value)
    (line,) = lines(stream)
    assert line["event"] == "odd"


class Pipe(io.StringIO):
    """A reader that can go away."""

    broken = False

    def write(self, text: str) -> int:
        if self.broken:
            raise BrokenPipeError
        return super().write(text)


def test_a_reader_that_went_away_costs_only_lines() -> None:
    """Logging to a broken pipe raises nothing; when it works again, the gap is counted."""
    stream = Pipe()
    logs.setup("json", stream=stream)
    log = logs.get()
    log.info("one")
    stream.broken = True
    log.info("two")
    log.info("three")
    stream.broken = False
    log.info("four")
    got = lines(stream)
    assert [line["event"] for line in got] == ["one", "log lines were lost", "four"]
    assert got[1]["lost"] == 2


def test_a_closed_stream_costs_only_lines() -> None:
    """Logging after the output was closed raises nothing."""
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    stream.close()
    logs.get().info("unheard")


def test_rich_is_not_loaded_for_logging() -> None:
    """The daemon does not pay for rich, and a command that wants it can still have it."""
    code = (
        "import sys; from agent import logs; logs.setup('json'); logs.get().info('x');"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'rich'];"
        "import rich; assert rich.__name__ == 'rich'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr


def test_commands_log_to_standard_error() -> None:
    """Until logs are set up only warnings are heard, and never among what a command prints."""
    code = (
        "from agent import logs; log = logs.get();"
        "log.debug('a detail'); log.info('an event'); log.warning('beware', of='this')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert result.stdout == ""
    assert result.stderr.split() == ["[warning", "]", "beware", "of=this"]
