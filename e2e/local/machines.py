"""Nodes and pods of the local provider: containers, and the network between them.

::

    this machine (gateway 10.213.x.1) -- one Docker network, IPv4 and IPv6
      +-- node container (10.213.x.11), a network of its own, routes to the other node's pods
      |     +-- veth -- pod container (10.244.1.5, fd00:10:244:1::5)
      |     +-- agent container: shares the node's network, as hostNetwork does
      +-- node container ...

As in kind: a pod has one link to its node, whose end there has the gateway's address; what pods
send out of the cluster is masqueraded by a chain that is not the agent's; and the kubelet's hint
chain tells the backend. Pods of the node are routed, so netfilter sees all of their traffic.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import random
import secrets
from typing import TYPE_CHECKING

from e2e.docker import IMAGE, Docker, container_pid
from e2e.shell import CommandError, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from e2e.cluster import Family

LABEL = "onenth-e2e"
POD_RANGES: dict[Family, str] = {"IPv4": "10.244.0.0/16", "IPv6": "fd00:10:244::/56"}
#: What the kubelet and a CNI plugin leave in a node's rules; {ranges} are those of the cluster.
_FOREIGN = """*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:CNI-MASQ-AGENT - [0:0]
-A POSTROUTING -m addrtype ! --dst-type LOCAL -s {pods} -j CNI-MASQ-AGENT
-A CNI-MASQ-AGENT -d {pods} -j RETURN
-A CNI-MASQ-AGENT -j MASQUERADE
COMMIT
"""
_SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv6.conf.all.disable_ipv6": 0,
    "net.ipv6.conf.default.disable_ipv6": 0,
    "net.ipv6.conf.all.forwarding": 1,
    "net.ipv6.conf.default.accept_dad": 0,
    "net.ipv6.conf.all.accept_dad": 0,
}


@dataclasses.dataclass(frozen=True)
class Node:
    """A node container."""

    name: str
    container: str
    ips: Mapping[Family, str]
    pod_cidrs: Mapping[Family, str]
    backend: str
    #: A folder of this machine that holds what hostPath mounts need, such as the lock.
    folder: Path


@dataclasses.dataclass
class Pod:
    """A pod container."""

    name: str
    node: Node
    container: str
    ips: Mapping[Family, str]
    argv: Sequence[str]


class Machines:
    """The network, its nodes and their pods."""

    def __init__(self, docker: Docker, folder: Path, backends: Sequence[str]) -> None:
        self._docker = docker
        self._folder = folder
        self.id = secrets.token_hex(3)
        self._network = f"{LABEL}-{self.id}"
        self._subnets: dict[Family, str] = {}
        self.gateways: dict[Family, str] = {}
        self.nodes: list[Node] = []
        self.pods: dict[str, Pod] = {}
        self._backends = backends
        self._serial = 0

    def create(self) -> None:
        """Make the network and the nodes."""
        self._make_network()
        for number, backend in enumerate(self._backends, 1):
            self.nodes.append(self._make_node(number, backend))
        for node in self.nodes:
            self._set_up_node(node)

    def _make_network(self) -> None:
        ula = secrets.token_hex(5)
        six = f"fd{ula[:2]}:{ula[2:6]}:{ula[6:10]}::/64"
        for _ in range(20):
            four = f"10.213.{random.randrange(256)}.0/24"  # noqa: S311  any free one will do
            try:
                self._docker(
                    "network", "create", "--label", f"{LABEL}={self.id}", "--ipv6",
                    "--subnet", four, "--subnet", six, self._network,
                )  # fmt: skip
            except CommandError as error:
                if "overlap" not in str(error):
                    raise
                continue
            self._subnets = {"IPv4": four, "IPv6": six}
            self.gateways = {
                family: str(ipaddress.ip_network(subnet)[1])
                for family, subnet in self._subnets.items()
            }
            return
        raise CommandError("20 networks of Docker, and each overlaps with one that is there")

    def _make_node(self, number: int, backend: str) -> Node:
        ips: dict[Family, str] = {
            family: str(ipaddress.ip_network(subnet)[10 + number])
            for family, subnet in self._subnets.items()
        }
        cidrs: dict[Family, str] = {
            "IPv4": f"10.244.{number}.0/24", "IPv6": f"fd00:10:244:{number}::/64"
        }  # fmt: skip
        name = f"node-{number}"
        node = Node(name, f"{self._network}-{name}", ips, cidrs, backend, self._folder / name)
        (node.folder / "run").mkdir(parents=True)
        (node.folder / "run/xtables.lock").touch(0o600)
        self._docker(
            "run", "--detach", "--name", node.container, "--hostname", name,
            "--label", f"{LABEL}={self.id}", "--network", self._network,
            "--ip", ips["IPv4"], "--ip6", ips["IPv6"], *self._docker.privileged(),
            *(f"--sysctl={name}={value}" for name, value in _SYSCTLS.items()),
            "--volume", f"{node.folder}/run/xtables.lock:/run/xtables.lock",
            "--init", "--entrypoint", "sleep", IMAGE, "infinity",
        )  # fmt: skip
        return node

    def _set_up_node(self, node: Node) -> None:
        """Routes to the pods of the others, and what kubelet and CNI leave in the rules."""
        others = [other for other in self.nodes if other is not node]
        lines = [
            f"route replace {other.pod_cidrs[family]} via {other.ips[family]}"
            for other in others
            for family in self._subnets
        ]
        self._ip(node.container, lines)
        for family, tool in (("IPv4", "iptables"), ("IPv6", "ip6tables")):
            text = _FOREIGN.format(pods=POD_RANGES[family])  # type: ignore[index]
            program = f"xtables-{node.backend}-multi"
            self._docker(
                "exec", "--interactive", node.container, program, f"{tool}-restore", "--noflush",
                "--wait", "10", stdin=text,
            )  # fmt: skip

    def restart_node(self, node: Node) -> None:
        """Stop a node and start it with nothing in its network but what a node starts with."""
        self._docker("restart", "--time", "1", node.container)
        self._set_up_node(node)

    def start_pod(self, name: str, node: Node, argv: Sequence[str]) -> Pod:
        """Start a pod; returns when it says that it is ready."""
        pod = Pod(name, node, f"{self._network}-{name}", self._free_ips(node), argv)
        self.pods[name] = pod
        self._run_pod(pod)
        return pod

    def _free_ips(self, node: Node) -> dict[Family, str]:
        taken = {pod.ips["IPv4"] for pod in self.pods.values()}
        # An address is not given out again soon, as with most CNI plugins.
        self._serial += 1
        for number in (2 + (self._serial + more) % 248 for more in range(248)):
            ips: dict[Family, str] = {
                family: str(ipaddress.ip_network(cidr)[number])
                for family, cidr in node.pod_cidrs.items()
            }
            if ips["IPv4"] not in taken:
                return ips
        raise CommandError(f"{node.name} has no address left for a pod")

    def _run_pod(self, pod: Pod) -> None:
        """Run a pod's container, and give it its link."""
        self._docker(
            "run", "--detach", "--interactive", "--name", pod.container, "--hostname", pod.name,
            "--label", f"{LABEL}={self.id}", "--network", "none",
            *(f"--sysctl={name}={value}" for name, value in _SYSCTLS.items() if "ipv6" in name),
            "--entrypoint", "python", IMAGE, *pod.argv,
        )  # fmt: skip
        self.plug(pod)

    def plug(self, pod: Pod) -> None:
        """Link a pod to its node."""
        inside, outside = (
            container_pid(self._docker, name) for name in (pod.container, pod.node.container)
        )
        # A new name: the kernel takes the link of a pod that ended away a moment later.
        link = f"veth{secrets.token_hex(4)}"
        run(
            "ip", "link", "add", "name", link, "netns", str(outside), "type", "veth",
            "peer", "name", "eth0", "netns", str(inside),
        )  # fmt: skip
        here, there = [f"link set {link} up"], ["link set lo up", "link set eth0 up"]
        for family, ip in pod.ips.items():
            gateway = str(ipaddress.ip_network(pod.node.pod_cidrs[family])[1])
            full, nodad = ("32", "") if family == "IPv4" else ("128", " nodad")
            here += [
                f"addr add {gateway}/{full} dev {link}{nodad}",
                f"route replace {ip}/{full} dev {link}",
            ]
            there += [
                f"addr add {ip}/{full} dev eth0{nodad}",
                f"route add {gateway}/{full} dev eth0",
                f"route add default via {gateway} dev eth0",
            ]
        self._ip(pod.node.container, here)
        self._ip(pod.container, there)

    def kill_pod(self, pod: Pod) -> None:
        """End a pod's server; its container stays."""
        self._docker("kill", pod.container)

    def stop_pod(self, pod: Pod) -> None:
        """Kill a pod's container and remove it."""
        self._docker("rm", "--force", pod.container)
        self.pods.pop(pod.name, None)

    def restart_pods(self, node: Node) -> None:
        """Start the pods of a node again, as its kubelet does after a reboot."""
        for pod in [pod for pod in self.pods.values() if pod.node is node]:
            self._docker("rm", "--force", pod.container)
            self._run_pod(pod)

    def _ip(self, container: str, lines: Sequence[str]) -> None:
        """Run commands of this machine's ``ip`` in a container's network."""
        pid = container_pid(self._docker, container)
        run("nsenter", "--net", "--target", str(pid), "ip", "-batch", "-", stdin="\n".join(lines))

    def close(self) -> None:
        """Remove every container and the network."""
        found = self._docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}={self.id}")
        if found.split():
            self._docker("rm", "--force", *found.split(), timeout=120)
        if self._subnets:
            self._docker("network", "rm", self._network)
