"""The HTTP side of the fake API server: requests in, answers and watches out."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tests.fakes.store import RESOURCES, Change, GoneError, Resource, Store, Stored, parse_selector

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

_ENCODE = msgspec.json.Encoder().encode
#: A watch without ``timeoutSeconds`` lives so long (seconds).
_WATCH_SECONDS = 3600.0


class Request(msgspec.Struct, frozen=True):
    """One request as it came in."""

    verb: str
    plural: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    at: float
    connection: tuple[str, int]


class Fault(msgspec.Struct, frozen=True):
    """How to answer wrongly.

    Attributes:
        status: answer with this HTTP status and a Status object.
        retry_after: the Retry-After header, if any.
        body: answer 200 with these bytes instead.
        hang: answer nothing and keep the connection.
        cut: close the connection without an answer.
        delay: seconds to wait before an answer that is otherwise right.
    """

    status: int = 0
    retry_after: str = ""
    body: bytes | None = None
    hang: bool = False
    cut: bool = False
    delay: float = 0.0


class Plan(msgspec.Struct):
    """A fault that waits for its requests; ``left`` None is for ever."""

    fault: Fault
    verb: str
    plural: str
    left: int | None
    when: Callable[[Request], bool]


class Watch:
    """An open watch: what it asked for, how far it got, and raw bytes to be slipped in."""

    def __init__(self, resource: Resource, version: int) -> None:
        self.resource = resource
        self.version = version
        self.slipped: list[bytes | None] = []


class State:
    """What the server and its handlers share; ``store.condition`` guards all of it."""

    def __init__(self, window: int, token: str | None, bookmark_seconds: float) -> None:
        self.store = Store(window)
        self.token = token
        self.bookmark_seconds = bookmark_seconds
        #: A version that is too old is answered with HTTP 410, not with an event in a stream.
        self.gone_as_status = False
        self.requests: collections.deque[Request] = collections.deque(maxlen=100_000)
        self.events: list[dict[str, Any]] = []
        self.crashes: list[BaseException] = []
        self.watches: set[Watch] = set()
        self.connections: set[socket.socket] = set()
        self.stopping = False
        self.silent = False
        #: Seconds that every piece of an answer is late.
        self.lag = 0.0
        self.plans: list[Plan] = []

    def fault_for(self, request: Request) -> Fault | None:
        """Take the fault that is due for a request, if any."""
        with self.store.condition:
            for plan in self.plans:
                if plan.left == 0 or plan.verb not in {"", request.verb}:
                    continue
                if plan.plural not in {"", request.plural} or not plan.when(request):
                    continue
                if plan.left is not None:
                    plan.left -= 1
                return plan.fault
        return None


class HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    fake: State

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (base class)
        error = sys.exception()
        if error is not None and not isinstance(error, OSError | ValueError):
            self.fake.crashes.append(error)


class CutError(OSError):
    """This connection ends here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HTTPServer

    def setup(self) -> None:
        super().setup()
        self.fake = self.server.fake
        self.fake.connections.add(self.connection)

    def finish(self) -> None:
        self.fake.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        """Say nothing; ``FakeAPIServer.requests`` holds the requests."""

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._write)

    def do_PUT(self) -> None:
        self._serve(self._write)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def _serve(self, answer: Callable[[Resource, str, str], None]) -> None:
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length) if length else b""
        route = _route(url.path)
        if route is None:
            if url.path in {"/healthz", "/livez", "/readyz", "/version"}:
                self._json(HTTPStatus.OK, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
            else:
                self._status(HTTPStatus.NOT_FOUND, "the server could not find the resource")
            return
        resource, namespace, name = route
        request = Request(
            self._verb(name), resource.plural, url.path, self.query,
            {k.lower(): v for k, v in self.headers.items()}, time.monotonic(), self.client_address,
        )  # fmt: skip
        self.fake.requests.append(request)
        if self._faulty(request):
            return
        if self.fake.token is not None and (
            self.headers.get("Authorization", "").lower() != f"bearer {self.fake.token}".lower()
        ):
            self._status(HTTPStatus.UNAUTHORIZED, "Unauthorized")
            return
        answer(resource, namespace, name)

    def _verb(self, name: str) -> str:
        if self.command != "GET":
            return {"POST": "create", "PUT": "update", "DELETE": "delete"}[self.command]
        if self.query.get("watch") in {"1", "true", "True"}:
            return "watch"
        return "get" if name else "list"

    def _faulty(self, request: Request) -> bool:
        """Misbehave if it is due; True if the request has had its answer."""
        fault = self.fake.fault_for(request)
        if fault is None:
            return False
        if fault.cut:
            raise CutError
        if fault.hang:
            self._wait(lambda: False)
        if fault.body is not None:
            self._answer(HTTPStatus.OK, fault.body)
            return True
        if fault.status:
            self._status(HTTPStatus(fault.status), "a fault on purpose", fault.retry_after)
            return True
        self._wait(lambda: False, fault.delay)
        return False

    def _get(self, resource: Resource, namespace: str, name: str) -> None:
        if name:
            stored = self.fake.store.get(resource, namespace, name)
            if stored is None:
                self._status(HTTPStatus.NOT_FOUND, f'{resource.plural} "{name}" not found')
            else:
                self._answer(HTTPStatus.OK, stored.whole(resource))
            return
        fields = self.query.get("fieldSelector", "")
        if namespace:
            fields += f",metadata.namespace={namespace}"
        try:
            selects = parse_selector(self.query.get("labelSelector", ""), fields)
            version = int(self.query.get("resourceVersion") or 0)
        except ValueError as error:
            self._status(HTTPStatus.BAD_REQUEST, str(error))
            return
        try:
            if self._verb(name) == "watch":
                self._watch(resource, selects, version)
            else:
                self._list(resource, selects)
        except GoneError as error:
            self._status(HTTPStatus.GONE, str(error))

    def _list(self, resource: Resource, selects: Callable[[Stored], bool]) -> None:
        page = self.fake.store.page(
            resource, selects, int(self.query.get("limit") or 0), self.query.get("continue", "")
        )
        metadata: dict[str, Any] = {"resourceVersion": str(page.version)}
        if page.token:
            metadata |= {"continue": page.token, "remainingItemCount": page.remaining}
        head = {
            "kind": f"{resource.kind}List", "apiVersion": resource.api_version,
            "metadata": metadata,
        }  # fmt: skip
        items = b",".join(stored.body() for stored in page.items)
        self._answer(HTTPStatus.OK, _ENCODE(head)[:-1] + b',"items":[' + items + b"]}")

    def _watch(self, resource: Resource, selects: Callable[[Stored], bool], version: int) -> None:
        fake = self.fake
        if self.query.get("sendInitialEvents") == "true":
            message = "sendInitialEvents is forbidden for watch unless WatchList is enabled"
            self._status(HTTPStatus.UNPROCESSABLE_ENTITY, message)
            return
        if version > fake.store.version:
            causes = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large"}]}
            message = f"Too large resource version: {version}, current: {fake.store.version}"
            self._status(HTTPStatus.GATEWAY_TIMEOUT, message, details=causes)
            return
        if fake.gone_as_status and version:
            fake.store.check(resource, version)
        watch = Watch(resource, version)
        with fake.store.condition:
            fake.watches.add(watch)
        try:
            self._wait(lambda: not fake.silent)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if version:
                fake.store.check(resource, version)
            self._follow(watch, selects)
        except GoneError as error:
            self._chunk(_event(b"ERROR", _status_body(HTTPStatus.GONE, str(error))))
        finally:
            with fake.store.condition:
                fake.watches.discard(watch)
        self._chunk(b"")

    def _follow(self, watch: Watch, selects: Callable[[Stored], bool]) -> None:
        """Send what happens until the watch's time is over."""
        now = time.monotonic()
        end = now + float(self.query.get("timeoutSeconds") or _WATCH_SECONDS)
        wanted = self.query.get("allowWatchBookmarks") == "true"
        every = self.fake.bookmark_seconds if wanted else _WATCH_SECONDS
        bookmark = now + every
        if not watch.version:
            page = self.fake.store.page(watch.resource, selects, 0, "")
            watch.version = page.version
            for stored in page.items:
                self._chunk(_event(b"ADDED", stored.whole(watch.resource)))
        while (now := time.monotonic()) < end:
            if now >= bookmark:
                bookmark = now + every
                self._chunk(_bookmark(watch))
            changes, slipped = self._await(watch, min(end, bookmark))
            lines = b"".join(_lines(watch.resource, changes, selects))
            if lines:
                self._chunk(lines)
            # Never in front of changes: a server that tells a version before an earlier one, and
            # ends, has lost events that no client can know of.
            for raw in slipped:
                if raw is None:
                    raise CutError
                self._chunk(raw)

    def _await(self, watch: Watch, until: float) -> tuple[list[Change], list[bytes | None]]:
        """Wait for something to send; nothing if the time comes first."""
        store = self.fake.store
        with store.condition:
            while True:
                if self.fake.stopping or self.connection not in self.fake.connections:
                    raise CutError
                changes = store.since(watch.resource, watch.version)
                watch.version = store.version
                slipped, watch.slipped = watch.slipped, []
                left = until - time.monotonic()
                if changes or slipped or left <= 0:
                    return changes, slipped
                store.condition.wait(left)

    def _write(self, resource: Resource, namespace: str, name: str) -> None:
        obj = msgspec.json.decode(self.body)
        obj["kind"] = resource.kind
        if namespace:
            obj["metadata"]["namespace"] = namespace
        if resource.kind == "Event":
            self.fake.events.append(obj)
        exists = self.fake.store.get(resource, namespace, obj["metadata"]["name"]) is not None
        if not name and exists:
            self._status(HTTPStatus.CONFLICT, f"{resource.plural} already exists")
            return
        stored = self.fake.store.put(obj)
        code = HTTPStatus.OK if exists else HTTPStatus.CREATED
        self._answer(code, stored.whole(resource))

    def _delete(self, resource: Resource, namespace: str, name: str) -> None:
        stored = self.fake.store.delete(resource.kind, name, namespace)
        if stored is None:
            self._status(HTTPStatus.NOT_FOUND, f'{resource.plural} "{name}" not found')
        else:
            self._answer(HTTPStatus.OK, stored.whole(resource))

    def _status(
        self, code: HTTPStatus, message: str, retry_after: str = "", details: Any = None
    ) -> None:
        self._answer(code, _status_body(code, message, details), retry_after)

    def _json(self, code: HTTPStatus, value: Any) -> None:
        self._answer(code, _ENCODE(value))

    def _answer(self, code: HTTPStatus, body: bytes, retry_after: str = "") -> None:
        self._wait_to_speak()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        """Send a chunk; an empty one is the end of the answer."""
        self._wait_to_speak()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _wait_to_speak(self) -> None:
        self._wait(lambda: not self.fake.silent)
        if self.fake.lag:
            self._wait(lambda: False, self.fake.lag)

    def _wait(self, ready: Callable[[], bool], seconds: float = _WATCH_SECONDS) -> None:
        """Wait until ``ready``, at most ``seconds``; a server that stops cuts the connection."""
        end = time.monotonic() + seconds
        with self.fake.store.condition:
            while not ready() and time.monotonic() < end:
                if self.fake.stopping or self.connection not in self.fake.connections:
                    raise CutError
                self.fake.store.condition.wait(min(0.1, max(0.0, end - time.monotonic())))


def _route(path: str) -> tuple[Resource, str, str] | None:
    """Find the resource, the namespace and the name that a path is about."""
    for resource in RESOURCES:
        if not path.startswith(resource.prefix + "/"):
            continue
        parts = path[len(resource.prefix) + 1 :].strip("/").split("/")
        namespace = ""
        if resource.namespaced and parts[0] == "namespaces" and len(parts) > 2:
            namespace = parts[1]
            parts = parts[2:]
        if parts[0] == resource.plural and len(parts) <= 2:
            return resource, namespace, parts[1] if len(parts) == 2 else ""
    return None


def _lines(
    resource: Resource, changes: list[Change], selects: Callable[[Stored], bool]
) -> Iterator[bytes]:
    """Turn changes into the events that a watch with this selector sees."""
    for change in changes:
        before, now = change.before, change.now
        was = before is not None and selects(before)
        if now is not None and selects(now):
            yield _event(b"MODIFIED" if was else b"ADDED", now.whole(resource))
        elif was and before is not None:
            yield _event(b"DELETED", before.whole(resource, change.version))


def _event(kind: bytes, obj: bytes) -> bytes:
    return b'{"type":"' + kind + b'","object":' + obj + b"}\n"


def _bookmark(watch: Watch) -> bytes:
    meta = {"resourceVersion": str(watch.version), "creationTimestamp": None}
    kind, version = watch.resource.kind, watch.resource.api_version
    return _event(b"BOOKMARK", _ENCODE({"kind": kind, "apiVersion": version, "metadata": meta}))


def _status_body(code: HTTPStatus, message: str, details: Any = None) -> bytes:
    reason = {
        HTTPStatus.GONE: "Expired",
        HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
        HTTPStatus.UNPROCESSABLE_ENTITY: "Invalid",
    }
    return _ENCODE({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason.get(code, code.phrase.replace(" ", "")),
        "details": details or {}, "code": code.value,
    })  # fmt: skip
