"""One kind of object, listed and then watched, for as long as the process lives.

The contract: whatever the API server or the network does, the consumer's picture comes to
equal the server's, and until then it stays what it was. So

- a list becomes an event only when its last page is there; a half-read list is nothing;
- a list is a replacement. Deletions that happened while no watch was open show in nothing but
  an object's absence from the next list;
- a watch goes on from the version of the last line that it got, which is an event's or a
  bookmark's; the first goes on from the list's version, never from an item's;
- a version that the server no longer has (410, as a status or inside a stream) is forgotten,
  and everything is listed again;
- ``timeoutSeconds`` is the server's promise. A dead connection keeps no promises, so a read
  timeout on this side ends a watch on which nothing came, not even a bookmark;
- versions are opaque: nothing compares them, so an API server that was restored from a backup
  and counts from an earlier number is followed like any other.

Lists are read without ``resourceVersion``: the most recent data, in pages. A list at version 0
would be cheaper for an old API server, but it comes in one piece, and it may be older than
what this agent has already programmed.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import msgspec

from agent import logs
from agent.cluster.feed import Rejected, Replaced
from agent.cluster.objects import Key, Kind, Object, key_of
from agent.cluster.observe import SourceObserver, WatchEnd
from agent.cluster.transport import (
    ApiError,
    Response,
    SilentError,
    StatusError,
    Transport,
    UnreachableError,
)
from agent.cluster.wire import GarbledError, read_line, read_page

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable, Iterator

    from agent.cluster.feed import Event

log = logs.get(component=__name__)

#: A line of a watch holds one object; the API server takes none above 3 MiB.
_MAX_LINE = 16 * 1024 * 1024
_MAX_LIST = 256 * 1024 * 1024
#: After so many lists whose pages expired while they were read, the list is asked for in one.
_MAX_EXPIRED_LISTS = 2
#: Watches that end in garbage without a good line in between, before listing again.
_MAX_GARBLED = 2
#: Unknown types of events that are remembered as already logged.
_MAX_UNKNOWN = 16


class Resource(msgspec.Struct, frozen=True):
    """What to list and watch: the path, and the query that selects."""

    kind: Kind
    path: str
    selector: dict[str, str]


class WatchSettings(msgspec.Struct, frozen=True):
    """Sizes and times; all times in seconds.

    Attributes:
        page_limit: objects per page of a list.
        connect_timeout: for a connection to be made.
        read_timeout: without a byte, after which an answer is given up. It is to be longer
            than the minute between an API server's bookmarks.
        watch_min: shortest time that a watch is asked to last.
        watch_max: longest; the time is drawn between the two, so that nodes spread out.
        backoff_first: upper bound of the first delay after a failure.
        backoff_cap: upper bound that the doubling ends at.
        healthy_after: a watch that lasted so long makes the next delay a first one.
    """

    page_limit: int = 500
    connect_timeout: float = 10.0
    read_timeout: float = 90.0
    watch_min: float = 300.0
    watch_max: float = 600.0
    backoff_first: float = 1.0
    backoff_cap: float = 30.0
    healthy_after: float = 30.0


class RefusedError(Exception):
    """The API server does not let the agent read what it needs; says what to do."""


class Backoff:
    """Delays that double up to a cap, each drawn evenly between nothing and its bound."""

    def __init__(self, first: float, cap: float, rng: random.Random) -> None:
        self._first = first
        self._cap = cap
        self._rng = rng
        self._failures = 0

    def next(self) -> float:
        """Return the next delay in seconds."""
        bound = min(self._cap, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return self._rng.uniform(0.0, bound)

    def short(self) -> float:
        """Return a first delay, whatever has failed so far; it counts as no failure."""
        return self._rng.uniform(0.0, min(self._cap, self._first))

    def reset(self) -> None:
        """Forget the failures so far."""
        self._failures = 0


class Reflector:
    """Lists and watches one kind until ``stop`` is set.

    Args:
        resource: what.
        transport: through what.
        put: takes the events.
        stop: ends ``run`` at the next opportunity.
        settings: sizes and times.
        observer: is told how it goes.
        rng: for jitter.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        resource: Resource,
        transport: Transport,
        put: Callable[[Event], None],
        stop: threading.Event,
        *,
        settings: WatchSettings,
        observer: SourceObserver,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resource = resource
        self._transport = transport
        self._put = put
        self._stop = stop
        self._settings = settings
        self._observer = observer
        self._rng = rng
        self._clock = clock
        self._backoff = Backoff(settings.backoff_first, settings.backoff_cap, rng)
        self._log = log.bind(kind=resource.kind.value)
        self._version = ""
        #: When the present watch was accepted.
        self._opened_at = math.inf
        self._expired_lists = 0
        self._garbled = 0
        #: A version expired, and no watch has been healthy since.
        self._expired = False
        self._unknown: set[str] = set()
        self._contact_at = clock()
        self.listed = False

    def seconds_since_contact(self) -> float:
        """Seconds since the last page of a list, event or bookmark (at first: since the start)."""
        return self._clock() - self._contact_at

    def run(self) -> None:
        """List and watch, again and again.

        Raises:
            RefusedError: the server refuses the very first list.
        """
        while not self._stop.is_set():
            if self._list() and not self._stop.is_set():
                self._follow()

    def _list(self) -> bool:
        """Try one list; False if it failed (and the delay after it is over)."""
        started = self._clock()
        try:
            event = self._read_list()
        except ApiError as error:
            if not self._stop.is_set():
                self._list_failed(error)
            return False
        self.listed = True
        seconds = self._clock() - started
        self._put(event)
        self._observer.list_done(self._resource.kind, seconds, len(event.objects))
        self._log.info(
            "list complete",
            items=len(event.objects),
            rejected=len(event.rejected),
            seconds=round(seconds, 3),
            version=self._version,
        )
        return True

    def _read_list(self) -> Replaced:
        """Read all pages."""
        settings, resource = self._settings, self._resource
        query = dict(resource.selector)
        if self._expired_lists < _MAX_EXPIRED_LISTS:
            query["limit"] = str(settings.page_limit)
        objects: dict[Key, Object] = {}
        rejected: list[Rejected] = []
        version = ""
        while True:
            with self._transport.get(resource.path, query, settings.read_timeout) as response:
                page = read_page(resource.kind, response.body(_MAX_LIST))
            self._touch()
            objects.update((key_of(obj), obj) for obj in page.objects)
            rejected += page.rejected
            version = version or page.version
            if not page.token:
                break
            query["continue"] = page.token
        self._version = version
        self._expired_lists = 0
        return Replaced(resource.kind, tuple(objects.values()), tuple(rejected))

    def _list_failed(self, error: ApiError) -> None:
        """Report, and wait before the next try; a refusal at the start is final."""
        status = error.status if isinstance(error, StatusError) else 0
        if status in {401, 403} and not self.listed:
            raise RefusedError(self._advice(error)) from error
        if status == 410:
            self._expired_lists += 1
        self._observer.list_failed(self._resource.kind, error)
        self._pause("list failed", error)

    def _advice(self, error: ApiError) -> str:
        plural = self._resource.path.rsplit("/", 1)[-1]
        return (
            f"the API server at {self._transport.server} does not let the agent list {plural}:"
            f" {error}. Give its user or service account the verbs list and watch on {plural},"
            " or give the agent other credentials"
        )

    def _follow(self) -> None:
        """Watch until there must be a new list."""
        while not self._stop.is_set():
            self._opened_at = math.inf
            failure: ApiError | None = None
            try:
                self._watch()
            except ApiError as error:
                failure = error
            if self._stop.is_set():
                return
            end = _reason(failure)
            self._observer.watch_ended(self._resource.kind, end)
            healthy = self._clock() - self._opened_at >= self._settings.healthy_after
            if healthy:
                self._backoff.reset()
                self._expired = False
            if failure is None and healthy:
                self._log.debug("watch ended in good order", version=self._version)
                continue
            relist = self._needs_list(failure)
            said = f"watch {end.value}" + (", listing again" if relist else "")
            # After an outage that was long enough, all that is missing is a list. But a server that
            # says so at every watch must not be asked for one list after the other.
            soon = end is WatchEnd.EXPIRED and not self._expired
            self._expired |= soon
            self._pause(said, failure, soon=soon)
            if relist:
                return

    def _watch(self) -> None:
        """Read one watch to its end."""
        settings, resource = self._settings, self._resource
        query = resource.selector | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(self._rng.uniform(settings.watch_min, settings.watch_max))),
        }
        with self._transport.get(resource.path, query, settings.read_timeout) as response:
            self._opened_at = self._clock()
            self._observer.watch_started(resource.kind)
            for raw in _lines(response):
                if self._stop.is_set():
                    return
                self._take(raw)

    def _take(self, raw: bytes) -> None:
        """Hand on what a line says."""
        line = read_line(self._resource.kind, raw)
        self._touch()
        if line.event is not None:
            self._put(line.event)
            self._observer.event(self._resource.kind, line.event)
        elif line.unknown:
            self._warn_once(line.unknown)
        # Only now: should the consumer have failed, the version has not moved past the event.
        self._version = line.version or self._version
        self._garbled = 0

    def _warn_once(self, unknown: str) -> None:
        if unknown not in self._unknown and len(self._unknown) < _MAX_UNKNOWN:
            self._unknown.add(unknown)
            self._log.warning("unknown type of watch event skipped", type=unknown[:64])

    def _needs_list(self, failure: ApiError | None) -> bool:
        """Whether the version to watch from is of no use any more, or may be."""
        if isinstance(failure, GarbledError):
            self._garbled += 1
            return self._garbled >= _MAX_GARBLED
        if not isinstance(failure, StatusError):
            return False
        # Overload, outages and even refusals pass; the version stays good meanwhile.
        passing = failure.status in {401, 403, 429} or failure.status >= 500
        return failure.in_stream or failure.too_large or not passing

    def _touch(self) -> None:
        self._contact_at = self._clock()
        self._observer.contact(self._resource.kind)

    def _pause(self, said: str, error: ApiError | None, *, soon: bool = False) -> None:
        """Log and wait: as the server asks, and unless ``soon`` as the failures so far suggest."""
        delay = self._backoff.short() if soon else self._backoff.next()
        delay += error.retry_after if error is not None else 0.0
        self._log.warning(
            said,
            error=str(error) if error is not None else "the server ended it early",
            retry_in=round(delay, 3),
            version=self._version,
        )
        self._stop.wait(delay)


def _lines(response: Response) -> Iterator[bytes]:
    """Split a watch into lines.

    Raises:
        GarbledError: it ends inside a line, or a line does not end.
    """
    rest = b""
    for chunk in response.chunks():
        lines = (rest + chunk).split(b"\n") if b"\n" in chunk else [rest + chunk]
        rest = lines.pop()
        if len(rest) > _MAX_LINE:
            raise GarbledError(f"a line is longer than {_MAX_LINE} bytes")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        raise GarbledError(f"the stream ended inside a line: {rest[:120]!r}")


def _reason(failure: ApiError | None) -> WatchEnd:
    match failure:
        case None:
            return WatchEnd.CLOSED
        case SilentError():
            return WatchEnd.SILENT
        case StatusError(status=410):
            return WatchEnd.EXPIRED
        case UnreachableError():
            return WatchEnd.BROKEN
        case GarbledError():
            return WatchEnd.GARBLED
        case _:
            return WatchEnd.ERROR
