"""A real kube-proxy and this agent, each on a node of its own, given the same stream of changes.

Needs kube-proxy itself, like ``test_takeover``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, Testbed
from tests.kernel import randomstate, shapes
from tests.kernel.running import BACKENDS, RunningAgent, serve_api, tables, until
from tests.kernel.test_takeover import KubeProxy, meaning, pytestmark

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["pytestmark"]  # it skips these tests as well

ROUNDS = 8


def rules(bed: Testbed, backend: str) -> dict[str, dict[str, list[str]]]:
    """What both write: kube-proxy also has KUBE-FIREWALL where it is of no use, for IPv6."""
    found = {family: meaning(tables(bed.node, backend, family)) for family in shapes.FAMILIES}
    found["IPv6"] = {
        chain: [text for text in texts if "KUBE-FIREWALL" not in text]
        for chain, texts in found["IPv6"].items()
        if "KUBE-FIREWALL" not in chain
    }
    return found


def changes(rng: random.Random, bed: Testbed, known: set[str]) -> list[shapes.Object | str]:
    """Objects to put, and names of Services to delete, whose slices stay, in some order."""
    objects = randomstate.services(rng, bed.pods)
    for spec in (obj["spec"] for obj in objects if obj["kind"] == "Service"):
        if "sessionAffinity" in spec:  # the API server's default; kube-proxy relies on it
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": rng.choice([9, 10800])}}
    found: list[shapes.Object | str] = [obj for obj in objects if rng.random() < 0.6]
    found += rng.sample(sorted(known), len(known) // 3)
    rng.shuffle(found)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_changes_make_the_same_rules(tmp_path: Path, backend: str) -> None:
    """After each handful of changes both nodes' rules mean the same, chain by chain."""
    rng = random.Random(36)  # noqa: S311  a test that can be repeated
    folders = {name: tmp_path / name for name in ("theirs", "ours")}
    for folder in folders.values():
        folder.mkdir()
    with (
        Testbed(pods=3) as theirs, serve_api(theirs.node) as their_api,
        Testbed(pods=3) as ours, serve_api(ours.node) as our_api,
    ):  # fmt: skip
        for api in (their_api, our_api):
            api.put(shapes.node(*NODE_IPS))
        proxy = KubeProxy(theirs, their_api, backend, folders["theirs"])
        flags = ("--cluster-cidr", ",".join(CLUSTER_CIDRS), "--dispatch", "flat")
        agent = RunningAgent(ours.node, folders["ours"], our_api, *flags, backend=backend)
        proxy.start()
        agent.start()
        sizes = []
        for _ in range(ROUNDS):
            stored = our_api.store.keys()
            known = {name for kind, _, name in stored if kind == "Service"}
            stream = changes(rng, ours, known)
            while stream:
                count = rng.choice([1, 3, len(stream)])
                for one in stream[:count]:
                    for api in (their_api, our_api):
                        if isinstance(one, str):
                            api.delete("Service", one)
                        else:
                            api.put(one)
                del stream[:count]
                until(lambda: rules(theirs, backend) == rules(ours, backend), 20, agent.story)
            sizes.append(len(rules(ours, backend)["IPv4"]))
        partial = [line for line in agent.logged("synced") if not line["full"]]
        proxy.stop()
        agent.stop()

    assert max(sizes) > 40
    assert len(partial) > ROUNDS
