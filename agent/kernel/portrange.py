"""Whether outgoing connections may take a node port as their own, by chance.

A port is then two things at once on this node, and users report connections that fail at random.
The kernel takes such ports from one range, and leaves out those that are reserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.kernel.sysctl import Sysctls

#: Default of the API server's ``--service-node-port-range``; a node cannot ask for another one.
NODE_PORTS = range(30000, 32768)
RANGE = "net/ipv4/ip_local_port_range"
RESERVED = "net/ipv4/ip_local_reserved_ports"


def shared_ports(sysctls: Sysctls) -> tuple[int, int, int] | None:
    """How many node ports may be taken, the first of them and the last.

    None if there are none, or if that cannot be told: a warning is all that depends on it.
    """
    try:
        first, last = map(int, sysctls.read_text(RANGE).split())
        reserved = _ports(sysctls.read_text(RESERVED))
    except (OSError, ValueError):
        return None
    shared = set(NODE_PORTS).intersection(range(first, last + 1)) - reserved
    return (len(shared), min(shared), max(shared)) if shared else None


def _ports(text: str) -> set[int]:
    """Ports of a list like ``8080,30000-32767``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
