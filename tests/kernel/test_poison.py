"""Bad objects among fifty good Services, through the API and a real kernel."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from agent.cluster.objects import Kind
from tests.fakes.poison import HONEST, QUIET, REJECTED, doses, fields, poisoned
from tests.kernel.running import BACKENDS
from tests.kernel.shapes import endpoint, endpoint_slice, service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kernel.running import Host, RunningAgent, Tables

GOOD = 50
HEADS = {Kind.SERVICE: "v1", Kind.SLICE: "discovery.k8s.io/v1"}
FAMILIES = ("IPv4", "IPv6")


def evils() -> Iterator[tuple[Kind, str, Any, str | None]]:
    """Of each field below the metadata: what is of no type, what means nothing, what is odd."""
    for kind in HEADS:
        for path, cls in fields(kind).items():
            if path.startswith("metadata"):
                continue
            seen: set[str | None] = set()
            for value, reason in doses(kind, path, cls):
                if reason == QUIET or reason not in seen:
                    yield kind, path, value, reason
                seen.add(reason)


def put(host: Host, number: int, kind: Kind, path: str, value: Any) -> str:
    """Put a bad object beside an honest one of the other kind; returns its name."""
    name = f"evil-{number}"
    for one, version in HEADS.items():
        obj = poisoned(kind, path, value) if one is kind else copy.deepcopy(HONEST[one])
        if one is Kind.SERVICE and path != "spec.healthCheckNodePort" and obj["spec"]:
            obj["spec"]["healthCheckNodePort"] = 20_000 + number  # one of its own
        labels = {"kubernetes.io/service-name": name} if one is Kind.SLICE else {}
        metadata = {"name": name, "namespace": "default", "labels": labels}
        obj |= {"kind": one.value, "apiVersion": version, "metadata": metadata}
        host.api.put(obj)
    return name


def beside(found: dict[str, Tables], alone: dict[str, Tables]) -> dict[str, Tables]:
    """The rules of all but the evil ones."""
    return {
        family: {
            table: {
                chain: [rule for rule in rules if "default/evil-" not in rule]
                for chain, rules in chains.items()
                if chain in alone[family][table]
            }
            for table, chains in in_family.items()
        }
        for family, in_family in found.items()
    }


def tables(agent: RunningAgent) -> dict[str, Tables]:
    return {family: agent.tables(family) for family in FAMILIES}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_fifty_do_not_notice(host: Host, backend: str) -> None:
    """A bad object for each field, all at once, and a giant: the kernel takes everything at the
    first attempt, the rules of the fifty stay as they are, and each bad one is named and counted.
    """
    for n in range(1, GOOD + 1):
        host.api.put(
            service(f"s{n}", f"10.96.1.{n}"), endpoint_slice(f"s{n}", endpoint(f"10.0.1.{n}"))
        )
    flags = ("--dispatch", "flat", "--iptables-sync-period", "1h")
    agent = host.agent(*flags, backend=backend).start()
    alone = tables(agent)
    bad = [
        (put(host, number, kind, path, value), kind, reason)
        for number, (kind, path, value, reason) in enumerate(evils())
    ]
    many = [{"name": f"p{n}", "port": n + 1, "protocol": "TCP"} for n in range(1500)]
    host.api.put(service("evil-giant", "10.96.9.1", ports=many))
    host.api.put(service("last", "10.96.1.99"), endpoint_slice("last", endpoint("10.0.1.99")))
    agent.wait_rules("10.0.1.99:8080", seconds=90)

    def named(event: str) -> set[str]:
        return {line["object"] for line in agent.logged(event)}

    rejected = {f"default/{name}" for name, _, reason in bad if reason == REJECTED}
    partly = {f"default/{name}" for name, _, reason in bad if reason not in {REJECTED, QUIET, None}}
    partly.add("default/evil-giant")
    assert named("object cannot be used") == rejected
    whatever = {f"default/{name}" for name, _, reason in bad if reason is None}
    found = named("part of an object was left out")
    assert found - whatever == partly
    host.api.delete("Service", "last")
    host.api.delete("EndpointSlice", "last-1")
    agent.wait_rules("10.0.1.99:8080", gone=True, seconds=60)

    assert len(bad) > 100
    assert beside(tables(agent), alone) == alone
    assert agent.logged("sync failed") == []
    for family in FAMILIES:
        assert agent.metric("onenth_set_aside_services", ip_family=family) == 0
    counted = sum(agent.metric("onenth_unusable_objects", kind=kind.value) or 0 for kind in HEADS)
    assert counted == len(rejected) + len(found)
