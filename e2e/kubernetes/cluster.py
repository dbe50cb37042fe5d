"""A cluster of real nodes, through kubectl. Subclasses make it and know its machines.

Two helpers run on it beside the agent: a privileged pod on each node that shares the node's
network and process table (``toolbox``), to look at rules and to kill, and whatever pods a test
asks for. All of them use the agent's image, so nothing else has to be pulled.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

from e2e.cluster import Place, Service, ServicePort, UnsupportedError
from e2e.docker import IMAGE, NEXT
from e2e.kubernetes import kubeproxy
from e2e.kubernetes.agents import KubeAgents
from e2e.kubernetes.kubectl import NAMESPACE, SYSTEM, Kubectl, Object, is_ready, started
from e2e.kubernetes.workloads import KubeWorkload, deployment, pod_ips, service_object
from e2e.manifests import agent_objects
from e2e.rules import wait_programmed
from e2e.shell import CommandError, run, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from e2e.cluster import Family, Workload

TOOLBOX = "toolbox"
_APISERVER = "kube-apiserver.yaml"
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class KubeCluster:
    """See ``e2e.cluster.Cluster``.

    Args:
        kubeconfig: file with the administrator's credentials.
        overlay: of deploy/.
        settings: for the agent's ConfigMap; among them the API server's address.
        images: the agent's image and the next one, as nodes find them.
    """

    def __init__(
        self,
        kubeconfig: Path,
        overlay: str,
        settings: dict[str, str],
        images: tuple[str, str] = (IMAGE, NEXT),
    ) -> None:
        self.kubectl = Kubectl(kubeconfig)
        self._overlay = overlay
        self._settings = settings
        self._image = images[0]
        self.agents = KubeAgents(self.kubectl, self._objects, images, self.node)
        self._places: dict[str, Place] = {}
        self._backends: dict[str, str] = {}

    def set_up(self) -> None:
        """Deploy the agent and the helpers, and wait until the cluster works."""
        self.kubectl.apply([_namespace()])
        self.kubectl.apply(self._objects(self._image))
        # A CNI plugin may need the API server's Service, which is the agent's to serve.
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s",
                     timeout=330)  # fmt: skip
        self.kubectl.rolled_out("daemonset/onenth", SYSTEM)
        self.kubectl.apply([_toolbox(self._image)])
        self.kubectl.rolled_out(f"daemonset/{TOOLBOX}")
        self.kubectl.rolled_out("deployment/coredns", SYSTEM, 300)
        self.agents.wait_ready()

    def _objects(self, image: str) -> list[Object]:
        return agent_objects(self._overlay, self._settings, image)

    # What there is -----------------------------------------------------------------------

    @property
    def description(self) -> str:
        """See ``Cluster``."""
        version = json.loads(self.kubectl("get", "--raw", "/version"))["gitVersion"]
        nodes = ", ".join(f"{node} ({self.backend(node)})" for node in self.nodes)
        return f"{type(self).__name__}: Kubernetes {version}; {nodes}"

    @property
    def families(self) -> list[Family]:
        """See ``Cluster``."""
        return list(pod_ips(self._toolbox_pod(self.nodes[0])))

    @property
    def nodes(self) -> list[str]:
        """See ``Cluster``: workers first, and the control plane only if they are too few."""
        found = self.kubectl.items("nodes")
        names = [n["metadata"]["name"] for n in found]
        workers = [n["metadata"]["name"] for n in found if _CONTROL_PLANE not in
                   n["metadata"]["labels"]]  # fmt: skip
        others = [name for name in names if name not in workers]
        return sorted(workers) if len(workers) >= 2 else sorted(workers) + sorted(others)

    @property
    def outside(self) -> Place:
        """See ``Cluster``."""
        return Place("this machine", (), sys.executable, self._own_ips())

    def _own_ips(self) -> dict[Family, str]:
        """This machine's addresses on the way to the first node."""
        found: dict[Family, str] = {}
        for family, ip in self.node(self.nodes[0]).ips.items():
            words = run("ip", "route", "get", ip).stdout.split()
            found[family] = words[words.index("src") + 1]
        return found

    def _toolbox_pod(self, node: str) -> Object:
        for pod in self.kubectl.pods(f"app={TOOLBOX}"):
            if pod["spec"].get("nodeName") == node and is_ready(pod):
                return pod
        raise CommandError(f"no toolbox is ready on {node}")

    def node(self, name: str) -> Place:
        """See ``Cluster``."""
        if name not in self._places:
            pod = self._toolbox_pod(name)
            prefix = (*self.kubectl.prefix, "-n", NAMESPACE, "exec", "-i",
                      pod["metadata"]["name"], "--")  # fmt: skip
            self._places[name] = Place(name, prefix, "python", pod_ips(pod), name)
        return self._places[name]

    def _place(self, pod: Object) -> Place:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        prefix = (*self.kubectl.prefix, "-n", meta["namespace"], "exec", "-i", meta["name"], "--")
        return Place(meta["name"], prefix, "python", pod_ips(pod), node)

    def backend(self, node: str) -> str:
        """See ``Cluster``."""
        if node not in self._backends:
            argv = ("xtables-nft-multi", "iptables-save", "-t", "mangle")
            hints = run(*self.node(node).prefix, *argv).stdout
            nft = "KUBE-IPTABLES-HINT" in hints or "KUBE-KUBELET-CANARY" in hints
            self._backends[node] = "nft" if nft else "legacy"
        return self._backends[node]

    def api_service(self) -> str:
        """See ``Cluster``."""
        spec = self.kubectl.get("-n", "default", "service", "kubernetes")["spec"]
        return str(spec["clusterIP"])

    def steady(self, place: Place) -> Place:
        """See ``Cluster``."""
        raise UnsupportedError(f"{place.name} can only be reached through the API server")

    # Workloads and Services --------------------------------------------------------------

    def workload(
        self, name: str, replicas: int = 1, *, nodes: Sequence[str] = (), dns: bool = False
    ) -> KubeWorkload:
        """See ``Cluster``."""
        if dns:
            raise UnsupportedError("this cluster has a DNS of its own")
        wanted = list(nodes) or self.nodes
        self.kubectl.apply([deployment(name, replicas, wanted, self._image)])
        made = KubeWorkload(self.kubectl, name, self._place)
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
        listed = [
            {"name": p.name, "port": p.port, "targetPort": p.target, "protocol": p.protocol}
            for p in ports
        ]
        self.kubectl.apply([service_object(workload.name, listed, kind, spec)])
        return self._read_service(workload.name, NAMESPACE)

    def _read_service(self, name: str, namespace: str) -> Service:
        spec = self.kubectl.get("-n", namespace, "service", name)["spec"]
        ips: dict[Family, str] = dict(zip(spec["ipFamilies"], spec["clusterIPs"], strict=True))
        ports = [
            ServicePort(p["port"], p["targetPort"] if isinstance(p["targetPort"], int) else 0,
                        p["protocol"], p.get("name", ""))
            for p in spec["ports"]
        ]  # fmt: skip
        node_ports = {p["port"]: p["nodePort"] for p in spec["ports"] if "nodePort" in p}
        health = spec.get("healthCheckNodePort", 0)
        return Service(name, namespace, ips, tuple(ports), node_ports, health)

    def wait_programmed(self, service: Service, endpoints: int) -> None:
        """See ``Cluster``."""
        wait_programmed(self, service, endpoints)

    def dns_service(self) -> tuple[Service, KubeWorkload]:
        """See ``Cluster``."""
        workload = KubeWorkload(
            self.kubectl, "coredns", self._place, namespace=SYSTEM, selector="k8s-app=kube-dns"
        )
        if len(workload.pods()) < 2:
            workload.scale(2)
        service = self._read_service("kube-dns", SYSTEM)
        self.wait_programmed(service, len(workload.pods()))
        return service, workload

    def delete(self, what: Workload | Service) -> None:
        """See ``Cluster``."""
        kind = "service" if isinstance(what, Service) else "deployment"
        self.kubectl.delete(kind, what.name)

    # What may happen ---------------------------------------------------------------------

    def outage(self) -> contextlib.AbstractContextManager[None]:
        """See ``Cluster``."""
        raise UnsupportedError("the API server of this cluster is not ours to stop")

    @contextlib.contextmanager
    def _without_apiserver(
        self, *on_control_plane: str, env: dict[str, str] | None = None
    ) -> Iterator[None]:
        """Take kube-apiserver's manifest from a control plane's kubelet for a while.

        Args:
            on_control_plane: runs the command that follows on the control plane's machine.
            env: of that command.
        """
        manifest, away = f"/etc/kubernetes/manifests/{_APISERVER}", f"/root/{_APISERVER}"
        run(*on_control_plane, "mv", manifest, away, env=env)
        try:
            # While it ends it is not ready any more, but goes on with what it has for a while.
            wait_for(
                "the API server is gone", lambda: not self._api_answers("/version"), timeout=120
            )
            yield
        finally:
            run(*on_control_plane, "mv", away, manifest, env=env)
            wait_for("the API server is back", self._api_answers, timeout=240, interval=0.5)

    def _api_answers(self, path: str = "/readyz") -> bool:
        argv = (*self.kubectl.prefix, "get", "--raw", path, "--request-timeout=5s")
        return run(*argv, check=False, timeout=30).returncode == 0

    def restart_node(self, node: str) -> None:
        """See ``Cluster``."""
        before = {pod["metadata"]["uid"]: started(pod) for pod in self._pods_on(node)}
        self._restart_machine(node)
        self._places.clear()
        # The API server goes on calling the node and its pods ready for some time: only pods
        # that have started anew tell.
        wait_for(
            f"the pods of {node} have started again",
            lambda: self._pods_on(node),
            accept=lambda pods: all(
                is_ready(pod) and started(pod) > before.get(pod["metadata"]["uid"], "")
                for pod in pods
            ),
            timeout=300,
            interval=2,
        )
        self.agents.wait_ready()

    def _pods_on(self, node: str) -> list[Object]:
        argv = ("pods", "-A", "--field-selector", f"spec.nodeName={node}")
        ours = {NAMESPACE, SYSTEM}
        return [pod for pod in self.kubectl.items(*argv) if pod["metadata"]["namespace"] in ours]

    def _restart_machine(self, node: str) -> None:
        raise UnsupportedError(f"{node} is not ours to restart")

    @contextlib.contextmanager
    def other_proxy(self, service: Service, workload: Workload) -> Iterator[str]:
        """See ``Cluster``."""
        del service, workload  # all Services work with it
        image = kubeproxy.image_on_nodes(self.kubectl)
        config = self.kubectl.get("-n", SYSTEM, "configmap", "onenth")["data"]
        cidrs = self._cidrs_of_families(config.get("ONENTH_CLUSTER_CIDR", ""))
        self.agents.remove()
        try:
            kubeproxy.start(self.kubectl, image, config["ONENTH_API_SERVER"], cidrs)
            kubeproxy.wait_synced([next(iter(self.node(n).ips.values())) for n in self.nodes])
            yield f"kube-proxy ({image})"
        finally:
            kubeproxy.stop(self.kubectl)
            self.agents.deploy()
            self.agents.wait_ready()

    def _cidrs_of_families(self, cidrs: str) -> str:
        """Of ranges, those of families that the cluster has: kube-proxy takes no others."""
        wanted = {":" if family == "IPv6" else "." for family in self.families}
        return ",".join(c for c in cidrs.split(",") if any(mark in c for mark in wanted))

    def collect(self, folder: Path) -> None:
        """See ``Cluster``."""
        for name, argv in {
            "objects.txt": ("get", "all,endpointslices,configmaps", "-A", "-o", "wide"),
            "nodes.txt": ("describe", "nodes"),
            "pods.txt": ("describe", "pods", "-A"),
            "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        }.items():
            done = run(*self.kubectl.prefix, *argv, check=False)
            (folder / name).write_text(done.stdout + done.stderr, "utf-8")

    def close(self) -> None:
        """See ``Cluster``: remove what was added."""
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)


def need_program(name: str) -> None:
    """Skip where a program is missing.

    Raises:
        UnsupportedError: it is.
    """
    if shutil.which(name) is None:
        raise UnsupportedError(f"needs {name} in PATH")


def _namespace() -> Object:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}
    }  # fmt: skip


def _toolbox(image: str) -> Object:
    labels = {"app": TOOLBOX}
    container = {
        "name": TOOLBOX, "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "xtables-lock", "mountPath": "/run/xtables.lock"}],
    }  # fmt: skip
    spec = {
        "hostNetwork": True, "hostPID": True, "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{
            "name": "xtables-lock",
            "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"},
        }],
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": TOOLBOX, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }  # fmt: skip
