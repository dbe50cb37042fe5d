"""Requests from bytes and answers to bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serve.wire import BadRequestError, Request, Response, parse_head, render, text


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET /healthz HTTP/1.1", Request("GET", "/healthz", {})),
        (b"HEAD /healthz HTTP/1.0\r\nHost: a", Request("HEAD", "/healthz", {"host": "a"})),
        (b"GET /metrics?name=a HTTP/1.1", Request("GET", "/metrics", {})),
        (b"GET http://node:10256/healthz HTTP/1.1", Request("GET", "/healthz", {})),
        (b"GET http://node:10256 HTTP/1.1", Request("GET", "/", {})),
        (
            b"GET / HTTP/1.1\r\nACCEPT:  text/plain \r\nAccept: */*\r\nX:",
            Request("GET", "/", {"accept": "text/plain, */*", "x": ""}),
        ),
        (b"GET / HTTP/1.1\r\nX: caf\xe9", Request("GET", "/", {"x": "caf\u00e9"})),
    ],
)
def test_reads_requests(head: bytes, request_: Request) -> None:
    """Method, path and headers are read as HTTP defines them."""
    assert parse_head(head) == request_


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"GET /", 400),
        (b"GET / HTTP/2.0", 400),
        (b"GET /a b HTTP/1.1", 400),
        (b"get / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nno colon", 400),
        (b"GET / HTTP/1.1\r\n folded: x", 400),
        (b"GET / HTTP/1.1\r\na: 1\nb: 2", 400),
        (b"POST / HTTP/1.1", 405),
        (b"DELETE /healthz HTTP/1.1", 405),
    ],
)
def test_refuses_everything_else(head: bytes, status: int) -> None:
    """What is no GET or HEAD of HTTP/1 gets an answer that says so."""
    with pytest.raises(BadRequestError) as refused:
        parse_head(head)
    assert refused.value.response.status == status


@given(st.binary(max_size=300))
def test_any_bytes_get_an_answer(head: bytes) -> None:
    """Whatever arrives is either a request or a refusal, never another error."""
    try:
        status = 200 if parse_head(head).method in {"GET", "HEAD"} else 0
    except BadRequestError as error:
        status = error.response.status
    assert status in {200, 400, 405}


def test_renders_answers() -> None:
    """An answer ends its connection and says how long it is, to HEAD as well."""
    response = Response(503, b"{}", "application/json", (("X-Weight", "3"),))
    head = (
        b"HTTP/1.1 503 Service Unavailable\r\n"
        b"Content-Type: application/json\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Content-Length: 2\r\n"
        b"Date: now\r\n"
        b"Connection: close\r\n"
        b"X-Weight: 3\r\n\r\n"
    )
    assert render(response, body=True, date="now") == head + b"{}"
    assert render(response, body=False, date="now") == head


def test_a_refusal_of_a_method_names_the_others() -> None:
    """405 comes with Allow, as HTTP demands."""
    with pytest.raises(BadRequestError) as refused:
        parse_head(b"PUT / HTTP/1.1")
    assert refused.value.response == text(405, "only GET and HEAD", ("Allow", "GET, HEAD"))
