"""What a Kubernetes API server remembers: objects, one version counter, and a window of changes.

Only what a client can notice is here, but that is as the API concepts page has it
(https://kubernetes.io/docs/reference/using-api/api-concepts/): one counter stamps every write
of whatever kind; a list is a snapshot of one version, also when it is read by pages; a watch
resumes after a version for as long as the window reaches back that far; an object that leaves
a watch's selector is deleted as far as that watch is concerned.
"""

from __future__ import annotations

import base64
import bisect
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_ENCODE = msgspec.json.Encoder().encode
#: Fields that something can be selected by; the last two are a Service's.
_FIELDS = {"metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"}
#: Snapshots that half-read lists may still need.
_SNAPSHOTS = 64


class Resource(msgspec.Struct, frozen=True):
    """One of the API's resources."""

    kind: str
    api_version: str
    plural: str
    namespaced: bool = True

    @property
    def prefix(self) -> str:
        """The path up to the resource, without a namespace."""
        root = "api" if "/" not in self.api_version else "apis"
        return f"/{root}/{self.api_version}"


RESOURCES = (
    Resource("Service", "v1", "services"),
    Resource("Node", "v1", "nodes", namespaced=False),
    Resource("EndpointSlice", "discovery.k8s.io/v1", "endpointslices"),
    Resource("Event", "events.k8s.io/v1", "events"),
    Resource("ServiceCIDR", "networking.k8s.io/v1", "servicecidrs", namespaced=False),
)
BY_KIND = {resource.kind: resource for resource in RESOURCES}


class Stored(msgspec.Struct, frozen=True):
    """An object as of one version; ``body`` is its JSON without kind and apiVersion."""

    namespace: str
    name: str
    labels: dict[str, str]
    version: int
    content: dict[str, Any]

    def body(self, version: int | None = None) -> bytes:
        """Encode it as an item of a list; ``version`` overrides the resourceVersion."""
        meta = {**self.content["metadata"], "resourceVersion": str(version or self.version)}
        return _ENCODE({**self.content, "metadata": meta})

    def whole(self, resource: Resource, version: int | None = None) -> bytes:
        """Encode it as an object that stands alone."""
        head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'
        return head.encode() + self.body(version)[1:]


class Change(msgspec.Struct, frozen=True):
    """One write: ``now`` is None for a deletion, ``before`` for a creation."""

    version: int
    before: Stored | None
    now: Stored | None


class GoneError(Exception):
    """The version or the continue token is older than what is remembered."""


def parse_selector(labels: str, fields: str) -> Callable[[Stored], bool]:
    """Read ``labelSelector`` and ``fieldSelector`` as a predicate.

    Raises:
        ValueError: a form that this server does not know.
    """
    tests = [_label_test(part.strip()) for part in labels.split(",") if part.strip()]
    tests += [_field_test(part.strip()) for part in fields.split(",") if part.strip()]
    return lambda stored: all(test(stored) for test in tests)


def _label_test(part: str) -> Callable[[Stored], bool]:
    if part.startswith("!"):
        return lambda stored: part[1:] not in stored.labels
    if "!=" in part:
        key, value = part.split("!=", 1)
        return lambda stored: stored.labels.get(key) != value
    if "=" in part:
        key, value = part.replace("==", "=").split("=", 1)
        return lambda stored: stored.labels.get(key) == value
    if " " in part:
        raise ValueError(f"unable to parse requirement: {part}")
    return lambda stored: part in stored.labels


def _field_test(part: str) -> Callable[[Stored], bool]:
    differs = "!=" in part
    key, separator, value = part.replace("==", "=").partition("!=" if differs else "=")
    if not separator or key not in _FIELDS:
        raise ValueError(f"field label not supported: {part}")

    def test(stored: Stored) -> bool:
        found: Any = stored.content
        for name in key.split("."):
            found = (found or {}).get(name)
        return ((found or "") == value) is not differs

    return test


class Page(msgspec.Struct, frozen=True):
    """A page of a list, all of one version; ``token`` is empty on the last."""

    version: int
    items: list[Stored]
    token: str
    remaining: int


class _Collection:
    """The objects of one resource and the changes that led to them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Stored] = {}
        self.changes: list[Change] = []
        #: A watch cannot begin before this version.
        self.floor = 0
        #: Changes up to this version are no longer in ``changes``.
        self.trimmed = 0


class Store:
    """All objects. ``condition`` guards everything and is notified of every change."""

    def __init__(self, window: int = 100_000) -> None:
        self.condition = threading.Condition()
        self.version = 1000
        self._window = window
        self._collections = {resource.plural: _Collection() for resource in RESOURCES}
        self._snapshots: OrderedDict[str, list[Stored]] = OrderedDict()
        self._serial = 0

    def put(self, obj: dict[str, Any]) -> Stored:
        """Create or replace an object, given with its kind; an unchanged one is not a write."""
        resource = BY_KIND[obj["kind"]]
        metadata = dict(obj["metadata"])
        namespace = metadata.get("namespace") or "default" if resource.namespaced else ""
        if namespace:
            metadata["namespace"] = namespace
        metadata.pop("resourceVersion", None)
        content = {k: v for k, v in obj.items() if k not in {"kind", "apiVersion", "metadata"}}
        content = {"metadata": metadata, **content}
        with self.condition:
            collection = self._collections[resource.plural]
            key = (namespace, metadata["name"])
            before = collection.objects.get(key)
            if before is not None and before.content == content:
                return before
            self.version += 1
            labels = metadata.get("labels") or {}
            now = Stored(namespace, metadata["name"], labels, self.version, content)
            collection.objects[key] = now
            self._record(collection, Change(self.version, before, now))
            return now

    def delete(self, kind: str, name: str, namespace: str = "default") -> Stored | None:
        """Remove an object; returns it, or None if there is none."""
        resource = BY_KIND[kind]
        with self.condition:
            collection = self._collections[resource.plural]
            key = (namespace if resource.namespaced else "", name)
            before = collection.objects.pop(key, None)
            if before is not None:
                self.version += 1
                self._record(collection, Change(self.version, before, None))
            return before

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        """Return an object, or None."""
        with self.condition:
            return self._collections[resource.plural].objects.get((namespace, name))

    def keys(self) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of every object."""
        with self.condition:
            return {
                (resource.kind, *key)
                for resource in RESOURCES
                for key in self._collections[resource.plural].objects
            }

    def compact(self) -> None:
        """Forget the past: older versions and half-read lists are gone; open watches live on."""
        with self.condition:
            for collection in self._collections.values():
                collection.floor = self.version
            self._snapshots.clear()

    def page(
        self, resource: Resource, selects: Callable[[Stored], bool], limit: int, token: str
    ) -> Page:
        """Read a list, or the next page of one.

        Raises:
            GoneError: the token's snapshot is not there any more.
        """
        with self.condition:
            if token:
                name, version, offset = base64.urlsafe_b64decode(token).decode().split(":")
                if name not in self._snapshots:
                    raise GoneError("The provided continue parameter is too old")
                items = self._snapshots[name]
            else:
                self._serial += 1
                name, version, offset = f"snapshot{self._serial}", str(self.version), "0"
                objects = self._collections[resource.plural].objects
                items = [objects[key] for key in sorted(objects) if selects(objects[key])]
            start = int(offset)
            end = start + limit if limit else len(items)
            more = ""
            if end < len(items):
                self._snapshots[name] = items
                while len(self._snapshots) > _SNAPSHOTS:
                    self._snapshots.popitem(last=False)
                more = base64.urlsafe_b64encode(f"{name}:{version}:{end}".encode()).decode()
            return Page(int(version), items[start:end], more, max(0, len(items) - end))

    def check(self, resource: Resource, version: int) -> None:
        """Whether a watch may begin at a version.

        Raises:
            GoneError: it is too old.
        """
        with self.condition:
            floor = self._collections[resource.plural].floor
        if version < floor:
            raise GoneError(f"too old resource version: {version} ({floor})")

    def since(self, resource: Resource, version: int) -> list[Change]:
        """Changes after a version, for a watch that is open; the caller holds the condition.

        Raises:
            GoneError: the watch has fallen too far behind.
        """
        collection = self._collections[resource.plural]
        if version < collection.trimmed:
            raise GoneError(f"too old resource version: {version} ({collection.trimmed})")
        start = bisect.bisect_right(collection.changes, version, key=lambda c: c.version)
        return collection.changes[start:]

    def _record(self, collection: _Collection, change: Change) -> None:
        collection.changes.append(change)
        excess = len(collection.changes) - self._window
        if excess > 0:
            collection.trimmed = collection.changes[excess - 1].version
            collection.floor = max(collection.floor, collection.trimmed)
            del collection.changes[:excess]
        self.condition.notify_all()
