"""A Service that the kernel itself refuses, and not a stand-in for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.kernel.running import BACKENDS, stays, until
from tests.kernel.shapes import endpoint, endpoint_slice, port, service

if TYPE_CHECKING:
    from tests.kernel.running import Host

COUNTER = "localhost_nps_accepted_pkts"
GOOD = 60


@pytest.mark.usefixtures("counters")
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_that_the_kernel_refuses_cost_nobody_else(host: Host, backend: str) -> None:
    """The kernel takes no rule that names a counter which is gone, as those of node ports do. nft
    names the line; legacy says that the commit failed and no more, so it is found by halving. All
    others are programmed, in few restores; the guilty ones are named, and work once they changed.
    """
    for n in range(1, GOOD + 1):
        host.api.put(
            service(f"s{n}", f"10.96.1.{n}"), endpoint_slice(f"s{n}", endpoint(f"10.0.1.{n}"))
        )
    agent = host.agent("--iptables-sync-period", "1h", backend=backend).start()

    def looks() -> float | None:
        return agent.metric("onenth_audit_rounds_total", ip_family="IPv4", result="same")

    # A look at the kernel makes the counter again: the next one is to be in an hour.
    until(lambda: (past := looks()) and stays(lambda: looks() == past, 3.0), 60, agent.story)
    host.namespace.run(["nfacct", "delete", COUNTER])
    for n in (1, 2):
        ports = [port(node_port=30000 + n)]
        host.api.put(
            service(f"bad{n}", f"10.96.2.{n}", type="NodePort", ports=ports),
            endpoint_slice(f"bad{n}", endpoint(f"10.0.2.{n}")),
        )
    host.api.put(service("last", "10.96.1.99"), endpoint_slice("last", endpoint("10.0.1.99")))
    agent.wait_rules("10.0.1.99:8080", seconds=60)

    def named() -> set[str]:
        event = "the kernel refused a Service; it is set aside, the others work"
        return {line["service"] for line in agent.logged(event, family="IPv4")}

    until(lambda: named() == {"default/bad1", "default/bad2"}, 20, agent.story)
    searched = sum(line["transactions"] for line in agent.logged("synced", family="IPv4"))
    until(lambda: agent.metric("onenth_set_aside_services", ip_family="IPv4") == 2)
    for n in (1, 2):
        host.api.put(service(f"bad{n}", f"10.96.2.{n}"))
        agent.wait_rules(f"10.0.2.{n}:8080", seconds=30)

    nat = str(agent.tables()["nat"])
    assert [n for n in range(1, GOOD + 1) if f"10.0.1.{n}:8080" not in nat] == []
    # Two searches at most, of a full sync each, beside the first syncs.
    assert searched <= 2 * 2 * (2 * math.log2(GOOD + 3) + 6), searched
    until(lambda: agent.metric("onenth_set_aside_services", ip_family="IPv4") == 0)


@pytest.mark.usefixtures("counters")
def test_a_counter_that_somebody_deleted_comes_back(host: Host) -> None:
    """At the next look at the kernel, so that node ports do not wait for a restart."""
    agent = host.agent("--iptables-sync-period", "500ms").start()
    host.namespace.run(["nfacct", "delete", COUNTER])
    until(lambda: COUNTER in host.namespace.run(["nfacct", "list"]).stdout, 20, agent.story)
    host.api.put(
        service("web", "10.96.0.1", type="NodePort", ports=[port(node_port=30001)]),
        endpoint_slice("web", endpoint("10.0.0.1")),
    )
    agent.wait_rules(COUNTER, chain="KUBE-NODEPORTS")

    assert agent.metric("onenth_set_aside_services", ip_family="IPv4") == 0
