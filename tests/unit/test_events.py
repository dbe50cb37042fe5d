from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

import kubernetes_validate
import pytest
from kubernetes.client import ApiClient

from agent.cluster.events import EventRecorder, Notice
from agent.cluster.objects import Key

if TYPE_CHECKING:
    from collections.abc import Callable

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NOTICE = Notice("ServiceSetAside", "Sync", "It was refused.", Key("shop", "web"))


def fail(error: BaseException) -> None:
    pytest.fail(repr(error))


def recorder(node: str = "node-1", clock: Callable[[], float] = lambda: 0.0) -> EventRecorder:
    return EventRecorder(ApiClient(), node, died=fail, clock=clock, wall=lambda: MOMENT)


def test_an_event_is_about_the_node_and_names_the_service() -> None:
    """It has what events.k8s.io/v1 asks for, and what ``kubectl describe node`` looks for."""
    event = recorder().event(NOTICE)
    kubernetes_validate.validate(event, "1.36", strict=True)

    assert event["apiVersion"] == "events.k8s.io/v1"
    assert event["metadata"]["namespace"] == "default"
    assert event["eventTime"] == "2026-01-02T03:04:05.000678Z"
    assert (event["type"], event["reason"], event["action"]) == (
        "Warning",
        "ServiceSetAside",
        "Sync",
    )
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", "node-1")
    assert (event["related"]["namespace"], event["related"]["name"]) == ("shop", "web")
    assert event["note"] == "It was refused."


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "x" + "é" * 5000, "🙂" * 300])
def test_a_long_note_is_cut_by_bytes(text: str) -> None:
    """The API server counts bytes, and refuses more than 1,024; no character is cut in two."""
    note = recorder().event(Notice("A", "B", text))["note"]

    assert 1020 < len(note.encode()) <= 1024
    assert text.startswith(note)


@pytest.mark.parametrize("node", ["n", "n" * 253, "n" * 199 + "-a.example", "n" * 199 + ".a"])
def test_the_name_of_an_event_is_one(node: str) -> None:
    """However long the Node's name is, and wherever it is cut."""
    name = recorder(node).event(NOTICE)["metadata"]["name"]

    assert SUBDOMAIN.fullmatch(name)
    assert len(name) <= 253


def test_the_same_event_is_queued_once_in_a_while() -> None:
    """Again after ten minutes; and never more than a queue holds, whatever happens."""
    times = iter((0.0, 1.0, 599.0, 601.0, *[602.0] * 1000))
    events = recorder(clock=lambda: next(times))
    for _ in range(3):
        events.record(NOTICE)
    once = events._queue.qsize()
    events.record(NOTICE)
    twice = events._queue.qsize()
    for number in range(1000):
        events.record(Notice("A", "B", str(number)))

    assert (once, twice) == (1, 2)
    assert events._queue.qsize() == 64
