"""What the daemon does when its configuration file changes, and at signals that do not end it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.kernel.running import stays, until
from tests.kernel.shapes import endpoint, endpoint_slice, service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kernel.running import Host, RunningAgent

A, POD = "10.96.0.1", "10.0.0.1"
CHANGED = "the configuration file has changed; ending, to be started again with it"


@pytest.fixture
def config(host: Host) -> Path:
    path = host.folder / "config.yaml"
    path.write_text("iptables: {masqueradeBit: 14}\n", encoding="utf-8")
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    return path


def start(host: Host, config: Path) -> RunningAgent:
    return host.agent("--config", str(config)).start()


def test_other_settings_end_it(host: Host, config: Path) -> None:
    """A changed setting is noticed by itself: status 1, the rules stay, and a restart has it."""
    agent = start(host, config)
    config.write_text("iptables: {masqueradeBit: 15}\n", encoding="utf-8")
    status = agent.wait(20)
    said, left = agent.logs()[-1], agent.rules("KUBE-MARK-MASQ")
    agent.start()

    assert status == 1
    assert (said["event"], said["settings"]) == (CHANGED, ["iptables.masqueradeBit"])
    assert "0x4000" in left
    assert "0x8000" in agent.rules("KUBE-MARK-MASQ")


def test_what_cannot_be_used_or_means_the_same_ends_nothing(host: Host, config: Path) -> None:
    """All that is wrong with the file is told, and the agent goes on; likewise without a change."""
    agent = start(host, config)
    config.write_text("iptables: {masqueradeBit: 77, syncPeriode: 1s}\n", encoding="utf-8")
    agent.send(signal.SIGHUP)
    told = agent.wait_logged(
        "the configuration file has changed and cannot be used; nothing changes"
    )
    config.write_text("# a comment\niptables: {masqueradeBit: 14}\n", encoding="utf-8")
    agent.send(signal.SIGHUP)
    agent.wait_logged("the configuration file has changed, and means the same")
    config.unlink()
    agent.send(signal.SIGHUP)
    lives = stays(lambda: agent.running, 1)
    host.api.put(endpoint_slice("a", endpoint("10.0.0.2")))
    agent.wait_rules("10.0.0.2:8080")

    assert len(told["problems"]) == 2
    assert "masqueradeBit" in str(told["problems"])
    assert lives
    assert agent.stop() == 0


def test_sighup_without_a_file_ends_it_in_order(host: Host) -> None:
    """A terminal that goes away leaves the rules, and status 0."""
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    agent = host.agent().start()

    assert agent.stop(signal.SIGHUP) == 0
    assert f"{POD}:8080" in str(agent.tables()["nat"])


def test_sigusr1_logs_the_status(host: Host, config: Path) -> None:
    """The line holds what /statusz does, and the agent goes on."""
    agent = start(host, config)
    agent.send(signal.SIGUSR1)
    status = agent.wait_logged("status")["status"]
    until(lambda: agent.get("/readyz").status == 200)

    assert [family["family"] for family in status["families"]] == ["IPv4", "IPv6"]
    assert status["families"][0]["services"] == 1
    assert agent.running
