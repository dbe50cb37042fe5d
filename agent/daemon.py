"""``onenth run``: everything wired together, and the one loop that owns it.

Threads: one per watch (``cluster``), one per HTTP server (``serve``), one that sweeps UDP flows
and one that listens for addresses (``kernel``). They put events on one queue, or read numbers;
only the loop here touches state, rules and the kernel's tables. A thread that dies puts a
failure on the queue, which ends the process: a restart is better than an agent that looks
alive and does nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from agent import __version__, host, logs, rights
from agent.cluster.feed import SourceFailed
from agent.cluster.origin import OriginError, find_origin
from agent.cluster.reflector import WatchSettings
from agent.config.load import describe
from agent.config.node import address_policy, node_settings
from agent.config.watch import ConfigChanged, ConfigWatch
from agent.inbox import Inbox
from agent.kernel import facts as kernel_facts
from agent.kernel import privileges
from agent.kernel.addresses import AddressWatcher
from agent.kernel.detect import Backend
from agent.kernel.iptables import Iptables
from agent.kernel.nftables import Generations
from agent.kernel.sweeper import FlowSweeper
from agent.kernel.tools import SubprocessRunner
from agent.memory import give_back_large_blocks
from agent.rules.ruleset import RuleSet
from agent.rules.service import COUNTER_LOCALHOST
from agent.rules.static import COUNTER_INVALID
from agent.serve.health import HealthState
from agent.serve.http import BindError, HttpServer
from agent.serve.metered import MeteredKernel
from agent.serve.metrics import Metrics
from agent.serve.nodeports import HealthCheckPorts
from agent.serve.reasons import Reasons
from agent.serve.report import Reporter
from agent.serve.routes import metrics_route, probe_routes
from agent.serve.status import StatusRecorder
from agent.serve.statuspage import status_routes
from agent.serve.statusvalues import agent_facts
from agent.serve.sweeps import SweepReports
from agent.serve.traffic import make_traffic
from agent.state.flows import UdpServices
from agent.state.healthports import HealthPorts
from agent.state.node import NodeInfo, NodeSettings, node_view
from agent.state.store import Store
from agent.state.triggers import TriggerTimes
from agent.stopping import Ask, Interruptible, Stop, StoppedError
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit
from agent.sync.controller import Controller, FactsChanged, SourceEndedError, Track
from agent.sync.pace import Pace, PaceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from agent.cluster.origin import Origin
    from agent.config.load import Loaded
    from agent.config.model import Config
    from agent.state.values import Family

#: Services in one transaction of a backend whose time grows faster than the transaction: on an
#: empty node, and over rules in use.
BATCHES = {Backend.NFT: (50, 200), Backend.LEGACY: (None, None)}
#: Part of a core that scrapes may take: one of many series costs tens of milliseconds.
SCRAPE_SHARE = 0.25
#: Seconds between looks at the kernel's rules until all of them have been seen once.
LEARN_PERIOD = 1.0
#: A syncPeriod's worth of waiting is normal; twice that is not (as in kube-proxy).
_LATE = 2
_MAX_EVENTS = 10_000
#: Keys that say where objects come from.
_ORIGIN_KEYS = ("manifests", "clientConnection.kubeconfig", "apiServer", "tlsServerName")


class Start:
    """What is settled before the node is touched: who it is, and where objects come from."""

    def __init__(self, *, again: bool = False) -> None:
        """Nothing is settled yet; ``again`` is for a look beside an agent that runs."""
        self.origin: Origin | None = None
        self._again = again

    def problems(self, config: Config, wrong: Container[str]) -> list[str]:
        """What keeps an agent from running with this; what is wrong already is passed over."""
        if not self._again:  # finding the origin may have something to log
            logs.setup(config.logging.format, config.logging.verbosity)
        problems = []
        if not config.hostname_override and "hostnameOverride" not in wrong:
            problems.append(
                "the name of this Node is not known: give --node-name, set"
                " ONENTH_HOSTNAME_OVERRIDE or NODE_NAME, or hostnameOverride in the configuration"
            )
        if not any(key in wrong for key in _ORIGIN_KEYS):
            try:
                self.origin = find_origin(
                    manifests=config.manifests,
                    kubeconfig=config.client_connection.kubeconfig,
                    api_server=config.api_server,
                    tls_server_name=config.tls_server_name,
                )
            except OriginError as error:
                problems.append(str(error))
        return problems


def run(loaded: Loaded, start: Start, reread: Callable[[], Loaded]) -> int:
    """Run until a signal, other settings in the configuration file, or a failure.

    Args:
        loaded: the configuration.
        start: what was settled with it.
        reread: reads the configuration again.

    Returns:
        The exit code.

    Raises:
        HostError: a tool, a privilege or a working family is missing (exit code 3).
        KernelError: the other backend already holds Service rules (exit code 1).
    """
    privileges.demand_net_admin()
    give_back_large_blocks()
    config = loaded.config
    inbox = Inbox()
    stop = Stop()
    asked: dict[signal.Signals, object] = {signal.SIGUSR1: Ask.STATUS}
    stop.catch(inbox.put, asked | ({signal.SIGHUP: Ask.CONFIG} if loaded.file else {}))
    log = logs.get()
    log.info("starting", version=__version__, node=config.hostname_override, pid=os.getpid())
    for key, value, source in describe(loaded):
        log.info("setting", key=key, value=value, source=source)
    for remark in loaded.ignored:
        log.warning("setting is ignored", remark=remark)
    if start.origin is None:
        raise RuntimeError("a configuration without an origin has problems")
    agent = _Agent(loaded, start.origin, reread, inbox, stop)
    try:
        return agent.run()
    except BindError as error:
        log.error("cannot serve", error=str(error))  # noqa: TRY400  for people: no traceback
        return 1
    finally:
        agent.close()


class _Agent:
    """The parts, made in order and taken down in reverse."""

    def __init__(
        self,
        loaded: Loaded,
        origin: Origin,
        reread: Callable[[], Loaded],
        inbox: Inbox,
        stop: Stop,
    ) -> None:
        self._config = config = loaded.config
        self._origin = origin
        self._log = logs.get()
        self._inbox = inbox
        self._stop = stop
        self._cleanups = contextlib.ExitStack()
        self._runner = SubprocessRunner()
        self._settings = node_settings(config)
        self._generations = Generations()
        self._capabilities = host.probe(config, self._runner)
        families = host.families(config, self._capabilities)
        self._facts = host.prepare(config, self._settings, self._capabilities, self._runner)
        self._rights = rights.give_up(loaded, self._capabilities.backend)
        self._config_watch = ConfigWatch(loaded, reread, inbox.put, self._died)
        self._changed: ConfigChanged | None = None
        self._metrics = self._make_metrics(families)
        self._health = HealthState(config.iptables.sync_period * _LATE, families)
        self._ports = HealthCheckPorts(
            lambda: self._health.healthy,
            lambda failure: self._reporter.port_failed(failure),  # noqa: PLW0108  made later
        )
        self._sweeper = FlowSweeper(SweepReports(self._metrics), self._died)
        self._recorder = self._origin.recorder(
            self._settings.name, self._metrics.source, self._died
        )
        patience = WatchSettings(read_timeout=config.api_read_timeout)
        self._source = self._origin.source(self._settings.name, self._metrics.source, patience)
        reasons = Reasons(families)
        self._reporter = self._make_reporter(reasons)
        facts = agent_facts(config, self._capabilities, self._rights)
        self._status = StatusRecorder(self._reporter, facts, families, reasons)
        self._traffic = make_traffic(
            config.metrics.connections, self._metrics, self._capabilities, families, self._died
        )
        self._controller = self._make_controller(families)

    def close(self) -> None:
        """Take everything down; rules stay."""
        self._cleanups.close()

    # Parts -------------------------------------------------------------------------------

    def _make_metrics(self, families: tuple[Family, ...]) -> Metrics:
        metrics = Metrics(families)
        tool = self._capabilities.tool
        metrics.backend(tool.backend.value, ".".join(map(str, tool.version)))
        # A counter that no rule names would be a metric that says 0 whatever happens.
        if self._counts(families, COUNTER_INVALID):
            metrics.read_invalid_dropped(lambda: kernel_facts.read_packets(COUNTER_INVALID))
        if self._counts(families, COUNTER_LOCALHOST):
            metrics.read_localhost_accepted(lambda: kernel_facts.read_packets(COUNTER_LOCALHOST))
        metrics.read_tcp_be_liberal(self._facts.tcp_be_liberal)
        return metrics

    def _counts(self, families: tuple[Family, ...], counter: str) -> bool:
        return any(self._capabilities.counts(family, counter) for family in families)

    def _make_reporter(self, reasons: Reasons) -> Reporter:
        return Reporter(
            self._metrics,
            self._health,
            self._ports,
            self._sweeper.offer,
            recorder=self._recorder,
            reasons=reasons,
            node_name=self._settings.name,
            watches_node=not self._config.manifests,
        )

    def _make_controller(self, families: tuple[Family, ...]) -> Controller:
        store = Store(self._settings.name, address_policy(self._config))
        self._metrics.read_store_rebuilds(lambda: float(store.rebuilds))
        self._metrics.read_health_check_ports(
            lambda: float(self._ports.ports), lambda: float(self._ports.failing)
        )
        return Controller(
            store=store,
            tracks=[self._track(family, self._settings) for family in families],
            settings=self._settings,
            facts=self._facts,
            observer=self._status,
            clock=time.monotonic,
        )

    def _track(self, family: Family, settings: NodeSettings) -> Track:
        periods = self._config.iptables
        tool = self._capabilities.tool
        iptables = Iptables(tool, family, runner=self._runner, generations=self._generations)
        kernel = Interruptible(iptables, self._stop)
        health, udp = HealthPorts(family), UdpServices(family)
        view = node_view(family, settings, NodeInfo(), self._facts(family))
        syncer = Syncer(
            RuleSet(view, self._config.dispatch),
            MeteredKernel(kernel, family, self._metrics),
            SyncSettings(*BATCHES[self._capabilities.backend], periods.sync_period),
            time.monotonic,
            (health, udp),
        )
        pace = Pace(
            PaceSettings(periods.min_sync_period, periods.sync_period, learn_period=LEARN_PERIOD),
            time.monotonic,
            random.random,
        )
        triggers = TriggerTimes(time.time())
        return Track(family, syncer, pace, Audit(syncer), triggers, health, udp)

    # The loop ----------------------------------------------------------------------------

    def run(self) -> int:
        """Start the threads and work until the end; returns the exit code."""
        self._start()
        try:
            self._loop()
        except StoppedError:
            self._log.info("left a sync between two transactions")
        except SourceEndedError as error:
            self._log.error("the source of objects failed", error=str(error), refused=error.refused)
            return 4 if error.refused else 1
        if self._changed is not None:
            self._log.warning(
                "the configuration file has changed; ending, to be started again with it",
                settings=list(self._changed.keys),
            )
            return 1
        name = self._stop.signal.name if self._stop.signal is not None else ""
        self._log.info("stopped; the rules stay", signal=name)
        return 0

    def _start(self) -> None:
        for server in self._servers():
            server.start()
            self._cleanups.callback(server.stop)
        self._ports.start()
        self._cleanups.callback(self._ports.stop)
        self._sweeper.start()
        self._cleanups.callback(self._sweeper.stop)
        if self._traffic is not None:
            self._traffic.start()
            self._cleanups.callback(self._traffic.stop)
        watcher = AddressWatcher(lambda _: self._inbox.put(FactsChanged()), self._died)
        watcher.start()
        self._cleanups.callback(watcher.stop)
        self._config_watch.start()
        self._cleanups.callback(self._config_watch.stop)
        self._recorder.start()
        self._cleanups.callback(self._recorder.stop)
        self._source.start(self._inbox.put)
        self._cleanups.callback(self._source.stop)
        self._cleanups.callback(self._inbox.close)

    def _servers(self) -> Iterator[HttpServer]:
        hard = self._config.bind_address_hard_fail
        if self._config.healthz_bind_address:
            yield HttpServer(
                "health",
                self._config.healthz_bind_address,
                probe_routes(self._health, self._metrics.probed),
                hard_fail=hard,
                on_bind_failure=lambda: self._metrics.bind_failed("health"),
            )
        if self._config.metrics_bind_address:
            yield HttpServer(
                "metrics",
                self._config.metrics_bind_address,
                {
                    "/metrics": metrics_route(self._metrics.registry),
                    **status_routes(self._status.snapshot),
                },
                hard_fail=hard,
                share=SCRAPE_SHARE,
                on_bind_failure=lambda: self._metrics.bind_failed("metrics"),
            )

    def _loop(self) -> None:
        while self._take_events():
            self._controller.step()

    def _take_events(self) -> bool:
        """Wait for an event or for work, and take in what is there; False at the end."""
        until = self._controller.wait_until()
        timeout = None if until is None else max(until - time.monotonic(), 0.0)
        with contextlib.suppress(queue.Empty):
            # Bounded, so that a flood of events cannot put off the sync that they ask for.
            for count in range(_MAX_EVENTS):
                event = self._inbox.get(0.0 if count else timeout)
                match event:
                    case Stop():
                        return False
                    case ConfigChanged():
                        self._changed = event
                        return False
                    case Ask.CONFIG:
                        self._config_watch.look()
                    case Ask.STATUS:
                        status = msgspec.to_builtins(self._status.snapshot())
                        self._log.info("status", status=status)
                    case _:
                        self._controller.handle(event)
        return True

    # What threads report -----------------------------------------------------------------

    def _died(self, error: BaseException) -> None:
        self._inbox.put(SourceFailed(error))
