"""Target 6: what a new flow pays for finding its Service, or for being for none.

A UDP sender on the node opens one flow after the other, each from a socket of its own with one
packet, which leaves towards a namespace that drops it. Measured is the sender's CPU for a flow,
all the way through OUTPUT and POSTROUTING with connection tracking, in batches that take turns
between a node with ten Services, one with many in kube-proxy's flat layout, and one
with as many in a tree. The Services have one endpoint each: the lottery is the same in all.
Compared are batches that took their turns together: a machine that others share is slower or
faster for seconds.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import socket
import time
from typing import TYPE_CHECKING, Self

from agent.demo.namespaces import Namespace, owned_name
from agent.kernel.detect import Backend
from bench import objects
from bench.bed import Bed, store, syncer
from bench.figures import Figure, settled
from bench.timing import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.bed import Layout
    from bench.daemon import Clusters
    from bench.scale import Scale

_FEW = 10
_BATCH = 200
_FIRST_PORT = 5000
_MICRO = 1e6
#: How many times the cost with ten Services a flow for no Service may have.
_MOST = 1.2
#: Rounds that do not count.
_WARM = 2
Target = tuple[str, int]


def measure(scale: Scale, _clusters: Clusters) -> Iterator[Figure]:
    """All of target 6."""
    for backend in (Backend.NFT, Backend.LEGACY):
        with contextlib.ExitStack() as stack:
            nodes = {
                "few": stack.enter_context(_Sender(backend, _FEW, "auto")),
                "flat": stack.enter_context(_Sender(backend, scale.packets, "flat")),
                "tree": stack.enter_context(_Sender(backend, scale.packets, "tree")),
            }
            for what in _AIMS:
                yield from _compare(scale, backend, what, nodes)


def _compare(
    scale: Scale, backend: Backend, what: str, nodes: dict[str, _Sender]
) -> Iterator[Figure]:
    """One kind of flow, on all nodes in turns."""
    aim, target = _AIMS[what]
    rounds = scale.rounds if target else scale.rounds // 2
    found = [_round(turn, nodes, aim) for turn in range(rounds)][_WARM:]

    def more() -> None:
        found.extend(_round(turn, nodes, aim) for turn in range(rounds))

    def judge() -> list[Figure]:
        cost = {name: median([one[name] for one in found]) * _MICRO for name in nodes}
        ratio = {name: median([one[name] / one["few"] for one in found]) for name in nodes}
        name = f"flow {what}, {backend.value}, {scale.packets} over {_FEW} Services"
        note = f"{cost['tree']:.1f} us over {cost['few']:.1f} us"
        return [
            Figure(f"{name}, tree", ratio["tree"], "x", target, note=note, details=dict(cost)),
            Figure(f"{name}, flat", ratio["flat"], "x", note=f"{cost['flat']:.1f} us"),
        ]

    yield from settled(judge, more, scale.again)


def _round(turn: int, nodes: dict[str, _Sender], aim: Callable[[int], Target]) -> dict[str, float]:
    """A batch on each node, one right behind the other; seconds of CPU for a flow."""
    names = list(nodes)
    random.Random(turn).shuffle(names)  # noqa: S311 (an order)
    return {name: nodes[name].send(aim) for name in names}


def _to_no_service(_services: int) -> Target:
    return "198.51.100.7", objects.PORT


def _beside_a_service(services: int) -> Target:
    """The address of a Service and another port: a tree is gone through down to a leaf."""
    return _one_of_few(services), objects.PORT + 1


def _to_a_service(services: int) -> Target:
    return _one_of_few(services), objects.PORT


def _to_any_service(services: int) -> Target:
    """Every flow for another one: nothing of what it needs is in a cache."""
    return objects.cluster_ip(random.randrange(services)), objects.PORT  # noqa: S311 (load)


def _one_of_few(services: int) -> str:
    """The address of one of ten Services, spread over all: the same traffic on every node."""
    number = random.randrange(_FEW)  # noqa: S311 (load)
    return objects.cluster_ip(number * services // _FEW + number % (services // _FEW))


#: By what is opened: where to, and what is asked of a tree.
_AIMS: dict[str, tuple[Callable[[int], Target], float | None]] = {
    "for no Service": (_to_no_service, _MOST),
    "beside a Service": (_beside_a_service, _MOST),
    "to one of ten Services": (_to_a_service, None),
    "to any Service": (_to_any_service, None),
}


class _Sender(Bed):
    """A node with rules, from which flows are opened."""

    def __init__(self, backend: Backend, services: int, layout: Layout) -> None:
        super().__init__(backend)
        self._services = services
        self._layout = layout
        self._ports = itertools.count(_FIRST_PORT)
        self._sink = Namespace(owned_name("sink"))

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._attach()
            writer = syncer(self.kernel, self.backend, self._layout)
            self.call(writer.sync, store(self._services, 1, "UDP"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self._sink.close(grace=0.0)
        super().__exit__(*details)

    def _attach(self) -> None:
        """Send everything to a namespace in which no rule is and nobody listens."""
        Namespace.create(self._sink.name)
        for command in (
            f"link add out type veth peer name in netns {self._sink.name}",
            f"address add {objects.NODE_IP}/24 dev out",
            "link set out arp off up",
            "route add default via 192.0.2.1 dev out",  # one neighbour for all
        ):
            self.namespace.run(["ip", *command.split()])
        self._sink.run(["ip", "link", "set", "in", "up"])

    def send(self, aim: Callable[[int], Target]) -> float:
        """Open a batch of flows; seconds of CPU for each."""
        work = [((objects.NODE_IP, next(self._ports)), aim(self._services)) for _ in range(_BATCH)]
        return self.call(_open_flows, work)


def _open_flows(work: list[tuple[Target, Target]]) -> float:
    """A socket, its port, a packet and the end, for each."""
    gc.disable()
    try:
        began = time.thread_time()
        for source, target in work:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind(source)
                sock.sendto(b"x", target)
        return (time.thread_time() - began) / len(work)
    finally:
        gc.enable()
