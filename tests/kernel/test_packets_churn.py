"""Connections while rules change under them: a packet meets a complete Service or none."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.fakes.objects import cluster as crowd
from tests.kernel.running import until
from tests.kernel.shapes import endpoint, endpoint_slice, port, service

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kernel.smallcluster import SmallCluster

STILL, ROLLING = "10.97.4.1", "10.97.4.2"


@pytest.mark.parametrize(
    ("backend", "layout"), [("nft", "flat"), ("nft", "tree"), ("legacy", "tree")]
)
def test_no_connection_fails_while_rules_change(
    clusters: Callable[[str, str], SmallCluster], backend: str, layout: str
) -> None:
    """Eighty Services come, change and go, one rolls through its pods: nothing is refused or lost.

    Neither connections to a Service that nobody changes, nor those to the one that rolls; and
    established ones to pods that left it go on.
    """
    cluster = clusters(backend, layout)
    bed, api = cluster.bed, cluster.api
    pods = [endpoint(pod.ips[0]) for pod in bed.pods]
    pairs = itertools.cycle(itertools.combinations(pods, 2))
    others = list(crowd(80, 3))
    syncs = len(cluster.agent.logged("synced", family="IPv4"))
    with cluster.putting(
        service("still", STILL, type="NodePort", ports=[port(node_port=31500)]),
        endpoint_slice("still", *pods),
        service("rolling", ROLLING),
        endpoint_slice("rolling", *next(pairs)),
        *others,
    ):
        with (
            bed.start_client(bed.client, ROLLING, 80, count=60, hold=True) as held,
            bed.start_client(bed.client, STILL, 80, count=1500, concurrency=4, interval=0.01) as a,
            bed.start_client(
                bed.client, ROLLING, 80, count=1500, concurrency=4, interval=0.01
            ) as b,
        ):
            opened = held.tally()
            number = 0

            def churn() -> bool:
                nonlocal number
                number += 1
                api.put(endpoint_slice("rolling", *next(pairs)))
                for obj in others[number % 4 :: 7]:
                    name = obj["metadata"]["name"]
                    if number % 3:
                        api.put({**obj, "endpoints": obj.get("endpoints", [])[number % 2 :]})
                    else:
                        api.delete(obj["kind"], name)
                return a.process.poll() is not None and b.process.poll() is not None

            until(churn, 60)
            still, rolling, last = a.tally(), b.tally(), held.ask()
        rounds = len(cluster.agent.logged("synced", family="IPv4")) - syncs

    assert (still.answered, still.failures) == (1500, {})
    assert (rolling.answered, rolling.failures) == (1500, {})
    assert last.answers == opened.answers
    assert last.failures == {}
    assert rounds > 30
