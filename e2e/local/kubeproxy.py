"""kube-proxy on the nodes of the local provider: the real one, or the rules that it leaves.

The real one is used when ``ONENTH_KUBE_PROXY`` names the program (a static one: it runs in the
node's container). Without it, rules that kube-proxy 1.36 wrote for the Service of the takeover
test (``data/kube-proxy-*.rules``) are restored in the way that kube-proxy does it: chains are
replaced whole, in one transaction, and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from agent.rules import names
from e2e.cluster import PORT
from e2e.local.machines import POD_RANGES
from e2e.shell import run, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from e2e.cluster import Family, Place, Service
    from e2e.docker import Docker
    from e2e.local.agents import LocalAgents
    from e2e.local.controlplane import ControlPlane
    from e2e.local.machines import Machines, Node

DATA = Path(__file__).parents[1] / "data"
TOOLS: dict[Family, str] = {"IPv4": "iptables", "IPv6": "ip6tables"}
_HEALTHZ = 10256
_PROGRAM = "/usr/local/bin/kube-proxy"
_SETTINGS = "/etc/kube-proxy"


@contextlib.contextmanager
def other_proxy(
    parts: tuple[Docker, Machines, ControlPlane, LocalAgents],
    service: Service,
    pods: Sequence[Place],
) -> Iterator[str]:
    """See ``e2e.cluster.Cluster.other_proxy``."""
    docker, machines, control, agents = parts
    program = os.environ.get("ONENTH_KUBE_PROXY", "")
    agents.remove()
    try:
        if not program:
            for node in machines.nodes:
                _restore_recorded(docker, node, service, pods)
            yield "rules that kube-proxy 1.36 wrote, restored"
            return
        for node in machines.nodes:
            _start(docker, node, control, program)
        try:
            for node in machines.nodes:
                _wait_synced(docker, node)
            yield f"a real kube-proxy ({run(program, '--version').stdout.strip()})"
        finally:
            for node in machines.nodes:
                _stop(docker, node)
    finally:
        agents.deploy()


def _restore_recorded(docker: Docker, node: Node, service: Service, pods: Sequence[Place]) -> None:
    for family, ip in service.ips.items():
        text = (DATA / f"kube-proxy-{family.lower()}.rules").read_text("ascii")
        values = {"ip": ip, "node_port": service.node_ports[80]}
        for number, pod in enumerate(sorted(pods, key=lambda pod: pod.ips[family]), 1):
            host = pod.ips[family]
            endpoint = f"[{host}]:{PORT}" if family == "IPv6" else f"{host}:{PORT}"
            key = f"{service.namespace}/{service.name}"
            values[f"pod{number}"] = host
            values[f"sep{number}"] = names.SEP + names.service_hash(key, "tcp", endpoint)
        docker(
            "exec", "--interactive", node.container, f"xtables-{node.backend}-multi",
            f"{TOOLS[family]}-restore", "--noflush", "--wait", "10", stdin=text.format_map(values),
        )  # fmt: skip


def _start(docker: Docker, node: Node, control: ControlPlane, program: str) -> None:
    """Run it in the node's container, with the node's iptables first in its path."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"ONENTH_KUBE_PROXY names {program}, which is not a program")
    folder = node.folder / "kube-proxy"
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(control.authority.read_bytes())
    files: dict[str, Any] = {
        "config.yaml": _configuration(node),
        "kubeconfig": _kubeconfig(control),
    }
    for name, content in files.items():
        (folder / name).write_text(yaml.safe_dump(content), "utf-8")
    docker("exec", node.container, "mkdir", "-p", f"{_SETTINGS}/bin")
    docker("cp", found, f"{node.container}:{_PROGRAM}")
    docker("cp", f"{folder}/.", f"{node.container}:{_SETTINGS}")
    for tool in TOOLS.values():
        for verb in ("", "-save", "-restore"):
            docker(
                "exec", node.container, "ln", "-sf", f"/usr/sbin/xtables-{node.backend}-multi",
                f"{_SETTINGS}/bin/{tool}{verb}",
            )  # fmt: skip
    docker(
        "exec", "--detach", "--env", f"PATH={_SETTINGS}/bin:/usr/sbin:/usr/bin", node.container,
        "sh", "-c", f"echo $$ > {_SETTINGS}/pid; exec {_PROGRAM} --config {_SETTINGS}/config.yaml"
        f" > {_SETTINGS}/log 2>&1",
    )  # fmt: skip


def _configuration(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{_SETTINGS}/kubeconfig"},
        "mode": "iptables",
        "hostnameOverride": node.name,
        "clusterCIDR": ",".join(POD_RANGES.values()),
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
    }  # fmt: skip


def _kubeconfig(control: ControlPlane) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "clusters": [{
            "name": "e2e",
            "cluster": {
                "server": control.url, "certificate-authority": f"{_SETTINGS}/ca.crt",
            },
        }],
        "users": [{"name": "e2e", "user": {"token": control.admin_token}}],
    }  # fmt: skip


def _wait_synced(docker: Docker, node: Node) -> None:
    """Wait until it is healthy, and has written rules."""
    ask = (
        "import urllib.request as r;"
        f"print(r.urlopen('http://127.0.0.1:{_HEALTHZ}/healthz').status);"
        "t=r.urlopen('http://127.0.0.1:10249/metrics').read().decode();"
        "print([l for l in t.splitlines() if l.startswith("
        "'kubeproxy_sync_full_proxy_rules_duration_seconds_count')])"
    )
    wait_for(
        f"kube-proxy on {node.name} has synced",
        lambda: docker("exec", node.container, "python", "-c", ask),
        accept=lambda said: said.startswith("200") and " 0'" not in said and "count" in said,
        timeout=60,
    )


def _stop(docker: Docker, node: Node) -> None:
    """End it; its rules stay."""
    docker("exec", node.container, "sh", "-c", f"kill $(cat {_SETTINGS}/pid)")
    ask = f"cat {_SETTINGS}/log; kill -0 $(cat {_SETTINGS}/pid) 2>/dev/null || echo gone"
    wait_for(
        f"kube-proxy on {node.name} ended",
        lambda: docker("exec", node.container, "sh", "-c", ask),
        accept=lambda said: said.endswith("gone\n"),
        timeout=30,
    )
