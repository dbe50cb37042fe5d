"""Deployments of a real cluster, as the tests see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from e2e.cluster import PORT, Place
from e2e.kubernetes.kubectl import NAMESPACE, Kubectl, Object, is_ready
from e2e.shell import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from e2e.cluster import Family

#: Seconds between "terminating" and the end of a pod: as its first process Python does not heed
#: SIGTERM, so the pod serves until then.
GRACE = 5
APP = "app.kubernetes.io/name"


def pod_ips(pod: Object) -> dict[Family, str]:
    """A pod's addresses by family."""
    found: dict[Family, str] = {}
    for entry in pod["status"].get("podIPs", ()):
        found["IPv6" if ":" in entry["ip"] else "IPv4"] = entry["ip"]
    return found


class KubeWorkload:
    """A Deployment that is there."""

    def __init__(
        self,
        kubectl: Kubectl,
        name: str,
        place: Callable[[Object], Place],
        *,
        namespace: str = NAMESPACE,
        selector: str = "",
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.selector = selector or f"{APP}={name}"
        self._kubectl = kubectl
        self._place = place

    def pods(self) -> list[Place]:
        """See ``Workload``."""
        pods = self._kubectl.pods(self.selector, self.namespace)
        return [self._place(pod) for pod in pods if is_ready(pod)]

    def scale(self, replicas: int) -> None:
        """See ``Workload``."""
        self._kubectl(
            "-n", self.namespace, "scale", f"deployment/{self.name}", f"--replicas={replicas}"
        )
        self._settled(replicas)

    def rollout(self) -> None:
        """See ``Workload``."""
        replicas = len(self.pods())
        self._kubectl("-n", self.namespace, "rollout", "restart", f"deployment/{self.name}")
        self._settled(replicas)

    def delete_pod(self, pod: Place) -> None:
        """See ``Workload``."""
        replicas = len(self.pods())
        self._kubectl("-n", self.namespace, "delete", "pod", pod.name, "--wait=false")
        wait_for(
            f"pod {pod.name} is replaced",
            self._names,
            accept=lambda names: pod.name not in names and len(names) == replicas,
            timeout=120,
            interval=0.5,
        )
        self._settled(replicas)

    def _names(self) -> set[str]:
        pods = self._kubectl.pods(self.selector, self.namespace)
        return {pod["metadata"]["name"] for pod in pods}

    def _settled(self, replicas: int) -> None:
        """Wait until so many pods are ready and no other is left."""
        self._kubectl.rolled_out(f"deployment/{self.name}", self.namespace)
        wait_for(
            f"{replicas} pods of {self.name}",
            lambda: self._kubectl.pods(self.selector, self.namespace),
            accept=lambda pods: len(pods) == replicas and all(map(is_ready, pods)),
            timeout=180,
            interval=0.5,
        )


def deployment(name: str, replicas: int, nodes: Sequence[str], image: str) -> Object:
    """A Deployment of demo servers, spread over nodes."""
    labels = {APP: name}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": GRACE,
        "enableServiceLinks": False,
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": labels},
            "matchLabelKeys": ["pod-template-hash"],
        }],
        "affinity": _on(nodes),
        "containers": [_container(image)],
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }  # fmt: skip


def _on(nodes: Sequence[str]) -> Object:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    terms = [{"matchExpressions": [expression]}]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }


def _container(image: str) -> Object:
    return {
        "name": "server",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "agent.demo.server"],
        "args": ["--name", "$(POD_NAME)", "--port", str(PORT), "--protocol", "tcp,udp"],
        # The server ends with its standard input.
        "stdin": True,
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        ],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }  # fmt: skip


def service_object(
    name: str, ports: Sequence[Mapping[str, Any]], kind: str, spec: Object
) -> Object:
    """A Service for the pods of a workload."""
    return {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {APP: name}},
        "spec": {
            "type": kind, "selector": {APP: name}, "ipFamilyPolicy": "PreferDualStack",
            "ports": list(ports), **spec,
        },
    }  # fmt: skip
