"""Another proxy on the same node: said aloud, and over when it ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.rules import names
from agent.state.values import Family
from e2e.local.kubeproxy import DATA
from tests.faults.run import PERIOD
from tests.faults.schedule import Breaks, Fault
from tests.kernel.running import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.faults.run import Run

CONTESTED = "another program keeps writing our rules; they are repaired each time"
#: Looks that it takes until the agent says so, with room for a slow machine.
_PATIENCE = 45.0
_TAKEOVER = {Family.V4: ("10.96.3.1", "10.67.0"), Family.V6: ("fd00:96:3::1", "fd00:10:67:")}


def _second_agent(run: Run, rng: random.Random) -> Iterator[None]:
    """A second agent with other settings, on the same node and the same Services."""
    other = {"flat": "tree", "tree": "flat"}[run.schedule.layout]
    flags = ["--dispatch", other, "--iptables-masquerade-bit", "15"]
    flags += ["--healthz-bind-address", "127.0.0.1:10356", "--metrics-bind-address", ""]
    second = run.make_agent(f"second-{rng.randrange(1 << 30)}", *flags)
    second.launch()
    try:
        until(lambda: _contested(run), _PATIENCE, run.agent.story)
        yield
    finally:
        second.stop()
        second.close()


def _kube_proxy(run: Run, rng: random.Random) -> Iterator[None]:
    """What kube-proxy writes for a Service of its own, with each of its syncs."""

    def sync() -> bool:
        for family in run.families:
            run.restore(family, _written(family), "--noflush")
        time.sleep(PERIOD / 2)
        return _contested(run)

    until(sync, _PATIENCE, run.agent.story)
    yield


def _written(family: Family) -> str:
    """Recorded from a real one, for a Service that the API server does not have."""
    text = (DATA / f"kube-proxy-{family.value.lower()}.rules").read_text("ascii")
    ip, pods = _TAKEOVER[family]
    values = {"ip": ip, "node_port": "30999"}
    for number in (1, 2):
        host = f"{pods}{'.' if family is Family.V4 else ':'}{number}"
        endpoint = f"{host}:8080" if family is Family.V4 else f"[{host}]:8080"
        values[f"pod{number}"] = host
        chain = names.service_hash("default/takeover", "tcp", endpoint)
        values[f"sep{number}"] = names.SEP + chain
    return text.format_map(values)


def _contested(run: Run) -> bool:
    """Whether the agent says so now; in its log it says so once, when it begins."""
    name = "onenth_rules_contested"
    said = any(run.agent.metric(name, ip_family=family.value) for family in run.families)
    return said and bool(run.agent.logged(CONTESTED))


FAULTS = (
    Fault("others: a second agent", _second_agent, alone=True, weight=0.5),
    Fault("others: a kube-proxy", _kube_proxy, Breaks.NEW, alone=True, weight=0.5),
)
