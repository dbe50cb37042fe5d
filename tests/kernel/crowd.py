"""Many Services in two versions, and callers that know what each version must answer.

All Services lead to the same three pods, so every one of them can be tried with a real connection.
``small`` and ``large`` differ in every way in which rules differ: Services that move from pod to
pod, get their first endpoint or lose their last one, come and go. What a call comes to is one word:
the name of the pod that answered, ``refused``, ``nowhere`` (no rule concerned itself with it), or
what else went wrong.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from agent.demo import load
from agent.demo.testbed import NODE_IPS
from tests.kernel import shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.demo.namespaces import Namespace
    from agent.demo.testbed import Testbed

VERSIONS = ("small", "large")
#: Services of both versions, and those of ``large`` alone. With the latter there are enough for the
#: tree layout, and for several transactions over rules in use.
COMMON, ADDED = 72, 180
#: Who answers where there is no Service.
NOWHERE = "nowhere"
#: Kinds of those in both: endpoints in ``small``, and in ``large``, as indices of pods.
_KINDS = (
    ((0, 1, 2), (0, 1, 2)),
    ((0, 1), (1, 2)),
    ((), (0, 2)),
    ((1, 2), ()),
)
_PATIENCE = 5.0
_AT_ONCE = 6

#: Address and port.
Target = tuple[str, int]
#: What calls may come to.
Outcomes = dict[Target, frozenset[str]]


def _ips(number: int) -> list[str]:
    """Cluster IPs, of one family or both.

    A TCP client believes a refusal over IPv6 after a second only, so few may be refused there.
    """
    ips = [f"10.97.{number // 200}.{number % 200 + 1}"]
    both = number % 16 in {0, 4} or number in {8, 12} if number < COMMON else number % 60 == 0
    return [*ips, f"fd00:97::{number + 1:x}"] if both else ips


def _pods(number: int, version: str) -> tuple[int, ...] | None:
    """Pods behind a Service; None where there is no such Service."""
    if number >= COMMON:
        return (number % 3, (number + 1) % 3) if version == "large" else None
    return _KINDS[number // 4 % len(_KINDS)][VERSIONS.index(version)]


def _node_port(number: int) -> int:
    return 31000 + number if number % 6 == 0 else 0


def objects(bed: Testbed, version: str) -> list[shapes.Object]:
    """The Node, the Services and their slices."""
    found = [shapes.node(*NODE_IPS)]
    for number in range(COMMON + ADDED):
        pods = _pods(number, version)
        if pods is None:
            continue
        name, ips, node_port = f"svc-{number}", _ips(number), _node_port(number)
        kind = "NodePort" if node_port else "ClusterIP"
        ports = [shapes.port(node_port=node_port)]
        found.append(shapes.service(name, *ips, type=kind, ports=ports))
        for index in range(len(ips)):
            endpoints = [shapes.endpoint(bed.pods[pod].ips[index]) for pod in pods]
            family = shapes.FAMILIES[index]
            found.append(
                shapes.endpoint_slice(name, *endpoints, family=family, suffix=family.lower())
            )
    return found


def write_objects(path: Path, bed: Testbed, version: str) -> None:
    """Write a version as a manifest, in one step."""
    new = path.parent.with_suffix(".new")
    items = objects(bed, version)
    new.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}), "utf-8")
    new.replace(path)


def outcomes(bed: Testbed, version: str) -> Outcomes:
    """What a call to any Service of any version may come to while this one is in force."""
    found: Outcomes = {}
    for number in range(COMMON + ADDED):
        pods = _pods(number, version)
        ips, node_port = _ips(number), _node_port(number)
        targets = [(ip, 80) for ip in ips]
        targets += [(ip, node_port) for ip in NODE_IPS[: len(ips)] if node_port]
        for target in targets:
            absent = "refused" if target[0] in NODE_IPS else NOWHERE
            names = [bed.pods[pod].name for pod in pods or ()] or ["refused"]
            found[target] = frozenset([absent] if pods is None else names)
    return found


def held_targets() -> list[Target]:
    """Some Services that have endpoints in ``small``, whatever becomes of them."""
    return [(ip, 80) for number in range(COMMON) if _pods(number, "small") for ip in _ips(number)]


def lead_nowhere(node: Namespace, nowhere: Namespace) -> load.Server:
    """Let a server in a place of its own answer what no rule translates or rejects."""
    node.run(["ip", "link", "add", "dead", "type", "veth", "peer", "eth0", "netns", nowhere.name])
    ends = (("192.0.2.1/30", "fd00:ffff::1/64"), ("192.0.2.2/30", "fd00:ffff::2/64"))
    for space, device, addresses in ((node, "dead", ends[0]), (nowhere, "eth0", ends[1])):
        for address in addresses:
            nodad = ["nodad"] if ":" in address else []
            space.run(["ip", "address", "add", address, "dev", device, *nodad])
        space.run(["ip", "link", "set", device, "up"])
    for ours, gateway, back in (
        ("10.97.0.0/16", "192.0.2.2", "192.0.2.1"),
        ("fd00:97::/64", "fd00:ffff::2", "fd00:ffff::1"),
    ):
        node.run(["ip", "route", "add", ours, "via", gateway])
        nowhere.run(["ip", "route", "add", "default", "via", back])
        nowhere.run(["ip", "route", "add", "local", ours, "dev", "lo"])
    server = load.start_server(nowhere, NOWHERE, ports=[80])
    server.wait_ready()
    return server


class _Line:
    """A connection that stays open."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._socket = socket.create_connection(target, _PATIENCE)
        # Closed with a reset: no entry waits for its end, in the kernel or in conntrack.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def ask(self) -> str:
        self._socket.sendall(b"who\n")
        return self._socket.recv(4096).decode().partition(" ")[0] or "closed"

    def close(self) -> None:
        self._socket.close()


def call(target: Target) -> str:
    """Connect, ask and close; what came of it."""
    try:
        with contextlib.closing(_Line(target)) as line:
            return line.ask()
    except OSError as error:
        return _word(error)


def _word(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    return "refused" if error.errno == errno.ECONNREFUSED else str(error)


class Callers:
    """Connections from one place that go on while other things happen; a context manager.

    Attributes:
        wrong: calls that came to what they must not.
    """

    def __init__(self, place: Namespace, allowed: Outcomes) -> None:
        self.wrong: list[str] = []
        self._place = place
        self._allowed = allowed
        self._held: dict[Target, tuple[_Line, str]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=place.call, args=(self._go_on,), daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        for held in self._held.values():
            held[0].close()

    def allow(self, *versions: Outcomes) -> None:
        """From now on a call may come to what any of these says."""
        self._allowed = {
            target: frozenset().union(*(version[target] for version in versions))
            for target in versions[0]
        }

    def hold(self, targets: Iterable[Target]) -> None:
        """Open connections that stay, and call at random from now on."""

        def open_all() -> None:
            for target in targets:
                line = _Line(target)
                self._held[target] = (line, line.ask())

        self._place.call(open_all)
        self._thread.start()

    def broken(self) -> Mapping[Target, str]:
        """Ask over every connection that stays; those that another pod answers, or nobody."""
        found = {}
        for target, (line, name) in self._held.items():
            try:
                now = line.ask()
            except OSError as error:
                now = _word(error)
            if now != name:
                found[target] = now
        return found

    def call_all(self) -> None:
        """Call everything once."""

        def work() -> None:
            with contextlib.suppress(IndexError):
                while True:
                    self._call(targets.pop())

        targets = list(self._allowed)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done in [pool.submit(self._place.call, work) for _ in range(_AT_ONCE)]:
                done.result()

    def _go_on(self) -> None:
        while not self._ending.wait(0.01):
            self._call(random.choice(list(self._allowed)))  # noqa: S311  no secret

    def _call(self, target: Target) -> None:
        before = self._allowed[target]
        came = call(target)
        if came not in before | self._allowed[target]:
            self.wrong.append(f"{target} came to {came}, not to one of {sorted(before)}")
