"""The little of HTTP that probes and scrapers need, as pure functions on bytes.

Requests are GET or HEAD and have no body; every answer ends its connection. Whoever connects
is untrusted: what is not plainly such a request is answered with an error and hung up on.
"""

from __future__ import annotations

import http
import re
from collections.abc import Callable

import msgspec

#: A longer request line with headers is refused; a probe's has some hundred bytes.
LONGEST_HEAD = 16 * 1024

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

_REQUEST_LINE = re.compile(r"([A-Z]{1,20}) ([!-~]{1,8000}) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*(.*?)[ \t]*")


class Request(msgspec.Struct, frozen=True):
    """A request: method, path without the query, headers by name in lower case."""

    method: str
    path: str
    headers: dict[str, str]


class Response(msgspec.Struct, frozen=True):
    """An answer; ``Content-Length``, ``Date`` and ``Connection`` are added to its headers."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Response]


class BadRequestError(ValueError):
    """Bytes that are not a request that is answered; carries the answer to give instead."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.body.decode())
        self.response = response


def text(status: int, message: str, *headers: tuple[str, str]) -> Response:
    """An answer of one line."""
    return Response(status, f"{message}\n".encode(), TEXT, headers)


def parse_head(head: bytes) -> Request:
    """Read a request line and headers, without the empty line that ends them.

    Raises:
        BadRequestError: it is not HTTP/1, or the method is neither GET nor HEAD.
    """
    first, *rest = head.decode("latin-1").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise BadRequestError(text(400, "this is not an HTTP/1 request"))
    method, target = line.groups()
    if method not in {"GET", "HEAD"}:
        raise BadRequestError(text(405, "only GET and HEAD", ("Allow", "GET, HEAD")))
    headers: dict[str, str] = {}
    for one in rest:
        header = _HEADER.fullmatch(one)
        if header is None:
            raise BadRequestError(text(400, "a header is malformed"))
        name, value = header[1].lower(), header[2]
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(method, _path(target), headers)


def render(response: Response, *, body: bool, date: str) -> bytes:
    """Bytes of an answer, without the body if the request was HEAD."""
    lines = [
        f"HTTP/1.1 {response.status} {http.HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        "X-Content-Type-Options: nosniff",
        f"Content-Length: {len(response.body)}",
        f"Date: {date}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    return head + response.body if body else head


def _path(target: str) -> str:
    """Path of a request's target, which a proxy may have sent as a whole URL."""
    path = target.partition("?")[0].partition("#")[0]
    if "://" in path:
        _, slash, path = path.partition("://")[2].partition("/")
        path = slash + path
    return path or "/"
