"""An HTTP server with a few paths, which goes on trying when its address is taken."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from agent.config.values import split_host_port
from agent.serve.loop import EXCHANGE_SECONDS, SHARE, ServingThread, open_socket
from agent.serve.wire import Request, Response, text

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from agent.serve.wire import Handler

RETRY_SECONDS = 5.0
#: While an address stays taken, it is logged this seldom.
LOG_SECONDS = 300.0


class BindError(Exception):
    """A server's address cannot be had, and the configuration says to give up then."""


class HttpServer:
    """Serves paths on one address, from one thread.

    Args:
        name: what the server is for; names its thread and its log lines.
        address: canonical ``IP:port``; port 0 is any free one.
        routes: what answers each path.
        hard_fail: raise instead of trying again when the address is taken.
        max_connections: bound on open connections.
        exchange_seconds: deadline of each.
        share: part of a core that its thread may use in the long run.
        retry_seconds: time between two attempts at the address.
        on_bind_failure: called after each failed attempt, from any thread.
    """

    def __init__(
        self,
        name: str,
        address: str,
        routes: Mapping[str, Handler],
        *,
        hard_fail: bool = False,
        max_connections: int = 128,
        exchange_seconds: float = EXCHANGE_SECONDS,
        share: float = SHARE,
        retry_seconds: float = RETRY_SECONDS,
        on_bind_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._routes = dict(routes)
        self._hard_fail = hard_fail
        self._retry_seconds = retry_seconds
        self._on_bind_failure = on_bind_failure
        self._logged: float | None = None
        self._sock: socket.socket | None = None
        self._thread = ServingThread(
            f"serve-{name}",
            max_connections=max_connections,
            exchange_seconds=exchange_seconds,
            share=share,
        )

    @property
    def port(self) -> int | None:
        """The port that is listened on, or None while the address is taken."""
        port: int | None = self._sock.getsockname()[1] if self._sock else None
        return port

    def add_route(self, path: str, handler: Handler) -> None:
        """Answer one more path."""
        self._routes[path] = handler

    def start(self) -> None:
        """Listen, now or as soon as the address is free.

        Raises:
            BindError: the address cannot be had, and ``hard_fail`` is set.
        """
        sock = self._try_to_listen()
        self._thread.start()
        self._thread.submit(self._serve(sock))

    def stop(self) -> None:
        """End at once, with every connection."""
        self._thread.stop()
        if self._sock:
            self._sock.close()
            self._sock = None

    async def _serve(self, sock: socket.socket | None) -> None:
        """Try until the address can be had, then serve."""
        while sock is None:
            await asyncio.sleep(self._retry_seconds)
            sock = self._try_to_listen()
        await self._thread.serve(sock, self._route)
        self._thread.log.info("serving", address=self._address, paths=sorted(self._routes))

    def _try_to_listen(self) -> socket.socket | None:
        """One attempt at the address."""
        try:
            sock = open_socket(*split_host_port(self._address))
        except OSError as error:
            self._on_bind_failure()
            if self._hard_fail:
                raise BindError(
                    f"cannot listen on {self._address}: {error.strerror}; stop what uses it, "
                    "configure another address, or let bindAddressHardFail be false"
                ) from error
            now = time.monotonic()
            if self._logged is None or now - self._logged >= LOG_SECONDS:
                self._logged = now
                self._thread.log.warning(
                    "an address cannot be had; trying again",
                    address=self._address,
                    reason=error.strerror,
                    every_seconds=self._retry_seconds,
                    remedy="stop what listens there, such as a kube-proxy or another agent",
                )
            return None
        self._sock = sock
        return sock

    def _route(self, request: Request) -> Response:
        """Answer a request."""
        handler = self._routes.get(request.path)
        if handler is None:
            return text(404, f"not found; there is {', '.join(sorted(self._routes))}")
        return handler(request)
