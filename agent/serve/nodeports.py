"""Health check node ports: by them a load balancer finds the nodes that have local endpoints.

A Service with ``externalTrafficPolicy: Local`` names one port, on which every node answers for
it: 200 while there is a ready endpoint on this node and the agent is healthy, 503 otherwise.
Body and headers are kube-proxy's, and so is answering on every path.

All ports are served by one thread. ``sync`` hands it the whole truth and returns at once, so
neither a taken port nor a flood of probes ever holds up the rules. A port that cannot be had is
reported once and tried again at every later sync.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

import msgspec

from agent.cluster.objects import Key
from agent.serve.loop import ServingThread, open_socket
from agent.serve.wire import JSON, Response

if TYPE_CHECKING:
    import concurrent.futures
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from agent.state.values import Family

#: Kept small: a probe is one short exchange, and anybody may connect.
MAX_CONNECTIONS = 128


class PortFailure(msgspec.Struct, frozen=True):
    """A health check node port that cannot be listened on.

    Attributes:
        service: whose it is.
        port: the number.
        address: where; empty for every address.
        reason: what the kernel said.
    """

    service: Key
    port: int
    address: str
    reason: str


class _Listener(msgspec.Struct, frozen=True):
    """What is listened on; the identity of a socket."""

    service: Key
    port: int
    address: str


class HealthCheckPorts:
    """The health check node ports of all Services.

    Args:
        healthy: whether the agent is healthy, whatever the Node; asked at each request.
        on_failure: told of a port that cannot be had, once until it can be had again; called
            from the serving thread.
        addresses: where to listen; None for every address of the node.
    """

    def __init__(
        self,
        healthy: Callable[[], bool],
        on_failure: Callable[[PortFailure], None],
        addresses: Iterable[str] | None = None,
    ) -> None:
        self._healthy = healthy
        self._on_failure = on_failure
        self._addresses = _distinct(addresses)
        self._lock = threading.Lock()
        self._local_ready: dict[Key, int] = {}
        self._open: dict[_Listener, socket.socket] = {}
        self._failed: set[_Listener] = set()
        self._applying = asyncio.Lock()
        self._thread = ServingThread("serve-nodeports", max_connections=MAX_CONNECTIONS)

    def start(self) -> None:
        """Start the thread; call before ``sync``."""
        self._thread.start()

    def stop(self) -> None:
        """Close all ports and end the thread."""
        self._thread.stop()

    @property
    def failing(self) -> int:
        """How many ports of addresses cannot be had, as of the last sync."""
        return len(self._failed)

    @property
    def ports(self) -> int:
        """How many ports of addresses are open."""
        return len(self._open)

    def set_addresses(self, addresses: Iterable[str] | None) -> None:
        """Listen on other addresses from the next sync on; None for every address."""
        self._addresses = _distinct(addresses)

    def sync(
        self, wanted: Mapping[Key, int], local_ready: Mapping[Key, int]
    ) -> concurrent.futures.Future[None]:
        """Take over what is wanted: nothing else stays open. Returns at once.

        Args:
            wanted: port by Service.
            local_ready: number of ready endpoints on this node by Service; absent means none.

        Returns:
            Done when the ports are as wanted, so far as they can be had.
        """
        with self._lock:
            self._local_ready = {key: local_ready.get(key, 0) for key in wanted}
        listeners = {
            _Listener(service, port, address)
            for service, port in wanted.items()
            for address in self._addresses
        }
        return self._thread.submit(self._apply(listeners))

    async def _apply(self, wanted: set[_Listener]) -> None:
        """Close what is not wanted, then open what is; in the serving thread, one at a time."""
        async with self._applying:
            for listener in self._open.keys() - wanted:
                await self._thread.close(self._open.pop(listener))
                self._thread.log.info("health check node port closed", **_labels(listener))
            self._failed &= wanted
            for listener in sorted(wanted - self._open.keys(), key=_order):
                await self._listen(listener)

    async def _listen(self, listener: _Listener) -> None:
        """Open one port, or report that it cannot be had."""
        if not 0 < listener.port < 65536:  # the kernel would take 0 for any free port
            self._fail(listener, "not a port from 1 to 65535")
            return
        try:
            sock = open_socket(listener.address or "::", listener.port)
        except OSError as error:
            self._fail(listener, error.strerror or str(error))
            return
        service = listener.service
        await self._thread.serve(sock, lambda _: self._answer(service))
        self._open[listener] = sock
        self._failed.discard(listener)
        self._thread.log.info("health check node port opened", **_labels(listener))

    def _fail(self, listener: _Listener, reason: str) -> None:
        """Report a port that cannot be had, unless that is known."""
        if listener in self._failed:
            return
        self._failed.add(listener)
        self._thread.log.warning(
            "a health check node port cannot be had; trying again at each sync",
            reason=reason,
            **_labels(listener),
        )
        self._on_failure(PortFailure(listener.service, listener.port, listener.address, reason))

    def _answer(self, service: Key) -> Response:
        """What the load balancer is told."""
        with self._lock:
            count = self._local_ready.get(service, 0)
        return answer(service, count, healthy=self._healthy())


def answer(service: Key, local_endpoints: int, *, healthy: bool) -> Response:
    """kube-proxy's answer for a Service, down to the layout of its JSON."""
    body = {
        "service": {"namespace": service.namespace, "name": service.name},
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": healthy,
    }
    return Response(
        status=200 if local_endpoints and healthy else 503,
        body=json.dumps(body, indent="\t").encode(),
        content_type=JSON,
        headers=(("X-Load-Balancing-Endpoint-Weight", str(local_endpoints)),),
    )


def _distinct(addresses: Iterable[str] | None) -> tuple[str, ...]:
    """Addresses without repetition; the empty one stands for all."""
    return ("",) if addresses is None else tuple(dict.fromkeys(addresses))


def _order(listener: _Listener) -> tuple[Key, str, int]:
    """A stable order, so that of two Services that want one port the same one gets it."""
    return listener.service, listener.address, listener.port


def _labels(listener: _Listener) -> dict[str, object]:
    """What a log line says of a listener."""
    return {
        "service": str(listener.service),
        "port": listener.port,
        "address": listener.address or "every address",
    }


class FamilyChecks:
    """What each family wants of the health check node ports, which both have in common.

    A dual-stack Service has the same pods in both families; the family with more counts.
    """

    def __init__(self, ports: HealthCheckPorts) -> None:
        self._ports = ports
        self._wanted: dict[Family, tuple[dict[Key, int], dict[Key, int]]] = {}

    def want(self, family: Family, ports: Mapping[Key, int], ready: Mapping[Key, int]) -> None:
        """Open, close and answer as this family wants it: port and ready endpoints by Service."""
        self._wanted[family] = (dict(ports), dict(ready))
        self.again()

    def again(self) -> None:
        """Open what any family wants, if any has said so yet."""
        if not self._wanted:
            return
        wanted: dict[Key, int] = {}
        local: dict[Key, int] = {}
        for numbers, counts in self._wanted.values():
            wanted |= numbers
            for key, count in counts.items():
                local[key] = max(count, local.get(key, 0))
        self._ports.sync(wanted, local)

    def retry(self) -> None:
        """A port that was taken may be free by now; nothing tells when it is."""
        if self._ports.failing:
            self.again()
