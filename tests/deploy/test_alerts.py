from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from hack.render import DEPLOY, ROOT

if TYPE_CHECKING:
    from pathlib import Path

RULES = DEPLOY / "components/monitoring/prometheusrule.yaml"
SYNC = "kubeproxy_sync_proxy_rules"
NODE = 'job="onenth", instance="a"'
V4 = f'{NODE}, ip_family="IPv4"'


class Case(NamedTuple):
    """Series of one alert, by the minute in promtool's notation, and when it must fire.

    ``quiet`` replaces the values of ``series`` (in order), and nothing may fire then.
    ``before`` is the last minute at which the alert of ``series`` does not fire yet.
    """

    alert: str
    series: dict[str, str]
    quiet: tuple[str, ...]
    before: int
    at: int
    labels: str


WARNING, CRITICAL, INFO = (f'severity="{word}"' for word in ("warning", "critical", "info"))
CASES = (
    # Six agents answered once, and none does any more.
    Case("OnenthDown", {f"up{{{NODE}}}": "1 0x40"}, ("1x40",), 15, 17, CRITICAL),
    Case("OnenthUnreachable", {f"up{{{NODE}}}": "1 0x40"}, ("1x40",), 15, 17, f"{NODE}, {WARNING}"),
    # Started anew every five minutes; once is an update.
    Case(
        "OnenthRestarting",
        {f"process_start_time_seconds{{{NODE}}}": "1x4 2x4 3x4 4x4 5x4 6x4"},
        ("1x10 2x40",), 15, 25, f"{NODE}, {WARNING}",
    ),
    # Asked for at 500, the last one is from 300: the difference is too large, for two minutes.
    Case(
        "OnenthSyncStale",
        {
            f"{SYNC}_last_queued_timestamp_seconds{{{V4}}}": "300x5 500x20",
            f"{SYNC}_last_timestamp_seconds{{{V4}}}": "301x25",
        },
        ("300x5 500x20", "301x5 501x20"), 7, 9, f"{V4}, {CRITICAL}",
    ),
    # All changes take 30 to 60 s; quiet: all take less than 10 s.
    Case(
        "OnenthProgrammingSlow",
        {
            f'kubeproxy_network_programming_duration_seconds_bucket{{{V4}, le="{le}"}}': values
            for le, values in {"10": "0x60", "30": "0x60", "60": "0+6x60", "+Inf": "0+6x60"}.items()
        },
        ("0+6x60", "0+6x60", "0+6x60", "0+6x60"), 10, 14,
        f'instance="a", ip_family="IPv4", {WARNING}',
    ),
    Case(
        "OnenthRestoreFailing",
        {f"{SYNC}_iptables_restore_failures_total{{{V4}}}": "0x5 1+1x20"},
        ("7x40",), 10, 13, f"{V4}, {WARNING}",
    ),
    Case(
        "OnenthServiceSetAside",
        {f"onenth_set_aside_services{{{V4}}}": "0x2 2x20"},
        ("0x2 1x3 0x20",), 7, 9, f"{V4}, {CRITICAL}",
    ),
    Case(
        "OnenthRulesTampered",
        {f"onenth_audit_differences_total{{{V4}}}": "0x5 3x20"},
        ("3x40",), 5, 7, f"{V4}, {WARNING}",
    ),
    Case(
        "OnenthAPIServerSilent",
        {f'onenth_source_last_contact_seconds{{{NODE}, kind="Service"}}': "0+60x40"},
        ("0x2 0+60x10 0x20",), 15, 17, f'{NODE}, kind="Service", {WARNING}',
    ),
    Case(
        "OnenthUnusableObjects",
        {f'onenth_unusable_objects{{{NODE}, kind="Service"}}': "1x30"},
        ("0x30",), 14, 16, f'{NODE}, kind="Service", {WARNING}',
    ),
    Case(
        "OnenthHealthCheckPortTaken",
        {f"onenth_health_check_ports_failing{{{NODE}}}": "1x30"},
        ("0x30",), 4, 6, f"{NODE}, {WARNING}",
    ),
    Case(
        "OnenthPortTaken",
        {f'onenth_bind_failures_total{{{NODE}, server="health"}}': "0+12x30"},
        ("12x30",), 5, 8, f'{NODE}, server="health", {WARNING}',
    ),
    Case(
        "OnenthInvalidDrops",
        {f"kubeproxy_iptables_ct_state_invalid_dropped_packets_total{{{NODE}}}": "0+1200x40"},
        ("0+300x40",), 15, 18, f"{NODE}, {INFO}",
    ),
    Case(
        "OnenthConntrackFull",
        {
            'node_nf_conntrack_entries{instance="a"}': "800x20",
            'node_nf_conntrack_entries_limit{instance="a"}': "1000x20",
        },
        ("700x20", "1000x20"), 4, 6, f'instance="a", {WARNING}',
    ),
    Case(
        "OnenthVersionSkew",
        {
            f'onenth_build_info{{{NODE}, version="1"}}': "1x90",
            'onenth_build_info{job="onenth", instance="b", version="2"}': "1x90",
        },
        ("1x90", "1x30 stale"), 59, 62, INFO,
    ),
)  # fmt: skip


def play(series: dict[str, str], checks: list[tuple[str, int, str]]) -> dict[str, Any]:
    """A test of promtool: after some minutes, exactly one alert fires, or none (no labels)."""
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{alert}", alertstate="firing"}}',
                "eval_time": f"{minute}m",
                "exp_samples": [
                    {
                        "labels": f'ALERTS{{alertname="{alert}", alertstate="firing", {labels}}}',
                        "value": 1,
                    }
                ] if labels else [],
            }
            for alert, minute, labels in checks
        ],
    }  # fmt: skip


@pytest.fixture(name="promtool")
def _promtool() -> str:
    """promtool of Debian's package prometheus, which hack/setup.sh unpacks into .venv."""
    path = os.pathsep.join((str(ROOT / ".venv/bin"), os.environ.get("PATH", "")))
    found = shutil.which("promtool", path=path)
    if found is None:
        pytest.skip("needs promtool (Debian's package prometheus; hack/setup.sh unpacks it)")
    return found


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A folder with the rules as Prometheus itself takes them."""
    spec = yaml.safe_load(RULES.read_text("utf-8"))["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec), "utf-8")
    return tmp_path


def run(promtool: str, folder: Path, *argv: str) -> None:
    done = subprocess.run(
        [promtool, *argv], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules(promtool: str, folder: Path) -> None:
    """promtool finds nothing wrong with the rules, duplicates included."""
    run(promtool, folder, "check", "rules", "--lint-fatal", "rules.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_fires_when_it_should_and_not_before(promtool: str, folder: Path, case: Case) -> None:
    """Played through the real rules: quiet up to a minute, then firing with these labels."""
    checks = [(case.alert, case.before, ""), (case.alert, case.at, case.labels)]
    tests = {"rule_files": ["rules.yaml"], "tests": [play(case.series, checks)]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests), "utf-8")
    run(promtool, folder, "test", "rules", "tests.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_stays_quiet_when_all_is_well(promtool: str, folder: Path, case: Case) -> None:
    """Series of a healthy node, or of a short disturbance, never fire it."""
    calm = dict(zip(case.series, case.quiet, strict=True))
    checks = [(case.alert, minute, "") for minute in (case.before, case.at, case.at + 10)]
    tests = {"rule_files": ["rules.yaml"], "tests": [play(calm, checks)]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests), "utf-8")
    run(promtool, folder, "test", "rules", "tests.yaml")


def test_each_alert_has_its_case() -> None:
    """No alert is without a test."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["spec"]["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    assert sorted(alerts) == sorted(case.alert for case in CASES)
