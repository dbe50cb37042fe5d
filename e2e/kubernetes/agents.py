"""The agent's DaemonSet on a real cluster."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from e2e.kubernetes.kubectl import SYSTEM, Kubectl, Object, is_ready
from e2e.shell import CommandError, run, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from e2e.cluster import Place

SELECTOR = "app.kubernetes.io/name=onenth"
_METRICS, _HEALTH = 10249, 10256
#: Kills the processes of one container, as seen with the node's process ids.
_KILL = """
import os, signal, sys
found = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cgroup") as listed:
            mine = sys.argv[1] in listed.read()
    except OSError:
        continue
    if mine:
        found.append(int(pid))
if not found:
    sys.exit(f"no process of container {sys.argv[1]}")
for pid in found:
    os.kill(pid, signal.SIGKILL)
"""


class KubeAgents:
    """See ``e2e.cluster.Agents``.

    Args:
        kubectl: on the cluster.
        objects: renders the manifests for an image.
        images: the image to start with, and the next one.
        node: the privileged place on a node, which sees the node's processes.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        objects: Callable[[str], list[Object]],
        images: tuple[str, str],
        node: Callable[[str], Place],
    ) -> None:
        self._kubectl = kubectl
        self._objects = objects
        self._image, self._next = images
        self._node = node

    def deploy(self) -> None:
        """See ``Agents``."""
        self._kubectl.apply(self._objects(self._image))
        self._kubectl.rolled_out("daemonset/onenth", SYSTEM)

    def _pods(self) -> list[Object]:
        return self._kubectl.pods(SELECTOR, SYSTEM)

    def _pod(self, node: str) -> Object:
        for pod in self._pods():
            if pod["spec"].get("nodeName") == node and is_ready(pod):
                return pod
        raise CommandError(f"no agent is ready on {node}")

    def _nodes(self) -> Sequence[str]:
        return [pod["spec"]["nodeName"] for pod in self._pods()]

    def wait_ready(self, timeout: float = 90.0) -> None:
        """See ``Agents``."""
        self._kubectl.rolled_out("daemonset/onenth", SYSTEM, int(timeout))
        for node in self._nodes():
            wait_for(
                f"agent on {node} ready",
                lambda node=node: self.probe(node, "readyz"),  # type: ignore[misc]
                accept=lambda status: status == 200,
                timeout=timeout,
            )

    def kill(self, node: str) -> None:
        """See ``Agents``: from the node's own process table; the kubelet starts it again."""
        status = self._pod(node)["status"]["containerStatuses"][0]
        container = status["containerID"].rpartition("/")[2]
        run(*self._node(node).command("-c", _KILL, container))

    def restart(self) -> None:
        """See ``Agents``."""
        self._kubectl("-n", SYSTEM, "rollout", "restart", "daemonset/onenth")
        self.wait_ready(240)

    def upgrade(self) -> None:
        """See ``Agents``."""
        self._image, self._next = self._next, self._image
        self._kubectl("-n", SYSTEM, "set", "image", "daemonset/onenth", f"onenth={self._image}")
        self.wait_ready(240)

    def remove(self) -> None:
        """See ``Agents``."""
        self._kubectl.delete("daemonset", "onenth", SYSTEM)
        self._kubectl.wait_gone(SELECTOR, SYSTEM)

    def logs(self, node: str) -> str:
        """See ``Agents``."""
        names = [
            pod["metadata"]["name"] for pod in self._pods() if pod["spec"].get("nodeName") == node
        ]
        return "".join(self._kubectl("-n", SYSTEM, "logs", name) for name in names)

    def images(self) -> set[str]:
        """See ``Agents``."""
        return {pod["spec"]["containers"][0]["image"] for pod in self._pods() if is_ready(pod)}

    def command(self, node: str, *argv: str) -> list[str]:
        """See ``Agents``."""
        name = self._pod(node)["metadata"]["name"]
        return [*self._kubectl.prefix, "-n", SYSTEM, "exec", "-i", name, "--", *argv]

    def metrics(self, node: str) -> str:
        """See ``Agents``."""
        return self._get(node, _METRICS, "metrics")[1]

    def metrics_target(self, node: str) -> str:
        """See ``Agents``."""
        return f"{self._host(node)}:{_METRICS}"

    def probe(self, node: str, which: str) -> int:
        """See ``Agents``."""
        return self._get(node, _HEALTH, which)[0]

    def _host(self, node: str) -> str:
        """The address that the agent's servers have: the kubelet calls it the host's."""
        ip = next(iter(self._node(node).ips.values()))
        return f"[{ip}]" if ":" in ip else ip

    def _get(self, node: str, port: int, path: str) -> tuple[int, str]:
        url = f"http://{self._host(node)}:{port}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
