from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from agent.commands.observe import LOOK_SECONDS, Look, Observer, command, look
from agent.config.load import load
from agent.serve.wire import Request

if TYPE_CHECKING:
    from agent.config.model import Config

FINDING = {"family": "IPv4", "kind": "probability", "service": "default/web:http", "rule": ""}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config(**flags: str) -> Config:
    return load({"healthz_bind_address": ":0", "metrics_bind_address": ":0", **flags}, {}).config


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def shown(observer: Observer) -> dict[str, float]:
    lines = generate_latest(observer.registry).decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"
    }


def test_flags_reach_the_process_that_looks() -> None:
    """What was given to observe is given to verify, and nothing else."""
    flags: dict[str, Any] = {
        "node_name": None, "hostname_override": "node-1", "cluster_cidr": "10.0.0.0/8",
        "manifests": ("a", "b"), "api_server": None,
    }  # fmt: skip
    assert command(Path("/c.yaml"), flags)[1:] == [
        "-m", "agent", "verify", "-o", "json", "--config=/c.yaml", "--manifests=a",
        "--manifests=b", "--hostname-override=node-1", "--cluster-cidr=10.0.0.0/8",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "result", "findings"),
    [
        ("print('{\"findings\": []}')", "sound", ()),
        (
            'print(\'{"findings": [{"kind": "x"}]}\'); raise SystemExit(1)',
            "findings",
            ({"kind": "x"},),
        ),
    ],
)
def test_a_look_is_read_by_its_exit_status(
    program: str, result: str, findings: tuple[dict[str, str], ...]
) -> None:
    """Status 0 is sound and 1 has findings, as verify promises."""
    seen = look(python(program))
    assert (seen.result, seen.findings) == (result, findings)
    assert seen.seconds > 0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('no iptables here')", "verify printed no report"),
        ("import sys; print('cannot', file=sys.stderr); sys.exit(2)", "cannot"),
        ("print('no json')", "verify printed no report"),
        ("print('[]')", "verify printed no report"),
    ],
)
def test_a_look_that_failed_is_not_a_sound_one(program: str, reason: str) -> None:
    """Whatever else comes back counts as failed, with the reason."""
    seen = look(python(program))
    assert seen.result == "failed"
    assert reason in seen.reason


def test_a_look_that_hangs_is_ended() -> None:
    """A look has a bound in time."""
    seen = look(python("import time; time.sleep(60)"), timeout=0.2)
    assert (seen.result, seen.seconds) == ("failed", 0.2)


def test_metrics_tell_the_last_look() -> None:
    """Findings by family and kind; what was found before and is gone now disappears."""
    observer = Observer(config(), 60, lambda: Look("sound"))
    with capture_logs() as logged:
        observer.take(Look("findings", (FINDING, FINDING, {**FINDING, "family": "IPv6"}), "", 1.5))
    values = shown(observer)
    assert values['onenth_observe_findings{ip_family="IPv4",kind="probability"}'] == 2
    assert values['onenth_observe_findings{ip_family="IPv6",kind="probability"}'] == 1
    assert values["onenth_observe_sound"] == 0
    assert values["onenth_observe_duration_seconds"] == 1.5
    named = [line for line in logged if line["event"] == "finding"]
    assert [line["service"] for line in named] == ["default/web:http"] * 3
    observer.take(Look("sound"))
    values = shown(observer)
    assert not [name for name in values if name.startswith("onenth_observe_findings{")]
    assert values["onenth_observe_sound"] == 1
    assert values['onenth_observe_looks_total{result="findings"}'] == 1
    assert values['onenth_observe_looks_total{result="failed"}'] == 0


def test_warnings_of_looks_are_logged_once() -> None:
    """As verify says them; again only when they are others."""
    program = 'print(\'{"findings": [], "warnings": ["no Node"]}\')'
    observer = Observer(config(), 60, lambda: Look("sound"))
    with capture_logs() as logged:
        observer.take(look(python(program)))
        observer.take(look(python(program)))
        observer.take(Look("sound"))
        observer.take(look(python(program)))

    warned = [line["reason"] for line in logged if line["log_level"] == "warning"]
    assert warned == ["no Node", "no Node"]


def test_a_failed_look_keeps_what_is_known_and_ages() -> None:
    """It is counted and logged; health turns bad when no look has ended well for too long."""
    clock = Clock()
    observer = Observer(config(), 10, lambda: Look("sound"), clock)
    request = Request("GET", "/livez", {})
    assert observer._readyz(request).status == 503
    observer.take(Look("sound"))
    assert observer._readyz(request).status == 200
    with capture_logs() as logged:
        observer.take(Look("failed", (), "no API server", 1.0))
    assert [line["reason"] for line in logged] == ["no API server"]
    assert shown(observer)["onenth_observe_sound"] == 1
    clock.now += 30 + LOOK_SECONDS
    assert observer._livez(request).status == 200
    clock.now += 1
    assert observer._livez(request).status == 503


def test_it_serves_what_it_knows() -> None:
    """/metrics and /readyz answer while it runs, and it ends when it is told to."""
    seen: dict[str, object] = {}
    observer = Observer(
        config(healthz_bind_address="127.0.0.1:0", metrics_bind_address="127.0.0.1:0"),
        5,
        lambda: Look("sound"),
    )

    def once() -> Look:
        health, metrics = (server.port for server in observer._servers)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=5) as answer:
            seen["metrics"] = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=5)
        observer._stop.set()
        return Look("sound")

    observer._once = once
    assert observer.run() == 0
    assert "onenth_observe_looks_total" in str(seen["metrics"])
