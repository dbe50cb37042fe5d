"""The agent on the nodes of the local provider: containers as deploy/'s DaemonSet has them."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from e2e.docker import IMAGE, NEXT, container_pid
from e2e.local.daemonset import container_options, daemonset
from e2e.local.machines import LABEL
from e2e.shell import run, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from e2e.docker import Docker
    from e2e.local.machines import Machines, Node

_METRICS, _HEALTH = 10249, 10256
_GRACE = 10


class LocalAgents:
    """See ``e2e.cluster.Agents``.

    Args:
        docker: the daemon.
        machines: the nodes.
        objects: renders the manifests for an image.
        account: folder with the ServiceAccount's token and certificate.
    """

    def __init__(
        self,
        docker: Docker,
        machines: Machines,
        objects: Callable[[str], list[dict[str, Any]]],
        account: Path,
    ) -> None:
        self._docker = docker
        self._machines = machines
        self._objects = objects
        self._account = account
        self._image = IMAGE

    def deploy(self) -> None:
        """See ``Agents``."""
        for node in self._machines.nodes:
            self._start(node)
        self.wait_ready()

    def _start(self, node: Node) -> None:
        objects = self._objects(self._image)
        template = daemonset(objects)["spec"]["template"]["spec"]["containers"][0]
        self._docker(
            "run", "--detach", "--name", self._container(node), "--restart", "always",
            "--label", f"{LABEL}={self._machines.id}",
            *container_options(objects, node, self._account),
            template["image"], *template["args"],
        )  # fmt: skip

    def _container(self, node: Node) -> str:
        return f"{node.container}-agent"

    def _node(self, name: str) -> Node:
        (node,) = (node for node in self._machines.nodes if node.name == name)
        return node

    def wait_ready(self, timeout: float = 90.0) -> None:
        """See ``Agents``."""
        for node in self._machines.nodes:
            wait_for(
                f"agent on {node.name} ready",
                lambda name=node.name: self.probe(name, "readyz"),  # type: ignore[misc]
                accept=lambda status: status == 200,
                timeout=timeout,
            )

    def kill(self, node: str) -> None:
        """See ``Agents``: Docker restarts what dies by itself, as the kubelet does."""
        os.kill(container_pid(self._docker, self._container(self._node(node))), signal.SIGKILL)

    def restart(self) -> None:
        """See ``Agents``."""
        for node in self._machines.nodes:
            self._stop(node)
            self._start(node)
            self.wait_ready()

    def upgrade(self) -> None:
        """See ``Agents``."""
        self._image = NEXT if self._image == IMAGE else IMAGE
        self.restart()

    def remove(self) -> None:
        """See ``Agents``."""
        for node in self._machines.nodes:
            self._stop(node)

    def _stop(self, node: Node) -> None:
        name = self._container(node)
        self._docker("stop", "--time", str(_GRACE), name)
        self._docker("rm", name)

    def node_stops(self, node: Node) -> None:
        """End the agent of a node with the node: at once."""
        self._docker("rm", "--force", self._container(node))

    def node_restarted(self, node: Node) -> None:
        """Start the agent of a node whose network is new."""
        self._start(node)

    def logs(self, node: str) -> str:
        """See ``Agents``."""
        name = self._container(self._node(node))
        done = run("docker", "logs", name, env=self._docker.env, check=False)
        return done.stdout + done.stderr

    def images(self) -> set[str]:
        """See ``Agents``."""
        return {
            self._docker.inspect(self._container(node))["Image"] for node in self._machines.nodes
        }

    def command(self, node: str, *argv: str) -> list[str]:
        """See ``Agents``."""
        name = self._container(self._node(node))
        return [*self._docker.command, "exec", "--interactive", name, *argv]

    def metrics(self, node: str) -> str:
        """See ``Agents``."""
        return self._get(node, _METRICS, "metrics")[1]

    def metrics_target(self, node: str) -> str:
        """See ``Agents``."""
        return f"{self._node(node).ips['IPv4']}:{_METRICS}"

    def probe(self, node: str, which: str) -> int:
        """See ``Agents``."""
        return self._get(node, _HEALTH, which)[0]

    def _get(self, node: str, port: int, path: str) -> tuple[int, str]:
        url = f"http://{self._node(node).ips['IPv4']}:{port}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
