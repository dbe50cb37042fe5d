"""The changes that are measured one by one: what must be there, and the line of a watch."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Kind
from bench import objects

if TYPE_CHECKING:
    from bench.scale import Scale

#: An event's kind and the line of the watch that brings it.
Line = tuple[Kind, bytes]

_FIRST_NODE_PORT, _NODE_PORTS = 30_000, 2768
_WIDE, _SLICE = 1000, 100


class Change(abc.ABC):
    """One kind of change, over a cluster of ``scale.services``.

    Attributes:
        name: for people.
    """

    name: str

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        #: The numbers of a Service, and of a first pod, that the cluster does not have.
        self.number = scale.services + ALL.index(type(self))
        self.pod = 2 * scale.services * scale.endpoints

    def before(self) -> list[Line]:
        """What must be there in addition."""
        return []

    @abc.abstractmethod
    def line(self, turn: int) -> Line:
        """What comes in."""

    def written(self, turn: int) -> str:
        """The name of a Service like the changed one, whose chain is restored for comparison."""
        return objects.name(self.scale.services - 1 - turn % (self.scale.services // 2))


class Endpoint(Change):
    """Another endpoint, each time in another Service."""

    name = "endpoint"

    def line(self, turn: int) -> Line:
        """Its slice."""
        number = turn % (self.scale.services // 2)
        pods = [*objects.pods_of(number, self.scale.endpoints)[1:], self.pod + turn]
        return Kind.SLICE, watch_line(objects.endpoint_slice(number, pods))


class WideEndpoint(Change):
    """Another endpoint in a Service that has a thousand, in slices as the controller makes them."""

    name = f"endpoint of {_WIDE}"

    def before(self) -> list[Line]:
        """The Service and its slices."""
        slices = [self._slice(part, 0) for part in range(_WIDE // _SLICE)]
        return [(Kind.SERVICE, watch_line(objects.service(self.number), "ADDED")), *slices]

    def line(self, turn: int) -> Line:
        """One of its slices."""
        return self._slice(turn % (_WIDE // _SLICE), turn + 1)

    def written(self, turn: int) -> str:
        """The same one."""
        del turn
        return objects.name(self.number)

    def _slice(self, part: int, turn: int) -> Line:
        first = self.pod + part * _SLICE
        pods = [*range(first + 1, first + _SLICE), first if not turn else first + _WIDE + turn]
        return Kind.SLICE, watch_line(objects.endpoint_slice(self.number, pods, part=part))


class NodePort(Change):
    """Another node port of a Service."""

    name = "node port"

    def before(self) -> list[Line]:
        """The Service, among others with a node port, and its slice."""
        others = [self._service(number, number) for number in range(100)]
        pods = objects.pods_of(self.number, self.scale.endpoints)
        mine = watch_line(objects.endpoint_slice(self.number, pods), "ADDED")
        return [*others, self._service(self.number, 100), (Kind.SLICE, mine)]

    def line(self, turn: int) -> Line:
        """The Service."""
        return self._service(self.number, 101 + turn)

    @staticmethod
    def _service(number: int, port: int) -> Line:
        node_port = _FIRST_NODE_PORT + port * 7 % _NODE_PORTS
        return Kind.SERVICE, watch_line(objects.service(number, node_port=node_port))


class AddedService(Change):
    """One Service more, whose endpoints are known."""

    name = "added Service"

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale)
        self.number += len(ALL)

    def before(self) -> list[Line]:
        """The slices."""
        slices = []
        for number in range(
            self.number, self.number + max(self.scale.turns, self.scale.samples) + 2
        ):
            pods = objects.pods_of(number, self.scale.endpoints)
            slices.append((Kind.SLICE, watch_line(objects.endpoint_slice(number, pods), "ADDED")))
        return slices

    def line(self, turn: int) -> Line:
        """The Service."""
        return Kind.SERVICE, watch_line(objects.service(self.number + turn), "ADDED")


class RemovedService(Change):
    """One Service less."""

    name = "removed Service"

    def line(self, turn: int) -> Line:
        """The Service."""
        number = turn % (self.scale.services // 2)
        return Kind.SERVICE, watch_line(objects.service(number), "DELETED")


ALL: tuple[type[Change], ...] = (Endpoint, WideEndpoint, NodePort, AddedService, RemovedService)


def watch_line(obj: objects.Object, kind: str = "MODIFIED") -> bytes:
    """An object as a watch sends it."""
    return msgspec.json.encode({"type": kind, "object": obj})
