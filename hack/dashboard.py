"""Writes the Grafana dashboard of deploy/components/monitoring from the table of panels below.

python hack/dashboard.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).resolve().parent.parent / "deploy/components/monitoring/dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_HEIGHT = 7


class Panel(NamedTuple):
    """One panel: queries are pairs of expression and legend."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 8
    kind: str = "timeseries"
    description: str = ""


def _rate(name: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{_LABELS}{more}}}[$__rate_interval]))"


def _quantile(share: str, name: str, by: str) -> str:
    return (
        f"histogram_quantile({share}, sum by ({by}, le)"
        f" (rate({name}_bucket{{{_LABELS}}}[$__rate_interval])))"
    )


_LABELS = 'job="onenth", instance=~"$instance"'
_SYNC = "kubeproxy_sync_proxy_rules"
_NODE = "{{instance}}"
_NODE_FAMILY = "{{instance}} {{ip_family}}"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Agents", "short", ((f"sum(up{{{_LABELS}}})", "up"),), 4, "stat"),
        Panel(
            "Versions", "short",
            ((f"count by (version) (onenth_build_info{{{_LABELS}}})", "{{version}}"),), 4, "stat",
        ),
        Panel("Services", "short", ((f"max(onenth_services{{{_LABELS}}})", ""),), 4, "stat"),
        Panel("Endpoints", "short", ((f"max(onenth_endpoints{{{_LABELS}}})", ""),), 4, "stat"),
        Panel(
            "Services set aside", "short",
            ((f"sum(onenth_set_aside_services{{{_LABELS}}})", ""),), 4, "stat",
            "Services without rules because the kernel refused them.",
        ),
        Panel(
            "Backends", "short",
            (
                (
                    f"count by (backend, version) (onenth_iptables_backend_info{{{_LABELS}}})",
                    "{{backend}} {{version}}",
                ),
            ),
            4, "stat",
        ),
    ),
    "From a change to the kernel": (
        Panel(
            "From the cluster to the kernel", "s",
            tuple(
                (_quantile(q, "kubeproxy_network_programming_duration_seconds", "instance"), leg)
                for q, leg in (("0.5", "{{instance}} p50"), ("0.99", "{{instance}} p99"))
            ),
            description="From the change of an endpoint in the cluster to its rules.",
        ),
        Panel(
            "Syncs", "ops",
            (
                (_rate("kubeproxy_sync_partial_proxy_rules_duration_seconds_count", "instance"),
                 "{{instance}} partial"),
                (_rate("kubeproxy_sync_full_proxy_rules_duration_seconds_count", "instance"),
                 "{{instance}} full"),
            ),
        ),
        Panel(
            "Duration of a sync, p99", "s",
            ((_quantile("0.99", f"{_SYNC}_duration_seconds", "instance, ip_family"),
              _NODE_FAMILY),),
        ),
        Panel(
            "Oldest change that waits", "s",
            (
                (
                    (
                        f"clamp_min({_SYNC}_last_queued_timestamp_seconds{{{_LABELS}}}"
                        f" - {_SYNC}_last_timestamp_seconds{{{_LABELS}}}, 0)"
                    ),
                    _NODE_FAMILY,
                ),
            ),
        ),
        Panel(
            "Changes", "ops",
            (
                (_rate(f"{_SYNC}_service_changes_total", "instance"), "{{instance}} Services"),
                (_rate(f"{_SYNC}_endpoint_changes_total", "instance"), "{{instance}} endpoints"),
            ),
        ),
        Panel(
            "Changes that wait", "short",
            (
                (f"{_SYNC}_service_changes_pending{{{_LABELS}}}", "{{instance}} Services"),
                (f"{_SYNC}_endpoint_changes_pending{{{_LABELS}}}", "{{instance}} endpoints"),
            ),
        ),
    ),
    "The kernel": (
        Panel(
            "Rules", "short",
            ((f"{_SYNC}_iptables_total{{{_LABELS}}}", "{{instance}} {{ip_family}} {{table}}"),),
        ),
        Panel(
            "Restores", "ops",
            ((_rate("onenth_restore_transactions_total", "instance, result"),
              "{{instance}} {{result}}"),),
        ),
        Panel(
            "Duration of a restore, p99", "s",
            ((_quantile("0.99", "onenth_restore_duration_seconds", "instance, ip_family"),
              _NODE_FAMILY),),
        ),
        Panel(
            "Failed restores", "short",
            (
                (
                    (
                        f"increase({_SYNC}_iptables_restore_failures_total{{{_LABELS}}}"
                        "[$__rate_interval])"
                    ),
                    _NODE_FAMILY,
                ),
            ),
        ),
        Panel(
            "Audits, and differences that they found", "ops",
            (
                (_rate("onenth_audit_rounds_total", "instance, result"), "{{instance}} {{result}}"),
                (_rate("onenth_audit_differences_total", "instance"), "{{instance}} differences"),
            ),
        ),
        Panel(
            "Local policies without a local endpoint", "short",
            (
                (
                    f"{_SYNC}_no_local_endpoints_total{{{_LABELS}}}",
                    "{{instance}} {{ip_family}} {{traffic_policy}}",
                ),
            ),
        ),
    ),
    "The API server": (
        Panel(
            "What came", "ops",
            ((_rate("onenth_source_events_total", "kind, type"), "{{kind}} {{type}}"),),
        ),
        Panel(
            "Silence", "s",
            ((f"onenth_source_last_contact_seconds{{{_LABELS}}}", "{{instance}} {{kind}}"),),
        ),
        Panel(
            "Lists, and watches that ended", "ops",
            (
                (_rate("onenth_source_lists_total", "kind, result"), "list {{kind}} {{result}}"),
                (_rate("onenth_source_watch_ends_total", "kind, reason"),
                 "watch {{kind}} {{reason}}"),
            ),
        ),
    ),
    "Packets, and the agent itself": (
        Panel(
            "INVALID packets dropped", "pps",
            ((_rate("kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "instance"),
              _NODE),),
        ),
        Panel(
            "Stale UDP flows deleted", "ops",
            ((_rate("kubeproxy_conntrack_reconciler_deleted_entries_total", "instance"), _NODE),),
        ),
        Panel(
            "Answers of probes", "ops",
            (
                (_rate("kubeproxy_proxy_healthz_total", "code"), "healthz {{code}}"),
                (_rate("kubeproxy_proxy_livez_total", "code"), "livez {{code}}"),
                (_rate("onenth_readyz_total", "code"), "readyz {{code}}"),
            ),
        ),
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{{{_LABELS}}}", _NODE),)),
        Panel(
            "CPU", "percentunit", ((_rate("process_cpu_seconds_total", "instance"), _NODE),),
            description="Of one core; iptables-restore runs as processes of its own.",
        ),
        Panel("Open files", "short", ((f"process_open_fds{{{_LABELS}}}", _NODE),)),
    ),
}  # fmt: skip


def build() -> dict[str, Any]:
    """Lay the panels out, from left to right and from top to bottom."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place,
                       "collapsed": False, "panels": []})  # fmt: skip
        y, x = y + 1, 0
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + _HEIGHT
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x += panel.width
        y += _HEIGHT
    return {
        "uid": "onenth",
        "title": "onenth",
        "tags": ["kubernetes", "onenth"],
        "schemaVersion": 39,
        "editable": True,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    query = 'label_values(up{job="onenth"}, instance)'
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "instance",
            "type": "query",
            "label": "Node",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": "instances"},
            "definition": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def text() -> str:
    """Return what the dashboard's file should hold."""
    return json.dumps(build(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")
