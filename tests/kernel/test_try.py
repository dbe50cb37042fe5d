"""``hack/try.sh``, which README's first screen begins with."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernel.running import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = "hello from 10.64.0.12\n"


class Try:
    """The script with a namespace of its own, started once or more."""

    def __init__(self, folder: Path) -> None:
        self.name = f"onenth-t{secrets.token_hex(3)}"
        self.kubeconfig = ROOT / f".{self.name.removeprefix('onenth-')}.kubeconfig"
        self.pages = self.kubeconfig.with_suffix(".pages")
        self.manifests = folder / "cluster.yaml"
        self.manifests.write_text((ROOT / "docs/try/cluster.yaml").read_text("utf-8"), "utf-8")
        self._out = folder / "try.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        with self._out.open("w") as out:
            self.process = subprocess.Popen(
                [ROOT / "hack/try.sh"],
                **self._options(),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until(lambda: "serving on http://127.0.0.1:8001" in self.said(), what=self.said)
        until(lambda: self.page() == HELLO, what=self.said)

    def again(self) -> subprocess.CompletedProcess[str]:
        """Run a second one to its end."""
        return subprocess.run(
            [ROOT / "hack/try.sh"],
            **self._options(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _options(self) -> dict[str, Any]:
        own = {"TRY_NAMESPACE": self.name, "TRY_MANIFESTS": str(self.manifests)}
        return {"env": {**os.environ, **own}, "start_new_session": True}

    def said(self) -> str:
        """What it printed so far."""
        return self._out.read_text("utf-8")

    def inside(self, *argv: str) -> str:
        """What a command in its namespace prints; nothing if it fails."""
        command = ["ip", "netns", "exec", self.name, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def page(self) -> str:
        """What the second web server says."""
        return self.inside("curl", "-s", "--max-time", "3", "http://10.64.0.12:8080")

    def pids(self) -> list[str]:
        """Processes in its namespace."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return listed.stdout.split()

    def close(self) -> None:
        """Whatever happened, leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(20)
        if Path("/run/netns", self.name).exists():
            subprocess.run(["ip", "netns", "delete", self.name], check=False)
        self.kubeconfig.unlink(missing_ok=True)
        subprocess.run(["rm", "-rf", self.pages], check=True)


@pytest.fixture(name="script")
def _script(namespace: object, tmp_path: Path) -> Iterator[Try]:
    assert namespace  # which says that this machine lets tests make some
    script = Try(tmp_path)
    yield script
    script.close()


def test_it_serves_and_takes_everything_down(script: Try) -> None:
    """Web server, API server and kubeconfig are there; Ctrl-C ends all of it with 130."""
    script.start()
    services = script.inside("curl", "-s", "http://127.0.0.1:8001/api/v1/services")
    kubeconfig = script.kubeconfig.read_text("utf-8")
    assert script.process is not None
    os.killpg(script.process.pid, signal.SIGINT)
    status = script.process.wait(20)

    assert "10.96.0.10" in services
    assert "http://127.0.0.1:8001" in kubeconfig
    assert status == 130
    assert not script.kubeconfig.exists()
    assert not script.pages.exists()
    assert not Path("/run/netns", script.name).exists()


def test_a_second_one_says_who_is_in_the_way(script: Try) -> None:
    """By number and command, and that the first one goes on."""
    script.start()
    second = script.again()

    assert second.returncode == 1
    assert f"The namespace {script.name} is in use, by" in second.stderr
    named = [line.split()[0] for line in second.stderr.splitlines()[1:-1]]
    assert sorted(named) == sorted(script.pids()) != []
    assert "hack/pages.py 10.64.0.11 8080" in second.stderr
    assert script.page() == HELLO


def test_killed_hard_it_leaves_nothing_that_runs(script: Try) -> None:
    """kill -9 ends the servers as well, and the next one just works."""
    script.start()
    assert script.process is not None
    script.process.kill()
    script.process.wait(20)
    until(lambda: script.pids() == [], what=script.pids)
    script.start()

    assert script.page() == HELLO


def test_a_slip_in_the_manifest_is_told_once_with_its_file(script: Try) -> None:
    """What was there stays; after the slip is mended, the change is served."""
    script.start()
    good = script.manifests.read_text("utf-8")

    def services() -> str:
        return script.inside("curl", "-s", "http://127.0.0.1:8001/api/v1/services")

    script.manifests.write_text(f"{good}\n  slip: [", "utf-8")
    until(lambda: "not served" in script.said(), what=script.said)
    kept = services()
    script.manifests.write_text(good.replace("10.96.0.10", "10.96.0.11"), "utf-8")
    until(lambda: "10.96.0.11" in services(), what=script.said)

    assert "10.96.0.10" in kept
    (line,) = [line for line in script.said().splitlines() if "not served" in line]
    assert f"what was there stays: {script.manifests}:" in line
