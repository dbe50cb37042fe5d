"""What the end-to-end tests create on a real cluster, without one."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest

from agent import __version__
from e2e.kubernetes import kubeproxy
from e2e.kubernetes.cluster import TOOLBOX, KubeCluster
from e2e.kubernetes.cluster import _namespace as namespace
from e2e.kubernetes.cluster import _toolbox as toolbox
from e2e.kubernetes.workloads import deployment, service_object
from e2e.manifests import agent_objects, alert_rules

IMAGE = f"onenth:{__version__}"
OBJECTS = [
    namespace(),
    toolbox(IMAGE),
    deployment("web", 3, ["node-1", "node-2"], IMAGE),
    service_object(
        "web",
        [{"name": "a", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        "LoadBalancer",
        {"externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"},
    ),
    *kubeproxy._objects(
        "registry.example/kube-proxy:v1.36.0", "https://192.0.2.1:6443", "10.0.0.0/8"
    ),
    *agent_objects("kind", {"ONENTH_API_SERVER": "https://192.0.2.1:6443"}, IMAGE),
]


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_every_object_passes_the_strict_schema(obj: dict[str, object]) -> None:
    """No object of a real cluster's provider has a field that Kubernetes 1.36 does not know."""
    kubernetes_validate.validate(obj, "1.36", strict=True)


def test_agents_objects_need_no_operator() -> None:
    """A test cluster has no Prometheus operator: none of its kinds is applied there."""
    kinds = {obj["kind"] for obj in agent_objects("kind", {}, IMAGE)}
    assert kinds & {"PodMonitor", "PrometheusRule"} == set()
    assert {"DaemonSet", "ConfigMap", "ClusterRole"} <= kinds
    assert alert_rules()["groups"]


def test_settings_and_image_reach_the_manifests() -> None:
    """What a provider asks for is in the ConfigMap, and its image in the DaemonSet."""
    objects = agent_objects("minikube", {"ONENTH_DISPATCH": "tree"}, "other:1")
    (config,) = (
        o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "onenth"
    )
    assert config["data"]["ONENTH_DISPATCH"] == "tree"
    assert config["data"]["ONENTH_API_SERVER"].startswith("https://control-plane.minikube")
    (daemonset,) = (o for o in objects if o["kind"] == "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "other:1"


def test_kube_proxy_gets_ranges_of_the_clusters_families_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kube-proxy refuses a range of a family that the cluster has not."""
    cluster = KubeCluster(Path("/nowhere"), "kind", {})
    both = "10.244.0.0/16,fd00:10:244::/56"
    for families, expected in (
        (["IPv4"], "10.244.0.0/16"),
        (["IPv6"], "fd00:10:244::/56"),
        (["IPv4", "IPv6"], both),
    ):
        monkeypatch.setattr(KubeCluster, "families", families)
        assert cluster._cidrs_of_families(both) == expected
    assert TOOLBOX
