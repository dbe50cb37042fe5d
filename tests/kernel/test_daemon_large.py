"""A large cluster, more than 1,000 endpoints: many transactions, and rules without comments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.fakes.objects import cluster
from tests.kernel.running import BACKENDS, Host, Tables, until
from tests.kernel.shim import Shim

if TYPE_CHECKING:
    from pathlib import Path

SERVICES, ENDPOINTS = 220, 5


def own_chains(found: Tables, kind: str = "SVC") -> dict[str, list[str]]:
    return {
        name: rules
        for name, rules in found.get("nat", {}).items()
        if name.startswith(f"KUBE-{kind}-") and "TREE" not in name
    }


def complete(found: Tables) -> bool:
    """Whether every Service's chain that exists has all of its endpoints."""
    return all(len(rules) == ENDPOINTS for rules in own_chains(found).values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_cluster(host: Host, backend: str) -> None:
    """Everything is programmed, rules of endpoints carry no comments, and changes stay small."""
    host.api.put(*cluster(SERVICES, ENDPOINTS))
    agent = host.agent(backend=backend).start()
    first = agent.tables()
    lines = agent.logged("synced", family="IPv4")
    host.api.delete("Service", "svc-00007")
    agent.wait_rules("-d 10.96.0.8/32", gone=True)
    until(lambda: len(agent.logged("synced", family="IPv4")) > 1)
    partial = agent.logged("synced", family="IPv4")[-1]

    assert len(own_chains(first)) == SERVICES
    assert len(own_chains(first, "SEP")) == SERVICES * ENDPOINTS
    assert complete(first)
    assert "--comment" not in str([*own_chains(first).values(), *own_chains(first, "SEP").values()])
    assert len(first["nat"]["KUBE-SERVICES"]) < 30  # branches: a tree, without being asked for
    # nft's tool takes longer than its input is long: a transaction has 50 Services there.
    assert (lines[0]["transactions"] > 4) is (backend == "nft")
    assert partial["full"] is False
    assert partial["lines"] < SERVICES * 3
    assert agent.metric("onenth_endpoints") == (SERVICES - 1) * ENDPOINTS


def test_stale_chains_are_deleted_once_in_a_period(host: Host) -> None:
    """Chains that nothing jumps to wait until a syncPeriod after the last deletion, and no longer.

    They go then by themselves, without another change.
    """
    host.api.put(*cluster(SERVICES, ENDPOINTS))
    agent = host.agent("--iptables-sync-period", "3s").start()

    def gone() -> int:
        return SERVICES - len(own_chains(agent.tables()))

    def delete(number: int) -> int:
        host.api.delete("Service", f"svc-{number:05}")
        agent.wait_rules(f"-d 10.96.0.{number + 1}/32", gone=True)
        return gone()

    found = [delete(1), delete(2)]
    until(lambda: gone() == 2, 5, agent.story)

    assert found == [1, 1]


def test_a_signal_between_two_transactions(host: Host, tmp_path: Path) -> None:
    """Ended in the middle of a long sync, no Service is half there, and it ends soon.

    What the next agent then writes is the same as if nothing had happened.
    """
    host.api.put(*cluster(SERVICES, ENDPOINTS))
    shim = Shim(tmp_path)
    agent = host.agent(prefix=shim.prefix).launch()
    agent.wait_logged("first list is complete", kind="EndpointSlice")
    shim.delay(0.4)
    until(lambda: sum("KUBE-SEP-" in text for text in shim.inputs()) >= 2, 20, agent.story)
    asked = time.monotonic()
    status = agent.stop()
    seconds = time.monotonic() - asked
    during = agent.tables()
    shim.delay(None)
    agent.start()

    assert status == 0
    assert seconds < 2
    assert agent.tables().keys() == {"filter", "nat", "mangle"}
    assert 0 < len(own_chains(during)) < SERVICES
    assert complete(during)
    assert "KUBE-SVC" not in str(during["nat"].get("KUBE-SERVICES"))
    assert complete(agent.tables())
    assert len(own_chains(agent.tables())) == SERVICES
