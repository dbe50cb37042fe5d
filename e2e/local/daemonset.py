"""What the kubelet makes of deploy/'s DaemonSet, as far as Docker can do the same.

The agent of the local provider runs with exactly what the manifests say: environment, arguments,
capabilities, read-only root, mounts. So a capability that is missing there is missing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.local.machines import Node

_HANDLED = {
    "name", "image", "imagePullPolicy", "args", "env", "envFrom", "ports", "startupProbe",
    "livenessProbe", "readinessProbe", "resources", "terminationMessagePolicy",
    "securityContext", "volumeMounts",
}  # fmt: skip
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  a path


def daemonset(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The DaemonSet among objects."""
    (found,) = (obj for obj in objects if obj["kind"] == "DaemonSet")
    return found


def container_options(objects: list[dict[str, Any]], node: Node, account: Path) -> list[str]:
    """Options of ``docker run`` for the agent's container on a node.

    Args:
        objects: the rendered manifests.
        node: where it runs.
        account: folder of this machine with the ServiceAccount's token and certificate.
    """
    spec = daemonset(objects)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    unknown = set(container) - _HANDLED
    if unknown:
        raise NotImplementedError(f"the DaemonSet has {unknown}, which Docker is not told of yet")
    options = [f"--env={name}={value}" for name, value in _environment(objects, container, node)]
    options += _security(container["securityContext"])
    options += _mounts(spec, container, node)
    options += ["--volume", f"{account}:{TOKEN_PATH}:ro"]
    if spec["hostNetwork"]:
        options += ["--network", f"container:{node.container}"]
    return options


def _environment(
    objects: list[dict[str, Any]], container: dict[str, Any], node: Node
) -> list[tuple[str, str]]:
    fields = {"spec.nodeName": node.name, "status.hostIP": node.ips["IPv4"]}
    found: dict[str, str] = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    found["KUBERNETES_SERVICE_PORT"] = "443"
    for source in container["envFrom"]:
        name = source["configMapRef"]["name"]
        (config,) = (
            obj for obj in objects if obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == name
        )
        found |= config["data"]
    for variable in container["env"]:
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return list(found.items())


def _security(context: dict[str, Any]) -> list[str]:
    options = ["--user", str(context["runAsUser"])]
    options += [f"--cap-drop={name}" for name in context["capabilities"]["drop"]]
    options += [f"--cap-add={name}" for name in context["capabilities"]["add"]]
    if context["readOnlyRootFilesystem"]:
        options.append("--read-only")
    if not context["allowPrivilegeEscalation"]:
        options += ["--security-opt", "no-new-privileges"]
    return options


def _mounts(spec: dict[str, Any], container: dict[str, Any], node: Node) -> list[str]:
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    options = []
    for mount in container["volumeMounts"]:
        path = hosts[mount["name"]]
        own = node.folder / path.lstrip("/")
        source = own if own.exists() else path
        mode = ":ro" if mount.get("readOnly") else ""
        options += ["--volume", f"{source}:{mount['mountPath']}{mode}"]
    return options
