"""``onenth observe``: verify again and again, and tell as logs and metrics. It changes nothing.

For a node that another proxy runs. Each look is ``onenth verify`` in a process of its own, so
that this one stays small and nothing of a look, right or wrong, outlives it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from agent import __version__, logs
from agent.config.table import SETTINGS
from agent.serve.http import HttpServer
from agent.serve.routes import metrics_route
from agent.serve.wire import Request, Response, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agent.config.model import Config

#: A look that takes longer (seconds) is ended and counts as failed.
LOOK_SECONDS = 120.0
#: So many intervals without a look that ended are too many for /healthz.
_LATE = 3
#: Findings that are logged of one look.
_LOGGED = 20
_RESULTS = {0: "sound", 1: "findings"}


class Look(msgspec.Struct, frozen=True):
    """What came of one look.

    Attributes:
        result: ``sound``, ``findings`` or ``failed``.
        findings: as ``onenth verify -o json`` has them.
        reason: why it failed.
        seconds: how long it took.
        warnings: what makes it say less than it could, as ``verify`` says.
    """

    result: str
    findings: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()


def command(config: Path | None, flags: Mapping[str, Any]) -> list[str]:
    """The command of a look, with the flags that were given to this one."""
    argv = [sys.executable, "-m", "agent", "verify", "-o", "json"]
    argv += [f"--config={config}"] if config else []
    for setting in SETTINGS:
        given = flags.get(setting.param)
        for value in (given,) if isinstance(given, str) else given or ():
            argv.append(f"{setting.flag}={value}")
    return argv


def look(argv: Sequence[str], timeout: float = LOOK_SECONDS) -> Look:
    """Look once."""
    began = time.monotonic()
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Look("failed", (), f"it did not end within {timeout:g} s", timeout)
    seconds = time.monotonic() - began
    result = _RESULTS.get(done.returncode)
    if result is None:
        return Look("failed", (), done.stderr.strip()[-1000:], seconds)
    try:
        report = json.loads(done.stdout)
        findings = tuple(report["findings"])
        return Look(result, findings, "", seconds, tuple(report.get("warnings", ())))
    except (ValueError, KeyError, TypeError) as error:
        return Look("failed", (), f"verify printed no report: {error!r}", seconds)


class Observer:
    """Looks at intervals until it is told to stop.

    Args:
        config: addresses of the two servers.
        every: seconds from the end of a look to the next.
        once: looks once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: Config,
        every: float,
        once: Callable[[], Look],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = every
        self._once = once
        self._clock = clock
        self._log = logs.get()
        self._stop = threading.Event()
        self._ended = self._clock()
        self._looked = False
        self._warnings: tuple[str, ...] = ()
        self.registry = CollectorRegistry()
        self._metrics()
        probes = {"/livez": self._livez, "/healthz": self._livez, "/readyz": self._readyz}
        self._servers = [
            HttpServer(name, address, routes, hard_fail=config.bind_address_hard_fail)
            for name, address, routes in (
                ("health", config.healthz_bind_address, probes),
                ("metrics", config.metrics_bind_address, {"/metrics": self._serve_metrics}),
            )
            if address
        ]

    def _metrics(self) -> None:
        registry = self.registry
        Gauge("onenth_build_info", "1, with the version", ["version"], registry=registry).labels(
            __version__
        ).set(1)
        self._findings = Gauge(
            "onenth_observe_findings", "What the last look found", ["ip_family", "kind"],
            registry=registry,
        )  # fmt: skip
        self._sound = Gauge(
            "onenth_observe_sound", "1 if the last look found nothing, 0 otherwise",
            registry=registry,
        )  # fmt: skip
        self._when = Gauge(
            "onenth_observe_last_timestamp_seconds", "When the last look ended well",
            registry=registry,
        )  # fmt: skip
        self._took = Gauge(
            "onenth_observe_duration_seconds", "How long the last look took", registry=registry
        )
        self._looks = Counter(
            "onenth_observe_looks", "Looks, by result", ["result"], registry=registry
        )
        for result in ("sound", "findings", "failed"):
            self._looks.labels(result)

    def run(self) -> int:
        """Look until SIGTERM or SIGINT; returns the exit code."""
        before = {
            number: signal.signal(number, lambda *_: self._stop.set())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            for server in self._servers:
                server.start()
            while not self._stop.is_set():
                self.take(self._once())
                self._stop.wait(self._every)
        finally:
            for server in self._servers:
                server.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        self._log.info("stopped")
        return 0

    def take(self, seen: Look) -> None:
        """Tell what a look saw."""
        self._looks.labels(seen.result).inc()
        self._took.set(seen.seconds)
        if seen.result == "failed":
            self._log.warning("could not look", reason=seen.reason)
            return
        self._ended = self._clock()
        self._looked = True
        self._when.set_to_current_time()
        self._sound.set(seen.result == "sound")
        self._findings.clear()
        kinds = Tally((str(one["family"]), str(one["kind"])) for one in seen.findings)
        for labels, count in kinds.items():
            self._findings.labels(*labels).set(count)
        if seen.warnings != self._warnings:
            self._warnings = seen.warnings
            for warning in seen.warnings:
                self._log.warning("looks see less than they could", reason=warning)
        for one in seen.findings[:_LOGGED]:
            self._log.warning("finding", **{k: v for k, v in one.items() if v})
        self._log.info(
            "looked",
            result=seen.result,
            findings=len(seen.findings),
            seconds=round(seen.seconds, 3),
        )

    def _livez(self, _: Request) -> Response:
        silent = self._clock() - self._ended
        if silent > _LATE * self._every + LOOK_SECONDS:
            return text(503, f"no look has ended well for {silent:.0f} s")
        return text(200, "ok")

    def _readyz(self, _: Request) -> Response:
        return text(200, "ok") if self._looked else text(503, "nothing has been looked at yet")

    def _serve_metrics(self, request: Request) -> Response:
        return metrics_route(self.registry)(request)
