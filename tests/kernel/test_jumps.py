"""Jumps from built-in chains that somebody has put into another order, on a real kernel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from agent.kernel import detect
from agent.kernel.detect import Backend
from agent.kernel.iptables import Iptables
from agent.kernel.nftables import Generations
from agent.kernel.tools import SubprocessRunner
from agent.rules import names
from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.audit import Audit, Difference
from tests.fakes.cluster import NODE, endpoint_slice, service

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

OTHERS = "-s 192.0.2.1/32 -j ACCEPT"


@pytest.mark.parametrize("backend", list(Backend), ids=lambda backend: backend.value)
def test_jumps_in_another_order_are_put_right_at_one_instant(
    backend: Backend, namespace: Namespace
) -> None:
    """The audit finds it, a full sync repairs it, and whoever looks meanwhile misses no jump."""
    namespace.call(_put_right, backend)


def _put_right(backend: Backend) -> None:
    tool = detect.installed(SubprocessRunner())[backend]
    assert tool is not None
    kernel = Iptables(tool, Family.V4, runner=SubprocessRunner(), generations=Generations())
    store = Store(NODE)
    store.put_service(service("web", "10.96.0.1"))
    store.put_slice(endpoint_slice("10.0.0.1", service="web"))
    rules = RuleSet(NodeView(Family.V4, NODE, localhost_node_ports=True))
    syncer = Syncer(rules, kernel, SyncSettings(None), lambda: 0.0)
    audit = Audit(syncer)
    syncer.sync(store)
    right = kernel.chain("filter", "FORWARD")
    assert right is not None
    assert audit.run() == []

    first, second, *rest = right
    moved = [second, f"-A FORWARD {OTHERS}", *rest, first]
    _write(kernel, "-F FORWARD", *moved)
    assert audit.run() == [Difference("filter", "FORWARD", "jump order")]

    seen: list[list[str] | None] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.append(kernel.chain("filter", "FORWARD"))

    watching = threading.Thread(target=look)
    watching.start()
    syncer.sync(store, full=True)
    over.set()
    watching.join()

    assert kernel.chain("filter", "FORWARD") == [*right, f"-A FORWARD {OTHERS}"]
    assert audit.run() == []
    assert {tuple(sorted(lines or ())) for lines in seen} == {tuple(sorted(moved))}
    # The kubelet puts its own jump where it likes.
    guard = f"-A INPUT -j {names.KUBELET_FIREWALL}"
    _write(kernel, guard.replace("-A", "-D"), guard)
    assert audit.run() == []


def _write(kernel: Iptables, *lines: str) -> None:
    """As another program does: the agent does not know of it."""
    other = Iptables(kernel.tool, kernel.family, runner=SubprocessRunner())
    other.restore("\n".join(["*filter", *lines, "COMMIT", ""]))
