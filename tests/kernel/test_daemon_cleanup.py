"""``onenth cleanup``: exactly ours goes, from both backends and both families."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.kernel.running import BACKENDS, ROOT, Host, Tables, iptables, tables
from tests.kernel.shapes import FAMILIES, endpoint, endpoint_slice, port, service
from tests.kernel.test_faults_tables import restore

if TYPE_CHECKING:
    import subprocess

    from agent.demo.namespaces import Namespace

#: What the kubelet keeps, and rules of others, some of which look like ours.
KUBELET_FILTER = (
    ":KUBE-FIREWALL - [0:0]",
    (
        "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment"
        ' "block incoming localnet connections"'
        " -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    ),
    "-A INPUT -j KUBE-FIREWALL",
    "-A OUTPUT -j KUBE-FIREWALL",
)
KUBELET_MANGLE = (":KUBE-IPTABLES-HINT - [0:0]", ":KUBE-KUBELET-CANARY - [0:0]")
FOREIGN_NAT = (
    ":CNI-HOSTPORT-DNAT - [0:0]", ":KUBE-ROUTER-X - [0:0]", ":MY-KUBE-SERVICES - [0:0]",
    "-A PREROUTING -p tcp -m tcp --dport 8081 -j CNI-HOSTPORT-DNAT",
    '-A PREROUTING -m comment --comment "kubernetes service portals" -j MY-KUBE-SERVICES',
    "-A POSTROUTING -p udp -j MASQUERADE",
)  # fmt: skip
FOREIGN_FILTER = (
    "-A FORWARD -m comment --comment KUBE-SERVICES -j ACCEPT",
    "-A INPUT -p icmp -j ACCEPT",
)

Everything = dict[tuple[str, str], Tables]


def everything(namespace: Namespace) -> Everything:
    """All tables that hold anything, by backend and family."""
    return {
        (backend, family): {
            table: chains
            for table, chains in tables(namespace, backend, family).items()
            if any(chains.values()) or len(chains) > 5
        }
        for backend in BACKENDS
        for family in FAMILIES
    }


def cleanup(namespace: Namespace, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "agent", "cleanup", *flags]
    return namespace.run(["env", f"PYTHONPATH={ROOT}", *argv], check=False)


def copy_rules(namespace: Namespace, source: str, target: str) -> None:
    """Write what one backend holds with the other one too, as a change of backends leaves it."""
    for family, program in (("IPv4", "iptables"), ("IPv6", "ip6tables")):
        saved = iptables(namespace, source, "save", family=family)
        namespace.run([f"xtables-{target}-multi", f"{program}-restore"], stdin=saved)


@pytest.fixture
def filled(host: Host) -> tuple[Host, Everything]:
    """A node with rules of ours, of the kubelet's and of others in both backends and families.

    Returns the node and what must be left.
    """
    restore(host.namespace, "nft", "filter", *KUBELET_FILTER)
    for family in ("iptables", "ip6tables"):
        for table, lines in (
            ("mangle", KUBELET_MANGLE), ("nat", FOREIGN_NAT), ("filter", FOREIGN_FILTER),
        ):  # fmt: skip
            text = "\n".join([f"*{table}", *lines, "COMMIT", ""])
            restore_argv = ["xtables-nft-multi", f"{family}-restore", "--noflush"]
            host.namespace.run(restore_argv, stdin=text)
    copy_rules(host.namespace, "nft", "legacy")
    before = everything(host.namespace)
    host.api.put(
        service("a", "10.96.0.1", "fd00:96::1", type="NodePort", ports=[port(node_port=30001)]),
        endpoint_slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2"), suffix="4"),
        endpoint_slice("a", endpoint("fd00::1"), suffix="6"),
        service("empty", "10.96.0.3"),
    )
    agent = host.agent(backend="nft").start()
    agent.stop()
    copy_rules(host.namespace, "nft", "legacy")
    return host, before


def test_exactly_ours_is_removed(filled: tuple[Host, Everything]) -> None:
    """The kubelet's chains and others' rules stay, even where they look like ours."""
    host, before = filled
    full = everything(host.namespace)
    planned = cleanup(host.namespace, "--dry-run")
    untouched = everything(host.namespace)
    done = cleanup(host.namespace)
    after = everything(host.namespace)
    again = cleanup(host.namespace)

    assert (planned.returncode, done.returncode, again.returncode) == (0, 0, 0), done.stderr
    assert all("KUBE-SERVICES" in full[where]["nat"] for where in full)
    assert untouched == full
    assert after == before
    assert everything(host.namespace) == before
    assert done.stdout.replace("removed", "would remove") == planned.stdout
    gone, (stays, *why) = done.stdout.splitlines()[:4], done.stdout.splitlines()[4:]
    assert [line.split(": ")[0] for line in gone] == [
        f"{backend} {family}" for backend in ("legacy", "nft") for family in FAMILIES
    ]
    assert stays.startswith("KUBE-FIREWALL stays (legacy IPv4, nft IPv4): it is the kubelet's too")
    assert "while route_localnet is on" in " ".join(why)
    assert again.stdout.splitlines() == ["nothing to remove", stays, *why]


def test_what_somebody_else_holds_is_named(filled: tuple[Host, Everything]) -> None:
    """A foreign rule that leads to a chain of ours keeps that chain, empty, and nothing else.

    It is named, with what to do, and the status says that something is left.
    """
    host, before = filled
    rule = '-A OUTPUT -p udp -m comment --comment "somebody else" -j KUBE-SERVICES'
    for backend in BACKENDS:
        restore(host.namespace, backend, "nat", rule)
    done = cleanup(host.namespace)
    after = everything(host.namespace)

    assert done.returncode == 1
    assert done.stdout.count(": removed ") == 4
    assert done.stderr.count(rule) == 2
    assert "delete that rule" in done.stderr
    for where, tables_before in before.items():
        held = where[1] == "IPv4"
        assert ("KUBE-SERVICES" in after[where]["nat"]) == held
        assert after[where].pop("nat").pop("KUBE-SERVICES", []) == []
        assert after[where] == {t: c for t, c in tables_before.items() if t != "nat"}
    for backend in BACKENDS:
        restore(host.namespace, backend, "nat", rule.replace("-A", "-D", 1))
    assert cleanup(host.namespace).returncode == 0
    assert everything(host.namespace) == before


def test_one_backend_only(filled: tuple[Host, Everything]) -> None:
    """``--backend`` leaves the other one as it is, so that what blocks a start can be removed."""
    host, before = filled
    full = everything(host.namespace)
    cleanup(host.namespace, "--backend", "legacy")
    after = everything(host.namespace)

    assert after == {where: (before if where[0] == "legacy" else full)[where] for where in before}


def test_without_privilege_nothing_is_said_to_be_clean(host: Host) -> None:
    """It says what was not permitted and what helps, and ends with 3; nothing was removed."""
    host.agent(backend="nft").start().stop()
    full = everything(host.namespace)
    dropped = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    argv = [*dropped, sys.executable, "-m", "agent", "cleanup"]
    done = host.namespace.run(["env", f"PYTHONPATH={ROOT}", *argv], check=False)

    assert done.returncode == 3
    assert done.stdout == ""
    heading, told = done.stderr.splitlines()
    assert heading == "Error: not everything could be removed:"
    assert told.startswith("nft IPv4, nft IPv6: not permitted: iptables-save (nft) ended with")
    assert "run as root, or in a container with the capability NET_ADMIN" in told
    assert everything(host.namespace) == full


def test_it_creates_no_table(host: Host) -> None:
    """On a node without rules nothing is removed, and no legacy table comes into being."""
    done = cleanup(host.namespace)

    assert (done.returncode, done.stdout) == (0, "nothing to remove\n")
    assert host.namespace.run(["cat", "/proc/net/ip_tables_names"]).stdout == ""
