"""Whether the configuration file has come to mean something else.

As with kube-proxy, an agent whose file changes ends, and is started again with what it says now:
some settings are written to the kernel with rights that the agent has given up since. A file that
cannot be used ends nothing; what was read from it before stays in force.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent import logs
from agent.config.load import ConfigError, describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.config.load import Loaded

_STOP_SECONDS = 2.0


class ConfigChanged(msgspec.Struct, frozen=True):
    """The settings that are different now."""

    keys: tuple[str, ...]


class ConfigWatch:
    """Looks at the file from a thread of its own.

    Args:
        loaded: what is in force.
        reread: reads all of it again.
        changed: told once, when other settings are in the file.
        died: told of an error that ended the thread.
        poll_seconds: between two looks.
        settle_seconds: how long a changed file must keep still.
    """

    def __init__(
        self,
        loaded: Loaded,
        reread: Callable[[], Loaded],
        changed: Callable[[ConfigChanged], None],
        died: Callable[[BaseException], None],
        *,
        poll_seconds: float = 5.0,
        settle_seconds: float = 0.3,
    ) -> None:
        self._file = Path(loaded.file) if loaded.file else None
        self._settings = describe(loaded)
        self._reread = reread
        self._changed = changed
        self._died = died
        self._poll_seconds = poll_seconds
        self._settle_seconds = settle_seconds
        self._log = logs.get()
        self._content = self._read()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="config", daemon=True)

    def start(self) -> None:
        """Begin; without a file there is nothing to look at."""
        if self._file is not None:
            self._thread.start()

    def look(self) -> None:
        """Look now."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait(self._poll_seconds)
                self._wake.clear()
                self._look()
        except BaseException as error:  # a thread must not die unseen
            self._died(error)
            raise

    def _look(self) -> None:
        content = self._read()
        while content != self._content and not self._stopping:
            self._content = content
            self._wake.wait(self._settle_seconds)
            content = self._read()
            if content == self._content and content is not None:
                self._compare()

    def _compare(self) -> None:
        try:
            settings = describe(self._reread())
        except ConfigError as error:
            self._log.error(
                "the configuration file has changed and cannot be used; nothing changes",
                file=str(self._file),
                problems=list(error.problems),
            )
            return
        keys = tuple(
            now[0]
            for now, before in zip(settings, self._settings, strict=True)
            if now[1] != before[1]
        )
        if keys:
            self._changed(ConfigChanged(keys))
        else:
            self._log.info("the configuration file has changed, and means the same")

    def _read(self) -> bytes | None:
        """The file's content; None while there is none to be had."""
        try:
            return self._file.read_bytes() if self._file is not None else None
        except OSError:
            return None  # taken away for a moment, or for good: what was read stays in force
