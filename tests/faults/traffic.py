"""Traffic that never rests, in a process of its own, from several network namespaces at once.

Every target is connected to again and again, each time from a new port, and a few connections
are held and asked again and again. What failed is told with the moment at which the connection
was begun, so that it can be set against what was going on then.

As a script it reads orders as JSON from its standard input, a line each, and answers each with a
line. It ends when its input ends. Sockets are made by a thread that lives inside the namespace: a
socket stays in the namespace that it was made in.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyroute2 import netns

from agent.demo.load import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.demo.namespaces import Namespace

#: Seconds for an answer; a SYN that is lost is sent again after one.
PATIENCE = 3.0
#: Seconds for an answer on a connection that is held: TCP sends again for longer.
HELD_PATIENCE = 8.0
INTERVAL = 0.2
#: A flow that met no rules is remembered by its ports, as one that needs none, for two minutes;
#: so no port is used again for longer than that.
_PORTS = range(12_000, 60_000)
ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Target:
    """What is connected to, from where, and who may answer (``refused``: nobody)."""

    name: str
    place: str
    address: str
    port: int
    answers: tuple[str, ...]
    protocol: str = "tcp"
    held: int = 0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A connection that was begun at a moment (monotonic) and did not go as it should."""

    target: str
    at: float
    outcome: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened since a moment; held connections that broke are told once."""

    tried: int
    failures: tuple[Failure, ...]
    held: int
    broken: tuple[str, ...]


class Traffic(Child):
    """The process, seen from the machine."""

    def __init__(self, places: dict[str, Namespace]) -> None:
        host = next(iter(places.values()))
        argv = [f"{name}={place.path}" for name, place in places.items()]
        super().__init__(
            host.popen(
                [sys.executable, "-m", "tests.faults.traffic", *argv],
                stdin=-1,
                stdout=-1,
                cwd=ROOT,
            )
        )

    def start(self, targets: Sequence[Target]) -> None:
        """Begin; returns when every target has been answered rightly once and all is held."""
        self._order(do="start", targets=[dataclasses.asdict(target) for target in targets])

    def report(self, since: float) -> Report:
        """What was begun since a moment, once everything that had begun by now has ended."""
        found = self._order(do="report", since=since)
        failures = tuple(Failure(**failure) for failure in found["failures"])
        return Report(found["tried"], failures, found["held"], tuple(found["broken"]))

    def stop(self) -> None:
        """End all connections."""
        self._order(do="stop")

    def _order(self, **order: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self._read_line(60.0))


class _Load:
    """One run's traffic, inside of the process."""

    def __init__(self, places: dict[str, ThreadPoolExecutor], ports: Iterator[int]) -> None:
        self._places = places
        self._ports = ports
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: dict[str, tuple[float, str]] = {}  # of each target: last begin, outcome
        self._begun: list[float] = []
        self._failures: list[Failure] = []
        self._held = 0
        self._broken: list[str] = []

    async def start(self, targets: Sequence[Target]) -> dict[str, Any]:
        for number, target in enumerate(targets):
            self._spawn(self._probe(target, INTERVAL * number / len(targets)))
        await _until(lambda: len(self._ended) == len(targets))
        for target in targets:
            for _ in range(target.held):
                self._spawn(self._keep_holding(target))
        wanted = sum(target.held for target in targets)
        await _until(lambda: self._held + len(self._broken) >= wanted)
        return {"failures": [dataclasses.asdict(failure) for failure in self._failures]}

    async def report(self, since: float) -> dict[str, Any]:
        now = time.monotonic()
        await _until(lambda: all(began >= now for began, _ in self._ended.values()))
        failures = [failure for failure in self._failures if failure.at >= since]
        broken, self._broken = self._broken, []
        return {
            "tried": sum(began >= since for began in self._begun),
            "failures": [dataclasses.asdict(failure) for failure in failures],
            "held": self._held,
            "broken": broken,
        }

    async def stop(self) -> dict[str, Any]:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        return {}

    def _spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _probe(self, target: Target, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            began = time.monotonic()
            outcome = await self._try(target)
            self._begun.append(began)
            if outcome not in target.answers:
                self._failures.append(Failure(target.name, began, outcome))
            self._ended[target.name] = began, outcome
            await asyncio.sleep(max(0.0, began + INTERVAL - time.monotonic()))

    async def _try(self, target: Target) -> str:
        sock = await self._socket(target)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._connect(sock, target)
                return await _ask(sock)
        except OSError as error:  # a TimeoutError is one
            return _outcome(error)
        finally:
            sock.close()

    async def _keep_holding(self, target: Target) -> None:
        while True:
            await self._hold(target)
            await asyncio.sleep(INTERVAL)

    async def _hold(self, target: Target) -> None:
        sock = await self._socket(target)
        asked = 0
        try:
            async with asyncio.timeout(HELD_PATIENCE):
                await self._connect(sock, target)
            first = ""
            while True:
                async with asyncio.timeout(HELD_PATIENCE):
                    answer = await _ask(sock)
                first = first or answer
                if answer not in target.answers or answer != first:
                    self._broken.append(f"{target.name}: {first} became {answer}")
                    return
                asked += 1
                self._held += asked == 1
                await asyncio.sleep(INTERVAL)
        except OSError as error:
            self._broken.append(f"{target.name}: {_outcome(error)} after {asked} answers")
        finally:
            self._held -= asked > 0
            sock.close()

    async def _socket(self, target: Target) -> socket.socket:
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        kind = socket.SOCK_DGRAM if target.protocol == "udp" else socket.SOCK_STREAM
        place = self._places[target.place]
        loop = asyncio.get_running_loop()
        sock = await loop.run_in_executor(place, socket.socket, family, kind)
        sock.settimeout(0)
        if target.protocol == "tcp":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                sock.bind(("", next(self._ports)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return sock

    async def _connect(self, sock: socket.socket, target: Target) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (target.address, target.port))


async def _ask(sock: socket.socket) -> str:
    """Who is there; the first word of the answer."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, b"who\n")
    answer = await loop.sock_recv(sock, 4096)
    if not answer:
        raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
    return answer.decode().split()[0]


async def _until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  many things that change it, in steps
        await asyncio.sleep(0.02)


def _outcome(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return errno.errorcode.get(error.errno or 0, "unknown")


async def _serve(places: dict[str, ThreadPoolExecutor]) -> None:
    loop = asyncio.get_running_loop()
    ports = itertools.cycle(_PORTS)
    load = _Load(places, ports)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        match order["do"]:
            case "start":
                load = _Load(places, ports)
                targets = [Target(**target) for target in order["targets"]]
                answer = await load.start(targets)
            case "report":
                answer = await load.report(order["since"])
            case _:
                answer = await load.stop()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await load.stop()


def main() -> None:
    """Serve orders until there are no more."""
    places = {}
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        enter = functools.partial(netns.setns, path, flags=0, fork=False)
        places[name] = ThreadPoolExecutor(1, initializer=enter)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(places))


if __name__ == "__main__":
    main()
