"""The API server as a source: three reflectors on one client, each on a thread of its own."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from agent import logs
from agent.cluster.feed import SourceFailed
from agent.cluster.objects import SERVICE_SELECTOR, SLICE_SELECTOR, Kind
from agent.cluster.observe import NullObserver, SourceObserver
from agent.cluster.reflector import Reflector, RefusedError, Resource, WatchSettings
from agent.cluster.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubernetes.client import ApiClient

    from agent.cluster.feed import Event

log = logs.get(component=__name__)

#: Seconds that ``stop`` waits. Only a connection that is just being made takes any.
_STOP_SECONDS = 2.0


class KubeSource:
    """Services, EndpointSlices and this Node, as the API server has them.

    Objects that are labelled for another proxy, and headless slices, are never sent: the label
    selector leaves them out of lists, and a watch reports an object that gets the label as
    deleted, one that loses it as added.

    Args:
        api_client: the process's client. ``stop`` ends all of its connections.
        node_name: name of this Node.
        settings: sizes and times.
        observer: is told how lists and watches go.
        rng: for jitter and the length of watches.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        api_client: ApiClient,
        *,
        node_name: str,
        settings: WatchSettings | None = None,
        observer: SourceObserver | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or WatchSettings()
        observer = observer or NullObserver()
        self._transport = Transport(api_client, settings.connect_timeout, observer)
        self._stop = threading.Event()
        self._downstream: Callable[[Event], None] | None = None
        self._threads: list[threading.Thread] = []
        self._reflectors = {
            resource.kind: Reflector(
                resource,
                self._transport,
                self._put,
                self._stop,
                settings=settings,
                observer=observer,
                rng=rng or random.Random(),  # noqa: S311 (jitter)
                clock=clock,
            )
            for resource in _resources(node_name)
        }

    def start(self, put: Callable[[Event], None]) -> None:
        """Begin to list and watch; events go to ``put`` from three threads.

        Raises:
            RuntimeError: it was started before.
        """
        if self._downstream is not None:
            raise RuntimeError("a source is started once")
        self._downstream = put
        for kind, reflector in self._reflectors.items():
            thread = threading.Thread(
                target=self._run, args=(reflector,), name=f"watch-{kind.value}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End all threads and connections; no event follows."""
        self._stop.set()
        self._transport.interrupt()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("thread still waits for a connection", thread=thread.name)

    def seconds_since_contact(self) -> dict[Kind, float]:
        """Seconds since the last page of a list, event or bookmark of each kind."""
        return {kind: r.seconds_since_contact() for kind, r in self._reflectors.items()}

    def _put(self, event: Event) -> None:
        if self._downstream is not None and not self._stop.is_set():
            self._downstream(event)

    def _run(self, reflector: Reflector) -> None:
        try:
            reflector.run()
        except RefusedError as error:
            self._put(SourceFailed(error, refused=True))
        except BaseException as error:  # a thread must not die unseen
            if not self._stop.is_set():
                log.exception("watch thread died")
                self._put(SourceFailed(error))


def _resources(node_name: str) -> tuple[Resource, ...]:
    slices = "/apis/discovery.k8s.io/v1/endpointslices"
    return (
        Resource(Kind.SERVICE, "/api/v1/services", {"labelSelector": SERVICE_SELECTOR}),
        Resource(Kind.SLICE, slices, {"labelSelector": SLICE_SELECTOR}),
        Resource(Kind.NODE, "/api/v1/nodes", {"fieldSelector": f"metadata.name={node_name}"}),
    )
