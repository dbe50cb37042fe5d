"""The daemon on a fake API server, through the real official client: what is programmed when."""

from __future__ import annotations

import shutil
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.apiserver import FakeAPIServer, Fault
from tests.kernel import shapes
from tests.kernel.running import HOST_IPS, serve_api, stays, until
from tests.kernel.shapes import NODE, endpoint, endpoint_slice, service

if TYPE_CHECKING:
    from tests.kernel.running import Host, RunningAgent

PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"
TLS = Path(__file__).parents[1] / "api/tls"
A, B = "10.96.0.1", "10.96.0.2"
POD_A, POD_B = "10.0.0.1", "10.0.0.2"


def put_two(host: Host) -> None:
    host.api.put(
        service("a", A),
        endpoint_slice("a", endpoint(POD_A)),
        service("b", B),
        endpoint_slice("b", endpoint(POD_B)),
    )


def holds(agent: RunningAgent, *wanted: str, without: tuple[str, ...] = ()) -> None:
    """Wait until the nat table has all of these texts, and none of the others."""

    def look() -> bool:
        nat = str(agent.tables().get("nat", {}))
        return all(text in nat for text in wanted) and not any(text in nat for text in without)

    until(look, 15, lambda: f"{wanted} without {without}: {agent.story()}")


@pytest.mark.parametrize("late", ["services", "endpointslices", "nodes"])
def test_nothing_is_written_before_every_list_is_complete(host: Host, late: str) -> None:
    """While one list has not come, there is no rule and no readiness; then both come."""
    put_two(host)
    host.api.fail(Fault(hang=True), verb="list", plural=late)
    agent = host.agent().launch()
    kinds = {"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node"}
    for plural, kind in kinds.items():
        if plural != late:
            agent.wait_logged("first list is complete", kind=kind)
    until(lambda: agent.get("/readyz").status)
    quiet = stays(lambda: "KUBE-SERVICES" not in agent.tables().get("nat", {}), 0.5)
    not_ready = agent.get("/readyz").status
    host.api.cut()
    agent.wait_ready()

    assert quiet
    assert not_ready == 503
    holds(agent, f"{POD_A}:8080", f"{POD_B}:8080")


def test_changes_follow(host: Host) -> None:
    """A new Service, a moved endpoint and a deleted Service are in the rules a moment later."""
    put_two(host)
    agent = host.agent().start()
    host.api.put(service("c", "10.96.0.3"), endpoint_slice("c", endpoint("10.0.0.3")))
    holds(agent, "10.0.0.3:8080")
    host.api.put(endpoint_slice("c", endpoint("10.0.0.33")))
    holds(agent, "10.0.0.33:8080", without=("10.0.0.3:8080",))
    host.api.delete("Service", "c")
    host.api.delete("EndpointSlice", "c-1")
    holds(agent, f"{POD_A}:8080", without=("10.0.0.33", "10.96.0.3"))

    assert agent.metric("kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                        ip_family="IPv4") == 0  # fmt: skip


@pytest.mark.parametrize("as_status", [True, False], ids=["status", "event"])
def test_what_was_deleted_while_the_watch_was_down_goes(host: Host, *, as_status: bool) -> None:
    """A version that is gone (410, in either form) leads to a list, which is a replacement."""
    put_two(host)
    agent = host.agent().start()
    holds(agent, f"{POD_A}:8080", f"{POD_B}:8080")
    host.api.gone_as_status = as_status
    lists = len(host.api.seen("list", "services"))
    with host.api.store.condition:  # nothing is sent meanwhile
        host.api.delete("Service", "b")
        host.api.delete("EndpointSlice", "b-1")
        host.api.compact()
        host.api.cut()
    holds(agent, f"{POD_A}:8080", without=(f"{POD_B}:8080", B))
    agent.wait_rules(B, gone=True, table="filter")  # without endpoints it is refused, not absent

    assert len(host.api.seen("list", "services")) > lists
    assert agent.running


def test_an_api_server_that_goes_away_and_comes_back(host: Host) -> None:
    """Rules stay while nobody answers, health stays, and changes follow afterwards."""
    put_two(host)
    agent = host.agent("--iptables-sync-period", "1s").start()
    before = agent.tables()
    port = int(host.api.url.rpartition(":")[2])
    host.api.stop()
    kept = stays(lambda: agent.tables() == before and agent.running, 1.5)
    health = agent.get("/healthz").status
    api: FakeAPIServer = serve_api(host.namespace, port=port)
    with api:
        api.put(shapes.node(*HOST_IPS), service("a", A), endpoint_slice("a", endpoint("10.0.0.9")))
        holds(agent, "10.0.0.9:8080", without=(f"{POD_A}:8080", f"{POD_B}:8080"))

    assert kept
    assert health == 200


def test_a_watch_that_fell_silent_is_begun_again(host: Host) -> None:
    """A connection that is open and says nothing is given up; what happened meanwhile is seen."""
    put_two(host)
    agent = host.agent("--api-read-timeout", "1s").start()
    ends, kind = "onenth_source_watch_ends_total", "EndpointSlice"
    until(lambda: host.api.watching("endpointslices"))
    host.api.silence()
    host.api.put(endpoint_slice("a", endpoint("10.0.0.11")))
    until(lambda: agent.metric(ends, kind=kind, reason="silent"), 15, agent.story)
    unseen = agent.rules("KUBE-SERVICES") and "10.0.0.11" not in str(agent.tables()["nat"])
    host.api.speak()

    assert unseen
    holds(agent, "10.0.0.11:8080", f"{POD_B}:8080", without=(f"{POD_A}:8080",))


@pytest.mark.parametrize("label", [PROXY_NAME, HEADLESS])
def test_objects_of_another_proxy_are_absent(host: Host, label: str) -> None:
    """A label on a live Service, or on its slice, is its deletion; removing it brings it back.

    That a Service with a cluster IP calls itself headless says nothing, as for kube-proxy.
    """
    labels = {label: "another"}
    put_two(host)
    agent = host.agent().start()
    holds(agent, f"{POD_A}:8080")
    host.api.put(service("a", A, labels=labels))
    if label == PROXY_NAME:
        holds(agent, f"{POD_B}:8080", without=(A, POD_A))
    host.api.put(service("a", A))
    holds(agent, f"{POD_A}:8080", A)
    host.api.put(endpoint_slice("a", endpoint(POD_A), labels=labels))
    holds(agent, without=(f"{POD_A}:8080",))
    agent.wait_rules(f"-d {A}/32", table="filter", chain="KUBE-SERVICES")  # REJECT
    host.api.put(endpoint_slice("a", endpoint(POD_A)))
    holds(agent, f"{POD_A}:8080")
    agent.wait_rules(f"-d {A}/32", gone=True, table="filter", chain="KUBE-SERVICES")


def test_objects_that_cannot_be_used_cost_nobody_else_anything(host: Host) -> None:
    """Null lists, ports without numbers, bad addresses: named once; everything else works."""
    odd: list[shapes.Object] = [
        endpoint_slice("null", ports=None) | {"endpoints": None},
        endpoint_slice("no-number", endpoint("10.0.0.7"), ports=[{"name": "", "protocol": "TCP"}]),
        service("null", "10.96.0.5"),
        service("no-number", "10.96.0.6"),
        service("bad-ip", "10.96.0.300"),
    ]
    put_two(host)
    host.api.put(*odd)
    agent = host.agent().start()
    line = agent.wait_logged("part of an object was left out", object="default/bad-ip")

    holds(agent, f"{POD_A}:8080", f"{POD_B}:8080", without=("10.0.0.7", "10.96.0.300"))
    rejected = agent.rules("KUBE-SERVICES", "filter")
    assert "-d 10.96.0.5/32" in rejected  # no endpoints: told so at once
    assert "-d 10.96.0.6/32" in rejected
    assert "10.96.0.300" in line["reason"]
    assert agent.metric("onenth_unusable_objects", kind="Service") == 1
    host.api.put(service("bad-ip", "10.96.0.30"))
    agent.wait_rules("-d 10.96.0.30/32", table="filter", chain="KUBE-SERVICES")
    assert agent.metric("onenth_unusable_objects", kind="Service") == 0
    named = [line["object"] for line in agent.logged("part of an object was left out")]
    assert sorted(named) == ["default/bad-ip", "default/no-number-1"]


def zoned(host: Host, zone: str) -> shapes.Object:
    labels = {"topology.kubernetes.io/zone": zone}
    host.api.put(found := shapes.node(*HOST_IPS, labels=labels))
    return found


def test_rules_follow_the_zone_of_the_node(host: Host) -> None:
    """When the zone label changes, endpoints are chosen anew by their hints."""
    zoned(host, "east")
    hints = {"east": "10.0.0.1", "west": "10.0.0.2"}
    host.api.put(
        service("near", A, trafficDistribution="PreferSameZone"),
        endpoint_slice(
            "near",
            *(endpoint(ip, None, hints={"forZones": [{"name": z}]}) for z, ip in hints.items()),
        ),
    )
    agent = host.agent().start()
    holds(agent, "10.0.0.1:8080", without=("10.0.0.2:8080",))
    zoned(host, "west")
    holds(agent, "10.0.0.2:8080", without=("10.0.0.1:8080",))
    zoned(host, "north")  # where no endpoint is hinted at: all of them
    holds(agent, "10.0.0.1:8080", "10.0.0.2:8080")


def test_a_node_that_leaves_is_no_place_to_send_traffic_to(host: Host) -> None:
    """Tainted by the autoscaler, being deleted, or gone: /healthz 503, while /livez stays 200."""
    agent = host.agent().start()
    leaving = shapes.node(*HOST_IPS, taints=[{"key": "ToBeDeletedByClusterAutoscaler"}])
    deleting = shapes.node(*HOST_IPS)
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def health(code: int) -> int:
        until(lambda: agent.get("/healthz").status == code, 10, agent.story)
        return agent.get("/livez").status

    assert health(200) == 200
    for bad in (leaving, deleting):
        host.api.put(bad)
        assert health(503) == 200
        host.api.put(shapes.node(*HOST_IPS))
        assert health(200) == 200
    host.api.delete("Node", NODE)
    assert health(503) == 200
    error = agent.wait_logged(
        "there is no Node of this name; without it no endpoint counts as local"
    )
    assert (error["node"], error["level"]) == (NODE, "error")


def test_a_node_with_another_name_is_an_error_in_the_log(host: Host) -> None:
    """Started under a name that no Node has, the agent says so, and what to set."""
    agent = host.agent(node="node-1.example.internal").start()
    line = agent.wait_logged(
        "there is no Node of this name; without it no endpoint counts as local"
    )

    assert "hostnameOverride" in line["remedy"]
    assert agent.get("/healthz").status == 503


def pod_credentials(host: Host, token: str) -> list[str]:
    """A command that runs another one where a pod's credentials are, with a ``/run`` of its own."""
    folder = host.folder / "serviceaccount"
    folder.mkdir()
    shutil.copy(TLS / "ca.pem", folder / "ca.crt")
    (folder / "token").write_text(token, encoding="utf-8")
    (folder / "namespace").write_text("kube-system", encoding="utf-8")
    target = "/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f'mount -t tmpfs none /run && mkdir -p {target} && cp {folder}/* {target}/ && exec "$@"'
    )
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def test_in_a_pod_before_any_proxy_has_run(host: Host) -> None:
    """The pod's credentials, the address by flag: then the API server's own ClusterIP answers.

    That address is the only one that the pod's environment names, and nothing serves it before.
    """
    environment = {"KUBERNETES_SERVICE_HOST": A, "KUBERNETES_SERVICE_PORT": "443"}
    tls = (TLS / "server.pem", TLS / "server.key")
    prefix = pod_credentials(host, "secret-token")
    with serve_api(host.namespace, host=HOST_IPS[0], tls=tls, token="secret-token") as api:  # noqa: S106
        host.namespace.run(["ip", "route", "add", "default", "dev", "lo"])
        port = int(api.url.rpartition(":")[2])
        ports = [{"name": "https", "port": port, "protocol": "TCP"}]
        api.put(
            shapes.node(*HOST_IPS),
            service("kubernetes", A, ports=[shapes.port(443, name="https", target=port)]),
            endpoint_slice("kubernetes", endpoint(HOST_IPS[0]), ports=ports),
        )
        flags = ("--api-server", api.url, "--tls-server-name", "kubernetes.default.svc")
        agent = host.agent(*flags, source=None, prefix=prefix, environment=environment)
        before = host.namespace.call(speaks_tls, A)
        agent.start()
        after = host.namespace.call(speaks_tls, A)
        status = agent.stop()

    assert (before, after) == (False, True)
    assert status == 0


def speaks_tls(address: str) -> bool:
    """Whether a server with the right certificate answers on port 443 of an address."""
    context = ssl.create_default_context(cafile=TLS / "ca.pem")
    try:
        with (
            socket.create_connection((address, 443), 1) as connection,
            context.wrap_socket(connection, server_hostname="kubernetes.default.svc"),
        ):
            return True
    except OSError:
        return False
