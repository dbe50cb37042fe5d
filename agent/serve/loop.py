"""One thread that answers HTTP on any number of listening sockets, and cannot be starved.

These ports are open to everybody who reaches the node, and what listens behind them decides
whether the node is sent traffic or restarted. So no connection may cost a thread, and none may
stay: all are served by one asyncio loop, each has a deadline for the whole exchange, and their
number is bounded. When it is reached, the oldest connection makes room for the new one: a
client that means it has sent its request within a round trip, so a flood of silent connections
evicts itself.

Nor may a flood take the processor from the thread that writes rules, with which all others share
one interpreter lock. A serving thread that has used more than its share of processor time
accepts nothing until it has been idle for long enough; connections wait in the kernel meanwhile.

A request is answered in the loop, so a handler must be quick (milliseconds). Servers that must
not wait for each other have a thread each.
"""

from __future__ import annotations

import asyncio
import email.utils
import errno
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from agent import logs
from agent.serve.wire import (
    LONGEST_HEAD,
    BadRequestError,
    Request,
    Response,
    parse_head,
    render,
    text,
)

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Coroutine

#: Seconds for a whole exchange, from accepting to the client's closing.
EXCHANGE_SECONDS = 5.0
#: Connections that wait in the kernel until they are accepted. Where the queue is full, a newcomer
#: loses against a flood that tries again at once; one of this length is through in the seconds
#: that probes wait for, at the share below.
BACKLOG = 1024
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  compared with; the operator chooses
#: Part of a core that a thread may use in the long run, and seconds that it may use at once.
SHARE = 0.1
BURST = 0.2
#: Seconds without accepting when that fails, as it does without free descriptors.
_FAILED_SECONDS = 1.0
#: Errors of a kernel without IPv6.
_NO_V6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_STOP_SECONDS = 5.0


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on an address. As in kube-proxy, every address means both families.

    Raises:
        OSError: the address cannot be had.
    """
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        try:
            return _listen("::", port, socket.AF_INET6, dual=True)
        except OSError as error:
            if error.errno not in _NO_V6:
                raise
            return _listen("0.0.0.0", port, socket.AF_INET)  # noqa: S104  as configured
    return _listen(host, port, socket.AF_INET6 if ":" in host else socket.AF_INET)


def _listen(
    host: str, port: int, family: socket.AddressFamily, *, dual: bool = False
) -> socket.socket:
    """Make, bind and listen."""
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    sock.settimeout(0)
    return sock


class Allowance:
    """Processor time that a thread may use: earned as time passes, spent by working.

    Args:
        share: seconds earned in a second.
        burst: seconds that can be saved at the most.
        clock: seconds that pass.
        spent: seconds that the thread has used; asked for in that thread.
    """

    def __init__(
        self,
        share: float,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share, self._burst = share, burst
        self._clock, self._spent = clock, spent
        self._saved = burst
        self._at: tuple[float, float] | None = None

    def overdrawn(self) -> float:
        """Seconds until there is something saved again; 0 if there is."""
        now, spent = self._clock(), self._spent()
        then, before = self._at or (now, spent)
        self._at = now, spent
        earned = self._saved + (now - then) * self._share
        self._saved = min(self._burst, earned) - (spent - before)
        return max(-self._saved / self._share, 0.0)


class ServingThread:
    """A thread with an asyncio loop, and the connections that it serves.

    Args:
        name: of the thread.
        max_connections: bound on the open connections of all its sockets together.
        exchange_seconds: deadline of each.
        share: part of a core that it may use in the long run.
    """

    def __init__(
        self,
        name: str,
        *,
        max_connections: int = 128,
        exchange_seconds: float = EXCHANGE_SECONDS,
        share: float = SHARE,
    ) -> None:
        self.log = logs.get(component=name)
        self.exchange_seconds = exchange_seconds
        self._max_connections = max_connections
        self._connections: dict[_Connection, None] = {}  # the oldest first
        self._listening: dict[socket.socket, Callable[[Request], Response]] = {}
        self._allowance = Allowance(share, BURST)
        self._resting: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; only between ``start`` and ``stop``."""
        if self._loop is None:
            raise RuntimeError(f"{self._thread.name} has not been started")
        return self._loop

    def start(self) -> None:
        """Run the loop."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._report)
        self._thread.start()

    def stop(self) -> None:
        """Close every socket and connection and end the thread. Harmless when repeated."""
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self.log.warning("a request does not end; leaving it behind", seconds=_STOP_SECONDS)

    def submit(self, work: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        """Have the thread do something; from any thread. A failure of it is logged."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        future.add_done_callback(self._check)
        return future

    async def serve(self, sock: socket.socket, handler: Callable[[Request], Response]) -> None:
        """Answer on a listening socket from now on, which is the thread's from here."""
        self._listening[sock] = handler
        if self._resting is None:
            self.loop.add_reader(sock, self._accept, sock)

    async def close(self, sock: socket.socket) -> None:
        """Stop listening. The address is free when this returns."""
        if self._listening.pop(sock, None) is not None:
            self.loop.remove_reader(sock)
            sock.close()

    def _accept(self, sock: socket.socket) -> None:
        """Take one connection; the next one has its turn after those that are here."""
        if (seconds := self._allowance.overdrawn()) > 0:
            self._rest(seconds)
            return
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self.log.error("a connection cannot be accepted", reason=error.strerror)  # noqa: TRY400
            self._rest(_FAILED_SECONDS)
            return
        connection.settimeout(0)
        task = self.loop.create_task(self._connect(connection, self._listening[sock]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, sock: socket.socket, handler: Callable[[Request], Response]) -> None:
        """Begin an exchange."""
        try:
            await self.loop.connect_accepted_socket(lambda: _Connection(self, handler), sock)
        except OSError:  # it is gone already
            sock.close()

    def _rest(self, seconds: float) -> None:
        """Accept nothing for a while."""
        for sock in self._listening:
            self.loop.remove_reader(sock)
        self._resting = self.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        """Accept again."""
        self._resting = None
        for sock in self._listening:
            self.loop.add_reader(sock, self._accept, sock)

    def admit(self, connection: _Connection) -> asyncio.TimerHandle:
        """Count a new connection, at the cost of the oldest if there are too many."""
        while len(self._connections) >= self._max_connections:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._connections[connection] = None
        return self.loop.call_later(self.exchange_seconds, connection.abort)

    def forget(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)

    def _main(self) -> None:
        """Body of the thread."""
        loop = self.loop
        try:
            loop.run_forever()
        finally:
            if self._resting is not None:
                self._resting.cancel()
            for sock in self._listening:
                loop.remove_reader(sock)
                sock.close()
            loop.run_until_complete(asyncio.sleep(0.01))  # what was just accepted begins
            for connection in tuple(self._connections):
                connection.abort()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.01))  # what was aborted ends in callbacks
            loop.close()

    def _check(self, future: concurrent.futures.Future[None]) -> None:
        """Log a failure of submitted work, for which nobody may be waiting."""
        if not future.cancelled() and (error := future.exception()):
            self.log.error("serving failed", exc_info=error)

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what asyncio could not tell anybody, such as having run out of descriptors."""
        error = context.get("exception")
        self.log.error("serving failed", reason=context["message"], exc_info=error)


class _Connection(asyncio.Protocol):
    """One exchange: a request, an answer, the end."""

    def __init__(self, thread: ServingThread, handler: Callable[[Request], Response]) -> None:
        self._thread = thread
        self._handler = handler
        self._received = bytearray()
        self._answered = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._deadline = self._thread.admit(self)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``. What follows the request is read and dropped.

        Closing on unread bytes would make the kernel reset the connection, and the client
        might lose the answer.
        """
        if self._answered:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        if end >= 0:
            response, body = self._handle(bytes(self._received[:end]))
            self._answer(response, body=body)
        elif len(self._received) >= LONGEST_HEAD:
            self._answer(text(431, "the request is too long"), body=True)

    def eof_received(self) -> None:
        """See ``asyncio.Protocol``. Returning None closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the base's name
        """See ``asyncio.Protocol``."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._thread.forget(self)

    def abort(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _handle(self, head: bytes) -> tuple[Response, bool]:
        """The answer to a request, and whether its body is wanted."""
        try:
            request = parse_head(head)
        except BadRequestError as error:
            return error.response, True
        try:
            response = self._handler(request)
        except Exception:  # one answer that fails must not end all others
            self._thread.log.exception("a request failed", path=request.path)
            response = text(500, "this failed; the agent's log says why")
        return response, request.method != "HEAD"

    def _answer(self, response: Response, *, body: bool) -> None:
        """Send the answer and the end of it, and wait for the client to close."""
        self._answered = True
        self._received.clear()
        if self._transport is not None:
            date = email.utils.formatdate(usegmt=True)
            self._transport.write(render(response, body=body, date=date))
            self._transport.write_eof()
