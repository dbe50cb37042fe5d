"""What a Deployment, its controllers and the kubelet do, for the pods of the local provider.

A pod that is to go is first marked terminating in the EndpointSlice, keeps serving for its grace
period, and is killed and taken out of the slice after that. A new one gets into the slice when it
says that it listens.
"""

from __future__ import annotations

import itertools
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.cluster import PORT, Place, Service
from e2e.shell import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from e2e.cluster import Family
    from e2e.docker import Docker
    from e2e.local.controlplane import Api
    from e2e.local.machines import Machines, Node, Pod

#: Seconds between "terminating" and the end of a pod.
GRACE = 3.0
DNS_PORT = 53
_DNS = Path(__file__).parents[1] / "pods/dns.py"


class LocalWorkload:
    """Pods, and the slices of the Services that select them."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[Node],
        parts: tuple[Docker, Machines, Api],
        *,
        dns: bool,
    ) -> None:
        self.name = name
        self._docker, self._machines, self._api = parts
        self._nodes = itertools.cycle(nodes)
        self._dns = dns
        self._pods: list[Pod] = []
        self._terminating: set[str] = set()
        self.services: list[Service] = []

    @property
    def port(self) -> int:
        """The port that its pods serve on."""
        return DNS_PORT if self._dns else PORT

    def pods(self) -> list[Place]:
        """See ``Workload``."""
        return [self._place(pod) for pod in self._pods if pod.name not in self._terminating]

    def _place(self, pod: Pod) -> Place:
        prefix = (*self._docker.command, "exec", "--interactive", pod.container)
        return Place(pod.name, prefix, "python", pod.ips, pod.node.name)

    def scale(self, replicas: int) -> None:
        """See ``Workload``."""
        while len(self._pods) < replicas:
            self._add(next(self._nodes))
        self._publish()
        for pod in list(self._pods[replicas:]):
            self._remove(pod)

    def rollout(self) -> None:
        """See ``Workload``: one more pod first, then one less, until all are new."""
        for pod in list(self._pods):
            self._add(pod.node)
            self._publish()
            self._remove(pod)

    def delete_pod(self, pod: Place) -> None:
        """See ``Workload``: a controller starts the next one when the deletion begins."""
        (old,) = (one for one in self._pods if one.name == pod.name)
        self._terminating.add(old.name)
        self._publish()
        self._add(old.node)
        self._publish()
        self._remove(old)

    def _add(self, node: Node) -> None:
        name = f"{self.name}-{secrets.token_hex(3)}"
        if self._dns:
            argv = ["-c", _DNS.read_text("utf-8"), name, str(DNS_PORT)]
        else:
            argv = ["-m", "agent.demo.server", "--name", name, "--port", str(PORT)]
            argv += ["--protocol", "tcp,udp"]
        pod = self._machines.start_pod(name, node, argv)
        self.wait_ready(pod)
        self._pods.append(pod)

    def wait_ready(self, pod: Pod) -> None:
        """Wait until a pod says that it listens."""
        wait_for(
            f"pod {pod.name} listens",
            lambda: "ready" in self._docker("logs", "--tail", "5", pod.container),
            timeout=30,
        )

    def wait_all_ready(self) -> None:
        """Wait until all pods listen, after their node was restarted."""
        for pod in self._pods:
            self.wait_ready(pod)

    def _remove(self, pod: Pod) -> None:
        self._terminating.add(pod.name)
        self._publish()
        time.sleep(GRACE)
        self._machines.kill_pod(pod)
        self._terminating.discard(pod.name)
        self._pods.remove(pod)
        self._publish()
        # Last: on a busy machine it takes seconds, and until the slice is changed the resolvers
        # that had this pod wait.
        self._machines.stop_pod(pod)

    def attach(self, service: Service) -> None:
        """Keep the slices of a Service up to date from now on."""
        self.services.append(service)
        self._publish()

    def detach(self, service: Service) -> None:
        """Delete the slices of a Service."""
        self.services.remove(service)
        for family in service.ips:
            self._api.delete(self._slice(service, family))

    def close(self) -> None:
        """Kill all pods, and leave empty slices."""
        pods, self._pods = self._pods, []
        for pod in pods:
            self._machines.stop_pod(pod)
        self._publish()

    def _publish(self) -> None:
        for service in self.services:
            for family in service.ips:
                self._api.put(self._slice(service, family))

    def _slice(self, service: Service, family: Family) -> dict[str, Any]:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service.name}-{family.lower()}",
                "namespace": service.namespace,
                "labels": {
                    "kubernetes.io/service-name": service.name,
                    "endpointslice.kubernetes.io/managed-by": "e2e",
                },
            },
            "addressType": family,
            "ports": [
                {"name": port.name, "port": port.target, "protocol": port.protocol}
                for port in service.ports
            ],
            "endpoints": [self._endpoint(pod, family) for pod in self._pods],
        }

    def _endpoint(self, pod: Pod, family: Family) -> dict[str, Any]:
        terminating = pod.name in self._terminating
        return {
            "addresses": [pod.ips[family]],
            "nodeName": pod.node.name,
            "conditions": {
                "ready": not terminating, "serving": True, "terminating": terminating,
            },
            "targetRef": {"kind": "Pod", "name": pod.name, "namespace": "default"},
        }  # fmt: skip
