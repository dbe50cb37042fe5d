"""All metrics of the agent, in one registry that belongs to it.

Names that kube-proxy has are kube-proxy's, so that dashboards and alerts go on working after a
change from one to the other; ours begin with ``onenth_``. Every method may be called from any
thread.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

from agent import __version__
from agent.cluster.objects import Kind
from agent.serve.collect import AtScrape, CounterAtScrape, Description, Registry
from agent.serve.sourcemetrics import SourceMetrics
from agent.serve.syncmetrics import SyncMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry

    from agent.state.values import Family


class Metrics:
    """The metrics, by who tells about them.

    Attributes:
        sync: for the thread that syncs.
        source: a ``SourceObserver``.
        registry: for the server of ``/metrics``.
    """

    def __init__(
        self,
        families: Iterable[Family],
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = Registry()
        self.registry: CollectorRegistry = self._registry.collectors
        self.sync = SyncMetrics(self._registry, families, wall)
        self.source = SourceMetrics(self._registry, monotonic)
        self._make_servers()
        self._make_infos()
        self._make_readers()

    @property
    def descriptions(self) -> list[Description]:
        """What there is, apart from the process's own, sorted by name."""
        return sorted(self._registry.descriptions, key=lambda one: one.name)

    @property
    def parts(self) -> Registry:
        """For what makes metrics of its own (``agent.serve.traffic``)."""
        return self._registry

    def backend(self, name: str, version: str) -> None:
        """Rules go through this iptables."""
        self._backend.clear()
        self._backend.labels(name, version).set(1)

    def unusable(self, kind: Kind, objects: int) -> None:
        """So many objects of a kind cannot be used now."""
        self._unusable.labels(kind.value).set(objects)

    def state(self, *, services: int, endpoints: int) -> None:
        """So many Services and endpoints are known."""
        self._services.set(services)
        self._endpoints.set(endpoints)

    def probed(self, probe: str, code: int) -> None:
        """``healthz``, ``livez`` or ``readyz`` was answered with this status code."""
        self._probes[probe].labels(str(code)).inc()

    def bind_failed(self, server: str) -> None:
        """A server's address could not be had."""
        self._bind_failures.labels(server).inc()

    def health_check_port_failed(self) -> None:
        """A health check node port could not be had."""
        self._port_failures.inc()

    def read_invalid_dropped(self, read: Callable[[], float | None]) -> None:
        """Where the kernel's count of dropped INVALID packets is read; None for no counter."""
        self._invalid_dropped.read = read

    def read_localhost_accepted(self, read: Callable[[], float | None]) -> None:
        """Where the count of packets to node ports on 127.0.0.1 is read; None likewise."""
        self._localhost_accepted.read = read

    def read_tcp_be_liberal(self, read: Callable[[], float | None]) -> None:
        """Where ``net.netfilter.nf_conntrack_tcp_be_liberal`` is read; None if unreadable."""
        self._be_liberal.read = read

    def read_store_rebuilds(self, read: Callable[[], float | None]) -> None:
        """Where the store's count of rebuilds is read."""
        self._rebuilds.read = read

    def read_health_check_ports(
        self, opened: Callable[[], float | None], failing: Callable[[], float | None]
    ) -> None:
        """Where the numbers of open and of failing health check node ports are read."""
        self._ports_open.read = opened
        self._ports_failing.read = failing

    def _make_servers(self) -> None:
        """Of the servers."""
        make = self._registry
        self._probes = {
            "healthz": make.counter(
                "kubeproxy_proxy_healthz_total", "Answers of /healthz, by status code", "code"
            ),
            "livez": make.counter(
                "kubeproxy_proxy_livez_total", "Answers of /livez, by status code", "code"
            ),
            "readyz": make.counter(
                "onenth_readyz_total", "Answers of /readyz, by status code", "code"
            ),
        }
        self._bind_failures = make.counter(
            "onenth_bind_failures_total", "Failed attempts at a server's address", "server"
        )
        self._port_failures = make.counter(
            "onenth_health_check_port_failures_total",
            "Health check node ports that could not be had",
        )
        self._ports_open = make.at_scrape(
            "onenth_health_check_ports_open", "Health check node ports that are open", AtScrape
        )
        self._ports_failing = make.at_scrape(
            "onenth_health_check_ports_failing",
            "Health check node ports that cannot be had now",
            AtScrape,
        )

    def _make_infos(self) -> None:
        """Of the agent and its state."""
        make = self._registry
        build = make.gauge("onenth_build_info", "1, with the versions", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)
        self._backend = make.gauge(
            "onenth_iptables_backend_info",
            "1, with the iptables that holds the rules",
            "backend",
            "version",
        )
        self._unusable = make.gauge(
            "onenth_unusable_objects", "Objects that cannot be used, and so count as absent", "kind"
        )
        for kind in Kind:
            self._unusable.labels(kind.value)
        self._services = make.gauge("onenth_services", "Services that are known")
        self._endpoints = make.gauge("onenth_endpoints", "Endpoints that are known")

    def _make_readers(self) -> None:
        """What is read at scrape time."""
        make = self._registry
        self._invalid_dropped = make.at_scrape(
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "Packets that the rule against INVALID packets dropped",
            CounterAtScrape,
        )
        self._localhost_accepted = make.at_scrape(
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "Packets to node ports on 127.0.0.1",
            CounterAtScrape,
        )
        self._be_liberal = make.at_scrape(
            "onenth_conntrack_tcp_be_liberal",
            "The sysctl; other than 0, there is no rule against INVALID packets",
            AtScrape,
        )
        self._rebuilds = make.at_scrape(
            "onenth_store_rebuilds_total",
            "Times that the store did not pass its own checks and was built anew",
            CounterAtScrape,
        )
