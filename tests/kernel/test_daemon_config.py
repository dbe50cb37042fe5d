"""The daemon as it is configured in the field: kube-proxy's file, manifests, one family only."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.fakes.apiserver import write_kubeconfig
from tests.kernel import shapes
from tests.kernel.running import HOST_IPS, Host, until
from tests.kernel.shapes import NODE, endpoint, endpoint_slice, port, service
from tests.kernel.shim import Shim

A, POD = "10.96.0.1", "10.0.0.1"

#: As kubeadm writes it into the ConfigMap ``kube-proxy``.
KUBEADM = (Path(__file__).parents[1] / "data/kubeadm-1.36.yaml").read_text(encoding="utf-8")


def test_kube_proxys_own_configuration(host: Host) -> None:
    """The file of a kubeadm cluster is read as it is, and decides about rules and API server."""
    config = host.folder / "config.conf"
    kubeconfig = write_kubeconfig(host.folder / "kubeconfig.conf", host.api)
    own = KUBEADM.replace("/var/lib/kube-proxy/kubeconfig.conf", str(kubeconfig))
    config.write_text(own, encoding="utf-8")
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    agent = host.agent("--config", str(config), source=None).start()
    settings = {line["key"]: line for line in agent.logged("setting")}

    assert f"{POD}:8080" in str(agent.tables()["nat"])
    assert "! -s 10.244.0.0/16 -d 10.96.0.1/32" in str(agent.tables()["nat"])
    assert settings["clusterCIDR"]["source"] == "file"
    assert settings["iptables.syncPeriod"]["value"] == "30s"
    assert agent.get("/healthz").status == 200
    assert agent.metric("onenth_services") == 1


def write(folder: Path, name: str, *objects: shapes.Object) -> None:
    new = folder.parent / name
    new.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    new.replace(folder / name)


def test_manifests_instead_of_an_api_server(host: Host) -> None:
    """Files that come, change, break and go are followed; a broken one keeps its last content."""
    folder = host.folder / "manifests"
    folder.mkdir()
    write(folder, "node.yaml", shapes.node(*HOST_IPS))
    write(folder, "a.yaml", service("a", A), endpoint_slice("a", endpoint(POD)))
    agent = host.agent(source=folder).start()
    first = str(agent.tables()["nat"])
    write(folder, "b.yaml", service("b", "10.96.0.2"), endpoint_slice("b", endpoint("10.0.0.2")))
    agent.wait_rules("10.0.0.2:8080")
    (folder / "b.yaml").write_text("kind: [", encoding="utf-8")
    line = agent.wait_logged("manifest", level="error")
    broken = str(agent.tables()["nat"])
    (folder / "b.yaml").unlink()
    agent.wait_rules("10.0.0.2:8080", gone=True)

    assert f"{POD}:8080" in first
    assert line["file"] == str(folder / "b.yaml")
    assert "10.0.0.2:8080" in broken
    assert f"{POD}:8080" in str(agent.tables()["nat"])
    assert agent.get("/healthz").status == 200


def test_manifests_without_the_node_are_warned_of(host: Host) -> None:
    """Once, with what is not known then; the agent works, and is healthy."""
    folder = host.folder / "manifests"
    folder.mkdir()
    write(folder, "a.yaml", service("a", A), endpoint_slice("a", endpoint(POD)))
    write(folder, "other.yaml", shapes.node(*HOST_IPS, name="node-7"))
    agent = host.agent(source=folder).start()
    write(folder, "b.yaml", service("b", "10.96.0.2"), endpoint_slice("b", endpoint("10.0.0.2")))
    agent.wait_rules("10.0.0.2:8080")
    warned = [line for line in agent.logs() if "no Node of this name" in line["event"]]

    assert [(line["level"], line["node"]) for line in warned] == [("warning", shapes.NODE)]
    assert "pod range (detectLocalMode NodeCIDR)" in warned[0]["event"]
    assert "add the Node to the manifests" in warned[0]["remedy"]
    assert agent.get("/healthz").status == 200


def test_one_family_if_asked_for(host: Host) -> None:
    """With ipFamilies IPv4 nothing of IPv6 is touched, probed for health or measured."""
    host.api.put(
        service("a", A, "fd00:96::1", type="NodePort", ports=[port(node_port=30001)]),
        endpoint_slice("a", endpoint(POD), suffix="4"),
        endpoint_slice("a", endpoint("fd00::1"), suffix="6"),
    )
    agent = host.agent("--ip-families", "IPv4").start()

    assert f"{POD}:8080" in str(agent.tables()["nat"])
    assert agent.tables("IPv6").get("nat", {}).keys() <= {
        "PREROUTING", "INPUT", "OUTPUT", "POSTROUTING",
    }  # fmt: skip
    assert set(json.loads(agent.get("/healthz").body)["status"]) == {"IPv4"}
    families = {dict(labels).get("ip_family") for _, labels in agent.metrics()}
    assert families == {None, "IPv4"}


def test_a_family_that_does_not_work_here(host: Host, tmp_path: Path) -> None:
    """Where ip6tables fails, IPv4 is served, with one warning; asked for both, it ends with 3."""
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    shim = Shim(tmp_path)
    shim.break_family("ip6tables")
    agent = host.agent(prefix=shim.prefix).start()
    (warning,) = agent.logged("a family does not work here")
    programmed = str(agent.tables()["nat"])
    agent.stop()
    both = host.agent("--ip-families", "IPv4,IPv6", prefix=shim.prefix).launch()

    assert both.wait() == 3
    assert "ipFamilies asks for IPv6, which does not work here" in both.story()
    assert warning["family"] == "IPv6"
    assert f"{POD}:8080" in programmed


def test_the_name_of_the_node_by_variable(host: Host) -> None:
    """NODE_NAME, as the downward API gives it, names the Node."""
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))
    agent = host.agent(node="", environment={"NODE_NAME": NODE}).start()

    assert agent.logged("starting")[0]["node"] == NODE
    until(lambda: agent.get("/healthz").status == 200)
