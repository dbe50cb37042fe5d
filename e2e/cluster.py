"""What a test may ask of a cluster, whichever provider made it.

Providers hide how pods and Services come about (containers beside each other, or the objects of
a real cluster); tests see nodes, pods, Services, and the agent on each node.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Family = Literal["IPv4", "IPv6"]
#: The port of every server in a pod, TCP and UDP.
PORT = 8080


class UnsupportedError(Exception):
    """This provider cannot do that; the test is skipped with this reason."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Somewhere to run a program: a pod, a node's network, or this machine.

    Attributes:
        name: for messages.
        prefix: command and arguments that run a command there, with its standard input.
        python: the Python there; from a pod's it can import ``agent``.
        ips: its addresses by family.
        node: the node that it is on; empty for this machine.
    """

    name: str
    prefix: tuple[str, ...]
    python: str
    ips: Mapping[Family, str]
    node: str = ""

    def command(self, *argv: str) -> list[str]:
        """The command that runs ``python argv`` there."""
        return [*self.prefix, self.python, *argv]


@dataclasses.dataclass(frozen=True)
class ServicePort:
    """A port of a Service: the port that clients use, and the pods' own."""

    port: int
    target: int = PORT
    protocol: str = "TCP"
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Service:
    """A Service as the cluster made it.

    Attributes:
        ips: cluster IPs by family.
        node_ports: by port.
        health_check_node_port: 0 if there is none.
    """

    name: str
    namespace: str
    ips: Mapping[Family, str]
    ports: tuple[ServicePort, ...]
    node_ports: Mapping[int, int]
    health_check_node_port: int = 0


class Workload(Protocol):
    """Pods that run the same server, like a Deployment."""

    @property
    def name(self) -> str: ...

    def pods(self) -> Sequence[Place]:
        """The pods that are ready."""

    def scale(self, replicas: int) -> None:
        """Change the number of pods; returns when it is reached."""

    def rollout(self) -> None:
        """Replace every pod, one after the other, as a rolling update does."""

    def delete_pod(self, pod: Place) -> None:
        """Delete a pod; another one takes its place. Returns when that is ready."""


class Agents(Protocol):
    """The agent on every node."""

    def wait_ready(self, timeout: float = 90.0) -> None:
        """Wait until each is ready, and each node's rules are of now."""

    def kill(self, node: str) -> None:
        """End it with SIGKILL; it starts again by itself."""

    def restart(self) -> None:
        """Restart all, one after the other."""

    def upgrade(self) -> None:
        """Go over to the next image, and wait for it."""

    def remove(self) -> None:
        """Remove the agent from every node; rules stay."""

    def deploy(self) -> None:
        """Bring it (back) to every node, and wait until it is ready."""

    def logs(self, node: str) -> str:
        """What it has logged."""

    def images(self) -> set[str]:
        """The images that run."""

    def command(self, node: str, *argv: str) -> list[str]:
        """The command that runs a program in the agent's own container, with its rights."""

    def metrics(self, node: str) -> str:
        """Its /metrics."""

    def metrics_target(self, node: str) -> str:
        """Host and port of its /metrics, as Prometheus on this machine reaches it."""

    def probe(self, node: str, which: str) -> int:
        """The status of /healthz, /livez or /readyz."""


class Cluster(Protocol):
    """A cluster whose only proxy is the agent."""

    @property
    def description(self) -> str:
        """One line for people: what is real in it."""

    @property
    def families(self) -> Sequence[Family]: ...

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes that pods run on; there are at least two."""

    @property
    def agents(self) -> Agents: ...

    @property
    def outside(self) -> Place:
        """This machine, which is no node."""

    def node(self, name: str) -> Place:
        """The network of a node, with the privilege to look at its rules."""

    def steady(self, place: Place) -> Place:
        """The same place, by a way that does not need the API server."""

    def backend(self, node: str) -> str:
        """The iptables backend that the node's kubelet uses: legacy or nft."""

    def workload(
        self, name: str, replicas: int = 1, *, nodes: Sequence[str] = (), dns: bool = False
    ) -> Workload:
        """Start pods; returns when they are ready.

        Args:
            name: of the workload; pods' names begin with it, and servers answer with the pod's.
            replicas: how many.
            nodes: only there, in turns; any node if empty.
            dns: a DNS server on port 53 instead of the server of the demo.
        """

    def expose(
        self,
        workload: Workload,
        ports: Sequence[ServicePort] = (ServicePort(80),),
        *,
        kind: str = "ClusterIP",
        **spec: Any,
    ) -> Service:
        """Make a Service for a workload; ``spec`` are further fields."""

    def wait_programmed(self, service: Service, endpoints: int) -> None:
        """Wait until each node has rules for the Service with that many endpoints."""

    def dns_service(self) -> tuple[Service, Workload]:
        """The cluster's DNS: its Service, and its pods."""

    def delete(self, what: Workload | Service) -> None:
        """Remove it."""

    def api_service(self) -> str:
        """The ClusterIP of the API server, "" if this cluster has none."""

    def outage(self) -> contextlib.AbstractContextManager[None]:
        """The API server is away for as long as the block lasts."""

    def restart_node(self, node: str) -> None:
        """Restart a node; returns when its pods and its agent are ready again."""

    def other_proxy(
        self, service: Service, workload: Workload
    ) -> contextlib.AbstractContextManager[str]:
        """Hand every node over to kube-proxy and, after the block, back to the agent.

        The Service, whose name is takeover, is the only one that needs to work meanwhile.
        Yields what stands for kube-proxy, for messages.
        """

    def collect(self, folder: Path) -> None:
        """Write down everything that helps to understand a failure."""

    def close(self) -> None:
        """Take everything down."""
