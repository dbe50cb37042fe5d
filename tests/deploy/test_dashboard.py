from __future__ import annotations

import json
import re
from typing import Any

import promql_parser
import pytest
import yaml

from hack.render import DEPLOY, ROOT

MONITORING = DEPLOY / "components/monitoring"
#: Not ours: Prometheus's own, the client library's, node_exporter's.
OTHERS = {
    "up": {"job", "instance"},
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
    "process_open_fds": set(),
    "process_start_time_seconds": set(),
    "node_nf_conntrack_entries": set(),
    "node_nf_conntrack_entries_limit": set(),
}
#: Labels that a scrape adds.
TARGET = {"job", "instance", "node"}
_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<type>\w+) \| (?P<labels>[^|]*)\|", re.MULTILINE)


def known_series() -> dict[str, set[str]]:
    """Series and their labels by the table in docs/metrics.md, which another test keeps true."""
    series: dict[str, set[str]] = {name: labels | TARGET for name, labels in OTHERS.items()}
    for row in _ROW.finditer((ROOT / "docs/metrics.md").read_text("utf-8")):
        labels = set(re.findall(r"`(\w+)`", row["labels"])) | TARGET
        series[row["name"]] = labels
        if row["type"] == "histogram":
            series |= {row["name"] + "_count": labels, row["name"] + "_sum": labels}
            series[row["name"] + "_bucket"] = labels | {"le"}
    return series


def selectors(expr: Any) -> list[Any]:
    """Every vector selector below an expression."""
    found = [expr] if isinstance(expr, promql_parser.VectorSelector) else []
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        child = getattr(expr, name, None)
        if child is not None:
            found += selectors(child)
    for child in getattr(expr, "args", None) or ():
        found += selectors(child)
    return found


def grouping(expr: str) -> set[str]:
    """Labels that an expression groups by."""
    return {
        label.strip() for group in re.findall(r"by \(([^)]*)\)", expr) for label in group.split(",")
    }


def dashboard_queries() -> list[tuple[str, str]]:
    content = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    return [
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in content["panels"]
        for target in panel.get("targets", ())
    ]


def alert_queries() -> list[tuple[str, str]]:
    content = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text("utf-8"))
    return [
        (rule["alert"], rule["expr"])
        for group in content["spec"]["groups"]
        for rule in group["rules"]
    ]


QUERIES = dashboard_queries() + alert_queries()


@pytest.mark.parametrize("expr", [q for _, q in QUERIES], ids=[name for name, _ in QUERIES])
def test_every_expression_names_what_exists(expr: str) -> None:
    """Each series in an expression exists, with each label that it is chosen or grouped by."""
    expr = expr.replace("$__rate_interval", "5m").replace("$instance", ".*")
    known = known_series()
    found = selectors(promql_parser.parse(expr))
    assert found
    labels: set[str] = set()
    for selector in found:
        assert selector.name in known, selector.name
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= known[selector.name], selector.name
        labels |= known[selector.name]
    assert grouping(expr) <= labels


def test_the_walk_finds_series_wherever_they_stand() -> None:
    """The helper above sees into calls, aggregates, both sides, ranges and brackets."""
    expr = promql_parser.parse("max(a) / (sum by (x) (rate(b{c='d'}[5m])) + quantile(0.5, e)) > -f")
    assert sorted(selector.name for selector in selectors(expr)) == ["a", "b", "e", "f"]


def test_each_alert_is_documented() -> None:
    """Every alert's runbook is a heading of docs/operations.md, and says what to do."""
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    headings = {line.lstrip("# ").lower() for line in text.split("\n") if line.startswith("#")}
    content = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text("utf-8"))
    for group in content["spec"]["groups"]:
        for rule in group["rules"]:
            page, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
            assert anchor in headings


def test_each_metric_is_in_operations_or_metrics() -> None:
    """docs/operations.md sends readers to docs/metrics.md, which lists every metric."""
    assert "metrics.md" in (ROOT / "docs/operations.md").read_text("utf-8")


#: What the dashboard "Kubernetes / Proxy" of kubernetes-mixin asks of kube-proxy.
MIXIN = (
    "kubeproxy_sync_proxy_rules_duration_seconds_count",
    "kubeproxy_sync_proxy_rules_duration_seconds_bucket",
    "kubeproxy_network_programming_duration_seconds_count",
    "kubeproxy_network_programming_duration_seconds_bucket",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds_bucket",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
)


def test_dashboards_for_kube_proxy_are_fed_as_documented() -> None:
    """The PodMonitor in docs/operations.md keeps what they ask for, under kube-proxy's job."""
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    (block,) = [
        part for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "as-kube" in part
    ]
    (endpoint,) = yaml.safe_load(block)["spec"]["podMetricsEndpoints"]
    (keep,) = endpoint["metricRelabelings"]
    kept = [name for name in known_series() if re.fullmatch(keep["regex"], name)]

    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "kube-proxy"}]
    assert set(MIXIN) <= set(kept)
    assert not [name for name in kept if name.startswith("onenth_")]
