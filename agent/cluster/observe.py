"""What the sources tell about themselves, for whoever counts it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agent.cluster.feed import Event
    from agent.cluster.objects import Kind


class WatchEnd(enum.Enum):
    """Why a watch ended; the value is for metrics."""

    #: In good order, by the server.
    CLOSED = "closed"
    #: Nothing came for as long as the read timeout.
    SILENT = "silent"
    #: 410: the version is too old.
    EXPIRED = "expired"
    #: The server answered with an error, or sent one inside the stream.
    ERROR = "error"
    #: There was no connection, or it broke.
    BROKEN = "broken"
    #: Something came that is no watch event.
    GARBLED = "garbled"


class RequestObserver(Protocol):
    """Who wants to know how requests to the API server go. Called from any thread."""

    def requested(self, method: str, host: str, code: str, seconds: float) -> None:
        """A request was answered, or failed (``<error>``), after so many seconds."""


class SourceObserver(RequestObserver, Protocol):
    """Who wants to know how the lists and watches go. Called from the sources' threads."""

    def contact(self, kind: Kind) -> None:
        """The server sent a page of a list, an event or a bookmark."""

    def list_done(self, kind: Kind, seconds: float, items: int) -> None:
        """A list is complete."""

    def list_failed(self, kind: Kind, error: Exception) -> None:
        """A list was given up; it will be tried again."""

    def watch_started(self, kind: Kind) -> None:
        """The server accepted a watch."""

    def watch_ended(self, kind: Kind, reason: WatchEnd) -> None:
        """A watch ended, or was not accepted; another follows."""

    def event(self, kind: Kind, event: Event) -> None:
        """A watch brought a change or an object that cannot be used."""


class NullObserver:
    """Does not want to know."""

    def requested(self, method: str, host: str, code: str, seconds: float) -> None:
        """Do nothing."""

    def contact(self, kind: Kind) -> None:
        """Do nothing."""

    def list_done(self, kind: Kind, seconds: float, items: int) -> None:
        """Do nothing."""

    def list_failed(self, kind: Kind, error: Exception) -> None:
        """Do nothing."""

    def watch_started(self, kind: Kind) -> None:
        """Do nothing."""

    def watch_ended(self, kind: Kind, reason: WatchEnd) -> None:
        """Do nothing."""

    def event(self, kind: Kind, event: Event) -> None:
        """Do nothing."""
