"""What the agent's own servers answer: ``/metrics``, and the three probes."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.exposition import choose_encoder, gzip_accepted

from agent.serve.wire import JSON, Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from agent.serve.health import Answer, HealthState
    from agent.serve.wire import Handler

#: Fast; a scrape shrinks to a tenth at any level.
_GZIP_LEVEL = 1


def probe_routes(
    state: HealthState, count: Callable[[str, int], None] = lambda _probe, _code: None
) -> dict[str, Handler]:
    """``/healthz``, ``/livez`` and ``/readyz``.

    Args:
        state: what they report.
        count: told of each answer, by probe and status code.
    """

    def route(probe: str, ask: Callable[[], Answer]) -> Handler:
        def handle(_: Request) -> Response:
            answer = ask()
            count(probe, answer.code)
            return Response(answer.code, msgspec.json.encode(answer.body), JSON)

        return handle

    return {
        "/healthz": route("healthz", state.healthz),
        "/livez": route("livez", state.livez),
        "/readyz": route("readyz", state.readyz),
    }


def metrics_route(registry: CollectorRegistry) -> Handler:
    """``/metrics``, in the format and encoding that the scraper asks for."""

    def handle(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(registry)
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            packed = gzip.compress(body, _GZIP_LEVEL)
            return Response(200, packed, content_type, (("Content-Encoding", "gzip"),))
        return Response(200, body, content_type)

    return handle
