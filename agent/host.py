"""This machine as the agent finds it, and what the agent sets before it writes a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent import logs
from agent.kernel import facts as kernel_facts
from agent.kernel.detect import choose, refuse_conflict
from agent.kernel.errors import HostError
from agent.kernel.iptables import Iptables
from agent.kernel.iptables import probe as probe_tool
from agent.kernel.portrange import shared_ports
from agent.kernel.sysctl import Result, Sysctls, apply_conntrack
from agent.loopback import open_loopback
from agent.state.node import wants_localnet
from agent.state.values import Family

if TYPE_CHECKING:
    from agent.config.model import Config
    from agent.kernel.iptables import Capabilities
    from agent.kernel.tools import Runner
    from agent.state.node import NodeSettings


def probe(config: Config, runner: Runner) -> Capabilities:
    """Choose the backend and ask what this machine can do.

    Raises:
        HostError: a tool or a privilege is missing, or no family works.
        KernelError: the other backend already holds Service rules.
    """
    log = logs.get()
    choice = choose(config.iptables.backend, runner)
    refuse_conflict(choice, runner)
    counters, refused = kernel_facts.make_counters()
    for name, reason in refused.items():
        log.warning("no nfacct counter; its metric is absent", counter=name, reason=reason)
    found = probe_tool(choice.tool, choice.reason, runner=runner, counters=counters)
    log.info(
        "iptables",
        backend=found.backend.value,
        reason=choice.reason,
        version=".".join(map(str, found.tool.version)),
        path=str(found.tool.path),
        families=[family.value for family in found.families],
        random_fully=found.random_fully,
    )
    for family, reason in found.missing.items():
        log.warning("a family does not work here", family=family.value, reason=reason)
    for (family, name), reason in found.uncounted.items():
        log.warning(
            "rules do without an nfacct counter", family=family.value, counter=name, reason=reason
        )
    return found


def families(config: Config, capabilities: Capabilities) -> tuple[Family, ...]:
    """The families to serve.

    Raises:
        HostError: one that is asked for does not work.
    """
    wanted = config.ip_families or capabilities.families
    found = tuple(family for family in wanted if family in capabilities.families)
    if len(found) < len(wanted):
        lacking = ", ".join(f.value for f in wanted if f not in found)
        reasons = "; ".join(capabilities.missing.values())
        raise HostError(f"ipFamilies asks for {lacking}, which does not work here: {reasons}")
    return found


def prepare(
    config: Config, settings: NodeSettings, capabilities: Capabilities, runner: Runner
) -> kernel_facts.Facts:
    """Write the kernel settings that are asked for; one that is refused is told and done without.

    Returns:
        What rules depend on, to be asked again and again.
    """
    log = logs.get()
    sysctls = Sysctls()
    if shared := shared_ports(sysctls):
        log.warning(
            "connections of this node may take node ports as their own port, and then fail",
            **dict(zip(("ports", "first", "last"), shared, strict=True)),
            remedy="net.ipv4.ip_local_port_range above them, or ip_local_reserved_ports",
        )
    outcomes = apply_conntrack(config.conntrack, sysctls=sysctls)
    localnet = True
    if Family.V4 in capabilities.families and wants_localnet(Family.V4, settings):
        outcome = open_loopback(
            lambda: Iptables(capabilities.tool, Family.V4, runner=runner), sysctls
        )
        localnet = outcome.result is not Result.REFUSED
        outcomes.append(outcome)
    for outcome in outcomes:
        if outcome.result is Result.REFUSED:
            log.warning(
                "a kernel setting could not be changed",
                name=outcome.name,
                wanted=outcome.wanted,
                present=outcome.before,
                reason=outcome.reason,
            )
        elif outcome.result is Result.WRITTEN:
            log.info(
                "kernel setting changed",
                name=outcome.name,
                before=outcome.before,
                after=outcome.wanted,
            )
    return kernel_facts.Facts(
        capabilities,
        sysctls,
        localnet=localnet,
        unreadable=lambda error: log.warning("addresses unknown", error=str(error)),
    )
