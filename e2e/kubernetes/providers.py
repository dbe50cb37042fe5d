"""The providers kind, minikube and external."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from e2e.cluster import Place, UnsupportedError
from e2e.docker import IMAGE, NEXT
from e2e.kubernetes.cluster import KubeCluster, need_program
from e2e.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster
    from e2e.docker import Docker
    from e2e.kubernetes.kubectl import Kubectl

#: kind's and minikube's waits, and downloads where there are any.
_PATIENCE = 900


class KindCluster(KubeCluster):
    """A kind cluster without kube-proxy: one control plane, two workers.

    ``ONENTH_KIND_IMAGE`` names another node image than kind's default.
    """

    def __init__(self, docker: Docker, folder: Path, family: str, failed: Path) -> None:
        self._docker = docker
        self.name = f"onenth-{secrets.token_hex(3)}"
        self._folder = folder
        self._kubeconfig = folder / "kubeconfig"
        try:
            self._create(family)
        except BaseException:
            self._export_logs(failed)
            self.close()
            raise
        super().__init__(
            self._kubeconfig,
            "kind",
            # The node's name is in the certificate, and Docker's DNS knows it.
            {"ONENTH_API_SERVER": f"https://{self.name}-control-plane:6443"},
        )

    def _create(self, family: str) -> None:
        config = {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "networking": {"kubeProxyMode": "none", "ipFamily": family},
            "nodes": [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}],
        }
        path = self._folder / "kind.yaml"
        path.write_text(yaml.safe_dump(config), "utf-8")
        image = os.environ.get("ONENTH_KIND_IMAGE", "")
        self._kind(
            "create", "cluster", "--config", str(path), "--kubeconfig", str(self._kubeconfig),
            "--wait", "180s", "--retain", *(("--image", image) if image else ()),
        )  # fmt: skip
        archive = self._folder / "images.tar"
        self._docker("save", "--output", str(archive), IMAGE, NEXT, timeout=300)
        self._kind("load", "image-archive", str(archive))
        archive.unlink()

    def _kind(self, *argv: str) -> None:
        run("kind", *argv, "--name", self.name, env=self._docker.env, timeout=_PATIENCE)

    def steady(self, place: Place) -> Place:
        """See ``Cluster``."""
        return _through_runtime(self._docker, self.kubectl, place)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """See ``Cluster``."""
        with self._without_apiserver(*self._docker.command, "exec", f"{self.name}-control-plane"):
            yield

    def _restart_machine(self, node: str) -> None:
        self._docker("restart", node)

    def collect(self, folder: Path) -> None:
        """See ``Cluster``."""
        super().collect(folder)
        self._export_logs(folder)

    def _export_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        run(
            "kind", "export", "logs", str(folder / "kind"), "--name", self.name,
            env=self._docker.env, check=False, timeout=300,
        )  # fmt: skip

    def close(self) -> None:
        """See ``Cluster``."""
        self._kind("delete", "cluster", "--kubeconfig", str(self._kubeconfig))


class MinikubeCluster(KubeCluster):
    """A minikube profile without kube-proxy: one control plane, two workers.

    Two workers, because the node that a test restarts must not be the control plane's.
    """

    def __init__(self, docker: Docker, folder: Path, failed: Path) -> None:
        self._docker = docker
        self.name = f"onenth-{secrets.token_hex(3)}"
        kubeconfig = folder / "kubeconfig"
        self._env = {**docker.env, "KUBECONFIG": str(kubeconfig)}
        try:
            self._create()
        except BaseException:
            self._export_logs(failed)
            self.close()
            raise
        super().__init__(kubeconfig, "minikube", {})

    def _create(self) -> None:
        # Only the API server is waited for: system pods need the Services that the agent serves.
        self._minikube(
            "start", "--nodes", "3", "--wait", "apiserver",
            "--extra-config", "kubeadm.skip-phases=addon/kube-proxy",
        )  # fmt: skip
        self._minikube("image", "load", IMAGE, NEXT)

    def _minikube(self, *argv: str) -> None:
        run("minikube", *argv, "--profile", self.name, env=self._env, timeout=_PATIENCE)

    def steady(self, place: Place) -> Place:
        """See ``Cluster``: where minikube's driver is Docker."""
        if not self._docker.has_container(self.name):
            return super().steady(place)
        return _through_runtime(self._docker, self.kubectl, place)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """See ``Cluster``."""
        prefix = ("minikube", "--profile", self.name, "ssh", "--", "sudo")
        with self._without_apiserver(*prefix, env=self._env):
            yield

    def _restart_machine(self, node: str) -> None:
        self._minikube("node", "stop", node)
        self._minikube("node", "start", node)

    def collect(self, folder: Path) -> None:
        """See ``Cluster``."""
        super().collect(folder)
        self._export_logs(folder)

    def _export_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = str(folder / "minikube.log")
        argv = ("minikube", "logs", "--profile", self.name, "--file", file)
        run(*argv, env=self._env, check=False, timeout=300)

    def close(self) -> None:
        """See ``Cluster``."""
        self._minikube("delete")


class ExternalCluster(KubeCluster):
    """A cluster that is there, without kube-proxy, whose nodes find the image.

    The agent stays on it at the end, for without it the cluster would have no proxy.
    """


def _through_runtime(docker: Docker, kubectl: Kubectl, place: Place) -> Place:
    """A pod, reached through its node's container and container runtime."""
    namespace = place.prefix[place.prefix.index("-n") + 1]
    pod = kubectl.get("-n", namespace, "pod", place.prefix[-2])
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    node = pod["spec"]["nodeName"]
    prefix = (*docker.command, "exec", "-i", node, "crictl", "exec", "-i", container)
    return Place(place.name, prefix, place.python, place.ips, place.node)


def make_cluster(provider: str, config: pytest.Config, docker: Docker, folder: Path) -> Cluster:
    """Make a cluster ready for tests; skips with a reason where that cannot be done here."""
    try:
        need_program("kubectl")
        made = _make(provider, config, docker, folder)
    except UnsupportedError as error:
        pytest.skip(str(error))
    try:
        made.set_up()
    except BaseException:
        folder = _failed_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        made.collect(folder)
        if not config.getoption("--keep-cluster"):
            made.close()
        raise
    return made


def _failed_folder(config: pytest.Config) -> Path:
    return Path(config.getoption("--artifacts")) / "set-up"


def _make(provider: str, config: pytest.Config, docker: Docker, folder: Path) -> KubeCluster:
    if provider == "kind":
        need_program("kind")
        return KindCluster(docker, folder, config.getoption("--ip-family"), _failed_folder(config))
    if provider == "minikube":
        need_program("minikube")
        return MinikubeCluster(docker, folder, _failed_folder(config))
    kubeconfig, url = config.getoption("--kubeconfig"), config.getoption("--api-server")
    if not kubeconfig or not url:
        raise UnsupportedError("--provider external needs --kubeconfig and --api-server")
    image = config.getoption("--image")
    settings: dict[str, str] = {"ONENTH_API_SERVER": url}
    if config.getoption("--cluster-cidr"):
        settings["ONENTH_CLUSTER_CIDR"] = config.getoption("--cluster-cidr")
    return ExternalCluster(Path(kubeconfig), "kind", settings, (image, f"{image}-next"))
