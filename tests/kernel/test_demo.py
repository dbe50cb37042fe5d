"""``onenth demo`` from the outside: it shows what holds, notices what does not, leaves nothing."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from agent.demo import demo
from agent.demo.namespaces import RUN_DIR
from tests.kernel.running import BACKENDS, ROOT, until
from tests.kernel.shim import without_iptables

if TYPE_CHECKING:
    from collections.abc import Sequence


def start(*flags: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "agent", "demo", *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT), "ONENTH_NODE_IP": "nonsense"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def namespaces_of(process: subprocess.Popen[str]) -> list[Path]:
    return list(RUN_DIR.glob(f"onenth-{process.pid}-*"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_that_it_shows_holds(backend: str) -> None:
    """It shows the split twice, a removal under running connections, metrics, and a quiet end."""
    started = time.monotonic()
    process = start("--backend", backend, "--connections", "600")
    said, _ = process.communicate(timeout=60)
    seconds = time.monotonic() - started

    assert process.returncode == 0, said
    assert seconds < 60
    assert said.count("the split is fair") == 3
    assert "600 of 600 connections were answered" in said
    assert "no new connection went to pod-3" in said
    assert "still talk to the same pods" in said
    assert "kubeproxy_sync_proxy_rules_iptables_total" in said
    assert f'backend="{backend}"' in said
    assert "the agent ends with status 0" in said
    assert said.rstrip().endswith("Everything has been taken down again.")
    assert namespaces_of(process) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_everything_down(number: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM no namespace and no process is left, and the status is not 0."""
    process = start("--connections", "100000")
    until(lambda: len(namespaces_of(process)) >= 5, 20)
    time.sleep(1.5)
    agents = [
        path
        for path in Path("/proc").glob("[0-9]*")
        if f"onenth-{process.pid}-" in name_of_namespace(path, namespaces_of(process))
    ]
    process.send_signal(number)
    said, _ = process.communicate(timeout=20)

    assert process.returncode not in {0, None}
    assert "Traceback" not in said
    assert namespaces_of(process) == []
    assert agents
    assert [path for path in agents if path.exists()] == []


def name_of_namespace(process: Path, known: list[Path]) -> str:
    """The named network namespace that a process is in; empty if it is in none of them."""
    try:
        inode = (process / "ns/net").stat().st_ino
    except OSError:
        return ""
    return next((path.name for path in known if path.stat().st_ino == inode), "")


def test_what_does_not_hold_is_told(tmp_path: Path) -> None:
    """Where the agent cannot start it ends with 1 and the agent's reason, and leaves nothing."""
    process = start(prefix=without_iptables(tmp_path))
    said, _ = process.communicate(timeout=60)

    assert process.returncode == 1, said
    assert "the agent is not ready" in said
    assert "install the iptables package" in said
    assert namespaces_of(process) == []


def test_a_claim_that_does_not_hold_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shows is checked: no split can be fairer than certain, and it says so."""
    monkeypatch.setattr(demo, "P_MIN", 1.1)
    shown = io.StringIO()
    failed = demo.run("nft", Console(file=shown, width=120), connections=90)

    assert failed == ["the split is fair (p > 1.1)"] * 3
    assert "taken down again" in shown.getvalue()
