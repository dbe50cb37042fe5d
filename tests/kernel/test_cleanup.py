from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.commands.cleanup import clean
from agent.kernel.detect import Backend, installed
from agent.kernel.iptables import Iptables
from agent.kernel.tools import SubprocessRunner
from agent.state.values import Family

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

#: What the agent and kube-proxy leave: a Service port with an endpoint, and all that leads there.
OURS = """*nat
:KUBE-EXT-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:OTHERS - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -j OTHERS
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-AAAAAAAAAAAAAAAA -j KUBE-MARK-MASQ
-A KUBE-EXT-AAAAAAAAAAAAAAAA -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -s 10.0.0.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination 10.0.0.1:8080
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A OTHERS -d 192.0.2.1/32 -j RETURN
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
"""


@pytest.mark.parametrize("backend", [Backend.NFT, Backend.LEGACY])
def test_it_removes_exactly_ours_although_services_are_there(
    namespace: Namespace, backend: Backend
) -> None:
    """Chains that Services jump to go after the Services; what is not ours stays as it was."""
    runner = SubprocessRunner()
    tool = namespace.call(installed, runner)[backend]
    assert tool is not None
    iptables = Iptables(tool, Family.V4, runner=runner)
    namespace.call(iptables.restore, OURS)
    before = namespace.call(clean, backend.value, dry_run=True)
    (removed,) = namespace.call(clean, backend.value, dry_run=False)
    assert before == [removed]
    assert (removed.chains, removed.jumps) == (8, 3)
    left = namespace.call(iptables.save_all)
    chains = {line.split()[0] for line in left.splitlines() if line.startswith((":KUBE", ":OTH"))}
    assert chains == {":OTHERS", ":KUBE-IPTABLES-HINT"}
    rules = [line for line in left.splitlines() if line.startswith("-A")]
    assert rules == ["-A PREROUTING -j OTHERS", "-A OTHERS -d 192.0.2.1/32 -j RETURN"]
    assert namespace.call(clean, backend.value, dry_run=False) == []
