"""A tiny server that answers every line with its own name: the endpoint behind a Service.

Run as ``python -m agent.demo.server --name pod-1 --port 8080``. Every line (TCP, SCTP) or
datagram (UDP) is answered with ``NAME PEER-ADDRESS PEER-PORT``, so a client knows who answered
and what source address the packets arrived with. Connections stay open until the client closes
them. ``ready`` is printed once everything listens. It ends when its standard input ends, so it
cannot outlive whoever started it. Only the standard library is imported: it starts in a moment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
from typing import Any, cast

#: Numbers of protocols as in ``/etc/protocols``; the socket module lacks SCTP on some systems.
PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
MAX_LINE = 1024
_BACKLOG = 4096


def has_protocol(protocol: str) -> bool:
    """Whether this kernel can open sockets of the protocol (many are built without SCTP)."""
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    try:
        socket.socket(socket.AF_INET, kind, PROTOCOLS[protocol]).close()
    except OSError:
        return False
    return True


class _Lines(asyncio.Protocol):
    """One stream connection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self._answer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._answer = _answer(self._name, transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._transport.abort()
            return
        self._transport.write(self._answer * len(lines))


class _Datagrams(asyncio.DatagramProtocol):
    """One datagram socket."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not always an instance: Python 3.11's datagram transport does not derive from the class.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if self._transport is not None and data:
            self._transport.sendto(_answer(self._name, addr), addr)


def _answer(name: str, peer: tuple[Any, ...]) -> bytes:
    return f"{name} {peer[0]} {peer[1]}\n".encode()


def _listen(protocol: str, address: str, port: int) -> socket.socket:
    """A socket that listens on one address.

    Raises:
        OSError: the kernel lacks the protocol, or the port is taken.
    """
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    listener = socket.socket(family, kind, PROTOCOLS[protocol])
    try:
        if version == 6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if protocol == "udp":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        listener.bind((address, port))
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    name = options.name
    async with contextlib.AsyncExitStack() as stack:
        for protocol in options.protocol.split(","):
            for address in options.address.split(","):
                for port in options.port:
                    listener = _listen(protocol, address, port)
                    if protocol == "udp":
                        transport, _ = await loop.create_datagram_endpoint(
                            lambda: _Datagrams(name), sock=listener
                        )
                        stack.callback(transport.close)
                    else:
                        server = await loop.create_server(
                            lambda: _Lines(name), sock=listener, backlog=_BACKLOG
                        )
                        stack.callback(server.close)
        print("ready", flush=True)
        ended = asyncio.Event()
        loop.add_reader(sys.stdin, _watch_input, ended)
        await ended.wait()


def _watch_input(ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        ended.set()


def main() -> int:
    """Parse the command line and serve until standard input ends."""
    parser = argparse.ArgumentParser(description="Answer every line with a name.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, action="append", required=True)
    parser.add_argument("--protocol", default="tcp", help="of tcp, udp, sctp; commas between")
    parser.add_argument("--address", default="0.0.0.0,::", help="to listen on; commas between")
    options = parser.parse_args()
    try:
        asyncio.run(_serve(options))
    except OSError as error:
        print(f"{options.name}: cannot serve on {options.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
