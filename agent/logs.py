"""Logs: one event a line on standard output, for people on a terminal and as JSON elsewhere.

Everything else gets its logger from ``get`` and says ``log.info("event", key=value)``. What is
logged may come from the API, so a value can neither break the line nor steer a terminal.

This is the only module that imports structlog, for a reason of memory: structlog imports rich
if it is installed, for tracebacks that we do not use, and that costs every node 4 MB.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from types import ModuleType

    from structlog.typing import FilteringBoundLogger, Processor

    EventDict = MutableMapping[str, Any]

LogFormat = Literal["auto", "console", "json"]
#: From this verbosity on, details for debugging are logged; the number is klog's for that.
DEBUG_VERBOSITY = 4
_FIRST = ("timestamp", "level", "event")


def get(**context: object) -> FilteringBoundLogger:
    """A logger whose events all carry the context; what it does is settled by ``setup``."""
    logger: FilteringBoundLogger = _structlog().get_logger(**context)
    return logger


def setup(log_format: LogFormat, verbosity: int = 0, stream: TextIO | None = None) -> None:
    """Send all logs of the process to the stream (standard output), in the format.

    Libraries that log by the standard library are heard from level WARNING on.

    Args:
        log_format: ``auto`` is ``console`` on a terminal and ``json`` otherwise.
        verbosity: ``DEBUG_VERBOSITY`` and more includes debugging details.
        stream: where to.
    """
    structlog = _structlog()
    output = sys.stdout if stream is None else stream
    terminal = output.isatty()
    console = log_format == "console" or (log_format == "auto" and terminal)
    level = logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_console(structlog, colors=terminal) if console else _json(structlog)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_Factory(_Output(output)),
        cache_logger_on_first_use=False,
    )
    _route_standard_library()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Log nothing meanwhile: for commands that tell by themselves what went wrong."""
    structlog = _structlog()
    before = structlog.get_config()
    structlog.configure(
        processors=[_drop], wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop_details(_logger: object, method: str, event: EventDict) -> EventDict:
    if method in {"debug", "info"}:
        raise _structlog().DropEvent
    return event


def _drop(_logger: object, _method: str, _event: EventDict) -> EventDict:
    raise _structlog().DropEvent


def _structlog() -> ModuleType:
    """Import structlog, without rich unless rich is there already."""
    loaded = sys.modules.get("structlog")
    if loaded is not None:
        if not loaded.is_configured():
            _until_setup(loaded)
        return loaded
    hide = "rich" not in sys.modules
    if hide:
        sys.modules["rich"] = None  # type: ignore[assignment]  # import then says: not there
    try:
        import structlog  # noqa: PLC0415  see above
    finally:
        if hide:
            del sys.modules["rich"]
    _until_setup(structlog)
    return structlog


def _until_setup(structlog: ModuleType) -> None:
    """Warnings to standard error: a command's standard output is for what it was asked for."""
    structlog.configure(
        processors=[
            _drop_details,
            structlog.processors.add_log_level,
            *_console(structlog, colors=False),
        ],
        logger_factory=_Factory(_Output()),
        cache_logger_on_first_use=False,
    )


def _json(structlog: ModuleType) -> Iterator[Processor]:
    """Exceptions as values, without the values of local variables; then one object a line."""
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(
        show_locals=False, max_frames=20, suppress=()
    )
    yield structlog.processors.ExceptionRenderer(tracebacks)
    yield structlog.processors.JSONRenderer(serializer=_serialize)


def _console(structlog: ModuleType, *, colors: bool) -> Iterator[Processor]:
    """Aligned text, with the traceback below."""
    yield _printable
    yield structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )


def _serialize(event: EventDict, **_: object) -> str:
    """One line of JSON, what people look for first; what JSON cannot say is said as text."""
    event = {**{key: event[key] for key in _FIRST if key in event}, **event}
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError):  # a key that is no text, a number or letter out of range
        return msgspec.json.encode({str(key): _plain(event[key]) for key in event}).decode()


def _plain(value: object) -> str:
    """Any value as text that JSON can hold."""
    return value if isinstance(value, str) and value.isprintable() else repr(value)


def _printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, so that no value can steer the terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = value.encode("unicode_escape").decode("ascii")
    return event


class _Output:
    """Writes lines; a reader that went away, or a full disk, costs lines and nothing else.

    The agent serves traffic whether or not anybody reads its logs. The first line that can be
    written again is preceded by one that says how many are missing.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to the stream, or to what is standard error at that time."""
        self._stream = stream
        self._lock = threading.Lock()
        self._lost = 0

    def write(self, line: str) -> None:
        """Write a line, all of it before another thread's."""
        with self._lock:
            note = f'{{"event": "log lines were lost", "lost": {self._lost}}}\n'
            stream = self._stream or sys.stderr
            try:
                stream.write(f"{note if self._lost else ''}{line}\n")
                stream.flush()
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._lost += 1
            else:
                self._lost = 0


class _Line:
    """What structlog hands a finished line to, whatever the level."""

    def __init__(self, output: _Output) -> None:
        self._write = output.write

    def msg(self, line: str) -> None:
        """Write it."""
        self._write(line)

    debug = info = warning = error = critical = msg


class _Factory:
    """Gives structlog its writer."""

    def __init__(self, output: _Output) -> None:
        self._line = _Line(output)

    def __call__(self, *_: object) -> _Line:
        return self._line


class _Bridge(logging.Handler):
    """Hands records of the standard library's loggers on."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record as an event of ours."""
        try:
            event = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the message
            event = str(record.msg)
        get().log(record.levelno, event, logger=record.name, exc_info=record.exc_info)


def _route_standard_library() -> None:
    """Make the root logger end here, once."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge())
    root.setLevel(logging.WARNING)
