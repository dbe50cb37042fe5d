"""What the text of manifest files says: objects, objects that cannot be used, and complaints."""

from __future__ import annotations

import difflib
import enum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agent import logs
from agent.cluster.documents import MalformedError, parse
from agent.cluster.feed import Rejected
from agent.cluster.objects import (
    EndpointSlice,
    Key,
    Kind,
    Node,
    Object,
    Service,
    UnusableObjectError,
    convert,
    decode,
    is_ours,
    key_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logs.get(component=__name__)

_KINDS = {kind.value: kind for kind in Kind}
_API_VERSIONS = {"Service": "v1", "EndpointSlice": "discovery.k8s.io/v1", "Node": "v1"}
#: A List may hold a List, but not for ever.
_MAX_NESTING = 4
#: How alike (0 to 1) words are of which one is taken for the other with a slip.
_ALIKE = 0.8


class Severity(enum.Enum):
    """How bad a problem is: an error means that something in the file is not in force."""

    ERROR = "error"
    WARNING = "warning"


class Problem(msgspec.Struct, frozen=True):
    """Something to tell about a file; ``line`` is 1-based, 0 for the file as a whole."""

    path: str
    line: int
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.message}"


class Manifests(msgspec.Struct, frozen=True):
    """What a set of files says.

    Attributes:
        services: Services that are not labelled for another proxy.
        slices: EndpointSlices, likewise.
        nodes: Nodes.
        rejected: objects of these kinds that cannot be used; the reason names the file.
        problems: what is wrong with the files themselves.
        ignored: number of objects of other kinds.
    """

    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    nodes: tuple[Node, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    problems: tuple[Problem, ...] = ()
    ignored: int = 0


class Entry(msgspec.Struct, frozen=True):
    """An object of a file, or why there is none."""

    kind: Kind
    key: Key | None
    object: Object | None
    path: str
    line: int
    reason: str = ""


class Content(msgspec.Struct):
    """What one file says; ``broken`` if it could not be read as a whole."""

    entries: list[Entry] = []
    problems: list[Problem] = []
    ignored: int = 0
    broken: bool = False


def read_text(path: str, data: bytes) -> Content:
    """Read one file's text; never raises."""
    content = Content()
    if (items := _plain_list(data)) is not None:
        collector = _Collector(path, 1, content)
        for item in items:
            collector.take_json(item)
        return content
    try:
        documents = parse(data)
    except MalformedError as error:
        content.problems.append(Problem(path, error.line, error.reason))
        content.broken = True
        return content
    for document in documents:
        _Collector(path, document.line, content).take(document.value)
    return content


class _Head(msgspec.Struct, rename="camel"):
    """What an object is."""

    kind: str = ""
    api_version: str | None = None


class _List(_Head):
    """What ``kubectl get -o json`` prints."""

    items: list[msgspec.Raw] | None = None


_HEAD = msgspec.json.Decoder(_Head)
_LIST = msgspec.json.Decoder(_List)


def _plain_list(data: bytes) -> list[msgspec.Raw] | None:
    """The items of a List in JSON that is all of the text; None if it is something else.

    Taking apart a large one and putting its objects together again takes five times as long as
    decoding each where it stands.
    """
    try:
        found = _LIST.decode(data)
        data.decode()  # what is skipped unseen is text, too
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found.items if found.kind == "List" else None


class _Collector:
    """Sorts the objects of one document into the content of its file."""

    def __init__(self, path: str, line: int, content: Content) -> None:
        self._path = path
        self._line = line
        self._content = content

    def take(self, value: object, expected: str = "", depth: int = 0) -> None:
        """Sort a document, or an item of a list.

        ``expected`` is the kind of a typed list's items, which need not say it themselves.
        """
        kind = value.get("kind") or expected if isinstance(value, dict) else ""
        if not isinstance(value, dict) or not isinstance(kind, str) or not kind:
            self._complain("what has no kind is skipped")
        elif kind.endswith("List") and "items" in value:
            self._take_list(kind, value["items"], depth)
        elif kind in _KINDS and value.get("apiVersion") in {None, _API_VERSIONS[kind]}:
            entry = _entry(_KINDS[kind], value, self._path, self._line)
            self._content.entries.append(entry)
        elif slip := _slip(kind, value.get("apiVersion")):
            self._complain(slip)
        else:
            self._content.ignored += 1
            log.debug("another kind ignored", kind=kind, file=self._path, line=self._line)

    def take_json(self, raw: msgspec.Raw) -> None:
        """Sort an item of a list that is JSON; one that is not simply good is looked at closely."""
        try:
            head = _HEAD.decode(raw)
            kind = _KINDS.get(head.kind)
            if kind is not None and head.api_version in {None, _API_VERSIONS[head.kind]}:
                obj = _with_namespace(kind, decode(kind, raw))
                entry = Entry(kind, key_of(obj), obj, self._path, self._line)
                self._content.entries.append(entry)
                return
        except (msgspec.DecodeError, UnusableObjectError, RecursionError):
            pass
        self.take(msgspec.json.decode(raw), depth=1)

    def _take_list(self, kind: str, items: object, depth: int) -> None:
        if depth == _MAX_NESTING:
            self._complain(f"more than {_MAX_NESTING} lists in one another are skipped")
        elif isinstance(items, list):
            for item in items:
                self.take(item, kind.removesuffix("List"), depth + 1)
        elif items is not None:
            self._complain(f"items of a {kind} that are no list are skipped")

    def _complain(self, message: str) -> None:
        self._content.problems.append(Problem(self._path, self._line, message))


def _slip(kind: str, version: object) -> str:
    """Why an object is one of ours with a slip of the pen; empty if it is of somebody else's kind.

    In the groups of our kinds nobody but Kubernetes has any, and none of those is called so alike.
    """
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    for name, known in _API_VERSIONS.items():
        if group != known.rpartition("/")[0]:
            continue
        if kind == name:
            return f"{name} with apiVersion {version} is skipped: {known} is read"
        if difflib.get_close_matches(kind, [name], cutoff=_ALIKE):
            return f"kind {kind} is unknown and skipped; did you mean {name}?"
    return ""


def _with_namespace(kind: Kind, obj: Object) -> Object:
    """The object in the namespace that it would get."""
    metadata = obj.metadata
    namespace = "" if kind is Kind.NODE else metadata.namespace or "default"
    if namespace == metadata.namespace:
        return obj
    return replace(obj, metadata=replace(metadata, namespace=namespace))


def _entry(kind: Kind, value: dict[Any, Any], path: str, line: int) -> Entry:
    """Decode an object, in the namespace that it would get."""
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        namespace = "" if kind is Kind.NODE else metadata.get("namespace") or "default"
        value = {**value, "metadata": {**metadata, "namespace": namespace}}
    try:
        obj = convert(kind, value)
    except UnusableObjectError as error:
        return Entry(kind, error.key, None, path, line, f"{error.reason} ({path}:{line})")
    return Entry(kind, key_of(obj), obj, path, line)


def merge(contents: Iterable[Content], problems: Iterable[Problem] = ()) -> Manifests:
    """Put files together; where an object is there twice, the last one counts."""
    told = list(problems)
    entries: dict[tuple[Kind, Key], Entry] = {}
    nameless: list[Entry] = []
    ignored = 0
    for content in contents:
        told += content.problems
        ignored += content.ignored
        for entry in content.entries:
            if entry.key is None:
                nameless.append(entry)
                continue
            other = entries.get((entry.kind, entry.key))
            if other is not None:
                told.append(_duplicate(other, entry))
            entries[entry.kind, entry.key] = entry
    final = [*entries.values(), *nameless]
    return Manifests(
        services=tuple(o for o in _objects(final) if isinstance(o, Service) and is_ours(o)),
        slices=tuple(o for o in _objects(final) if isinstance(o, EndpointSlice) and is_ours(o)),
        nodes=tuple(o for o in _objects(final) if isinstance(o, Node)),
        rejected=tuple(Rejected(e.kind, e.key, e.reason) for e in final if e.object is None),
        problems=tuple(told),
        ignored=ignored,
    )


def _objects(entries: Iterable[Entry]) -> Iterator[Object]:
    return (entry.object for entry in entries if entry.object is not None)


def _duplicate(first: Entry, last: Entry) -> Problem:
    message = (
        f"{last.kind.value} {last.key} is also in {first.path}:{first.line}; this one, read later,"
        " counts"
    )
    return Problem(last.path, last.line, message, Severity.WARNING)
