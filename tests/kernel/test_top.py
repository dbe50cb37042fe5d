"""``onenth top`` against connections that are really made."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.kernel.test_verify import ROOT, VIPS, Node, _node

node = _node


def _rows(screen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["family"]: row for row in screen["rows"]}


def test_connections_are_counted_where_they_went(node: Node) -> None:
    """Each endpoint's count is what its server saw, and the split is fair."""
    before = _rows(
        json.loads(node.onenth("top", "--once", "--interval", "0.1", "-o", "json").stdout)
    )
    tally = node.bed.connect(node.bed.client, VIPS[0], 80, count=900)
    held = node.bed.start_client(node.bed.client, VIPS[1], 80, count=30, hold=True)
    assert held.tally().answered == 30
    screen = json.loads(node.onenth("top", "--once", "--interval", "0.1", "-o", "json").stdout)
    after = _rows(screen)
    held.close()

    names = {f"{pod.ips[0]}:8080": pod.name for pod in node.bed.pods}
    base = {one["endpoint"]: one["thrown"] for one in before["IPv4"]["endpoints"]}
    counted = {
        names[one["endpoint"]]: one["thrown"] - base[one["endpoint"]]
        for one in after["IPv4"]["endpoints"]
    }
    assert screen["backend"] == node.backend
    assert counted == tally.answers
    assert after["IPv4"]["expected"] == "1/3"
    assert after["IPv4"]["fair"] is True
    assert after["IPv6"]["established"] == 30


def test_rates_are_seen_while_connections_are_made(node: Node) -> None:
    """New connections per second, of all endpoints together and of each."""
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "agent", "top", "--once"]
    watching = node.namespace.popen(
        [*command, "--interval", "2", "-o", "json"], stdout=subprocess.PIPE
    )
    stream = node.bed.start_client(
        node.bed.client, VIPS[0], 80, count=600, concurrency=4, interval=0.01
    )
    out, _ = watching.communicate(timeout=60)
    answered = stream.tally().answered
    row = _rows(json.loads(out))["IPv4"]

    assert answered == 600
    assert row["per_second"] > 20
    assert abs(sum(one["per_second"] for one in row["endpoints"]) - row["per_second"]) < 0.1


def test_the_screen_fits_and_can_be_filtered(node: Node) -> None:
    """Eighty columns without colour when piped; a filter that fits nothing shows nothing."""
    shown = node.onenth("top", "--once", "--interval", "0.1", "--filter", "def*web*").stdout
    nothing = node.onenth("top", "--once", "--interval", "0.1", "--filter", "other").stdout

    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "\x1b" not in shown
    assert shown.count("default/web:http") == 2
    assert "no Service has endpoints here" in nothing
