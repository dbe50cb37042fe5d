"""A client that opens many connections at once and counts who answered.

Run as ``python -m agent.demo.client ADDRESS PORT --count 3000``; prints one JSON object (see
``Tally`` in ``testbed``). Each connection has a source port of its own, sends a line, and waits
for the server's answer. A UDP "connection" is a socket of its own.

With ``--hold`` the connections stay open: after the first object, every line on standard input
makes each of them ask again, and another object tells who answers now, so that a connection
that broke or a flow that moved is seen. The end of standard input closes them.
Only the standard library is imported: it starts in a moment.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import errno
import ipaddress
import json
import resource
import socket
import sys
import time
from typing import Any

from agent.demo.server import PROTOCOLS

_UNREACHABLE = {
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EACCES,
    errno.EPERM,
    errno.EADDRNOTAVAIL,
}
_RESET = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED}


def outcome(error: OSError | TimeoutError) -> str:
    """The kind of a failure: timeout, refused, reset, unreachable, or the name of its errno."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if error.errno in _RESET:
        return "reset"
    if error.errno in _UNREACHABLE:
        return "unreachable"
    return errno.errorcode.get(error.errno or 0, "unknown")


class _Count:
    """Outcomes of one round."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.answers: collections.Counter[str] = collections.Counter()
        self.peers: collections.Counter[str] = collections.Counter()
        self.failures: collections.Counter[str] = collections.Counter()
        self.each: list[str] = []

    def answered(self, line: bytes) -> None:
        name, peer, *_ = line.decode(errors="replace").split()
        self.answers[name] += 1
        self.peers[peer] += 1
        self.each.append(name)

    def failed(self, error: OSError | TimeoutError) -> None:
        self.failures[outcome(error)] += 1
        self.each.append(f"!{outcome(error)}")

    def report(self, *, each: bool) -> None:
        found: dict[str, Any] = {
            "answers": self.answers,
            "peers": self.peers,
            "failures": self.failures,
            "seconds": round(time.monotonic() - self.started, 4),
        }
        if each:
            found["each"] = self.each
        print(json.dumps(found), flush=True)


class _Connection:
    """One socket."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        target = ipaddress.ip_address(options.address)
        family = socket.AF_INET if target.version == 4 else socket.AF_INET6
        kind = socket.SOCK_DGRAM if options.protocol == "udp" else socket.SOCK_STREAM
        self._target = (options.address, options.port)
        self._timeout = options.timeout
        self._socket = socket.socket(family, kind, PROTOCOLS[options.protocol])
        self._socket.settimeout(0)
        if options.source or options.source_port:
            if options.source_port:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = options.source_port + number if options.source_port else 0
            self._socket.bind((options.source, port))

    async def connect(self) -> None:
        """Connect.

        Raises:
            OSError: refused, unreachable, or no answer in time (TimeoutError).
        """
        async with asyncio.timeout(self._timeout):
            await asyncio.get_running_loop().sock_connect(self._socket, self._target)

    async def ask(self) -> bytes:
        """Send a line and return the answer.

        Raises:
            OSError: the connection broke, or no answer in time (TimeoutError).
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout):
            await loop.sock_sendall(self._socket, b"who\n")
            data = b""
            while not data.endswith(b"\n"):
                more = await loop.sock_recv(self._socket, 4096)
                if not more:
                    raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
                data += more
        return data

    def close(self) -> None:
        """Close; nothing more can be asked."""
        self._socket.close()


async def _one(options: argparse.Namespace, number: int, count: _Count) -> _Connection | None:
    """Open a connection and ask once; returns it if it is to be held."""
    connection = None
    try:
        connection = _Connection(options, number)
        await connection.connect()
        count.answered(await connection.ask())
    except OSError as error:
        count.failed(error)
        if connection is not None and not (options.hold and options.protocol == "udp"):
            connection.close()
            connection = None
    if connection is not None and not options.hold:
        connection.close()
        connection = None
    return connection


async def _open_all(options: argparse.Namespace, count: _Count) -> list[_Connection]:
    numbers = iter(range(options.count))
    held = []

    async def worker() -> None:
        for number in numbers:
            connection = await _one(options, number, count)
            if connection is not None:
                held.append(connection)
            if options.interval:
                await asyncio.sleep(options.interval)

    await asyncio.gather(*(worker() for _ in range(min(options.count, options.concurrency))))
    return held


async def _ask_again(held: list[_Connection], count: _Count) -> None:
    for result in await asyncio.gather(*(one.ask() for one in held), return_exceptions=True):
        if isinstance(result, bytes):
            count.answered(result)
        elif isinstance(result, OSError):
            count.failed(result)
        else:
            raise result


async def _run(options: argparse.Namespace) -> None:
    count = _Count()
    held = await _open_all(options, count)
    count.report(each=options.each)
    if not options.hold:
        return
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        count = _Count()
        await _ask_again(held, count)
        count.report(each=options.each)
    for connection in held:
        connection.close()


def _allow_many_sockets() -> None:
    """Raise the soft limit of open files to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Parse the command line, connect, and print what came back."""
    parser = argparse.ArgumentParser(description="Open connections and count who answers.")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--protocol", choices=sorted(PROTOCOLS), default="tcp")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds, per step")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between connections")
    parser.add_argument("--source", default="", help="source address")
    parser.add_argument("--source-port", type=int, default=0, help="of the first; others follow")
    parser.add_argument("--each", action="store_true", help="list every single outcome")
    parser.add_argument("--hold", action="store_true", help="keep connections, ask per input line")
    options = parser.parse_args()
    _allow_many_sockets()
    asyncio.run(_run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
