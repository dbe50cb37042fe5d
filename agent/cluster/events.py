"""Events on the Node (``events.k8s.io/v1``) for what an operator must act on.

An Event is a courtesy: it must never delay a sync, fail one, or flood the API server. So events
wait in a short queue for a thread of their own, the same one is sent at most once in a while,
and one that cannot be sent is logged and dropped; the log and the metrics say the same.

Fields: https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

from __future__ import annotations

import datetime as dt
import queue
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from agent import logs
from agent.cluster.objects import Key
from agent.cluster.observe import NullObserver, RequestObserver
from agent.cluster.transport import ApiError, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubernetes.client import ApiClient

CONTROLLER = "onenth.dev/agent"
#: Events of objects without a namespace, such as a Node, live here (as kubectl expects).
_NAMESPACE = "default"
_NOTE_MAX = 1024  # bytes; API limit
_QUEUE_MAX = 64
_REPEAT_SECONDS = 600.0
_TIMEOUT = 10.0
_STOP_SECONDS = 2.0


class Notice(msgspec.Struct, frozen=True):
    """Something that an operator must act on.

    Attributes:
        reason: one CamelCase word, as API conventions ask for.
        action: what the agent was doing, likewise.
        note: a sentence for people.
        service: the Service that it is about, if it is about one.
    """

    reason: str
    action: str
    note: str
    service: Key | None = None


class Recorder(Protocol):
    """Takes notices; returns at once."""

    def record(self, notice: Notice) -> None:
        """Make an Event of it."""


class NoRecorder:
    """Without an API server there is nobody to tell; the log has said it."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def record(self, notice: Notice) -> None:
        """Do nothing."""


class EventRecorder:
    """Sends Events about one Node from a thread of its own."""

    def __init__(
        self,
        api_client: ApiClient,
        node_name: str,
        *,
        died: Callable[[BaseException], None],
        observer: RequestObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        """Nothing is sent before ``start``.

        Args:
            api_client: the process's client.
            node_name: the Node that Events are about.
            died: told of an error that ended the thread.
            observer: is told of every request.
            clock: monotonic seconds.
            wall: the time now.
        """
        self._transport = Transport(api_client, _TIMEOUT, observer or NullObserver())
        self._node_name = node_name
        self._died = died
        self._clock = clock
        self._wall = wall
        self._log = logs.get()
        self._queue: queue.Queue[Notice | None] = queue.Queue(_QUEUE_MAX)
        self._sent: dict[Notice, float] = {}
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what waits is dropped."""
        self._transport.interrupt()
        while True:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                self._queue.get_nowait()
            else:
                break
        self._thread.join(_STOP_SECONDS)

    def record(self, notice: Notice) -> None:
        """Queue an Event, unless the same one was queued a short while ago, or too many wait."""
        now = self._clock()
        self._sent = {old: at for old, at in self._sent.items() if now - at < _REPEAT_SECONDS}
        if notice in self._sent or len(self._sent) >= 2 * _QUEUE_MAX:
            return
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._log.warning("event dropped, too many wait", reason=notice.reason)
            return
        self._sent[notice] = now

    def _run(self) -> None:
        try:
            while (notice := self._queue.get()) is not None:
                self._send(notice)
        except BaseException as error:  # a thread must not die unseen
            self._died(error)
            raise

    def _send(self, notice: Notice) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{_NAMESPACE}/events"
        try:
            self._transport.post(path, self.event(notice), _TIMEOUT)
        except ApiError as error:
            self._log.warning("event not sent", reason=notice.reason, error=str(error))

    def event(self, notice: Notice) -> dict[str, Any]:
        """The Event as the API server takes it."""
        moment = self._wall().isoformat(timespec="microseconds").replace("+00:00", "Z")
        event: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{self._node_name[:200].rstrip('-.')}.{uuid.uuid4().hex[:16]}",
                "namespace": _NAMESPACE,
            },
            "eventTime": moment,
            "reportingController": CONTROLLER,
            "reportingInstance": f"onenth-{self._node_name}"[:128],
            "action": notice.action,
            "reason": notice.reason,
            "type": "Warning",
            # Like the kubelet, by the Node's name: kubectl describe finds it by that.
            "regarding": {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node_name,
                "uid": self._node_name,
            },
            "note": notice.note.encode()[:_NOTE_MAX].decode(errors="ignore"),
        }
        if notice.service is not None:
            event["related"] = {
                "apiVersion": "v1",
                "kind": "Service",
                "namespace": notice.service.namespace,
                "name": notice.service.name,
            }
        return event
