"""The requests of a running agent against deploy/base/rbac.yaml: neither lacks, neither exceeds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agent.demo import namespaces
from agent.demo.namespaces import Namespace
from hack.render import DEPLOY, ROOT
from tests.fakes.apiserver import FakeAPIServer, Fault, write_kubeconfig
from tests.fakes.objects import endpoint_slice, node, service
from tests.kernel.conftest import why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fakes.handler import Request

RBAC = list(yaml.safe_load_all((DEPLOY / "base/rbac.yaml").read_text("utf-8")))
#: Verb, API group, resource, and the namespace that it is for ("" for all).
Permission = tuple[str, str, str, str]
NAME = "node-1"


def granted() -> set[Permission]:
    """What the roles allow."""
    return {
        (verb, group, resource, role["metadata"].get("namespace", ""))
        for role in RBAC
        if role["kind"] in {"ClusterRole", "Role"}
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def needed(request: Request) -> Permission:
    """What the API server would ask the authorizer about a request."""
    parts = request.path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
    return request.verb, group, request.plural, namespace


@pytest.fixture(name="namespace")
def _namespace() -> Iterator[Namespace]:
    if why_not():
        pytest.skip(why_not())
    made = Namespace.create(namespaces.owned_name("rbac"))
    made.run(["ip", "link", "set", "lo", "up"])
    yield made
    made.close(grace=0.2)


@pytest.fixture(name="server")
def _server(namespace: Namespace) -> Iterator[FakeAPIServer]:
    """A fake API server inside the namespace; a Service's health check node port is taken."""
    server = namespace.call(FakeAPIServer, bookmark_seconds=0.2)
    taken = namespace.call(socket.create_server, ("0.0.0.0", 31999))
    with taken, server:
        local = service("local", "10.96.0.2")
        local["spec"] |= {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31999,
        }
        server.put(
            node(NAME), service("web"), endpoint_slice("web-1", "10.0.0.1", service="web"), local
        )
        yield server


@pytest.fixture(name="agent")
def _agent(
    namespace: Namespace, server: FakeAPIServer, tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    """The real daemon in the namespace."""
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server)
    log = (tmp_path / "log").open("w")
    process = namespace.popen(
        [sys.executable, "-m", "agent", "run", "--kubeconfig", str(kubeconfig),
         "--node-name", NAME, "--iptables-backend", "nft",
         "--metrics-bind-address", "127.0.0.1:10249", "--healthz-bind-address", "127.0.0.1:10256"],
        cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
        env=os.environ | {"XTABLES_LOCKFILE": str(tmp_path / "lock")},
    )  # fmt: skip
    yield process
    process.terminate()
    process.wait(20)
    log.close()


def wait(ready: Callable[[], Any], what: str, log: Path) -> None:
    end = time.monotonic() + 30
    while not ready():
        if time.monotonic() > end:
            raise AssertionError(f"not in 30 s: {what}; {log.read_text()[-3000:]}")
        time.sleep(0.05)


@pytest.mark.root
def test_the_role_is_exactly_what_the_agent_uses(
    server: FakeAPIServer, agent: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Over start, a change, an Event, and lists after lost watches: used equals granted."""
    log = tmp_path / "log"
    plurals = ("services", "endpointslices", "nodes")
    wait(lambda: all(server.watching(plural) for plural in plurals), "three watches", log)
    wait(lambda: server.seen("create", "events"), "an Event about the port", log)
    server.put(service("more", "10.96.0.3"))
    server.fail(Fault(status=410), verb="watch", times=3)
    before = len(server.seen("list"))
    server.cut()
    wait(lambda: len(server.seen("list")) >= before + 3, "lists after watches expired", log)
    wait(lambda: all(server.watching(plural) for plural in plurals), "three watches again", log)
    assert agent.poll() is None
    assert {needed(request) for request in server.seen()} == granted()


@pytest.mark.root
def test_every_request_stays_what_the_role_can_express(
    server: FakeAPIServer, agent: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Of Nodes it asks for its own only, so a stricter authorizer could allow just that."""
    wait(lambda: server.watching("nodes"), "a watch of Nodes", tmp_path / "log")
    assert agent.poll() is None
    asked = server.seen("", "nodes")
    assert asked
    assert {request.query["fieldSelector"] for request in asked} == {f"metadata.name={NAME}"}


def test_bindings_bind_these_roles_to_the_agent_alone() -> None:
    """Each role is bound once, to the ServiceAccount of the DaemonSet, and to nobody else."""
    roles = {(role["kind"], role["metadata"]["name"]) for role in RBAC if "rules" in role}
    bound = [
        (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in RBAC
        if "subjects" in binding
    ]
    assert sorted(bound) == sorted(roles)
    for binding in RBAC:
        for subject in binding.get("subjects", ()):
            assert subject == {
                "kind": "ServiceAccount", "name": "onenth", "namespace": "kube-system",
            }  # fmt: skip
