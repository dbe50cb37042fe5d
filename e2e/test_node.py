from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.shell import wait_for
from e2e.traffic import connect, load

if TYPE_CHECKING:
    from e2e.cluster import Cluster


def test_a_node_restarts(cluster: Cluster) -> None:
    """After a restart a node's rules are all there again; the other node's traffic goes on."""
    stay, leave = cluster.nodes[:2]
    web = cluster.workload("staying", 2, nodes=[stay])
    away = cluster.workload("leaving", 1, nodes=[leave])
    service, other = cluster.expose(web, kind="NodePort"), cluster.expose(away)
    cluster.wait_programmed(service, 2)
    cluster.wait_programmed(other, 1)
    ip = next(iter(service.ips.values()))
    with load(web.pods()[0], ip, 80, held=5) as running:
        cluster.restart_node(leave)
    assert running.report["failures"] == []
    cluster.wait_programmed(service, 2)
    cluster.wait_programmed(other, 1)
    for family, address in service.ips.items():
        tally = connect(cluster.node(leave), address, 80, 40)
        assert tally.failures == {}
        assert set(tally.answers) == {pod.name for pod in web.pods()}
        node_ip = cluster.node(leave).ips[family]
        assert connect(cluster.outside, node_ip, service.node_ports[80], 20).answered == 20
    for place in (cluster.node(stay), web.pods()[0]):
        wait_for(
            f"{place.name} reaches the pod that was restarted",
            lambda place=place: (
                connect(  # type: ignore[misc]
                    place, next(iter(other.ips.values())), 80, 10
                ).answered
            ),
            accept=lambda answered: answered == 10,
        )
    for made in (service, other, web, away):
        cluster.delete(made)
