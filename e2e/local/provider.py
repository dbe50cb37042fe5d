"""``--provider local``: a cluster of containers, without kind and without a registry.

Real: the project's image, built from its Dockerfile, and the agent in it, with the rights that
deploy/ gives it; nodes and pods as containers; rules and packets; and, if programs are named for
it, the API server (``controlplane``). Ours: the kubelet and the controllers, as far as Services
notice them (``workloads``).
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from agent.demo.testbed import has_ipv6
from e2e.cluster import Place, Service, ServicePort
from e2e.local import controlplane
from e2e.local.agents import LocalAgents
from e2e.local.kubeproxy import other_proxy
from e2e.local.machines import Machines
from e2e.local.workloads import LocalWorkload
from e2e.manifests import agent_objects
from e2e.rules import wait_programmed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from e2e.cluster import Family, Workload
    from e2e.docker import Docker
    from e2e.local.machines import Node

_DNS_IP = {"IPv4": "10.96.0.10", "IPv6": "fd00:10:96::a"}
_DEFAULT_SPEC = {"sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}


class LocalCluster:
    """See ``e2e.cluster.Cluster``.

    Args:
        docker: a daemon that has the images.
        folder: for everything that is written.
    """

    def __init__(self, docker: Docker, folder: Path) -> None:
        self._docker = docker
        self._folder = folder
        self.families: list[Family] = ["IPv4", "IPv6"] if has_ipv6() else ["IPv4"]
        self._machines = Machines(docker, folder, ("nft", "legacy"))
        self._workloads: dict[str, LocalWorkload] = {}
        self._dns: tuple[Service, LocalWorkload] | None = None
        self._serial = 10
        self._control: controlplane.ControlPlane
        self.agents: LocalAgents
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        self._machines.create()
        address = self._machines.gateways["IPv4"]
        control = controlplane.make_control_plane(self._folder / "control-plane", address)
        self._control = control
        control.start()
        objects = self._objects("")
        for obj in objects:
            if control.real and obj["kind"] not in {"ConfigMap", "DaemonSet"}:
                control.api.put(obj)
        account = self._folder / "account"
        account.mkdir()
        (account / "token").write_text(control.agent_token())
        (account / "ca.crt").write_bytes(control.authority.read_bytes())
        for node in self._machines.nodes:
            self._register(node)
        if not control.real:
            self._make_api_service(address)
        self.agents = LocalAgents(self._docker, self._machines, self._objects, account)
        self.agents.deploy()

    def _objects(self, image: str) -> list[dict[str, Any]]:
        return agent_objects("kind", {"ONENTH_API_SERVER": self._control.url}, image)

    def _register(self, node: Node) -> None:
        """What a kubelet tells of its node."""
        addresses = [{"type": "InternalIP", "address": node.ips[f]} for f in self.families]
        cidrs = [node.pod_cidrs[family] for family in self.families]
        obj = {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
            "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
            "status": {"addresses": addresses},
        }  # fmt: skip
        self._control.api.put(obj)
        if self._control.real:
            self._control.api.put_status(obj)

    def _make_api_service(self, address: str) -> None:
        """What a real API server makes for itself: the Service kubernetes."""
        meta = {"name": "kubernetes", "namespace": "default"}
        port = {"name": "https", "port": 443, "targetPort": controlplane.PORT, "protocol": "TCP"}
        self._control.api.put({
            "apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": {
                **_DEFAULT_SPEC, "type": "ClusterIP", "clusterIP": controlplane.API_IP,
                "clusterIPs": [controlplane.API_IP], "ipFamilies": ["IPv4"], "ports": [port],
            },
        })  # fmt: skip
        self._control.api.put({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {**meta, "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": controlplane.PORT, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        })  # fmt: skip

    # What there is -----------------------------------------------------------------------

    @property
    def description(self) -> str:
        """See ``Cluster``."""
        nodes = ", ".join(f"{node.name} ({node.backend})" for node in self._machines.nodes)
        return f"local: containers {nodes}; {self._control.description}"

    @property
    def nodes(self) -> list[str]:
        """See ``Cluster``."""
        return [node.name for node in self._machines.nodes]

    @property
    def outside(self) -> Place:
        """See ``Cluster``."""
        return Place("this machine", (), sys.executable, self._machines.gateways)

    def _node(self, name: str) -> Node:
        (node,) = (node for node in self._machines.nodes if node.name == name)
        return node

    def node(self, name: str) -> Place:
        """See ``Cluster``."""
        node = self._node(name)
        prefix = (*self._docker.command, "exec", "--interactive", node.container)
        return Place(name, prefix, "python", node.ips, name)

    def steady(self, place: Place) -> Place:
        """See ``Cluster``: no way here needs the API server."""
        return place

    def backend(self, node: str) -> str:
        """See ``Cluster``."""
        return self._node(node).backend

    def api_service(self) -> str:
        """See ``Cluster``."""
        return controlplane.API_IP

    # Workloads and Services --------------------------------------------------------------

    def workload(
        self, name: str, replicas: int = 1, *, nodes: Sequence[str] = (), dns: bool = False
    ) -> LocalWorkload:
        """See ``Cluster``."""
        chosen = [self._node(one) for one in nodes] or self._machines.nodes
        parts = (self._docker, self._machines, self._control.api)
        made = LocalWorkload(name, chosen, parts, dns=dns)
        self._workloads[name] = made
        made.scale(replicas)
        return made

    def expose(
        self,
        workload: Workload,
        ports: Sequence[ServicePort] = (ServicePort(80),),
        *,
        kind: str = "ClusterIP",
        **spec: Any,
    ) -> Service:
        """See ``Cluster``."""
        self._serial += 1
        number = self._serial
        ips: dict[Family, str] = {"IPv4": f"10.96.1.{number}", "IPv6": f"fd00:10:96::1{number:02x}"}
        name = workload.name
        if "ips" in spec:
            ips, name = spec.pop("ips"), spec.pop("name")
        ips = {family: ips[family] for family in self.families}
        for old in [one for one in self._workloads[workload.name].services if one.name == name]:
            self.delete(old)  # of a test that failed
        node_ports = {} if kind == "ClusterIP" else {
            port.port: 30000 + number * 8 + i for i, port in enumerate(ports)
        }  # fmt: skip
        health = 0
        if kind == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local":
            health = spec["healthCheckNodePort"] = 32000 + number
        service = Service(name, "default", ips, tuple(ports), node_ports, health)
        self._control.api.put(_service_object(service, kind, spec))
        self._workloads[workload.name].attach(service)
        return service

    def wait_programmed(self, service: Service, endpoints: int) -> None:
        """See ``Cluster``."""
        wait_programmed(self, service, endpoints)

    def dns_service(self) -> tuple[Service, LocalWorkload]:
        """See ``Cluster``."""
        if self._dns is None:
            workload = self.workload("dns", 2, dns=True)
            ports = (ServicePort(53, 53, "UDP", "dns"),)
            service = self.expose(workload, ports, ips=_DNS_IP, name="kube-dns")
            self._dns = (service, workload)
            self.wait_programmed(service, 2)
        return self._dns

    def delete(self, what: Workload | Service) -> None:
        """See ``Cluster``."""
        if isinstance(what, Service):
            for workload in self._workloads.values():
                if what in workload.services:
                    workload.detach(what)
            self._control.api.delete(_service_object(what, "ClusterIP", {}))
        else:
            self._workloads.pop(what.name).close()

    # What may happen ---------------------------------------------------------------------

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """See ``Cluster``."""
        with self._control.outage():
            yield

    def restart_node(self, node: str) -> None:
        """See ``Cluster``."""
        found = self._node(node)
        self.agents.node_stops(found)
        self._machines.restart_node(found)
        self._machines.restart_pods(found)
        self.agents.node_restarted(found)
        for workload in self._workloads.values():
            workload.wait_all_ready()
        self.agents.wait_ready()

    @contextlib.contextmanager
    def other_proxy(self, service: Service, workload: Workload) -> Iterator[str]:
        """See ``Cluster``."""
        parts = (self._docker, self._machines, self._control, self.agents)
        with other_proxy(parts, service, workload.pods()) as name:
            yield name

    def collect(self, folder: Path) -> None:
        """See ``Cluster``."""
        for path in (self._folder / "control-plane").glob("*.log"):
            (folder / path.name).write_bytes(path.read_bytes())

    def close(self) -> None:
        """See ``Cluster``."""
        with contextlib.suppress(AttributeError):  # it never got that far
            self._control.stop()
        self._machines.close()


def _service_object(service: Service, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    ports = []
    for port in service.ports:
        entry: dict[str, Any] = {
            "name": port.name, "port": port.port, "protocol": port.protocol,
            "targetPort": port.target,
        }  # fmt: skip
        if port.port in service.node_ports:
            entry["nodePort"] = service.node_ports[port.port]
        ports.append(entry)
    ips = list(service.ips.values())
    policy = "RequireDualStack" if len(ips) > 1 else "SingleStack"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "spec": {
            **_DEFAULT_SPEC, "type": kind, "clusterIP": ips[0], "clusterIPs": ips,
            "ipFamilies": list(service.ips), "ipFamilyPolicy": policy, "ports": ports, **spec,
        },
    }  # fmt: skip
