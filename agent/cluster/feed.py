"""What a source of objects puts on the queue, whichever source it is.

A source (the API server, or manifests) first puts one ``Replaced`` for each kind: the whole
list, as of now. Then single changes follow. A later ``Replaced`` is again the whole truth:
what it lacks has been deleted, however that deletion was missed. Putting a list may take until
somebody took it, so a source has at most one of each kind under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from agent.cluster.objects import Key, Kind, Object

if TYPE_CHECKING:
    from collections.abc import Callable


class Rejected(msgspec.Struct, frozen=True):
    """An object that cannot be used; it counts as absent, and is named to the operator."""

    kind: Kind
    key: Key | None
    reason: str


class Replaced(msgspec.Struct, frozen=True):
    """All objects of a kind; what is not in it does not exist (any more)."""

    kind: Kind
    objects: tuple[Object, ...]
    rejected: tuple[Rejected, ...] = ()


class Upserted(msgspec.Struct, frozen=True):
    """An object that was added or changed."""

    kind: Kind
    object: Object


class Deleted(msgspec.Struct, frozen=True):
    """An object that is gone."""

    kind: Kind
    key: Key


class SourceFailed(msgspec.Struct, frozen=True):
    """The source has ended for good; the process must end as well.

    ``refused`` tells a permanent refusal by the API server (exit code 4) from a crash.
    """

    error: BaseException
    refused: bool = False


Event = Replaced | Upserted | Deleted | Rejected | SourceFailed


class Source(Protocol):
    """Something that feeds objects; ``start`` returns at once, ``stop`` ends its threads."""

    def start(self, put: Callable[[Event], None]) -> None:
        """Begin; events are handed to ``put`` from threads of the source's own."""

    def stop(self) -> None:
        """End all threads; no event follows."""
