"""Health as a function of what was queued, what was accepted, and when."""

from __future__ import annotations

import threading

import msgspec
import pytest

from agent.serve.health import HealthState
from agent.state.values import Family

TIMEOUT = 60.0
V4, V6 = Family.V4, Family.V6


class Clock:
    """Two clocks that are moved by hand; 1000 s of uptime is 2026-05-01 12:00 UTC."""

    def __init__(self) -> None:
        self.up = 1000.0

    def monotonic(self) -> float:
        return self.up

    def wall(self) -> float:
        return self.up - 1000 + 1777636800

    def state(self) -> HealthState:
        return HealthState(TIMEOUT, [V6, V4], monotonic=self.monotonic, wall=self.wall)


QUEUED, UPDATED = HealthState.queued, HealthState.updated

#: Steps (seconds to wait, what happens, in which family) and the families that are then late.
STORIES = [
    ("nothing has happened yet", [], set()),
    ("idle for ten periods", [(0, QUEUED, V4), (1, UPDATED, V4), (300, None, V4)], set()),
    ("one change waits, not for long", [(0, QUEUED, V4), (59.9, None, V4)], set()),
    ("one change waits for too long", [(0, QUEUED, V4), (60, None, V4)], {V4}),
    (
        "the first sync never succeeds",
        [(0, QUEUED, V4), (0, QUEUED, V6), (3600, None, V4)],
        {V4, V6},
    ),
    (
        "later changes do not make the first one younger",
        [(0, QUEUED, V4), (30, QUEUED, V4), (29, QUEUED, V4), (1, QUEUED, V4)],
        {V4},
    ),
    (
        "one family fails, the other is fine",
        [(0, QUEUED, V4), (0, QUEUED, V6), (1, UPDATED, V6), (60, None, V4)],
        {V4},
    ),
    (
        "one accepted sync heals",
        [(0, QUEUED, V4), (500, UPDATED, V4), (0, None, V4)],
        set(),
    ),
    (
        "a change after that waits anew",
        [(0, QUEUED, V4), (500, UPDATED, V4), (10, QUEUED, V4), (60, None, V4)],
        {V4},
    ),
]


@pytest.mark.parametrize(("title", "steps", "late"), STORIES, ids=[story[0] for story in STORIES])
def test_a_change_must_not_wait_for_too_long(
    title: str, steps: list[tuple[float, object, Family]], late: set[Family]
) -> None:
    """503 exactly while a family has something queued for the timeout or longer."""
    assert title
    clock = Clock()
    state = clock.state()
    for seconds, action, family in steps:
        clock.up += seconds
        if callable(action):
            action(state, family)
    for answer in (state.livez(), state.healthz()):
        body = msgspec.to_builtins(answer.body)
        assert answer.code == (503 if late else 200)
        assert body["healthy"] is not late
        unwell = {name for name, one in body["status"].items() if not one["healthy"]}
        assert unwell == {family.value for family in late}
    assert state.healthy is not bool(late)


@pytest.mark.parametrize("eligible", [True, False])
def test_a_node_that_goes_away_is_no_place_for_traffic(*, eligible: bool) -> None:
    """/healthz turns 503 for a Node that is about to go; /livez does not look at it."""
    state = Clock().state()
    state.set_eligible(eligible=eligible)
    healthz = msgspec.to_builtins(state.healthz().body)
    assert state.healthz().code == (200 if eligible else 503)
    assert healthz["nodeEligible"] is eligible
    assert healthz["healthy"] is True
    assert state.livez().code == 200
    assert "nodeEligible" not in msgspec.to_builtins(state.livez().body)
    assert state.healthy is True


def test_lateness_and_the_node_are_told_apart() -> None:
    """A node that goes away while a change waits for too long shows both in the body."""
    clock = Clock()
    state = clock.state()
    state.set_eligible(eligible=False)
    state.queued(V4)
    clock.up += 60
    healthz = msgspec.to_builtins(state.healthz().body)
    assert (healthz["healthy"], healthz["nodeEligible"]) == (False, False)


def test_a_node_can_become_eligible_again() -> None:
    """A taint that is taken away again is forgotten."""
    state = Clock().state()
    state.set_eligible(eligible=False)
    state.set_eligible(eligible=True)
    assert state.healthz().code == 200


def test_the_body_is_kube_proxys() -> None:
    """Fields and their order, RFC 3339 times, and lastUpdated that is now only while healthy."""
    clock = Clock()
    state = clock.state()
    clock.up += 10
    state.updated(V4)
    clock.up += 5
    assert msgspec.json.encode(state.healthz().body) == (
        b'{"lastUpdated":"2026-05-01T12:00:15.000000Z",'
        b'"currentTime":"2026-05-01T12:00:15.000000Z","healthy":true,"nodeEligible":true,'
        b'"status":{"IPv4":{"lastUpdated":"2026-05-01T12:00:10.000000Z","healthy":true},'
        b'"IPv6":{"lastUpdated":"2026-05-01T12:00:00.000000Z","healthy":true}}}'
    )
    state.queued(V6)
    clock.up += 60
    assert msgspec.json.encode(state.livez().body) == (
        b'{"lastUpdated":"2026-05-01T12:00:10.000000Z",'
        b'"currentTime":"2026-05-01T12:01:15.000000Z","healthy":false,'
        b'"status":{"IPv4":{"lastUpdated":"2026-05-01T12:00:10.000000Z","healthy":true},'
        b'"IPv6":{"lastUpdated":"2026-05-01T12:00:00.000000Z","healthy":false}}}'
    )


def test_ready_means_complete_lists_and_a_sync_of_every_family() -> None:
    """/readyz turns 200 when the last of the three conditions holds, and stays so."""
    clock = Clock()
    state = clock.state()
    seen = [state.readyz().code]
    state.updated(V4)
    seen.append(state.readyz().code)
    state.updated(V6)
    seen.append(state.readyz().code)
    state.lists_complete()
    seen.append(state.readyz().code)
    state.queued(V4)
    clock.up += 1000
    seen.append(state.readyz().code)
    assert seen == [503, 503, 503, 200, 200]
    assert msgspec.to_builtins(state.readyz().body) == {
        "ready": True,
        "listsComplete": True,
        "synced": {"IPv4": True, "IPv6": True},
    }


def test_age_does_not_follow_the_wall_clock() -> None:
    """A jump of the time of day makes nothing late."""
    clock = Clock()
    state = HealthState(TIMEOUT, [V4], monotonic=clock.monotonic, wall=lambda: 10.0**9)
    state.queued(V4)
    assert state.livez().code == 200


def test_threads_may_ask_while_another_tells() -> None:
    """Answers asked for while the state changes are whole answers."""
    state = HealthState(TIMEOUT, [V4, V6])
    stop = threading.Event()
    codes: set[int] = set()

    def ask() -> None:
        while not stop.is_set():
            codes.add(state.healthz().code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        state.queued(V4)
        state.updated(V4)
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == {200}
