from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import __version__
from agent.config.load import load
from hack.render import DEPLOY, ROOT, merge, render

OVERLAYS = ("base", "overlays/kind", "overlays/minikube", "overlays/side-by-side")
CUSTOM = {"PodMonitor", "PrometheusRule"}
SYSCTLS = yaml.safe_load((DEPLOY / "components/sysctls/kustomization.yaml").read_text("utf-8"))


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [
        obj for obj in objects if obj["kind"] == kind and "dashboard" not in obj["metadata"]["name"]
    ]
    assert len(found) == 1
    return found[0]


def pod(folder: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(render(DEPLOY / folder), "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(folder: str) -> dict[str, Any]:
    (found,) = pod(folder)["containers"]
    assert isinstance(found, dict)
    return found


def environment(folder: str) -> dict[str, str]:
    """What the agent of an overlay finds in its environment on a node."""
    objects = render(DEPLOY / folder)
    env = dict(one(objects, "ConfigMap")["data"])
    for variable in container(folder)["env"]:
        env[variable["name"]] = variable.get("value", "192.0.2.7")
    return env


@pytest.mark.parametrize("folder", OVERLAYS)
def test_every_object_passes_the_strict_schema(folder: str) -> None:
    """No object has a field that Kubernetes 1.36 does not know, or one of a wrong type."""
    for obj in render(DEPLOY / folder):
        if obj["kind"] not in CUSTOM:
            kubernetes_validate.validate(obj, "1.36", strict=True)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_agent_accepts_the_environment_that_it_is_given(folder: str) -> None:
    """The ConfigMap holds only variables that the agent reads, with values that it takes."""
    config = load({}, environment(folder)).config
    assert config.hostname_override == "192.0.2.7"
    assert config.logging.format == "json"


@pytest.mark.parametrize(
    ("folder", "address"),
    [
        ("overlays/kind", "https://kind-control-plane:6443"),
        ("overlays/minikube", "https://control-plane.minikube.internal:8443"),
    ],
)
def test_an_overlay_says_where_the_api_server_is_without_a_proxy(folder: str, address: str) -> None:
    """With no proxy the ClusterIP of the API server does not answer: its address is given."""
    assert load({}, environment(folder)).config.api_server == address


def test_kernel_settings_are_left_alone_without_the_component() -> None:
    """In kind they are the host's; the component sysctls brings kube-proxy's values back."""
    plain = load({}, environment("overlays/kind")).config.conntrack
    assert (plain.max_per_core, plain.tcp_established_timeout, plain.tcp_close_wait_timeout) == (
        0, 0, 0,
    )  # fmt: skip
    patch = yaml.safe_load(SYSCTLS["patches"][0]["patch"])
    data = merge(one(render(DEPLOY / "base"), "ConfigMap"), patch)["data"]
    with_component = load({}, data).config.conntrack
    assert with_component == load({}, {}).config.conntrack


def test_the_image_is_this_version() -> None:
    """Image tags in deploy/ are the package's version."""
    assert container("base")["image"] == f"onenth:{__version__}"
    (init,) = yaml.safe_load(SYSCTLS["patches"][1]["patch"])["spec"]["template"]["spec"][
        "initContainers"
    ]
    assert init["image"] == f"onenth:{__version__}"


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_container_has_two_capabilities_and_no_privilege(folder: str) -> None:
    """Everything is dropped but what rules need; nothing can be written or escalated."""
    security = container(folder)["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}
    assert security["privileged"] is False
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert pod(folder)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_pod_is_on_every_node_before_anything_that_needs_it(folder: str) -> None:
    """It is critical, tolerates every taint, and needs neither cluster DNS nor pod network."""
    spec = pod(folder)
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "Default"
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("folder", OVERLAYS)
def test_probes_ask_the_loopback_on_the_port_that_the_agent_serves(folder: str) -> None:
    """Probes name 127.0.0.1 (the pod has the host's network) and the configured port."""
    here = container(folder)
    port = int(load({}, environment(folder)).config.healthz_bind_address.rpartition(":")[2])
    ports = {one["name"]: one["containerPort"] for one in here["ports"]}
    paths = {}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        action = here[kind]["httpGet"]
        assert (action["host"], ports[action["port"]]) == ("127.0.0.1", port)
        paths[kind] = action["path"]
    assert paths == {
        "startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz",
    }  # fmt: skip


def test_side_by_side_shares_no_port_with_kube_proxy() -> None:
    """An agent beside kube-proxy takes other ports for health and metrics."""
    config = load({}, environment("overlays/side-by-side")).config
    ports = {
        address.rpartition(":")[2]
        for address in (config.healthz_bind_address, config.metrics_bind_address)
    }
    assert ports == {"10266", "10269"}
    assert {port["hostPort"] for port in container("overlays/side-by-side")["ports"]} == {
        10266,
        10269,
    }


def test_side_by_side_only_looks() -> None:
    """An agent beside kube-proxy runs the command that changes nothing, and may send nothing."""
    assert container("overlays/side-by-side")["args"] == ["observe"]
    objects = render(DEPLOY / "overlays/side-by-side")
    verbs = {verb for obj in objects for rule in obj.get("rules", ()) for verb in rule["verbs"]}
    assert verbs == {"list", "watch"}


def test_the_locks_are_complete() -> None:
    """Every locked library has a hash, and every direct dependency is locked."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    entries = [part for part in lock.split("\n") if part and part[0].isalpha()]
    assert entries
    assert all(entry.endswith("\\") and "==" in entry for entry in entries)
    assert lock.count("\n    --hash=sha256:") >= len(entries)
    locked = {entry.partition("==")[0] for entry in entries}
    assert {
        "click", "kubernetes", "msgspec", "prometheus-client", "pyroute2", "pyyaml", "rich",
        "structlog",
    } <= locked  # fmt: skip
