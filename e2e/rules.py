"""What a node's kernel holds, as iptables-save tells it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.rules import names
from e2e.shell import run, wait_for

if TYPE_CHECKING:
    from e2e.cluster import Cluster, Family, Service

_TOOL: dict[Family, str] = {"IPv4": "iptables", "IPv6": "ip6tables"}


def save(cluster: Cluster, node: str, family: Family, backend: str = "", table: str = "nat") -> str:
    """A table of a node, by default of the backend that it uses."""
    program = f"xtables-{backend or cluster.backend(node)}-multi"
    argv = [program, f"{_TOOL[family]}-save", "-t", table]
    return run(*cluster.node(node).prefix, *argv).stdout


def endpoints_of(cluster: Cluster, service: Service, node: str, family: Family) -> list[int]:
    """For each port of a Service: to how many endpoints a node's rules lead.

    0 as long as packets to its address and its node port do not meet its chains: these have the
    same names as those of another Service of the same name, a moment before.
    """
    text = save(cluster, node, family)
    found = []
    for port in service.ports:
        key = f"{service.namespace}/{service.name}" + (f":{port.name}" if port.name else "")
        number = names.service_hash(key, port.protocol.lower())
        chains = (names.SVC + number, names.SVL + number)
        targets: set[str] = set()
        for chain in chains:
            targets |= set(re.findall(rf"^-A {chain} .*-j (KUBE-SEP-\w+)$", text, re.MULTILINE))
        met = _leads(text, f"-d {re.escape(service.ips[family])}/", *chains)
        if port.port in service.node_ports:
            met = met and _leads(
                text, f"--dport {service.node_ports[port.port]} ", names.EXT + number
            )
        found.append(len(targets) if met else 0)
    return found


def _leads(text: str, match: str, *chains: str) -> bool:
    """Whether a rule with a match jumps to one of some chains."""
    wanted = "|".join(chains)
    return re.search(rf"^-A .*{match}.*-j ({wanted})$", text, re.MULTILINE) is not None


def wait_programmed(cluster: Cluster, service: Service, endpoints: int) -> None:
    """Wait until every node's rules lead to that many endpoints."""
    for node in cluster.nodes:
        for family in service.ips:
            wait_for(
                f"{endpoints} endpoints of {service.name} on {node} ({family})",
                lambda node=node, family=family: endpoints_of(  # type: ignore[misc]
                    cluster, service, node, family
                ),
                accept=lambda counts: set(counts) == {endpoints},
                timeout=60,
            )
