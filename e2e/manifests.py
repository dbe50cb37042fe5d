"""The objects of deploy/ as e2e applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hack.render import DEPLOY, add, render

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Kinds that need the Prometheus operator.
_OPERATOR = {"PodMonitor", "PrometheusRule"}
#: Shorter than the default of 30 s, so that tests of repairs need not wait that long.
SYNC_PERIOD = 10


def agent_objects(overlay: str, settings: Mapping[str, str], image: str) -> list[dict[str, Any]]:
    """Render an overlay with the component monitoring.

    Args:
        overlay: its name.
        settings: added to the ConfigMap.
        image: of the agent.
    """
    objects = add(DEPLOY / "components/monitoring", render(DEPLOY / "overlays" / overlay))
    for obj in objects:
        if obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == "onenth":
            obj["data"] |= {"ONENTH_IPTABLES_SYNC_PERIOD": f"{SYNC_PERIOD}s", **settings}
        if obj["kind"] == "DaemonSet":
            for container in obj["spec"]["template"]["spec"]["containers"]:
                container["image"] = image
    return [obj for obj in objects if obj["kind"] not in _OPERATOR]


def alert_rules() -> dict[str, Any]:
    """The alerts as Prometheus itself takes them."""
    objects = add(DEPLOY / "components/monitoring", render(DEPLOY / "base"))
    (rule,) = (obj for obj in objects if obj["kind"] == "PrometheusRule")
    spec: dict[str, Any] = rule["spec"]
    return spec
