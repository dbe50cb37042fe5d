"""Names, labels and values of metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from agent.cluster.feed import Deleted, Upserted
from agent.cluster.objects import Key, Kind, Meta, Service
from agent.cluster.observe import SourceObserver, WatchEnd
from agent.serve.metrics import Metrics
from agent.state.values import Family

V4, V6 = Family.V4, Family.V6

#: Read in kube-proxy 1.36 (pkg/proxy/metrics/metrics.go): name, type and labels.
KUBE_PROXYS = {
    "kubeproxy_sync_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_full_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_partial_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds": ("gauge", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": ("gauge", {"ip_family"}),
    "kubeproxy_network_programming_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending": ("gauge", set()),
    "kubeproxy_sync_proxy_rules_endpoint_changes_total": ("counter", set()),
    "kubeproxy_sync_proxy_rules_service_changes_pending": ("gauge", set()),
    "kubeproxy_sync_proxy_rules_service_changes_total": ("counter", set()),
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total": ("counter", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total": (
        "counter",
        {"ip_family"},
    ),
    "kubeproxy_sync_proxy_rules_iptables_total": ("gauge", {"table", "ip_family"}),
    "kubeproxy_sync_proxy_rules_iptables_last": ("gauge", {"table", "ip_family"}),
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total": (
        "gauge",
        {"traffic_policy", "ip_family"},
    ),
    "kubeproxy_proxy_healthz_total": ("counter", {"code"}),
    "kubeproxy_proxy_livez_total": ("counter", {"code"}),
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total": ("counter", set()),
    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total": ("counter", set()),
    "kubeproxy_conntrack_reconciler_sync_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_conntrack_reconciler_deleted_entries_total": ("counter", {"ip_family"}),
    "rest_client_requests_total": ("counter", {"code", "method", "host"}),
    "rest_client_request_duration_seconds": ("histogram", {"verb", "host"}),
}


@pytest.fixture(name="metrics")
def _metrics() -> Metrics:
    return Metrics([V4, V6], wall=lambda: 1000.0, monotonic=lambda: 50.0)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_names_and_labels_are_kube_proxys(metrics: Metrics) -> None:
    """What is called kubeproxy_ or rest_client_ is kube-proxy's, with its type and labels."""
    described = {
        one.name: (one.type, set(one.labels))
        for one in metrics.descriptions
        if one.name.startswith(("kubeproxy_", "rest_client_"))
    }
    assert described == KUBE_PROXYS


def test_ours_begin_with_our_name(metrics: Metrics) -> None:
    """Every other metric is called onenth_, has a sentence of help, and is described once."""
    names = [one.name for one in metrics.descriptions]
    assert len(names) == len(set(names))
    for one in metrics.descriptions:
        assert one.name in KUBE_PROXYS or one.name.startswith("onenth_")
        assert len(one.help) > 10
        assert one.name.endswith("_total") or one.type != "counter"


def test_buckets_are_kube_proxys(metrics: Metrics) -> None:
    """Syncs are measured from 1 ms to 16 s by doubling, programming from 250 ms to 5 min."""
    text = generate_latest(metrics.registry).decode()
    sync = [
        line.split('le="')[1].split('"')[0]
        for line in text.splitlines()
        if line.startswith('kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4"')
    ]
    assert sync[:3] == ["0.001", "0.002", "0.004"]
    assert sync[-2:] == ["16.384", "+Inf"]
    assert len(sync) == 16
    programming = [
        line.split('le="')[1].split('"')[0]
        for line in text.splitlines()
        if line.startswith('kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4"')
    ]
    assert len(programming) == 2 + 59 + 12 + 7 + 1
    assert programming[-2:] == ["300.0", "+Inf"]


def test_series_and_moments_start_at_once(metrics: Metrics) -> None:
    """Counters of both families are there at zero, and no moment says 1970."""
    for family in ("IPv4", "IPv6"):
        assert (
            value(
                metrics,
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                ip_family=family,
            )
            == 0.0
        )
        for moment in ("last_timestamp_seconds", "last_queued_timestamp_seconds"):
            name = f"kubeproxy_sync_proxy_rules_{moment}"
            assert value(metrics, name, ip_family=family) == 1000.0


def test_a_sync_is_counted_by_kind_and_result() -> None:
    """Failed syncs count in the durations; only accepted ones move the timestamp."""
    now = [1000.0]
    metrics = Metrics([V4], wall=lambda: now[0])
    now[0] = 2000.0
    metrics.sync.synced(V4, full=False, accepted=False, seconds=0.5)
    stamp = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    assert value(metrics, stamp, ip_family="IPv4") == 1000.0
    metrics.sync.synced(V4, full=True, accepted=True, seconds=1.5)
    assert value(metrics, stamp, ip_family="IPv4") == 2000.0
    expected = {
        "kubeproxy_sync_proxy_rules_duration_seconds_count": 2.0,
        "kubeproxy_sync_proxy_rules_duration_seconds_sum": 2.0,
        "kubeproxy_sync_full_proxy_rules_duration_seconds_sum": 1.5,
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_sum": 0.5,
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total": 1.0,
    }
    got = {name: value(metrics, name, ip_family="IPv4") for name in expected}
    assert got == expected


def test_what_the_syncing_thread_tells(metrics: Metrics) -> None:
    """Every other call of the syncing thread ends in the series that it should."""
    sync = metrics.sync
    sync.restored(V6, accepted=False, size=100, seconds=0.1)
    sync.restored(V6, accepted=True, size=20, seconds=0.1)
    sync.changed(services=2, endpoints=3)
    sync.pending(services=1, endpoints=4)
    sync.rules(V6, "nat", total=10, written=7)
    sync.no_local_endpoints(V6, internal=1, external=2)
    sync.programmed(V6, -3.0)
    sync.reconciled(V6, seconds=0.2, deleted=5)
    sync.audited(V6, 0)
    sync.audited(V6, 3)
    sync.audited(V6, None)
    sync.set_aside(V6, 2)
    sync.queued(V6)
    kube, ours = "kubeproxy_sync_proxy_rules", "onenth"
    v6 = {"ip_family": "IPv6"}
    for name, labels, expected in [
        (f"{kube}_iptables_restore_failures_total", v6, 1),
        (f"{ours}_restore_transactions_total", {**v6, "result": "refused"}, 1),
        (f"{ours}_restore_transactions_total", {**v6, "result": "accepted"}, 1),
        (f"{ours}_restore_bytes_total", v6, 120),
        (f"{kube}_service_changes_total", {}, 2),
        (f"{kube}_endpoint_changes_total", {}, 3),
        (f"{kube}_service_changes_pending", {}, 1),
        (f"{kube}_endpoint_changes_pending", {}, 4),
        (f"{kube}_iptables_total", {**v6, "table": "nat"}, 10),
        (f"{kube}_iptables_last", {**v6, "table": "nat"}, 7),
        (f"{kube}_no_local_endpoints_total", {**v6, "traffic_policy": "internal"}, 1),
        (f"{kube}_no_local_endpoints_total", {**v6, "traffic_policy": "external"}, 2),
        ("kubeproxy_network_programming_duration_seconds_sum", v6, 0),
        ("kubeproxy_network_programming_duration_seconds_count", v6, 1),
        ("kubeproxy_conntrack_reconciler_deleted_entries_total", v6, 5),
        (f"{ours}_audit_rounds_total", {**v6, "result": "same"}, 1),
        (f"{ours}_audit_rounds_total", {**v6, "result": "different"}, 1),
        (f"{ours}_audit_rounds_total", {**v6, "result": "failed"}, 1),
        (f"{ours}_audit_differences_total", v6, 3),
        (f"{ours}_set_aside_services", v6, 2),
    ]:
        assert value(metrics, name, **labels) == expected, name


def test_what_the_sources_tell() -> None:
    """Lists, watches, their ends and events are counted by kind; silence has an age."""
    now = [50.0]
    metrics = Metrics([V4], monotonic=lambda: now[0])
    source: SourceObserver = metrics.source
    age = "onenth_source_last_contact_seconds"
    assert value(metrics, age, kind="Service") is None
    source.contact(Kind.SERVICE)
    source.list_done(Kind.SERVICE, 0.5, 12)
    source.list_failed(Kind.SLICE, TimeoutError())
    source.watch_started(Kind.SERVICE)
    source.watch_ended(Kind.SERVICE, WatchEnd.EXPIRED)
    source.event(Kind.SERVICE, Upserted(Kind.SERVICE, Service(Meta(name="a"))))
    source.event(Kind.SERVICE, Deleted(Kind.SERVICE, Key("d", "a")))
    now[0] = 57.0
    assert value(metrics, age, kind="Service") == 7.0
    source.contact(Kind.SERVICE)
    assert value(metrics, age, kind="Service") == 0.0
    for name, labels, expected in [
        ("lists_total", {"kind": "Service", "result": "complete"}, 1),
        ("lists_total", {"kind": "EndpointSlice", "result": "failed"}, 1),
        ("listed_objects", {"kind": "Service"}, 12),
        ("watches_total", {"kind": "Service"}, 1),
        ("watches_total", {"kind": "Node"}, 0),
        ("watch_ends_total", {"kind": "Service", "reason": "expired"}, 1),
        ("events_total", {"kind": "Service", "type": "upserted"}, 1),
        ("events_total", {"kind": "Service", "type": "deleted"}, 1),
    ]:
        assert value(metrics, f"onenth_source_{name}", **labels) == expected, name


def test_kernel_counters_are_read_when_asked_for(metrics: Metrics) -> None:
    """A counter of the kernel's has its value of the moment, and is absent when there is none."""
    name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
    assert value(metrics, name) is None
    packets: list[float | None] = [3]
    metrics.read_invalid_dropped(lambda: packets[0])
    assert value(metrics, name) == 3
    packets[0] = 8
    assert value(metrics, name) == 8
    packets[0] = None
    assert value(metrics, name) is None


def test_a_reader_that_fails_costs_its_own_metric(metrics: Metrics) -> None:
    """A scrape with a broken reader has everything else."""

    def fail() -> float:
        raise OSError(1, "netlink")

    metrics.read_localhost_accepted(fail)
    metrics.read_tcp_be_liberal(lambda: 1)
    assert value(metrics, "onenth_conntrack_tcp_be_liberal") == 1
    name = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"
    assert value(metrics, name) is None


def test_infos_and_servers(metrics: Metrics) -> None:
    """Versions, backend, state and servers are told as set last."""
    metrics.backend("legacy", "1.8.9")
    metrics.backend("nft", "1.8.11")
    metrics.unusable(Kind.SLICE, 2)
    metrics.state(services=3, endpoints=30)
    metrics.probed("livez", 200)
    metrics.probed("readyz", 503)
    metrics.bind_failed("health")
    metrics.health_check_port_failed()
    metrics.read_health_check_ports(lambda: 4, lambda: 1)
    metrics.read_store_rebuilds(lambda: 0)
    info = "onenth_iptables_backend_info"
    assert value(metrics, info, backend="legacy", version="1.8.9") is None
    assert value(metrics, info, backend="nft", version="1.8.11") == 1
    for name, labels, expected in [
        ("onenth_unusable_objects", {"kind": "EndpointSlice"}, 2),
        ("onenth_unusable_objects", {"kind": "Node"}, 0),
        ("onenth_services", {}, 3),
        ("onenth_endpoints", {}, 30),
        ("kubeproxy_proxy_livez_total", {"code": "200"}, 1),
        ("onenth_readyz_total", {"code": "503"}, 1),
        ("onenth_bind_failures_total", {"server": "health"}, 1),
        ("onenth_health_check_port_failures_total", {}, 1),
        ("onenth_health_check_ports_open", {}, 4),
        ("onenth_health_check_ports_failing", {}, 1),
        ("onenth_store_rebuilds_total", {}, 0),
    ]:
        assert value(metrics, name, **labels) == expected, name


def test_registries_are_apart() -> None:
    """Two agents in one process, as in tests, do not share or fight over metrics."""
    first, second = Metrics([V4]), Metrics([V4])
    assert isinstance(first.registry, CollectorRegistry)
    first.sync.changed(services=1)
    assert value(first, "kubeproxy_sync_proxy_rules_service_changes_total") == 1
    assert value(second, "kubeproxy_sync_proxy_rules_service_changes_total") == 0


def test_the_process_is_there_and_creation_times_are_not(metrics: Metrics) -> None:
    """Memory, descriptors and Python are told; series that kube-proxy does not have are not."""
    text = generate_latest(metrics.registry).decode()
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_info"):
        assert f"\n{name}" in text
    assert "_created" not in text
