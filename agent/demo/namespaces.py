"""Network namespaces with a name, an owner and an end.

A namespace is kept alive by a bind mount under ``/run/netns``, where ``ip netns`` finds it as
well. Nothing else in the kernel knows whose it is, so the name says it: the owner's process
id and start time stand in it, and ``sweep`` can remove what a killed owner left behind without
ever touching the namespaces of a process that still runs.

Work inside is done by a fresh thread that enters the namespace and ends afterwards: entering is
a property of a thread, a socket keeps the namespace that it was made in, a child process
inherits that of the thread that starts it, and ``/proc/sys/net`` shows that of the thread that
opens it. So the rest of the process never leaves its own namespace, and no thread is ever reused
in the wrong one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyroute2 import netns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "onenth-"
RUN_DIR = Path("/run/netns")
_OWNED = re.compile(rf"{PREFIX}(?P<pid>[0-9]+)-(?P<start>[0-9]+)-[0-9a-f]+-.+")
_CLONE_NEWNET = 0x40000000


class NamespaceError(Exception):
    """A namespace could not be made or entered; the message says what to do."""


class Namespace:
    """One network namespace, made by ``create`` and removed by ``close``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = RUN_DIR / name

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    @classmethod
    def create(cls, name: str) -> Namespace:
        """Make a namespace with a loopback that is still down.

        Raises:
            NamespaceError: no privilege, no room, or the name is taken.
        """
        try:
            _on_thread(_unshare_and_mount, name)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                cls(name).close(grace=0.0)  # the file may be there without its mount
            raise NamespaceError(
                f"making network namespace {name} failed: {error}; this needs root with"
                f" CAP_SYS_ADMIN and a writable {RUN_DIR}"
            ) from error
        return cls(name)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a new thread inside the namespace and return what it returns.

        Raises:
            NamespaceError: the namespace is gone or may not be entered.
            Exception: whatever the function raises.
        """

        def inside() -> T:
            try:
                netns.setns(str(self.path), flags=0, fork=False)
            except OSError as error:
                raise NamespaceError(f"entering {self.path} failed: {error}") from error
            return function(*args, **kwargs)

        return _on_thread(inside)

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process inside, in a session of its own, with text streams.

        ``options`` go to ``subprocess.Popen``.
        """
        options = {"text": True, "start_new_session": True} | options

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(list(argv), **options)

        return self.call(start)

    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout: float = 30.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end, capturing what it prints.

        Args:
            argv: the command and its arguments; no shell.
            stdin: text for its standard input.
            timeout: seconds after which it is killed.
            check: whether a status other than 0 is an error.

        Raises:
            NamespaceError: the command failed; the message holds what it printed.
            subprocess.TimeoutExpired: it did not end in time.
        """
        process = self.popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process:
            try:
                out, err = process.communicate(stdin, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode != 0:
            raise NamespaceError(
                f"{' '.join(argv)} in {self.name} ended with {process.returncode}:"
                f" {(err or out).strip()}"
            )
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def write_sysctl(self, name: str, value: int | str) -> None:
        """Write a value below ``/proc/sys``, named with slashes, as this namespace sees it.

        Raises:
            OSError: the kernel has no such name or refuses the value.
        """
        self.call(Path("/proc/sys", name).write_text, f"{value}\n", encoding="ascii")

    def close(self, *, grace: float = 2.0) -> None:
        """End the processes inside and remove the namespace; doing it twice does no harm.

        Args:
            grace: seconds that processes get between SIGTERM and SIGKILL.
        """
        end_processes(lambda: pids_in([self]), grace)
        with contextlib.suppress(FileNotFoundError):
            netns.remove(str(self.path))


def pids_in(inside: Iterable[Namespace]) -> list[int]:
    """Processes other than this one whose main thread is inside one of the namespaces."""
    wanted = set()
    for namespace in inside:
        with contextlib.suppress(FileNotFoundError):
            wanted.add(_identity(namespace.path))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            # A process may end at any moment; a zombie and a kernel thread have no such link.
            with contextlib.suppress(OSError):
                if _identity(entry / "ns/net") in wanted:
                    found.append(int(entry.name))
    return found


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def end_processes(pids: Callable[[], list[int]], grace: float) -> None:
    """Send SIGTERM to what ``pids`` lists, and SIGKILL to what is left after ``grace`` seconds."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        left = pids()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + wait
        while left and time.monotonic() < end:
            time.sleep(0.005)
            left = pids()
        if not left:
            return


def owned_name(label: str) -> str:
    """A new random name that says that it is this process's."""
    pid = os.getpid()
    return f"{PREFIX}{pid}-{_start_time(pid)}-{secrets.token_hex(3)}-{label}"


def sweep() -> list[str]:
    """Remove the namespaces whose owner no longer runs; returns their names."""
    removed = []
    for name in _names():
        match = _OWNED.fullmatch(name)
        if match and _start_time(int(match["pid"])) != int(match["start"]):
            Namespace(name).close(grace=0.2)
            removed.append(name)
    return removed


def _names() -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        yield from sorted(entry.name for entry in RUN_DIR.iterdir())


def _start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (proc(5), field 22), None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Field 2 is the command in parentheses and may itself hold blanks and parentheses.
    return int(text.rpartition(")")[2].split()[19])


def _unshare_and_mount(name: str) -> None:
    RUN_DIR.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # Two processes that make the directory a shared mount at the same time would stack mounts;
    # ip netns takes the same lock.
    lock = os.open(RUN_DIR, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        netns.attach(str(RUN_DIR / name), "thread-self")
    finally:
        os.close(lock)


def _on_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function on a thread that ends with it; its result or exception is the caller's."""
    results: list[T] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (re-raised in the caller's thread)
            failures.append(error)

    thread = threading.Thread(target=body, name="namespace", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        # Interrupted: what was begun (a namespace, a process) must not appear after the cleanup.
        thread.join()
        raise
    if failures:
        raise failures[0]
    return results[0]
