"""The whole way of an object: bytes from the API, decoded, state, rules, text; and the grammar.

Only the errors that a room declares are caught, as the room behind it does. Everything else ends
the test, as it would end the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.cluster.content import merge, read_text
from agent.cluster.feed import Rejected, Replaced
from agent.cluster.objects import Kind
from agent.cluster.transport import StatusError
from agent.cluster.wire import GarbledError, read_line, read_page
from agent.state.values import Family
from tests.fakes import objects
from tests.fakes.cluster import NODE
from tests.fakes.world import World
from tests.grammar.grammar import check

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from agent.cluster.feed import Event
    from agent.cluster.objects import Object
    from agent.rules.ruleset import Layout

API_VERSIONS = {Kind.SERVICE: "v1", Kind.SLICE: "discovery.k8s.io/v1", Kind.NODE: "v1"}
#: Settings under which rules take other forms.
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"detect_mode": "NodeCIDR", "node_port_addresses": ("primary",)},
    {"detect_mode": "BridgeInterface", "bridge": "cni0", "localhost_node_ports": False},
    {"detect_mode": "InterfaceNamePrefix", "prefix": "cali", "masquerade_all": True},
    {
        "detect_mode": "ClusterCIDR",
        "cluster_cidrs": ("10.64.0.0/16", "fd00:64::/48"),
        "node_port_addresses": ("192.0.2.0/24", "127.0.0.0/8", "2001:db8::/32"),
    },
)


class Pipeline:
    """An agent without a process: it is fed bytes, and what it writes is checked."""

    def __init__(self, number: int = 0, layout: Layout = "flat") -> None:
        """Begin with one good Service; ``number`` picks the settings."""
        self.world = World(layout, **SETTINGS[number % len(SETTINGS)])
        self._checked = dict.fromkeys(Family, 0)
        self._list_good()
        self._good = self._held()

    def _list_good(self) -> None:
        good = [objects.service("good", "10.96.0.1"), objects.endpoint_slice("good", "10.0.0.1")]
        for one, kind in zip(good, (Kind.SERVICE, Kind.SLICE), strict=True):
            self.objects(kind, page(kind, [one]))
        self.objects(Kind.NODE, page(Kind.NODE, [objects.node(NODE)]))

    def _held(self) -> list[dict[str, list[str]]]:
        return [
            kernel.texts(table)
            for kernel in self.world.kernels.values()
            for table in ("nat", "filter", "mangle")
        ]

    def reset(self) -> None:
        """Take everything away but the good Service: nothing else may be left."""
        self._list_good()
        assert self._held() == self._good
        self.world.notes.told.clear()
        self.start_over()

    def objects(self, kind: Kind, body: bytes) -> bool:
        """Hand over a whole list; tells whether it was one."""
        try:
            found = read_page(kind, body)
        except GarbledError:
            return False
        self._take([Replaced(kind, tuple(found.objects), tuple(found.rejected))])
        return True

    def line(self, kind: Kind, raw: bytes) -> bool:
        """Hand over a line of a watch; tells whether it was one."""
        try:
            found = read_line(kind, raw)
        except (GarbledError, StatusError):
            return False
        self._take([] if found.event is None else [found.event])
        return True

    def file(self, data: bytes) -> None:
        """Hand over a manifest file as all that there is."""
        found = merge([read_text("objects.yaml", data)])
        by_kind: dict[Kind, tuple[Object, ...]] = {
            Kind.SERVICE: found.services,
            Kind.SLICE: found.slices,
            Kind.NODE: found.nodes,
        }
        self._take(
            Replaced(kind, some, tuple(one for one in found.rejected if one.kind is kind))
            for kind, some in by_kind.items()
        )

    def _take(self, events: Iterable[Event]) -> None:
        self.world.now += 10  # past any pace
        self.world.handle(*events)
        self.check()

    def start_over(self) -> None:
        """Forget what was written so far."""
        for kernel in self.world.kernels.values():
            kernel.inputs.clear()
        self._checked = dict.fromkeys(Family, 0)

    def check(self) -> None:
        """Every line that was written is one that may be, and the kernel took all of them."""
        for family, kernel in self.world.kernels.items():
            for text in kernel.inputs[self._checked[family] :]:
                check(text, 4 if family is Family.V4 else 6)
            self._checked[family] = len(kernel.inputs)
        assert self.world.notes.of("failed") == []
        for track in self.world.tracks.values():
            assert track.syncer.quarantine.entries == {}, track.syncer.quarantine.entries

    def named(self) -> list[tuple[str, str]]:
        """Objects that were named so far, with the reason."""
        rejected = [one for (one,) in self.world.notes.of("rejected") if isinstance(one, Rejected)]
        problems = [one for _, one in self.world.notes.of("problem")]
        return [(str(one.key), one.reason) for one in rejected] + [
            (str(one.key), one.text) for one in problems
        ]


def page(kind: Kind, items: Iterable[Any]) -> bytes:
    """A list as the API server sends it."""
    metadata = {"resourceVersion": "7"}
    return encode({"kind": f"{kind.value}List", "metadata": metadata, "items": list(items)})


def event(type_: str, obj: Any) -> bytes:
    """A line of a watch."""
    return encode({"type": type_, "object": obj})


def encode(value: Any) -> bytes:
    """JSON, with what is already JSON as it is."""
    return msgspec.json.encode(value)
