"""The control plane of the local provider: a real kube-apiserver with etcd, or the fake one.

The real one is used when ``ONENTH_KUBE_APISERVER`` and ``ONENTH_ETCD`` name the programs. Both
listen on the address that this machine has in the nodes' network, speak TLS with a certificate
for that address, and know two bearers: an administrator, and the agent, which is the
ServiceAccount of deploy/ with its roles (the fake one checks the token and no roles).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Protocol

import trustme
import urllib3

from e2e.shell import wait_for
from tests.fakes.apiserver import FakeAPIServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster import Family

PORT = 6443
SERVICE_RANGES: dict[Family, str] = {"IPv4": "10.96.0.0/16", "IPv6": "fd00:10:96::/112"}
API_IP = "10.96.0.1"
_PLURALS = {
    "Service": "services", "Node": "nodes", "EndpointSlice": "endpointslices",
    "ServiceAccount": "serviceaccounts", "ConfigMap": "configmaps", "Role": "roles",
    "ClusterRole": "clusterroles", "RoleBinding": "rolebindings", "Event": "events",
    "ClusterRoleBinding": "clusterrolebindings", "DaemonSet": "daemonsets",
}  # fmt: skip


class ControlPlaneError(Exception):
    """The control plane cannot be had, or refused something."""


class Certificates:
    """An authority, and a server certificate for an address."""

    def __init__(self, folder: Path, *names: str) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert(*names)
        self.authority = folder / "ca.crt"
        self.chain = folder / "server.crt"
        self.key = folder / "server.key"
        authority.cert_pem.write_to_path(str(self.authority))
        for blob in issued.cert_chain_pems:
            blob.write_to_path(str(self.chain), append=True)
        issued.private_key_pem.write_to_path(str(self.key))


class Api:
    """The API, as an administrator: objects in and out."""

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self._url = url
        self._token = token
        self._pool = urllib3.PoolManager(ca_certs=str(authority), retries=False, timeout=15)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; returns status and decoded answer.

        Raises:
            OSError: there is no answer.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, self._url + path, headers=headers, body=data)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error
        content = answer.data.decode(errors="replace")
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, content

    def put(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Create an object, or replace the one that is there; returns it as it is stored."""
        folder, name = _paths(obj)
        status, found = self.request("POST", folder, obj)
        if status == 409:
            _, present = self.request("GET", name)
            version = present["metadata"]["resourceVersion"]
            changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}
            status, found = self.request("PUT", name, changed)
        if status not in {200, 201} or not isinstance(found, dict):
            raise ControlPlaneError(f"{obj['kind']} {obj['metadata']['name']}: {status} {found}")
        return found

    def put_status(self, obj: dict[str, Any]) -> None:
        """Write an object's status, where that is a resource of its own."""
        _, name = _paths(obj)
        _, present = self.request("GET", name)
        status, found = self.request("PUT", f"{name}/status", {**present, "status": obj["status"]})
        if status != 200:
            raise ControlPlaneError(f"status of {obj['metadata']['name']}: {status} {found}")

    def delete(self, obj: dict[str, Any]) -> None:
        """Delete an object, if it is there."""
        self.request("DELETE", _paths(obj)[1])

    def list(self, api_version: str, plural: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        root = "api" if "/" not in api_version else "apis"
        items: list[dict[str, Any]] = self.request("GET", f"/{root}/{api_version}/{plural}")[1][
            "items"
        ]
        return items


def _paths(obj: dict[str, Any]) -> tuple[str, str]:
    """Paths of the collection that an object belongs to, and of the object."""
    version, meta = obj["apiVersion"], obj["metadata"]
    root = f"/{'api' if '/' not in version else 'apis'}/{version}"
    namespace = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    folder = f"{root}{namespace}/{_PLURALS[obj['kind']]}"
    return folder, f"{folder}/{meta['name']}"


class ControlPlane(Protocol):
    """An API server that can be taken away and brought back."""

    description: str
    #: It checks roles and validates objects.
    real: bool
    api: Api
    url: str
    authority: Path
    admin_token: str

    def start(self) -> None:
        """Begin to serve."""

    def agent_token(self) -> str:
        """The bearer token of the agent's ServiceAccount."""

    def outage(self) -> contextlib.AbstractContextManager[None]:
        """Refuse connections, and end those that exist, for as long as the block lasts."""

    def stop(self) -> None:
        """End it."""


class FakeControlPlane:
    """The fake API server of the tests, in this process."""

    description = "fake API server (tests/fakes)"
    real = False

    def __init__(self, folder: Path, address: str) -> None:
        certificates = Certificates(folder, address, API_IP)
        self.authority = certificates.authority
        self._tls = (certificates.chain, certificates.key)
        self._address = address
        self.admin_token = secrets.token_hex(16)
        self.url = f"https://{address}:{PORT}"
        self.api = Api(self.url, self.authority, self.admin_token)
        self._server: FakeAPIServer | None = None

    def start(self) -> None:
        """See ``ControlPlane``."""
        old = self._server
        self._server = FakeAPIServer(
            port=PORT, host=self._address, token=self.admin_token, tls=self._tls, bookmark_seconds=5
        )
        if old is not None:
            self._server.store = old.store
        self._server.__enter__()

    def agent_token(self) -> str:
        """See ``ControlPlane``."""
        return self.admin_token

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """See ``ControlPlane``."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def stop(self) -> None:
        """See ``ControlPlane``."""
        if self._server is not None:
            self._server.stop()


class RealControlPlane:
    """kube-apiserver with etcd, as processes of this machine."""

    real = True

    def __init__(self, folder: Path, address: str, apiserver: str, etcd: str) -> None:
        self._folder = folder
        self._address = address
        self._programs = (apiserver, etcd)
        self._certificates = Certificates(folder, address, API_IP)
        self.authority = self._certificates.authority
        self.admin_token = secrets.token_hex(16)
        self.url = f"https://{address}:{PORT}"
        self.api = Api(self.url, self.authority, self.admin_token)
        self._etcd_port, self._peer_port = _free_port(), _free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._apiserver: subprocess.Popen[bytes] | None = None
        version = subprocess.run(
            [apiserver, "--version"], capture_output=True, text=True, check=False
        ).stdout.strip()
        self.description = f"real kube-apiserver ({version}) and etcd"

    def start(self) -> None:
        """See ``ControlPlane``."""
        (self._folder / "tokens.csv").write_text(f"{self.admin_token},admin,admin,system:masters\n")
        url, peer = (f"http://127.0.0.1:{p}" for p in (self._etcd_port, self._peer_port))
        self._etcd = self._spawn(
            "etcd", self._programs[1], "--data-dir", str(self._folder / "etcd"),
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self._start_apiserver()

    def _start_apiserver(self) -> None:
        certificates, key = self._certificates, str(self._certificates.key)
        self._apiserver = self._spawn(
            "kube-apiserver", self._programs[0],
            "--etcd-servers", f"http://127.0.0.1:{self._etcd_port}",
            "--bind-address", self._address, "--advertise-address", self._address,
            "--secure-port", str(PORT), "--tls-cert-file", str(certificates.chain),
            "--tls-private-key-file", key, "--service-account-key-file", key,
            "--service-account-signing-key-file", key,
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-cluster-ip-range", ",".join(SERVICE_RANGES.values()),
            "--authorization-mode", "RBAC",
            "--token-auth-file", str(self._folder / "tokens.csv"),
            "--cert-dir", str(self._folder), "--watch-cache=true",
        )  # fmt: skip
        # The namespaces are written a moment after the server is ready.
        for path in ("/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"):
            wait_for(
                f"kube-apiserver answers {path}",
                functools.partial(self.api.request, "GET", path),
                accept=lambda answer: answer[0] == 200,
                timeout=120,
            )

    def agent_token(self) -> str:
        """See ``ControlPlane``."""
        status, found = self.api.request(
            "POST",
            "/api/v1/namespaces/kube-system/serviceaccounts/onenth/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        if status != 201:
            raise ControlPlaneError(f"no token for the agent: {status} {found}")
        return str(found["status"]["token"])

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """See ``ControlPlane``."""
        _end(self._apiserver)
        try:
            yield
        finally:
            self._start_apiserver()

    def stop(self) -> None:
        """See ``ControlPlane``."""
        _end(self._apiserver)
        _end(self._etcd)

    def _spawn(self, name: str, *argv: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            # Debian's etcd on other machines than amd64 wants to be asked for.
            env = {**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine}
            return subprocess.Popen(argv, stdout=log, stderr=log, env=env)


def make_control_plane(folder: Path, address: str) -> ControlPlane:
    """Choose by the environment; nothing runs yet.

    Raises:
        ControlPlaneError: only one of the two variables is set, or a program is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    programs = [os.environ.get(f"ONENTH_{name}", "") for name in ("KUBE_APISERVER", "ETCD")]
    if not any(programs):
        return FakeControlPlane(folder, address)
    found = [shutil.which(program) for program in programs]
    apiserver, etcd = found
    if apiserver is None or etcd is None:
        raise ControlPlaneError(
            "ONENTH_KUBE_APISERVER and ONENTH_ETCD must both name programs; they name"
            f" {programs[0]!r} and {programs[1]!r}"
        )
    return RealControlPlane(folder, address, apiserver, etcd)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
