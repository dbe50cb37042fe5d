"""Documentation that is written by the code stays equal to it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from agent.config.docs import settings_table
from agent.config.table import BY_PATH
from agent.serve.metrics import Metrics
from agent.serve.traffic import Reader, TrafficMetrics

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"


def metrics_table() -> str:
    """A Markdown table of every metric of ours."""
    rows = ["| Name | Type | Labels | Meaning |", "| --- | --- | --- | --- |"]
    metrics = Metrics([])
    TrafficMetrics(metrics.parts, (), "endpoint", Reader(str, lambda _: ()), print)
    for one in metrics.descriptions:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("name", "table"),
    [("configuration.md", settings_table()), ("metrics.md", metrics_table())],
    ids=["configuration", "metrics"],
)
def test_tables_are_up_to_date(name: str, table: str) -> None:
    """The table between the marks is what the code says; ``UPDATE_DOCS=1`` writes it anew."""
    file = DOCS / name
    before, _, rest = file.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    if os.environ.get("UPDATE_DOCS"):
        file.write_text(f"{before}{BEGIN}{table}{END}{after}")
        shown = table
    assert shown == table, f"run UPDATE_DOCS=1 pytest {__file__}"


def test_switches_in_the_threat_model_exist() -> None:
    """docs/security.md names settings by keys that there are."""
    text = (DOCS / "security.md").read_text()
    named = set(re.findall(r"`((?:[a-z]+\.)?[a-z]+[A-Z][A-Za-z]+)(?:: [a-z]+)?`", text))
    fields = {"externalIPs", "status.loadBalancer"}  # of a Service
    assert len(named) > 6
    assert named - fields <= BY_PATH.keys()
