"""``onenth init``: set the kernel settings that only a privileged process may, and end.

In a container that is not privileged ``/proc/sys`` cannot be written, with whatever
capabilities. So a privileged init container runs this once, and the agent beside it does
without (as kube-proxy's ``--init-only``). It takes the agent's configuration and changes the
same settings that the agent would: only where the value is not there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.node import node_settings
from agent.kernel.detect import choose
from agent.kernel.iptables import Iptables
from agent.kernel.sysctl import Sysctls, apply_conntrack
from agent.kernel.tools import SubprocessRunner
from agent.loopback import open_loopback
from agent.state.node import wants_localnet
from agent.state.values import Family

if TYPE_CHECKING:
    from agent.config.model import Config
    from agent.kernel.sysctl import Outcome


def prepare(
    config: Config, *, sysctls: Sysctls | None = None, modules: Sysctls | None = None
) -> list[Outcome]:
    """Apply the settings that the configuration asks for.

    Args:
        config: the agent's.
        sysctls: ``/proc/sys``.
        modules: ``/sys``.

    Returns:
        What became of each setting that is not left as it is.
    """
    sysctls = sysctls or Sysctls()
    outcomes = apply_conntrack(config.conntrack, sysctls=sysctls, modules=modules)
    if wants_localnet(Family.V4, node_settings(config)):
        outcomes.append(open_loopback(lambda: _kernel(config), sysctls))
    return outcomes


def _kernel(config: Config) -> Iptables:
    runner = SubprocessRunner()
    return Iptables(choose(config.iptables.backend, runner).tool, Family.V4, runner=runner)
