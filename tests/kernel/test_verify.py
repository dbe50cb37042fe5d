"""The looking commands on a real kernel, in both backends, as people run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.demo.testbed import Testbed
from tests.kernel import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace

ROOT = Path(__file__).parents[2]
FLAGS = ("--node-name", "node-1", "--cluster-cidr", "10.64.0.0/16,fd00:10:64::/48")
VIPS = ("10.96.0.1", "fd00:96::1")


class Node:
    """A node whose kernel holds the rules of some manifests, in one backend."""

    def __init__(self, bed: Testbed, backend: str, folder: Path) -> None:
        self.bed = bed
        self.backend = backend
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.write(3)
        for family in shapes.FAMILIES:
            self.hold(family)

    @property
    def namespace(self) -> Namespace:
        """Where the rules are."""
        return self.bed.node

    def write(self, endpoints: int) -> None:
        """Manifests with one dual-stack Service and so many of the pods."""
        items: list[Any] = [
            shapes.service(
                "web",
                *VIPS,
                ports=[shapes.port(80, node_port=30080, name="http")],
                type="NodePort",
            ),
            shapes.node("192.168.0.2"),
        ]
        for index, family in enumerate(shapes.FAMILIES):
            pods = self.bed.pods[:endpoints]
            items.append(
                shapes.endpoint_slice(
                    "web",
                    *(shapes.endpoint(pod.ips[index]) for pod in pods),
                    ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
                    suffix=family.lower(),
                )
            )
        text = json.dumps({"kind": "List", "items": items})
        (self.manifests / "all.json").write_text(text, "utf-8")

    def tool(self, family: str, what: str) -> str:
        """A program of the backend."""
        name = "iptables" if family == "IPv4" else "ip6tables"
        return f"{name}-{self.backend}{what}"

    def hold(self, family: str) -> None:
        """Give the kernel what the manifests ask for."""
        flags = ["--manifests", str(self.manifests), "--family", family, *FLAGS]
        text = self.onenth("render", *flags).stdout
        self.namespace.run([self.tool(family, "-restore")], stdin=text)

    def onenth(self, *argv: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's namespace."""
        found = self.namespace.run(
            ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "agent", *argv],
            check=False,
            timeout=60,
        )
        assert found.returncode == status, found.stderr + found.stdout
        return found

    def state(self) -> str:
        """Everything that the kernel holds, as text without counters and times."""
        texts = []
        for backend in ("nft", "legacy"):
            for tool in ("iptables", "ip6tables"):
                saved = self.namespace.run([f"{tool}-{backend}-save"], check=False).stdout
                saved = re.sub(r"\[\d+:\d+\]", "", saved)
                texts += [line for line in saved.splitlines() if line[:1] in "-*:"]
        tables = Path("/proc/net/ip_tables_names")
        names = self.namespace.run(["cat", str(tables)], check=False).stdout
        return "\n".join([*texts, names])


@pytest.fixture(name="node", params=["nft", "legacy"], scope="module")
def _node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    with Testbed(pods=3) as bed:
        bed.serve()
        yield Node(bed, request.param, tmp_path_factory.mktemp("node"))


def test_a_sound_kernel_is_sound_and_stays_as_it_is(node: Node) -> None:
    """By itself and against its manifests; looking changes nothing, in neither backend."""
    before = node.state()
    alone = json.loads(node.onenth("verify", "-o", "json").stdout)
    compared = node.onenth("verify", "--manifests", str(node.manifests), *FLAGS).stdout
    plan = node.onenth("plan", "--manifests", str(node.manifests), *FLAGS).stdout
    node.onenth("explain", "default/web", "--from", "outside")
    node.onenth("top", "--once", "--interval", "0.1")

    assert alone["sound"]
    assert {one["backend"] for one in alone["looked"]} == {node.backend}
    assert all(one["held"] for one in alone["looked"])
    assert compared.splitlines()[-1] == "sound"
    assert plan.splitlines()[-1] == "Plan: no changes."
    assert node.state() == before


def test_a_rule_that_somebody_deleted_is_found(node: Node) -> None:
    """In the family in which it was deleted, with exit status 1."""
    chain = "KUBE-POSTROUTING"
    tool = node.tool("IPv6", "")
    node.namespace.run([tool, "-t", "nat", "-D", chain, "1"])
    try:
        found = json.loads(node.onenth("verify", "-o", "json", status=1).stdout)["findings"]
        assert [(one["kind"], one["family"], one["chain"]) for one in found] == [
            ("masquerade-rules", "IPv6", chain)
        ]
        plan = node.onenth("plan", "--manifests", str(node.manifests), *FLAGS, status=1).stdout
        assert "~ what all Services share" in plan
    finally:
        node.hold("IPv6")


def test_the_invalid_rule_is_held_against_the_sysctl(node: Node) -> None:
    """With nf_conntrack_tcp_be_liberal set, the rule is one too many."""
    sysctl = "net/netfilter/nf_conntrack_tcp_be_liberal"
    node.namespace.write_sysctl(sysctl, 1)
    try:
        found = json.loads(node.onenth("verify", "-o", "json", status=1).stdout)["findings"]
        assert {one["kind"] for one in found} == {"invalid-rule-unneeded"}
    finally:
        node.namespace.write_sysctl(sysctl, 0)


def test_service_rules_in_both_backends_are_found(node: Node) -> None:
    """Whichever is looked at, the other one is named."""
    other = "legacy" if node.backend == "nft" else "nft"
    text = "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"
    clean = "*nat\n-X KUBE-SERVICES\nCOMMIT\n"
    restore = [f"iptables-{other}-restore", "--noflush"]
    node.namespace.run(restore, stdin=text)
    try:
        flags = ["--backend", node.backend, "-o", "json"]
        found = json.loads(node.onenth("verify", *flags, status=1).stdout)["findings"]
        assert [one["kind"] for one in found] == ["both-backends"]
        assert f"iptables-{other}" in found[0]["text"]
    finally:
        node.namespace.run(restore, stdin=clean)


def test_a_stale_endpoint_is_found_and_planned(node: Node) -> None:
    """A pod that left the manifests still gets a third of the connections."""
    node.write(2)
    try:
        flags = ["--manifests", str(node.manifests), *FLAGS]
        found = json.loads(node.onenth("verify", *flags, "-o", "json", status=1).stdout)
        plan = node.onenth("plan", *flags, status=1).stdout
    finally:
        node.write(3)

    stale = [one for one in found["findings"] if one["kind"] == "endpoint-stale"]
    assert {one["family"] for one in stale} == {"IPv4", "IPv6"}
    assert {one["service"] for one in stale} == {"default/web:http"}
    assert len(found["findings"]) == 2
    assert f"- endpoint {node.bed.pods[2].ips[0]}:8080" in plan
    assert "share of each endpoint: 1/3 -> 1/2" in plan


def test_explain_knows_the_node(node: Node) -> None:
    """Interfaces and addresses are the node's: nothing is left open."""
    found = json.loads(node.onenth("explain", "30080", "-o", "json").stdout)

    assert len(found) == 2  # both families
    for one in found:
        assert one["interface"] == "eth0"
        assert [o["chance"] for o in one["outcomes"]] == ["1/3"] * 3
        assert all(o["masqueraded"] for o in one["outcomes"])
        assert "unknown" not in {b["kind"] for b in one["way"].get("branches", ())}
    sent = node.onenth("explain", "30080", "--from", "203.0.113.7", "-o", "json")
    assert [one["from"] for one in json.loads(sent.stdout)] == ["203.0.113.7"]


def test_the_source_of_the_node_is_what_its_routes_say(node: Node) -> None:
    """Of several addresses the one that the kernel would use; another may look like a pod's."""
    node.namespace.run(["ip", "address", "add", "10.64.77.1/32", "dev", "lo"])
    try:
        route = node.namespace.run(["ip", "-o", "route", "get", VIPS[0]]).stdout
        (kernels,) = re.findall(r" src (\S+)", route)
        target = f"{VIPS[0]}:80"
        (sent,) = json.loads(node.onenth("explain", target, "--from", "node", "-o", "json").stdout)
    finally:
        node.namespace.run(["ip", "address", "del", "10.64.77.1/32", "dev", "lo"])

    assert kernels != "10.64.77.1"
    assert sent["from"] == f"this node ({kernels})"
    assert sent["assumed"] == ""
    assert [o["masqueraded"] for o in sent["outcomes"]] == [True] * 3


def test_a_node_without_a_route_is_told(node: Node) -> None:
    """Its own connections end before any rule: the kernel says that the network is unreachable."""
    with Testbed(pods=1) as bed:
        saved = node.namespace.run([node.tool("IPv4", "-save")]).stdout
        bed.node.run([node.tool("IPv4", "-restore")], stdin=saved)
        bed.node.run(["ip", "route", "flush", "table", "main"])
        argv = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "agent", "explain"]
        out = bed.node.run([*argv, f"{VIPS[0]}:80", "--from", "node"]).stdout

    assert "no route to 10.96.0.1" in " ".join(out.split())


def test_without_privilege_it_says_so(node: Node) -> None:
    """Exit status 2, not a sound kernel."""
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = node.namespace.popen(
        [*argv, "-m", "agent", "verify", "--backend", node.backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    _, err = process.communicate(timeout=60)
    if "No module named" in err or "Permission denied: '" in err:
        pytest.skip("the interpreter cannot be read by another user here")

    assert process.returncode == 2
    assert "could not look" in err


def test_a_table_that_iptables_cannot_read_is_no_empty_one(node: Node) -> None:
    """What nft wrote into it is said, with exit status 2."""
    if node.backend == "legacy":
        pytest.skip("only nft's tables can be written past iptables")
    added = node.namespace.run(
        ["nft", "-e", "-a", "add rule ip nat PREROUTING meta mark set numgen inc mod 2"],
        check=False,
    )
    if added.returncode != 0:
        pytest.skip(f"nft is not here, or cannot do it: {added.stderr}")
    handle = added.stdout.rpartition("# handle ")[2].strip()
    try:
        err = node.onenth("verify", "--backend", "nft", status=2).stderr
        assert "cannot read the IPv4 table nat" in err
        assert "nft list ruleset" in err
    finally:
        node.namespace.run(["nft", "delete", "rule", "ip", "nat", "PREROUTING", "handle", handle])
