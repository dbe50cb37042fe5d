"""Connections from places, and load that runs beside whatever a test does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from e2e.docker import ROOT
from e2e.shell import CommandError, run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from e2e.cluster import Place

_LOAD = Path(__file__).with_name("pods") / "load.py"
_RESOLVE = Path(__file__).with_name("pods") / "resolve.py"


@dataclasses.dataclass(frozen=True)
class Tally:
    """What came of a number of connections (``agent.demo.client``)."""

    answers: Mapping[str, int]
    peers: Mapping[str, int]
    failures: Mapping[str, int]

    @property
    def answered(self) -> int:
        """Connections that were answered."""
        return sum(self.answers.values())


def connect(place: Place, address: str, port: int, count: int = 1, **options: Any) -> Tally:
    """Open connections and ask who answers; ``options`` are those of ``agent.demo.client``."""
    argv = ["-m", "agent.demo.client", address, str(port), "--count", str(count)]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    done = run(*place.command(*argv), timeout=120, cwd=ROOT)
    found = json.loads(done.stdout)
    return Tally(found["answers"], found["peers"], found["failures"])


class Background:
    """A program in a place that ends with its standard input and then prints a report."""

    def __init__(self, place: Place, source: Path, options: Mapping[str, Any]) -> None:
        self.place = place
        self.report: dict[str, Any] = {}
        self._process = subprocess.Popen(
            place.command("-c", source.read_text("utf-8"), json.dumps(options)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def __enter__(self) -> Self:
        if self._line(60.0) != "started\n":
            self._process.kill()
            self._process.wait()
            raise CommandError(f"no load from {self.place.name} came through in 60 s")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise CommandError("a load without streams")
        with contextlib.suppress(BrokenPipeError):
            # Both, because not everything on the way to a pod passes an end on.
            process.stdin.write("stop\n")
            process.stdin.close()
        try:
            rest = process.stdout.read()
            process.wait(60)
        finally:
            process.kill()
            process.stdout.close()
        if error is None:
            self.report = json.loads(rest)

    def _line(self, timeout: float) -> str:
        stream = self._process.stdout
        if stream is None or not select.select([stream], [], [], timeout)[0]:
            return ""
        return stream.readline()


def load(place: Place, address: str, port: int, **options: Any) -> Background:
    """Constant load from a place (``pods/load.py`` has the options), as a context manager."""
    return Background(place, _LOAD, {"address": address, "port": port, **options})


def resolve(place: Place, address: str, name: str, **options: Any) -> Background:
    """Constant DNS questions from one source port (``pods/resolve.py`` has the options)."""
    given = {"interval": 0.05, "timeout": 1.0, "tries": 3, "limit": 240.0, **options}
    return Background(place, _RESOLVE, {"address": address, "name": name, **given})
