"""Running the iptables programs: no shell, little environment, a session of their own, an end.

A program runs in a session of its own, so a Ctrl-C or a SIGTERM that a terminal or a supervisor
sends to the agent's process group does not cut a running transaction short; the agent finishes
it and then ends. (A transaction that is cut short is not half applied: both backends hand a
table to the kernel in one call.)
"""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.kernel.errors import ToolMissingError, ToolTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where the programs are before PATH is searched, in this order.
DIRECTORIES = (Path("/usr/sbin"), Path("/sbin"))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables that iptables itself reads; the others of the agent's environment stay outside.
_PASSED_ON = ("XTABLES_LOCKFILE", "XTABLES_LIBDIR")
_REAP_SECONDS = 5.0
_PIECE = 1 << 20
#: What becomes of bytes that are no text.
_UNREADABLE = "backslashreplace"


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        status: exit status; negative is the signal that killed it.
        out: what it printed.
        err: what it complained about.
    """

    status: int
    out: str
    err: str


class Runner(Protocol):
    """Runs a program to its end."""

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float) -> Finished:
        """Run ``argv`` with text on its standard input, for at most ``timeout`` seconds.

        Raises:
            ToolMissingError: it cannot be started.
            ToolTimeoutError: it did not end in time and was killed.
        """


class SubprocessRunner:
    """Runs programs as child processes, in the network namespace of the calling thread."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Take what programs may see from ``environment``, by default this process's."""
        source = os.environ if environment is None else environment
        self._environment = {"PATH": _PATH, "LC_ALL": "C", "LANG": "C"} | {
            name: source[name] for name in _PASSED_ON if name in source
        }

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float) -> Finished:
        """Run ``argv`` with text on its standard input, for at most ``timeout`` seconds.

        Raises:
            ToolMissingError: it cannot be started.
            ToolTimeoutError: it did not end in time and was killed.
        """
        with _file("stdout") as out:
            process = self._start(argv, stdin, out)
            try:
                _, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                fate = _kill(process)
                raise ToolTimeoutError(
                    f"{' '.join(argv)} did not end within {timeout:g} s and {fate}"
                ) from error
            except BaseException:
                _kill(process)
                raise
            out.seek(0)
            return Finished(process.returncode, out.readall().decode("utf-8", _UNREADABLE), err)

    def _start(self, argv: Sequence[str], stdin: str, out: io.FileIO) -> subprocess.Popen[str]:
        try:
            with _filled(stdin) as given:
                return self._popen(argv, given, out)
        except OSError as error:
            raise ToolMissingError(
                f"{argv[0]} cannot be started: {error.strerror}; install iptables,"
                " or correct its permissions"
            ) from error

    def _popen(
        self, argv: Sequence[str], stdin: io.FileIO, out: io.FileIO
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=out,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd="/",
            start_new_session=True,
            encoding="utf-8",
            errors=_UNREADABLE,
        )


def _file(name: str) -> io.FileIO:
    """A file in memory.

    A pipe would have to be fed, or emptied, a few kB at a time, with both processes taking turns: a
    transaction can have 16 MB, and a table 30.
    """
    return io.FileIO(os.memfd_create(name, os.MFD_CLOEXEC), "w+b")


def _filled(text: str) -> io.FileIO:
    """Text as a file in memory, at its beginning."""
    file = _file("stdin")
    try:
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE].encode("utf-8", _UNREADABLE)
            rest = memoryview(piece)
            while rest:
                rest = rest[file.write(rest) :]
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def find(name: str) -> Path | None:
    """The program's path: /usr/sbin, /sbin, then PATH; None if it is nowhere."""
    search = [*DIRECTORIES, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    for directory in search:
        path = directory / name
        if directory.is_absolute() and os.access(path, os.X_OK) and path.is_file():
            return path
    return None


def _kill(process: subprocess.Popen[str]) -> str:
    """Kill a program and what it started; says how that went."""
    # The group is the program's own (it leads a session), and it exists until it is reaped.
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.communicate(timeout=_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"process {process.pid} does not die of SIGKILL: it hangs inside the kernel"
    return "was killed"
