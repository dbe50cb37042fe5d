"""From the configuration to what rules need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.model import NONE
from agent.state.node import NodeSettings
from agent.state.services import AddressPolicy

if TYPE_CHECKING:
    from agent.config.model import Config


def node_settings(config: Config) -> NodeSettings:
    """The part of the configuration that rules depend on."""
    return NodeSettings(
        name=config.hostname_override,
        ips=config.node_ips,
        masquerade_bit=config.iptables.masquerade_bit,
        masquerade_all=config.iptables.masquerade_all,
        localhost_node_ports=config.iptables.localhost_node_ports,
        detect_mode=config.detect_local_mode,
        cluster_cidrs=config.cluster_cidr,
        bridge=config.detect_local.bridge_interface,
        prefix=config.detect_local.interface_name_prefix,
        node_port_addresses=config.node_port_addresses,
    )


def address_policy(config: Config) -> AddressPolicy:
    """Which addresses a Service may claim."""
    return AddressPolicy(
        external=_ranges(config.allowed_external_ips),
        load_balancer=_ranges(config.allowed_load_balancer_ips),
    )


def _ranges(given: tuple[str, ...]) -> tuple[str, ...] | None:
    """None if everything is allowed, which is the default."""
    return None if not given else tuple(one for one in given if one != NONE)
