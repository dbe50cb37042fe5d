"""kube-proxy as a DaemonSet, from the image that Kubernetes' node images bring."""

from __future__ import annotations

import functools
import json
import urllib.request
from typing import TYPE_CHECKING

from e2e.cluster import UnsupportedError
from e2e.kubernetes.kubectl import SYSTEM, Kubectl, Object
from e2e.shell import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "onenth-e2e-kube-proxy"
_HEALTHZ = 10256
_FOLDER = "/var/lib/kube-proxy"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def image_on_nodes(kubectl: Kubectl) -> str:
    """The image of kube-proxy that nodes have.

    Raises:
        UnsupportedError: none has one.
    """
    for node in kubectl.items("nodes"):
        for image in node["status"].get("images", ()):
            for name in image.get("names") or ():
                if "/kube-proxy" in name and "@" not in name:
                    return str(name)
    raise UnsupportedError("no node of this cluster has an image of kube-proxy")


def start(kubectl: Kubectl, image: str, api_server: str, cluster_cidr: str) -> None:
    """Run it on every node."""
    kubectl.apply(_objects(image, api_server, cluster_cidr))
    kubectl.rolled_out(f"daemonset/{NAME}", SYSTEM)


def wait_synced(ips: Sequence[str]) -> None:
    """Wait until it is healthy on nodes with these addresses."""
    for ip in ips:
        host = f"[{ip}]" if ":" in ip else ip
        wait_for(
            f"kube-proxy at {ip} is healthy",
            functools.partial(_status, f"http://{host}:{_HEALTHZ}/healthz"),
            accept=lambda status: status == 200,
        )


def _status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  always http
        return int(answer.status)


def stop(kubectl: Kubectl) -> None:
    """End it everywhere; its rules stay."""
    kubectl.delete("daemonset", NAME, SYSTEM)
    kubectl.wait_gone(f"app={NAME}", SYSTEM)
    kubectl("delete", "clusterrolebinding", NAME, "--ignore-not-found")
    kubectl("-n", SYSTEM, "delete", "serviceaccount,configmap", NAME, "--ignore-not-found")


def _objects(image: str, api_server: str, cluster_cidr: str) -> list[Object]:
    meta = {"name": NAME, "namespace": SYSTEM}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "system:node-proxier",
            },
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
            "data": {
                "config.conf": json.dumps(_configuration(cluster_cidr)),
                "kubeconfig.conf": json.dumps(_kubeconfig(api_server)),
            },
        },
        _daemonset(image),
    ]  # fmt: skip


def _configuration(cluster_cidr: str) -> Object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{_FOLDER}/kubeconfig.conf"},
        "mode": "iptables",
        "clusterCIDR": cluster_cidr,
        # The connection table is the host's; its limits are not this cluster's to change.
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
    }  # fmt: skip


def _kubeconfig(api_server: str) -> Object:
    cluster = {"server": api_server, "certificate-authority": f"{_ACCOUNT}/ca.crt"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "clusters": [{"name": "default", "cluster": cluster}],
        "users": [{"name": "default", "user": {"tokenFile": f"{_ACCOUNT}/token"}}],
    }


def _daemonset(image: str) -> Object:
    labels = {"app": NAME}
    container = {
        "name": "kube-proxy", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": [
            "/usr/local/bin/kube-proxy", f"--config={_FOLDER}/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            {"name": "config", "mountPath": _FOLDER},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
            {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": True},
        ],
    }  # fmt: skip
    spec = {
        "serviceAccountName": NAME, "hostNetwork": True, "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical", "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": NAME}},
            {
                "name": "xtables-lock",
                "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"},
            },
            {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
        ],
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": SYSTEM},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }  # fmt: skip
