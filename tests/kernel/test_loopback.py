"""route_localnet goes on behind the rule that keeps neighbours out, and not without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.kernel.running import BACKENDS, Host, iptables, tables, until
from tests.kernel.shim import Shim

if TYPE_CHECKING:
    from pathlib import Path

    from agent.demo.namespaces import Namespace

SETTING = "net/ipv4/conf/all/route_localnet"


def setting(host: Host) -> str:
    return host.namespace.run(["cat", f"/proc/sys/{SETTING}"]).stdout.strip()


def guarded(host: Host, backend: str) -> bool:
    held = tables(host.namespace, backend).get("filter", {})
    rules = " ".join(held.get("KUBE-FIREWALL", ()))
    jumps = [held.get(chain, []).count("-j KUBE-FIREWALL") for chain in ("INPUT", "OUTPUT")]
    return "block incoming localnet" in rules and rules.count("DROP") == 1 and jumps == [1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kubelet", [False, True], ids=["alone", "with the kubelet's chain"])
def test_the_rule_is_there_before_any_sync(host: Host, backend: str, *, kubelet: bool) -> None:
    """With an API server that says nothing, the setting is on and the rule is in front of it."""
    host.namespace.write_sysctl(SETTING, 0)
    if kubelet:
        iptables(host.namespace, backend, "-t", "filter", "-N", "KUBE-FIREWALL")
        iptables(host.namespace, backend, "-A", "KUBE-FIREWALL", "-m", "mark", "--mark", "9",
                 "-j", "DROP")  # fmt: skip
        iptables(host.namespace, backend, "-A", "INPUT", "-j", "KUBE-FIREWALL")
    host.api.silence()
    agent = host.agent(backend=backend).launch()
    agent.wait_logged("kernel setting changed", name=SETTING)

    held = tables(host.namespace, backend)["filter"]
    assert setting(host) == "1"
    assert [held[chain].count("-j KUBE-FIREWALL") for chain in ("INPUT", "OUTPUT")] == [1, 1]
    assert "block incoming localnet connections" in held["KUBE-FIREWALL"][0]
    assert len(held["KUBE-FIREWALL"]) == 1 + kubelet
    assert "KUBE-SERVICES" not in held  # nothing has been synced

    host.api.speak()
    agent.wait_ready(60)
    until(lambda: guarded(host, backend))


def test_without_the_rule_it_stays_off(host: Host, tmp_path: Path) -> None:
    """If the rule is refused, the setting is left alone and a warning says so; the rest works."""
    host.namespace.write_sysctl(SETTING, 0)
    shim = Shim(tmp_path)
    shim.refuse("block incoming localnet")
    agent = host.agent(prefix=shim.prefix).start(60)

    assert setting(host) == "0"
    (line,) = agent.logged("a kernel setting could not be changed", name=SETTING)
    assert "the rule that must go with it could not be written" in line["reason"]


def init(namespace: Namespace, backend: str, *prefix: str) -> str:
    """Run ``onenth init`` there; what it says of the setting, in one line."""
    argv = [*prefix, sys.executable, "-m", "agent", "init", "--iptables-backend", backend]
    zero = ("max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait")
    done = namespace.run([*argv, *(f"--conntrack-{one}=0" for one in zero)])
    said = " ".join(done.stdout.split())
    return said[said.index(SETTING) :]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_privileged_init_writes_the_rule_too(host: Host, backend: str) -> None:
    """The agent's first sync may be long after it; doing it again adds nothing."""
    host.namespace.write_sysctl(SETTING, 0)

    assert init(host.namespace, backend) == f"{SETTING}: wanted 1, was 0, written"
    assert (setting(host), guarded(host, backend)) == ("1", True)

    host.namespace.write_sysctl(SETTING, 0)
    init(host.namespace, backend)
    assert (setting(host), guarded(host, backend)) == ("1", True)


def test_an_init_without_the_rule_leaves_it_off(host: Host, tmp_path: Path) -> None:
    """As in the agent: a refused rule is said, and neighbours stay out."""
    host.namespace.write_sysctl(SETTING, 0)
    shim = Shim(tmp_path)
    shim.refuse("block incoming localnet")

    said = init(host.namespace, "nft", *shim.prefix)
    assert said.startswith(f"{SETTING}: wanted 1, was 0, refused: the rule that must go with it")
    assert setting(host) == "0"
