from __future__ import annotations

import time
from typing import TYPE_CHECKING

from e2e.traffic import connect, load

if TYPE_CHECKING:
    from e2e.cluster import Cluster


def test_hand_over_to_kube_proxy_and_back(cluster: Cluster) -> None:
    """From the agent to kube-proxy and back: no connection breaks, new or held.

    The agent finds kube-proxy's rules and takes them over; kube-proxy, or what stands for it,
    does the same the other way.
    """
    web = cluster.workload("takeover", 2, nodes=cluster.nodes[:2])
    service = cluster.expose(web, kind="NodePort")
    cluster.wait_programmed(service, 2)
    names = {pod.name for pod in web.pods()}
    first, second = web.pods()
    ip = next(iter(service.ips.values()))
    with load(first, ip, 80, held=5) as one, load(second, ip, 80, held=5) as two:
        with cluster.other_proxy(service, web) as proxy:
            assert proxy
            time.sleep(3)
            for node in cluster.nodes[:2]:
                address = next(iter(cluster.node(node).ips.values()))
                tally = connect(cluster.outside, address, service.node_ports[80], 40)
                assert tally.failures == {}
                assert set(tally.answers) == names
        time.sleep(2)
    for report in (one.report, two.report):
        assert report["failures"] == []
        assert set(report["answers"]) == names
        assert sum(report["held_answers"].values()) > 20
    cluster.wait_programmed(service, 2)
    cluster.delete(service)
    cluster.delete(web)
