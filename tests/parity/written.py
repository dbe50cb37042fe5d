"""The states of ``own/``: written down from kube-proxy's documented behaviour, not recorded.

A file holds ``cases`` in the golden format (and, beside them, the anchors that they share). What
a case leaves out, of the node and of the expected chains, is in ``own/standing.yaml``. ``crowd``
adds a Service with so many endpoints that are not ready.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tests.parity.case import Case

OWN = Path(__file__).parent / "own"


@functools.cache
def load_written() -> dict[str, Case]:
    """All states by file and name; not to be changed, since everybody gets the same."""
    standing = _load(OWN / "standing.yaml")
    found: dict[str, Case] = {}
    for path in sorted(OWN.glob("*.yaml")):
        for case in _load(path).get("cases", ()):
            name = f"{path.stem}: {case['name']}"
            if name in found:
                raise ValueError(f"{path}: there are two states {case['name']!r}")
            found[name] = _whole(case, standing) | {"name": name}
    return found


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


def _whole(case: dict[str, Any], standing: dict[str, Any]) -> Case:
    expected = {
        table: chains | case["expected"].get(table, {})
        for table, chains in standing["expected"].items()
    }
    whole = copy.deepcopy(case)
    whole |= {"config": standing["config"] | case.get("config", {}), "expected": expected}
    whole["written"] = True
    if crowd := case.get("crowd"):
        whole["services"].append(_crowded_service())
        whole["endpointSlices"].append(_crowded_slice(crowd))
    return whole


def _crowded_service() -> dict[str, Any]:
    return {
        "metadata": {"namespace": "crowd", "name": "crowd"},
        "spec": {"clusterIP": "10.96.99.99", "ports": [{"name": "http", "port": 80}]},
    }


def _crowded_slice(count: int) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "crowd",
            "name": "crowd-1",
            "labels": {"kubernetes.io/service-name": "crowd"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80}],
        "endpoints": [
            {
                "addresses": [f"10.65.{number // 250}.{number % 250 + 1}"],
                "conditions": {"ready": False},
            }
            for number in range(count)
        ],
    }
