"""What a list and a watch look like on the wire, taken apart without looking into the objects.

The envelope is decoded, each object is left as the bytes it came in and decoded by itself, so
an object that is not what it should be costs only itself.
"""

from __future__ import annotations

import msgspec

from agent.cluster.feed import Deleted, Event, Rejected, Upserted
from agent.cluster.objects import Kind, Object, UnusableObjectError, decode, key_of
from agent.cluster.transport import ApiError, StatusError


class GarbledError(ApiError):
    """What came is not what an API server sends."""


class Page(msgspec.Struct, frozen=True):
    """One page of a list.

    Attributes:
        objects: the usable ones.
        rejected: the others.
        version: resourceVersion of the list as a whole.
        token: how to ask for the next page, empty for none.
    """

    objects: list[Object]
    rejected: list[Rejected]
    version: str
    token: str


class Line(msgspec.Struct, frozen=True):
    """One line of a watch.

    Attributes:
        event: what happened to an object; None for a bookmark or an unknown type.
        version: to watch from after this line; empty if the line does not tell.
        unknown: the type, where it is not one that the API documents.
    """

    event: Event | None
    version: str
    unknown: str = ""


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""
    reason: str = ""


_LIST = msgspec.json.Decoder(_List)
_LINE = msgspec.json.Decoder(_Line)
_VERSIONED = msgspec.json.Decoder(_Versioned)
_STATUS = msgspec.json.Decoder(_Status)
_BAD = (msgspec.DecodeError, ValueError, RecursionError)


def read_page(kind: Kind, body: bytes) -> Page:
    """Take a page of a list apart.

    Raises:
        GarbledError: it is not a list with a version.
    """
    try:
        page = _LIST.decode(body)
    except _BAD as error:
        raise GarbledError(f"not a list ({error}): {_excerpt(body)}") from error
    if page.kind not in {"", "List", f"{kind.value}List"} or not page.metadata.resource_version:
        raise GarbledError(f"not a {kind.value}List with a resourceVersion: {_excerpt(body)}")
    objects: list[Object] = []
    rejected: list[Rejected] = []
    for item in page.items or ():
        try:
            objects.append(decode(kind, item))
        except UnusableObjectError as error:
            rejected.append(Rejected(kind, error.key, error.reason))
    return Page(objects, rejected, page.metadata.resource_version, page.metadata.token)


def read_line(kind: Kind, raw: bytes) -> Line:
    """Take a line of a watch apart.

    Raises:
        StatusError: it is an ERROR event; its status is 410 if the version is too old.
        GarbledError: it is not a line of a watch.
    """
    try:
        line = _LINE.decode(raw)
    except _BAD as error:
        raise GarbledError(f"not a watch event ({error}): {_excerpt(raw)}") from error
    match line.type:
        case "ADDED" | "MODIFIED" | "DELETED":
            return Line(_event(kind, line), _version(line.object))
        case "BOOKMARK":
            return Line(None, _version(line.object))
        case "ERROR":
            raise _status(line.object)
        case unknown:
            return Line(None, "", unknown)


def _event(kind: Kind, line: _Line) -> Event:
    try:
        obj = decode(kind, line.object)
    except UnusableObjectError as error:
        if line.type == "DELETED" and error.key is not None:
            return Deleted(kind, error.key)
        return Rejected(kind, error.key, error.reason)
    return Deleted(kind, key_of(obj)) if line.type == "DELETED" else Upserted(kind, obj)


def _version(raw: msgspec.Raw) -> str:
    try:
        return _VERSIONED.decode(raw).metadata.resource_version
    except _BAD:
        # The object is unusable and has been reported as that; the next event has a version.
        return ""


def _status(raw: msgspec.Raw) -> StatusError:
    try:
        status = _STATUS.decode(raw)
    except _BAD:
        return StatusError(0, _excerpt(bytes(raw)), in_stream=True)
    return StatusError(status.code, status.message or status.reason, in_stream=True)


def _excerpt(raw: bytes) -> str:
    """Some of it, for a message."""
    return repr(raw[:120])
