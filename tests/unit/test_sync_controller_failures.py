from __future__ import annotations

import datetime as dt
from unittest import mock

import pytest

from agent.cluster.feed import Deleted
from agent.cluster.objects import (
    ANNOTATION_TRIGGER_TIME,
    EndpointSlice,
    Key,
    Kind,
)
from agent.rules import ruleset
from agent.state.flows import UdpFlow
from agent.state.node import KernelFacts
from agent.sync.controller import FactsChanged
from agent.sync.port import Refusal
from tests.fakes import cluster
from tests.fakes.cluster import NODE
from tests.fakes.world import EPOCH, V4, V6, World, annotate, dual, udp_service, udp_slice, upsert

# Failures ---------------------------------------------------------------------------------


def test_a_failed_sync_is_retried_later_each_time_and_in_full() -> None:
    """Retries come after 1, 2 and 4 seconds without any event; the one that works is full."""
    world = World()
    world.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    world.now += 5
    world.kernels[V4].fail_next(3)
    world.handle(upsert(cluster.endpoint_slice("10.0.0.2")))
    waits = [world.wait() for _ in range(3)]

    assert waits == [1.0, 2.0, 4.0]
    assert [(args[0], args[3], args[4]) for args in world.notes.of("failed")] == [
        (V4, 1.0, False),
        (V4, 2.0, True),
        (V4, 4.0, True),
    ]
    assert world.notes.of("synced")[-1][1].full
    assert "10.0.0.2:8080" in world.nat()
    assert world.wait() == pytest.approx(18.0)  # to the next look at the kernel, at 130


def test_a_family_that_fails_does_not_hold_up_the_other() -> None:
    """While IPv4 cannot be written, changes of IPv6 are."""
    world = World()
    world.list_all(dual())
    world.kernels[V4].fail_next(1000)
    world.now += 5
    world.handle(
        upsert(cluster.endpoint_slice("10.0.0.1")),
        upsert(cluster.endpoint_slice("fd00::1", name="web-6", family="IPv6")),
    )

    assert world.notes.families("failed") == [V4]
    assert "[fd00::1]:8080" in world.nat(V6)


def test_a_service_that_came_and_went_during_a_failure_leaves_nothing() -> None:
    """1 -> 0 -> 1 endpoints while restores fail ends as if nothing had failed."""
    world, straight = World(), World()
    for one in (world, straight):
        one.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
        one.now += 5
    world.kernels[V4].fail_next(2)
    world.handle(upsert(cluster.endpoint_slice()))
    world.later(1)
    world.handle(upsert(cluster.endpoint_slice("10.0.0.1")))
    world.wait()
    straight.handle(upsert(cluster.endpoint_slice("10.0.0.1")))

    assert world.kernels[V4].texts("nat") == straight.kernels[V4].texts("nat")
    assert world.kernels[V4].texts("filter") == straight.kernels[V4].texts("filter")


def test_a_difference_in_the_kernel_is_repaired_at_once() -> None:
    """A flushed table is noticed by the next look, and written again in the same step."""
    world = World()
    world.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    good = world.kernels[V4].texts("nat")
    world.kernels[V4].flush("nat")
    world.later(31)

    assert world.kernels[V4].texts("nat") == good
    (_, differences, _), (_, none, _) = world.notes.of("audited")
    assert "KUBE-SERVICES" in {difference.chain for difference in differences}
    assert none == []
    assert world.notes.families("audited") == [V4, V6]


def test_a_kernel_that_cannot_be_read_is_told_and_looked_at_again() -> None:
    """A failed look is no reason to write, and the next one comes after the usual time."""
    world = World()
    world.list_all()
    before = world.restores()
    world.kernels[V4].fail_reads(1)
    world.later(31)
    world.later(31)

    assert world.notes.families("audit_failed") == [V4]
    assert world.notes.families("audited") == [V6, V4, V6]
    assert world.restores() == before


def test_no_look_at_the_kernel_while_a_sync_is_owed() -> None:
    """A sync that failed is owed in full; comparing with what it should have written is idle."""
    world = World()
    world.list_all()
    world.kernels[V4].fail_next(1000, Refusal.LOCKED)
    world.now += 28
    world.handle(upsert(cluster.service()))
    world.later(3)

    assert world.notes.families("audited") == [V6]


def test_everything_is_written_again_once_an_hour() -> None:
    """A full sync comes an hour after the last one, for no other reason."""
    world = World()
    world.list_all()
    before = len(world.notes.of("synced"))
    for _ in range(119):
        world.later(30)
    quiet = len(world.notes.of("synced"))
    world.later(31)

    assert quiet == before
    assert [args[1].full for args in world.notes.of("synced")[before:]] == [True, True]


def test_a_service_that_was_set_aside_is_tried_again_without_spinning() -> None:
    """When its delay is over while retries wait, the loop sleeps until the retry."""
    world = World()
    world.list_all(cluster.service(), cluster.endpoint_slice("10.0.0.1"))
    world.kernels[V4].refuse(r"10\.0\.0\.66")
    world.now += 5
    world.handle(upsert(cluster.endpoint_slice("10.0.0.66")))
    while not world.tracks[V4].syncer.quarantine.entries:
        world.wait()
    assert world.notes.of("synced")[-1][1].set_aside.keys() == {cluster.key()}
    due = world.tracks[V4].syncer.quarantine.next_due()
    assert due is not None

    world.kernels[V4].fail_next(1000)
    world.now = due - 20
    world.handle(upsert(cluster.service("other", "10.96.0.5")))  # fails from now on
    while world.now < due + 40:
        assert world.wait() >= 0.5


# What follows acceptance ------------------------------------------------------------------


def trigger(obj: EndpointSlice, seconds: float) -> EndpointSlice:
    moment = dt.datetime.fromtimestamp(EPOCH + seconds, dt.UTC).isoformat()
    return annotate(obj, {ANNOTATION_TRIGGER_TIME: moment})


def test_latency_is_measured_from_the_first_change_to_acceptance() -> None:
    """Trigger times wait through failures, and are told once, with the sync that worked."""
    world = World()
    world.list_all(cluster.service())
    world.kernels[V4].fail_next(1)
    world.now += 5
    world.handle(upsert(trigger(cluster.endpoint_slice("10.0.0.1"), 7)))
    world.handle(upsert(trigger(cluster.endpoint_slice("10.0.0.2"), 8)))
    world.wait()
    world.now += 5
    world.handle(upsert(cluster.endpoint_slice("10.0.0.3")))

    told = [args[3] for args in world.notes.of("synced") if args[0].rules.node.family is V4]
    assert told == [[], [EPOCH + 7, EPOCH + 8], []]


def test_a_deleted_slice_takes_its_trigger_time_along() -> None:
    """The annotation of a slice that is gone tells of an older change than its deletion."""
    world = World()
    world.list_all(cluster.service())
    slice_ = trigger(cluster.endpoint_slice("10.0.0.1"), 7)
    world.controller.handle(upsert(slice_))
    world.controller.handle(Deleted(Kind.SLICE, Key("shop", "web-1")))
    world.later(5)

    assert [args[3] for args in world.notes.of("synced")] == [[], [], []]


def test_flows_are_handed_on_only_when_the_kernel_has_the_rules() -> None:
    """The table of UDP flows comes behind the accepted sync, not before it, and is current."""
    world = World()
    world.list_all(udp_service(), udp_slice("10.0.0.1"))
    world.notes.told.clear()
    world.kernels[V4].fail_next(1)
    world.now += 5
    world.handle(upsert(udp_slice("10.0.0.2")))
    failed = list(world.notes.of("flows"))
    world.wait()
    ((family, table),) = world.notes.of("flows")

    assert failed == []
    assert family is V4
    assert table.is_stale(UdpFlow(("10.96.0.1", 53), ("10.0.0.1", 5353)))
    assert not table.is_stale(UdpFlow(("10.96.0.1", 53), ("10.0.0.2", 5353)))


def test_flows_are_swept_at_the_start_and_then_only_after_changes_of_udp() -> None:
    """A TCP change does not ask for a sweep."""
    world = World()
    world.list_all(udp_service(), udp_slice("10.0.0.1"), cluster.service("t", "10.96.0.9"))
    first = world.notes.families("flows")
    world.now += 5
    world.handle(upsert(cluster.endpoint_slice("10.0.0.5", service="t")))

    assert first == [V4, V6]
    assert world.notes.families("flows") == first


def test_flows_are_swept_when_an_address_of_this_node_comes() -> None:
    """Node ports answer there from then on, though no rule changes: in that family, and once."""
    world = World()
    world.list_all(udp_service(nodePort=30053), udp_slice("10.0.0.1"))
    restores = world.restores()
    world.notes.told.clear()
    world.facts = KernelFacts(addresses=(*world.facts.addresses, "192.0.2.77/24"))
    world.handle(FactsChanged(), FactsChanged())
    ((family, table),) = world.notes.of("flows")

    assert family is V4
    assert table.is_stale(UdpFlow(("192.0.2.77", 30053), ("192.0.2.77", 30053)))
    assert world.restores() == restores


def test_flows_are_not_swept_for_each_pod_that_comes() -> None:
    """It brings a link-local address; reading a large table for that would cost too much."""
    world = World()
    world.list_all(udp_service(nodePort=30053), udp_slice("10.0.0.1"))
    world.notes.told.clear()
    world.facts = KernelFacts(addresses=(*world.facts.addresses, "fe80::5/64"))
    world.handle(FactsChanged())

    assert world.notes.of("flows") == []


def test_flows_wait_for_the_rules_when_an_address_comes_meanwhile() -> None:
    """As long as the kernel does not have the rules, nothing is swept."""
    world = World()
    world.list_all(udp_service(), udp_slice("10.0.0.1"))
    world.kernels[V4].fail_next(1)
    world.now += 5
    world.notes.told.clear()
    world.handle(upsert(udp_slice("10.0.0.2")))
    world.facts = KernelFacts(addresses=(*world.facts.addresses, "192.0.2.77/24"))
    world.handle(FactsChanged())
    before = world.notes.of("flows")
    world.wait()
    ((_, table),) = world.notes.of("flows")

    assert before == []
    assert "192.0.2.77" in table.node_ips


def test_chains_that_had_to_wait_go_without_another_change() -> None:
    """A large cluster deletes at most once per period, and then all that is left, by itself."""
    with mock.patch.object(ruleset, "LARGE_CLUSTER", 1):
        world = World()
        ips = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
        world.list_all(cluster.service(), cluster.endpoint_slice(*ips))
        for left in (ips[1:], ips[2:]):
            world.now += 5
            world.handle(upsert(cluster.endpoint_slice(*left)))
        restores = world.restores()
        while "10.0.0.2:8080" in world.nat():
            world.wait()
            assert world.now <= 135  # 30 s after the first of them went, at 105

        assert world.now == 135
        assert world.restores() == restores + 1
        world.wait()
        assert world.now == 160  # a look at the kernel; nothing else is to be done
        assert world.restores() == restores + 1


def test_health_check_ports_follow_accepted_syncs() -> None:
    """A Local load balancer's port is told with the local ready endpoints, to zero and away."""
    world = World()
    service = cluster.service(
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=31000,
        ports=[{"name": "http", "port": 80, "nodePort": 30080}],
    )
    world.list_all(service, cluster.endpoint_slice(cluster.endpoint("10.0.0.1", node=NODE)))
    for event in (upsert(cluster.endpoint_slice()), Deleted(Kind.SERVICE, cluster.key())):
        world.now += 5
        world.handle(event)

    told = [args[1:] for args in world.notes.of("health_ports") if args[0].family is V4]
    key = cluster.key()
    assert told == [({key: 31000}, {key: 1}), ({key: 31000}, {key: 0}), ({}, {})]


def test_records_of_services_that_are_gone_are_forgotten() -> None:
    """The memory of a deleted Service stays until both families have taken its absence in."""
    world = World()
    world.list_all(dual(), cluster.endpoint_slice("10.0.0.1"))
    world.handle(Deleted(Kind.SERVICE, cluster.key()), Deleted(Kind.SLICE, Key("shop", "web-1")))
    kept = len(world.store)
    world.wait()

    assert (kept, len(world.store)) == (1, 0)
