"""kubectl, with one kubeconfig."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from e2e.shell import run, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Where test objects live.
NAMESPACE = "onenth-e2e"
SYSTEM = "kube-system"
Object = dict[str, Any]


class Kubectl:
    """The kubectl command on one cluster.

    Args:
        kubeconfig: file; its current context is used.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.prefix = ("kubectl", "--kubeconfig", str(kubeconfig))

    def __call__(self, *argv: str, stdin: str = "", timeout: float = 120.0) -> str:
        """Run it; returns what it prints.

        Raises:
            CommandError: it failed.
        """
        return run(*self.prefix, *argv, stdin=stdin, timeout=timeout).stdout

    def get(self, *argv: str) -> Object:
        """An object, or a list of them."""
        found: Object = json.loads(self("get", *argv, "-o", "json"))
        return found

    def items(self, *argv: str) -> list[Object]:
        """The objects of a list."""
        found: list[Object] = self.get(*argv)["items"]
        return found

    def apply(self, objects: Sequence[Object]) -> None:
        """Create or change objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "-f", "-", stdin=json.dumps(listed))

    def delete(self, kind: str, name: str, namespace: str = NAMESPACE) -> None:
        """Delete an object and what belongs to it, and wait until it is gone."""
        self(
            "-n", namespace, "delete", kind, name, "--ignore-not-found", "--cascade=foreground",
            "--timeout=120s", timeout=150,
        )  # fmt: skip

    def rolled_out(self, what: str, namespace: str = NAMESPACE, timeout: int = 240) -> None:
        """Wait until a Deployment or DaemonSet has what it wants, and no old pod is left."""
        self(
            "-n", namespace, "rollout", "status", what, f"--timeout={timeout}s",
            timeout=timeout + 30,
        )  # fmt: skip

    def pods(self, selector: str, namespace: str = NAMESPACE) -> list[Object]:
        """Pods by label, those that are being deleted too."""
        return self.items("-n", namespace, "pods", "-l", selector)

    def wait_gone(self, selector: str, namespace: str) -> None:
        """Wait until no pod has the label."""
        wait_for(
            f"no pod {selector}",
            lambda: self.pods(selector, namespace),
            accept=lambda pods: not pods,
            timeout=120,
            interval=0.5,
        )


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready, and not on its way out."""
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def started(pod: Object) -> str:
    """When the last start of a pod's container was; RFC 3339, so that later ones sort later."""
    statuses = pod["status"].get("containerStatuses", ())
    return max((s["state"].get("running", {}).get("startedAt", "") for s in statuses), default="")
