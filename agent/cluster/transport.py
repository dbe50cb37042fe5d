"""Requests to the API server, answers as bytes that arrive, with typed errors, and stoppable.

The generated calls (``CoreV1Api.list_node`` and the like) would import twenty megabytes of
models that the agent never uses; this makes the same two calls of ``ApiClient`` that they make.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from agent.cluster.client import renew_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kubernetes.client import ApiClient

    from agent.cluster.observe import RequestObserver

#: Bytes of an error's body that are read, to find out what the server says.
_ERROR_BYTES = 64 * 1024
_CREATED = (http.HTTPStatus.OK, http.HTTPStatus.CREATED, http.HTTPStatus.ACCEPTED)
#: A server that asks for more patience than this (seconds) is not taken at its word.
_MAX_RETRY_AFTER = 300.0


class ApiError(Exception):
    """A request failed; trying again later may help.

    Attributes:
        retry_after: seconds that the server asks to wait, 0 if it does not.
    """

    retry_after = 0.0


class UnreachableError(ApiError):
    """The server cannot be reached, or the connection broke."""


class SilentError(ApiError):
    """The server did not send anything in time."""


class StatusError(ApiError):
    """The server said no.

    Attributes:
        status: HTTP status, or the code of a Status object inside a stream.
        message: what the server says about it.
        in_stream: it came as an ERROR event of a watch that had been accepted.
        too_large: the version is one that this server has not reached yet.
    """

    def __init__(
        self, status: int, message: str, *, retry_after: float = 0.0, in_stream: bool = False
    ) -> None:
        super().__init__(f"{status} {http.client.responses.get(status, '')}: {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.in_stream = in_stream
        self.too_large = "Too large resource version" in message


class Response:
    """An answer whose body is still coming in."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            SilentError: nothing came for as long as the read timeout.
            UnreachableError: the connection broke before the end.
        """
        with _typed_errors():
            while chunk := self._raw.read1(256 * 1024):
                yield chunk

    def body(self, limit: int) -> bytes:
        """Read to the end.

        Raises:
            ApiError: as ``chunks``, or there are more than ``limit`` bytes.
        """
        parts, size = [], 0
        for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise ApiError(f"the answer is longer than {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """End it; a body that was read to its end has left the connection for the next request."""
        self._raw.close()


class Transport:
    """The client's connections.

    Args:
        client: the process's client; ``interrupt`` ends all of its connections.
        connect_timeout: seconds for a connection to be made.
        observer: is told of every request.
    """

    def __init__(
        self, client: ApiClient, connect_timeout: float, observer: RequestObserver
    ) -> None:
        self._client = client
        self._observer = observer
        self._connect_timeout = connect_timeout
        self._sockets = _Sockets(client.rest_client.pool_manager)

    @property
    def server(self) -> str:
        """The address, for messages."""
        return str(self._client.configuration.host)

    @contextlib.contextmanager
    def get(self, path: str, query: Mapping[str, str], read_timeout: float) -> Iterator[Response]:
        """Send a GET and hand out its answer.

        Raises:
            StatusError: any status but 200; 401 only if fresh credentials do not help.
            ApiError: there is no answer.
        """
        response = self._request(path, query, read_timeout)
        try:
            if response.status == http.HTTPStatus.UNAUTHORIZED:
                response.close()
                renew_credentials(self._client)
                response = self._request(path, query, read_timeout)
            if response.status != http.HTTPStatus.OK:
                raise _status_error(response)
            yield Response(response)
        finally:
            Response(response).close()

    def post(self, path: str, body: dict[str, Any], timeout: float) -> None:
        """Create an object.

        Raises:
            StatusError: any status but 200 to 202.
            ApiError: there is no answer.
        """
        response = self._request(path, {}, timeout, method="POST", body=body)
        try:
            if response.status not in _CREATED:
                raise _status_error(response)
        finally:
            Response(response).close()

    def interrupt(self) -> None:
        """End every connection, now and for ever, so that whoever reads from one returns."""
        self._sockets.shut_down()

    def _request(
        self,
        path: str,
        query: Mapping[str, str],
        read_timeout: float,
        *,
        method: str = "GET",
        body: dict[str, Any] | None = None,
    ) -> Any:
        client = self._client
        request = client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json"}
            | ({"Content-Type": "application/json"} if body is not None else {}),
            body=body,
            auth_settings=["BearerToken"],
        )
        timeout = (self._connect_timeout, read_timeout)
        started, code = time.monotonic(), "<error>"
        try:
            with _typed_errors():
                response = client.call_api(*request, _request_timeout=timeout).response
            code = str(response.status)
        finally:
            seconds = time.monotonic() - started
            self._observer.requested(method, urlsplit(self.server).netloc, code, seconds)
        return response


class _Sockets:
    """The open sockets of a connection pool: only through them can a blocked read be ended."""

    def __init__(self, pool_manager: Any) -> None:
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._ended = False
        pool_manager.pool_classes_by_scheme = {
            scheme: self._tracked(pool)
            for scheme, pool in pool_manager.pool_classes_by_scheme.items()
        }

    def shut_down(self) -> None:
        with self._lock:
            self._ended = True
            sockets = list(self._open)
        for sock in sockets:
            _shut_down(sock)

    def _tracked(self, pool: Any) -> Any:
        """Make a pool whose connections report their socket as soon as they have one."""
        add = self._add

        class Connection(pool.ConnectionCls):  # type: ignore[misc] # a class known at run time
            def connect(self) -> None:
                super().connect()
                add(self.sock)

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    def _add(self, sock: Any) -> None:
        with self._lock:
            self._open.add(sock)
            ended = self._ended
        if ended:
            _shut_down(sock)


def _shut_down(sock: Any) -> None:
    # Not the method of an SSLSocket: that one takes the TLS state away from under a reader.
    with contextlib.suppress(OSError, TypeError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    """Turn what urllib3, the sockets and the official client raise into ``ApiError``."""
    import urllib3  # noqa: PLC0415 (comes with the official client, which is imported late)
    from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 (same)

    try:
        yield
    except (urllib3.exceptions.ReadTimeoutError, TimeoutError) as error:
        raise SilentError(str(error)) from error
    except ApiException as error:
        # The official client wraps TLS failures, and nothing else, in it at this level.
        raise UnreachableError(str(error.reason).replace("\n", ": ")) from error
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        raise UnreachableError(str(error) or repr(error)) from error


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""


def _status_error(response: Any) -> StatusError:
    """Read what the server says besides the status."""
    retry_after = response.headers.get("Retry-After", "")
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    with _typed_errors():
        body = response.read(_ERROR_BYTES)
    try:
        status = msgspec.json.decode(body, type=_Status)
        message = status.message or status.reason
    except (msgspec.DecodeError, ValueError, RecursionError):
        message = repr(body[:200])
    return StatusError(response.status, message, retry_after=min(seconds, _MAX_RETRY_AFTER))
