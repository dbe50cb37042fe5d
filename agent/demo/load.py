"""Servers and clients as child processes in namespaces, and what they report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import agent
from agent.demo.namespaces import NamespaceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from agent.demo.namespaces import Namespace


@dataclasses.dataclass(frozen=True)
class Tally:
    """What came back from a number of connections.

    Attributes:
        answers: connections answered, per name of the server.
        peers: connections answered, per source address that the server saw.
        failures: connections not answered, per kind: ``refused``, ``timeout``, ``reset``,
            ``unreachable``, or the name of an errno.
        seconds: from the first to the last.
        each: outcomes in order of completion, only if asked for; ``!kind`` is a failure.
    """

    answers: dict[str, int]
    peers: dict[str, int]
    failures: dict[str, int]
    seconds: float
    each: tuple[str, ...] = ()

    @property
    def answered(self) -> int:
        """Connections that were answered."""
        return sum(self.answers.values())

    @property
    def failed(self) -> int:
        """Connections that were not."""
        return sum(self.failures.values())


class Child:
    """A child process in a namespace; ``close`` ends it, and it cannot outlive this process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it by ending its input, or by killing it a second later."""
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def _read_line(self, timeout: float) -> str:
        """The next line that it prints.

        Raises:
            NamespaceError: it ended or stayed silent.
        """
        stream = self.process.stdout
        if stream is None or not select.select([stream], [], [], timeout)[0]:
            raise NamespaceError(f"{_command(self.process)} printed nothing for {timeout} s")
        line = stream.readline()
        if not line:
            status = self.process.wait()
            raise NamespaceError(f"{_command(self.process)} ended with status {status}")
        return line


class Server(Child):
    """A running ``agent.demo.server``."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        super().__init__(process)
        self.name = name

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Return when it listens.

        Raises:
            NamespaceError: it could not listen; it said why on standard error.
        """
        self._read_line(timeout)


class Client(Child):
    """A running ``agent.demo.client``."""

    def tally(self, timeout: float = 60.0) -> Tally:
        """The next report.

        Raises:
            NamespaceError: it ended without one, or took longer than ``timeout`` seconds.
        """
        found = json.loads(self._read_line(timeout))
        return Tally(
            answers=found["answers"],
            peers=found["peers"],
            failures=found["failures"],
            seconds=found["seconds"],
            each=tuple(found.get("each", ())),
        )

    def ask(self, timeout: float = 60.0) -> Tally:
        """Make every held connection ask once more; who answers, and what broke.

        Raises:
            NamespaceError: as ``tally``.
        """
        if self.process.stdin is None:
            raise NamespaceError(f"{_command(self.process)} does not hold its connections")
        self.process.stdin.write("ask\n")
        self.process.stdin.flush()
        return self.tally(timeout)


def start_server(
    namespace: Namespace,
    name: str,
    *,
    ports: Sequence[int],
    protocols: Sequence[str] = ("tcp",),
    addresses: Sequence[str] = ("0.0.0.0", "::"),  # noqa: S104 (inside a namespace of its own)
) -> Server:
    """Start a server; several start beside each other until ``wait_ready`` is called on them."""
    argv = ["--name", name, "--protocol", ",".join(protocols), "--address", ",".join(addresses)]
    for port in ports:
        argv += ["--port", str(port)]
    return Server(_module(namespace, "agent.demo.server", argv), name)


def start_client(
    namespace: Namespace,
    address: str,
    port: int,
    *,
    count: int = 1,
    protocol: str = "tcp",
    concurrency: int = 64,
    timeout: float = 3.0,
    interval: float = 0.0,
    source: str = "",
    source_port: int = 0,
    each: bool = False,
    hold: bool = False,
) -> Client:
    """Start a client that connects ``count`` times.

    Args:
        namespace: where.
        address: IP address, without brackets.
        port: number.
        count: connections.
        protocol: ``tcp``, ``udp`` or ``sctp``.
        concurrency: connections that are under way at the same time.
        timeout: seconds for a connection to come about, and again for its answer.
        interval: seconds that each of the concurrent workers waits between two connections.
        source: source address; empty for the kernel's choice.
        source_port: port of the first connection, the others count on; 0 for the kernel's choice.
        each: report every outcome.
        hold: keep the connections, for ``Client.ask``.
    """
    argv = [address, str(port), "--count", str(count), "--protocol", protocol]
    argv += ["--concurrency", str(concurrency), "--timeout", str(timeout)]
    argv += ["--interval", str(interval), "--source-port", str(source_port)]
    argv += ["--source", source] if source else []
    argv += ["--each"] if each else []
    argv += ["--hold"] if hold else []
    return Client(_module(namespace, "agent.demo.client", argv))


def _module(namespace: Namespace, module: str, argv: Sequence[str]) -> subprocess.Popen[str]:
    """Start one of this package's modules, wherever the package was imported from."""
    root = str(Path(agent.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return namespace.popen(
        [sys.executable, "-m", module, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )


def _command(process: subprocess.Popen[str]) -> str:
    args = process.args
    return " ".join(map(str, args[2:])) if isinstance(args, list) else str(args)
