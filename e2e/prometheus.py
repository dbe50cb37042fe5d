"""A real Prometheus, on this machine, that scrapes every node's agent and loads the alerts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.docker import ROOT
from e2e.manifests import alert_rules
from e2e.shell import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster import Cluster

#: Seconds between scrapes.
INTERVAL = 2


class Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/"

    def get(self, path: str, **query: str) -> Any:
        """Ask; returns the answer's data.

        Raises:
            OSError: it does not answer, or not with a success.
        """
        url = self._url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  always http
                return json.load(answer).get("data")
        except urllib.error.HTTPError as error:
            error.close()  # it is an answer, too, and has a socket
            raise

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression answers with now."""
        found: list[dict[str, Any]] = self.get("api/v1/query", query=expr)["result"]
        return found

    def alerts(self) -> dict[str, str]:
        """State of each alert that is not inactive."""
        return {
            alert["labels"]["alertname"]: alert["state"]
            for alert in self.get("api/v1/alerts")["alerts"]
        }


@contextlib.contextmanager
def prometheus(cluster: Cluster, folder: Path) -> Iterator[Prometheus]:
    """Run it for as long as the block lasts; skips where there is none."""
    path = os.pathsep.join((str(ROOT / ".venv/bin"), os.environ.get("PATH", "")))
    program = shutil.which("prometheus", path=path)
    if program is None:
        pytest.skip("needs prometheus (Debian's package; hack/setup.sh e2e unpacks it)")
    targets = {node: cluster.agents.metrics_target(node) for node in cluster.nodes}
    config = {
        "global": {"scrape_interval": f"{INTERVAL}s", "evaluation_interval": f"{INTERVAL}s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{
            "job_name": "onenth",
            "static_configs": [
                {"targets": [target], "labels": {"node": node}} for node, target in targets.items()
            ],
        }],
    }  # fmt: skip
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), "utf-8")
    (folder / "rules.yaml").write_text(yaml.safe_dump(alert_rules()), "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--config.file", "prometheus.yaml", "--storage.tsdb.path", str(folder / "db"),
             "--web.listen-address", f"127.0.0.1:{port}"],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        server = Prometheus(port)
        wait_for("Prometheus is ready", lambda: server.get("api/v1/status/buildinfo"), timeout=60)
        yield server
    finally:
        process.terminate()
        process.wait(30)
