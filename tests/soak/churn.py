"""What a busy cluster does to a node agent, at random from a seed.

Names of Services are always new ones, since what remembers names would grow with them. Pods'
addresses come from a pool that is used again, as a cluster's are.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import itertools
from typing import TYPE_CHECKING, Any

from tests.kernel import shapes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.fakes.apiserver import FakeAPIServer

ENDPOINTS = 10
#: Pods that Services take their endpoints from, for each Service, by family. Few, so that the first
#: endpoints already have nearly all of them: caches by address fill at the start and not slowly.
_PODS = {"IPv4": 4.0, "IPv6": 0.5}
_V4, _V6 = int(ipaddress.IPv4Address("10.96.0.0")), int(ipaddress.IPv6Address("fd00:96::"))
_POD4, _POD6 = int(ipaddress.IPv4Address("10.64.0.0")), int(ipaddress.IPv6Address("fd00:64::"))
_TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_KINDS = ("plain", "plain", "plain", "dual", "udp", "node", "local")


class Churn:
    """The API server's objects, and what happens to them.

    Attributes:
        steps: how many changes have been made.
    """

    def __init__(self, api: FakeAPIServer, services: int, rng: random.Random) -> None:
        self._api = api
        self._rng = rng
        self._pods = {
            family: range(1, max(round(services * share), 40)) for family, share in _PODS.items()
        }
        self._numbers = itertools.count()
        self._free = list(range(1, services * 2))
        self._alive: dict[str, tuple[int, str]] = {}
        self.steps = 0
        api.put(self._node(0))
        for _ in range(services):
            self._create(rng.choice(_KINDS))

    def step(self) -> None:
        """Change one thing."""
        self.steps += 1
        acts: list[tuple[int, Callable[[], None]]] = [
            (60, self._move), (15, self._replace), (10, self._retype), (10, self._noise),
            (3, self._spoil), (2, self._relabel),
        ]  # fmt: skip
        (act,) = self._rng.choices([act for _, act in acts], [weight for weight, _ in acts])
        act()

    def _create(self, kind: str) -> None:
        name = f"svc-{next(self._numbers):07}"
        self._alive[name] = (self._free.pop(0), kind)
        self._put(name)
        self._fill(name)

    def _put(self, name: str, **spec: Any) -> None:
        number, kind = self._alive[name]
        ips = [str(ipaddress.IPv4Address(_V4 + number))]
        if kind == "dual":
            ips.append(str(ipaddress.IPv6Address(_V6 + number)))
        port = shapes.port(80, protocol="UDP" if kind == "udp" else "TCP")
        if kind in {"node", "local"}:
            spec |= {"type": "LoadBalancer"}
            port["nodePort"] = 20000 + number
        if kind == "local":
            spec |= {"externalTrafficPolicy": "Local", "healthCheckNodePort": 25000 + number}
        labels = {"changed": str(self.steps)}
        self._api.put(shapes.service(name, *ips, ports=[port], labels=labels, **spec))

    def _fill(self, name: str) -> None:
        """Give a Service other endpoints; seldom none."""
        _, kind = self._alive[name]
        count = self._rng.choice([0, *range(ENDPOINTS - 4, ENDPOINTS + 5)])
        protocol = "UDP" if kind == "udp" else "TCP"
        ports = [shapes.port(8080, protocol=protocol)]
        for family, start in (("IPv4", _POD4), ("IPv6", _POD6)):
            if family == "IPv6" and kind != "dual":
                continue
            chosen = self._rng.sample(self._pods[family], count)
            ips = [str(ipaddress.ip_address(start + number)) for number in chosen]
            made = shapes.endpoint_slice(
                name,
                *(shapes.endpoint(ip, self._rng.choice([shapes.NODE, "node-2"])) for ip in ips),
                ports=ports, suffix=family.lower(), family=family,
            )  # fmt: skip
            made["metadata"]["annotations"] = {_TRIGGER: dt.datetime.now(dt.UTC).isoformat()}
            self._api.put(made)

    def _any(self) -> str:
        return self._rng.choice(list(self._alive))

    def _move(self) -> None:
        """Pods come and go."""
        self._fill(self._any())

    def _replace(self) -> None:
        """One Service goes, another comes."""
        name = self._any()
        number, kind = self._alive.pop(name)
        self._free.append(number)
        self._api.delete("Service", name)
        for family in ("ipv4", "ipv6"):  # it may have been dual-stack before
            self._api.delete("EndpointSlice", f"{name}-{family}")
        self._create(kind)

    def _retype(self) -> None:
        """Two Services become each other's kind: how many there are of each stays the same."""
        one, other = self._rng.sample(list(self._alive), 2)
        kinds = self._alive[one][1], self._alive[other][1]
        for name, kind in ((one, kinds[1]), (other, kinds[0])):
            self._alive[name] = (self._alive[name][0], kind)
            self._put(name, sessionAffinity=self._rng.choice(["None", "ClientIP"]))
            self._fill(name)

    def _noise(self) -> None:
        """What no rule depends on changes."""
        self._put(self._any())

    def _spoil(self) -> None:
        """Somebody writes nonsense, and takes it back."""
        name = f"bad-{next(self._numbers):07}"
        bad = shapes.service(name, "10.96.255.300", externalIPs=["here"])
        self._api.put(bad, shapes.endpoint_slice(name, shapes.endpoint("nowhere")))
        self._api.delete("Service", name)
        self._api.delete("EndpointSlice", f"{name}-1")

    def _relabel(self) -> None:
        self._api.put(self._node(self.steps))

    def _node(self, beat: int) -> shapes.Object:
        return shapes.node("192.0.2.10", "2001:db8::10", labels={"beat": str(beat)})
