"""From what people call a Service, an address or a node port to packets that can be walked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from agent.rules import names
from agent.state.addresses import parse_ip
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.inspect.survey import Portal, Survey

T = TypeVar("T")

_SERVICE = re.compile(
    r"(?P<name>[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:(?P<port>[a-z0-9-]+))?"
)
_ADDRESS = re.compile(r"(?P<ip>\[[0-9A-Fa-f:.]+\]|[0-9.]+):(?P<port>[0-9]{1,5})(/(?P<proto>\w+))?")
_NODE_PORT = re.compile(r"(?P<port>[0-9]{1,5})(/(?P<proto>tcp|udp|sctp))?")
PROTOCOLS = ("tcp", "udp", "sctp")


class AimError(ValueError):
    """Text that names no target."""


class Aim(msgspec.Struct, frozen=True):
    """What to explain, as it was asked for.

    Attributes:
        text: as given.
        service: ``namespace/name``, empty for an address or a node port.
        port_name: of the Service, or its number; empty for all of its ports.
        address: destination, empty for a Service or a node port.
        port: number, 0 for a Service.
        protocol: empty if it was not given.
    """

    text: str
    service: str = ""
    port_name: str = ""
    address: str = ""
    port: int = 0
    protocol: str = ""

    @property
    def family(self) -> Family | None:
        """The family, if the target has one."""
        if not self.address:
            return None
        return Family.V6 if ":" in self.address else Family.V4


class Goal(msgspec.Struct, frozen=True):
    """Where a packet is sent to.

    Attributes:
        label: what it is, for people.
        service: ``namespace/name:port`` if a rule says so.
        address: destination; empty for a node port, which is any address of the node.
        port: number.
        protocol: ``tcp``, ``udp`` or ``sctp``.
        external: it is meant for clients outside of the cluster.
    """

    label: str
    service: str
    address: str
    port: int
    protocol: str
    external: bool = False


def read_aim(text: str, protocol: str = "") -> Aim:
    """Read a target: ``namespace/name[:port]``, ``ADDR:PORT`` or a node port's number.

    A Service's port may be named or numbered.

    Raises:
        AimError: it is none of these.
    """
    number = _NODE_PORT.fullmatch(text)
    if number is None and (match := _SERVICE.fullmatch(text)):
        return Aim(text, match["name"], match["port"] or "", protocol=protocol)
    match = _ADDRESS.fullmatch(text) or number
    if match is None:
        raise AimError(
            f"{text!r} is neither a Service (namespace/name, or namespace/name:port with a port's"
            " name or number), nor ADDR:PORT (with brackets around an IPv6 address), nor the number"
            " of a node port"
        )
    port, given = int(match["port"]), match["proto"] or ""
    if not 0 < port < 65536:
        raise AimError(f"{text!r}: there is no port {port}")
    if given not in {"", *PROTOCOLS}:
        raise AimError(f"{text!r}: {given!r} is not a protocol of Services (tcp, udp, sctp)")
    address = ""
    if "ip" in match.groupdict():
        parsed = parse_ip(match["ip"].strip("[]"))
        if parsed is None:
            raise AimError(f"{text!r}: {match['ip']} is not an address")
        address = parsed[1]
    return Aim(text, address=address, port=port, protocol=protocol or given)


def goals(aim: Aim, survey: Survey, local: Collection[str] = ()) -> list[Goal]:
    """Where packets go that are meant; none if the rules do not know the Service.

    Args:
        aim: what is meant.
        survey: of the rules.
        local: addresses of the node, on which node ports answer.

    Raises:
        AimError: a Service's port was given by a number that it has in several protocols.
    """
    if aim.service:
        return _service_goals(aim, survey)
    here = aim.address in local or aim.address.startswith("127.")
    protocols = [aim.protocol] if aim.protocol else _protocols(aim, survey, here) or ["tcp"]
    found = []
    for protocol in protocols:
        mine = [p for p in survey.portals if _meets(p, aim, protocol, here)]
        service = next((p.service for p in mine if p.service), "")
        external = not aim.address or any(p.target.startswith(_EXTERNAL) for p in mine)
        what = f"{_host(aim.address)}:" if aim.address else "node port "
        label = f"{what}{aim.port}/{protocol}"
        found.append(Goal(label, service, aim.address, aim.port, protocol, external))
    return found


def node_port_of(aim: Aim, survey: Survey) -> str:
    """The service port that has the number as a node port; empty if none has."""
    return next((p.service for p in survey.portals if _is_node_port(p, aim)), "")


_EXTERNAL = (names.EXT, names.FW)


def ways_in(service: str, survey: Survey) -> list[str]:
    """All addresses and node ports of a service port, for people."""
    found: dict[str, None] = {}
    for portal in survey.portals:
        if portal.service != service or not portal.port or portal.target == "ACCEPT":
            continue
        host = f"[{portal.address}]" if ":" in portal.address else portal.address
        if not host or host.startswith("127."):
            found[f"node port {portal.port}/{portal.protocol}"] = None
        else:
            found[f"{host}:{portal.port}/{portal.protocol}"] = None
    return list(found)


def meant_ports(aim: Aim, ports: Iterable[tuple[str, int, T]]) -> list[T]:
    """Of a Service's ports, those that are meant: those that are so named, else so numbered.

    Args:
        aim: what is meant.
        ports: name and number of each, and what is wanted of it.
    """
    known = list(ports)
    if not aim.port_name:
        return [port for _, _, port in known]
    named = [port for name, _, port in known if name == aim.port_name]
    return named or [port for _, number, port in known if str(number) == aim.port_name]


def _service_goals(aim: Aim, survey: Survey) -> list[Goal]:
    """The cluster IP of each port that is meant."""
    found: dict[tuple[str, str], Goal] = {}
    for portal in survey.portals:
        name = portal.service.partition(":")[0]
        if name != aim.service or portal.root == names.PROXY_FIREWALL:
            continue
        cluster = portal.root == names.SERVICES and not portal.target.startswith(_EXTERNAL)
        if not cluster or not portal.port:
            continue
        label = f"{_host(portal.address)}:{portal.port}/{portal.protocol}"
        goal = Goal(label, portal.service, portal.address, portal.port, portal.protocol)
        found.setdefault((portal.service, portal.protocol), goal)
    ports = [(goal.service.partition(":")[2], goal.port, goal) for goal in found.values()]
    meant = meant_ports(aim, ports)
    mine = [goal for goal in meant if aim.protocol in {"", goal.protocol}]
    if aim.port_name.isdecimal() and len({goal.protocol for goal in mine}) > 1:
        choices = ", ".join(f"{goal.protocol} ({goal.service})" for goal in mine)
        raise AimError(f"{aim.text} is more than one port: {choices}; --proto says which")
    return mine


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _meets(portal: Portal, aim: Aim, protocol: str, here: bool) -> bool:  # noqa: FBT001  a fact
    if portal.protocol not in {"", protocol}:
        return False
    if aim.address and portal.port == aim.port and portal.address == aim.address:
        return True
    return (here or not aim.address) and _is_node_port(portal, aim)


def _is_node_port(portal: Portal, aim: Aim) -> bool:
    roots = {names.NODEPORTS, names.EXTERNAL_SERVICES}
    addresses = {"", "127.0.0.0/8"}
    return portal.port == aim.port and portal.root in roots and portal.address in addresses


def _protocols(aim: Aim, survey: Survey, here: bool) -> list[str]:  # noqa: FBT001  a fact
    """The protocols for which rules know the address or node port."""
    return [
        protocol
        for protocol in PROTOCOLS
        if any(
            _meets(portal, aim, protocol, here) and portal.target != "ACCEPT"
            for portal in survey.portals
        )
    ]


def known_services(survey: Survey) -> list[str]:
    """Names of all service ports that rules name, sorted."""
    return sorted({portal.service for portal in survey.portals if portal.service})
