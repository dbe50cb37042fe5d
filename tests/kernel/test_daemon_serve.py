"""What the daemon tells: probes, metrics, logs, and the health check node ports of Services."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from tests.kernel import shapes
from tests.kernel.running import BACKENDS, HOST_IPS, Host, RunningAgent, fetch, until
from tests.kernel.shapes import OTHER_NODE, endpoint, endpoint_slice, port, service
from tests.kernel.shim import Shim

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kernel.running import Reply

A, POD, REMOTE = "10.96.0.1", "10.0.0.1", "10.0.1.1"
HEALTH_PORT = 32001


def local_service(name: str = "local", ip: str = A, number: int = HEALTH_PORT) -> shapes.Object:
    return service(
        name, ip, type="LoadBalancer", ports=[port(node_port=number - 1000)],
        externalTrafficPolicy="Local", healthCheckNodePort=number, ingress=["203.0.113.7"],
    )  # fmt: skip


def check(host: Host, address: str = "127.0.0.1", number: int = HEALTH_PORT) -> Reply:
    return fetch(host.namespace, f"http://{address}:{number}/any/path")


# Health check node ports ------------------------------------------------------------------


def test_a_health_check_port_tells_what_a_load_balancer_needs(host: Host, tmp_path: Path) -> None:
    """200 with a local ready endpoint and a healthy agent, 503 otherwise, as kube-proxy says it.

    Endpoints elsewhere and terminating ones do not count. The port closes with its Service and
    follows a change of its number; a rule lets it through whatever the count is.
    """
    shim = Shim(tmp_path)
    elsewhere = endpoint(REMOTE, OTHER_NODE)
    host.api.put(
        local_service(), endpoint_slice("local", endpoint(POD), endpoint("10.0.0.2"), elsewhere)
    )
    agent = host.agent("--iptables-sync-period", "1s", prefix=shim.prefix).start()
    good = check(host)
    rule = agent.rules("KUBE-NODEPORTS", "filter")
    host.api.put(endpoint_slice("local", shapes.terminating(POD), elsewhere))
    until(lambda: check(host).status == 503, 5, agent.story)
    none = check(host)
    still = agent.rules("KUBE-NODEPORTS", "filter")
    host.api.put(endpoint_slice("local", endpoint(POD)))
    until(lambda: check(host).status == 200, 5, agent.story)
    shim.fail(".")
    host.api.put(service("other", "10.96.0.2"))
    until(lambda: check(host).status == 503, 10, agent.story)
    sick = check(host)
    shim.fail(None)
    host.api.put(local_service(number=HEALTH_PORT + 1))
    until(lambda: check(host, number=HEALTH_PORT + 1).status == 200, 10, agent.story)
    moved = check(host).status
    host.api.delete("Service", "local")
    until(lambda: check(host, number=HEALTH_PORT + 1).status == 0, 5, agent.story)

    assert good.status == 200
    assert good.headers["X-Load-Balancing-Endpoint-Weight"] == "2"
    assert json.loads(good.body) == {
        "service": {"namespace": "default", "name": "local"},
        "localEndpoints": 2,
        "serviceProxyHealthy": True,
    }
    assert json.loads(none.body)["localEndpoints"] == 0
    assert none.headers["X-Load-Balancing-Endpoint-Weight"] == "0"
    assert f"--dport {HEALTH_PORT} -j ACCEPT" in rule
    assert still == rule
    assert (json.loads(sick.body)["localEndpoints"], sick.status) == (1, 503)
    assert json.loads(sick.body)["serviceProxyHealthy"] is False
    assert moved == 0


def test_a_health_check_port_that_is_taken(host: Host) -> None:
    """An Event, log lines and a metric; rules and other ports work.

    Once it is free, it is had within a syncPeriod, though nothing else happens.
    """
    taken = host.namespace.call(socket.create_server, ("", HEALTH_PORT))
    host.api.put(
        local_service(), endpoint_slice("local", endpoint(POD)),
        local_service("fine", "10.96.0.2", HEALTH_PORT + 1), endpoint_slice("fine", endpoint(POD)),
    )  # fmt: skip
    with taken:
        agent = host.agent("--iptables-sync-period", "1s").start()
        line = agent.wait_logged(
            "a health check node port cannot be had; trying again at each sync"
        )
        event = until(lambda: host.api.events, 10, agent.story)[0]
        failing = agent.metric("onenth_health_check_ports_failing")
        fine = check(host, number=HEALTH_PORT + 1).status
    until(lambda: check(host).status == 200, 5, agent.story)

    assert (line["service"], line["port"]) == ("default/local", HEALTH_PORT)
    assert event["type"] == "Warning"
    assert "default/local" in event["note"]
    assert str(HEALTH_PORT) in event["note"]
    assert failing == 1
    assert fine == 200
    assert agent.metric("onenth_health_check_ports_failing") == 0
    assert agent.metric("onenth_health_check_ports_open") == 2


def test_a_load_balancer_that_is_open_by_mistake(host: Host) -> None:
    """With no usable source range it is open to everybody, as with kube-proxy: an Event says so."""
    host.api.put(
        service(
            "web", "10.96.0.1", type="LoadBalancer", ingress=["203.0.113.1"],
            loadBalancerSourceRanges=["192.0.2.0"],
        ),
        endpoint_slice("web", endpoint(POD)),
    )  # fmt: skip
    agent = host.agent().start()
    (event,) = until(lambda: host.api.events, 10, agent.story)
    reasons = [line["reason"] for line in agent.logged("part of an object was left out")]
    rules = str(agent.tables()["nat"])

    assert (event["type"], event["reason"]) == ("Warning", "LoadBalancerOpen")
    assert event["note"].startswith("Service default/web: none of its load balancer source ranges")
    assert reasons == [
        "load balancer source range '192.0.2.0' is not a CIDR",
        event["note"].removeprefix("Service default/web: "),
    ]
    assert "-d 203.0.113.1/32" in rules
    assert "KUBE-FW-" not in rules


def test_health_check_ports_listen_where_node_ports_do(host: Host) -> None:
    """Only on addresses in nodePortAddresses, from the start, and on new ones as they come."""
    host.api.put(local_service(), endpoint_slice("local", endpoint(POD)))
    ranges = "192.0.2.0/24,2001:db8::/64"
    agent = host.agent("--nodeport-addresses", ranges, "--node-ip", ",".join(HOST_IPS)).start()
    at_start = [check(host, address).status for address in (HOST_IPS[0], f"[{HOST_IPS[1]}]")]
    elsewhere = check(host, "127.0.0.1").status
    host.namespace.run(["ip", "address", "add", "192.0.2.77", "dev", "lo"])
    until(lambda: check(host, "192.0.2.77").status == 200, 5, agent.story)
    host.namespace.run(["ip", "address", "del", HOST_IPS[0], "dev", "lo"])
    until(lambda: check(host, HOST_IPS[0]).status == 0, 5, agent.story)
    rest = [check(host, address).status for address in ("192.0.2.77", f"[{HOST_IPS[1]}]")]

    assert at_start == [200, 200]
    assert elsewhere == 0
    assert rest == [200, 200]


# Metrics and logs -------------------------------------------------------------------------

#: kube-proxy's names, which dashboards and alerts use.
KUBE_PROXY_METRICS = {
    "kubeproxy_sync_proxy_rules_duration_seconds_bucket",
    "kubeproxy_sync_full_proxy_rules_duration_seconds_count",
    "kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    "kubeproxy_network_programming_duration_seconds_count",
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    "kubeproxy_sync_proxy_rules_service_changes_total",
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
    "kubeproxy_sync_proxy_rules_iptables_total",
    "kubeproxy_sync_proxy_rules_iptables_last",
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    "kubeproxy_proxy_healthz_total",
    "kubeproxy_proxy_livez_total",
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
    "kubeproxy_conntrack_reconciler_sync_duration_seconds_count",
    "process_resident_memory_bytes",
}


def rules_of_ours(agent: RunningAgent, table: str, family: str) -> int:
    chains = agent.tables(family)[table]
    return sum(len(rules) for chain, rules in chains.items() if chain.startswith("KUBE-"))


@pytest.mark.usefixtures("counters")
@pytest.mark.parametrize("backend", BACKENDS)
def test_metrics_say_what_the_kernel_holds(host: Host, backend: str) -> None:
    """All of kube-proxy's names are there, and the numbers are those of the kernel's rules."""
    host.api.put(
        service("a", A, "fd00:96::1", type="NodePort", ports=[port(node_port=30001)]),
        endpoint_slice("a", endpoint(POD), endpoint("10.0.0.2"), suffix="4"),
        endpoint_slice("a", endpoint("fd00::1"), suffix="6"),
        local_service("away", "10.96.0.2"),
        endpoint_slice("away", endpoint(REMOTE, OTHER_NODE)),
        service("empty", "10.96.0.3"),
    )
    agent = host.agent(backend=backend).start()
    agent.get("/healthz")
    agent.get("/livez")
    metrics = agent.metrics()
    total = "kubeproxy_sync_proxy_rules_iptables_total"
    told = {
        (table, family): agent.metric(total, table=table, ip_family=family)
        for table in ("nat", "filter")
        for family in shapes.FAMILIES
    }

    assert {name for name, _ in metrics} >= KUBE_PROXY_METRICS
    assert told == {where: rules_of_ours(agent, *where) for where in told}
    assert agent.metric(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        traffic_policy="external", ip_family="IPv4",
    ) == 1  # fmt: skip
    assert agent.metric("kubeproxy_proxy_healthz_total", code="200") == 1
    assert agent.metric("onenth_services") == 3
    assert agent.metric("onenth_endpoints") == 4
    version = agent.logged("iptables")[0]["version"]
    assert agent.metric("onenth_iptables_backend_info", backend=backend, version=version) == 1


def test_programming_latency_is_measured_from_the_change(host: Host) -> None:
    """The time from the slice controller's annotation to acceptance is one observation each."""
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    agent = host.agent().start()
    changed = endpoint_slice("a", endpoint("10.0.0.2"))
    moment = host.namespace.run(["date", "-u", "+%Y-%m-%dT%H:%M:%S.%NZ"]).stdout.strip()
    key = "endpoints.kubernetes.io/last-change-trigger-time"
    changed["metadata"]["annotations"] = {key: moment}
    host.api.put(changed)
    agent.wait_rules("10.0.0.2:8080")
    name = "kubeproxy_network_programming_duration_seconds"
    until(lambda: agent.metric(f"{name}_count", ip_family="IPv4") == 1, 5)

    seconds = agent.metric(f"{name}_sum", ip_family="IPv4")
    assert seconds is not None
    assert 0 < seconds < 5
    assert agent.logged("synced")[-1]["latency"] == pytest.approx(seconds, abs=0.01)


def test_the_log_is_canonical(host: Host) -> None:
    """JSON, one object a line: every setting with its origin once, and one line for each sync."""
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    agent = host.agent("--masquerade-all", environment={"ONENTH_VERBOSITY": "1"}).start()
    host.api.put(endpoint_slice("a", endpoint("10.0.0.2")))
    agent.wait_rules("10.0.0.2:8080")
    agent.wait_logged("synced", full=False)
    agent.stop()
    lines = agent.logs()
    settings = {line["key"]: line["source"] for line in agent.logged("setting")}
    syncs = agent.logged("synced")

    assert all(list(line)[:3] == ["timestamp", "level", "event"] for line in lines)
    assert lines[0]["event"] == "starting"
    assert len(settings) == len(agent.logged("setting")) > 30
    assert settings["iptables.masqueradeAll"] == "flag"
    assert settings["logging.verbosity"] not in {"flag", "default"}
    assert settings["iptables.syncPeriod"] == "default"
    assert [(line["family"], line["full"], line["services"]) for line in syncs] == [
        ("IPv4", True, 1),
        ("IPv6", True, 0),
        ("IPv4", False, 1),
    ]
    assert "first lists (3)" in syncs[0]["why"]
    assert syncs[2]["why"] == ["EndpointSlice changed"]
    assert all(line["seconds"] > 0 and line["transactions"] == 1 for line in syncs)
    assert {line["level"] for line in lines} == {"info"}


def test_probes_say_why(host: Host) -> None:
    """/healthz, /livez and /readyz answer with kube-proxy's JSON; other paths are 404."""
    agent = host.agent().start()
    health = json.loads(agent.get("/healthz").body)
    alive = json.loads(agent.get("/livez").body)
    ready = json.loads(agent.get("/readyz").body)

    assert health["healthy"] is health["nodeEligible"] is True
    assert set(health["status"]) == {"IPv4", "IPv6"}
    assert "nodeEligible" not in alive
    assert ready == {"ready": True, "listsComplete": True, "synced": {"IPv4": True, "IPv6": True}}
    assert agent.get("/nothing").status == 404
