"""Another proxy on the same node: said aloud, and over when it ends."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import yaml

from agent.demo.testbed import CLUSTER_CIDRS
from agent.rules import names
from agent.state.values import Family
from e2e.local.kubeproxy import DATA
from tests.faults.run import PERIOD
from tests.faults.schedule import Breaks, Fault
from tests.kernel.running import until
from tests.kernel.shapes import NODE

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

    def noticed() -> bool:
        assert second.running, second.story()
        return _contested(run)

    try:
        until(noticed, _PATIENCE, run.agent.story)
        yield
    finally:
        second.stop()
        second.close()


def _kube_proxy(run: Run, rng: random.Random) -> Iterator[None]:
    """The real one, if ONENTH_KUBE_PROXY names the program, else its rules.

    Without TLS the real one sends no token.
    """
    program = os.environ.get("ONENTH_KUBE_PROXY", "") if run.schedule.tls else ""
    return _real_kube_proxy(run, rng, program) if program else _recorded_kube_proxy(run, rng)


def _real_kube_proxy(run: Run, rng: random.Random, program: str) -> Iterator[None]:
    """kube-proxy with another mark, on the same Services; it writes when something changes."""
    folder = run.folder / f"kube-proxy-{rng.randrange(1 << 30)}"
    tools = folder / "bin"
    tools.mkdir(parents=True)
    real = shutil.which(f"xtables-{run.backend}-multi", path="/usr/sbin:/sbin")
    for name in ("iptables", "ip6tables"):
        for verb in ("", "-save", "-restore"):
            (tools / f"{name}{verb}").symlink_to(str(real))
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {
            "kubeconfig": str(run.folder / "agent/kubeconfig"), "contentType": "application/json",
        },
        "mode": "iptables",
        "hostnameOverride": NODE,
        "clusterCIDR": ",".join(CLUSTER_CIDRS),
        "healthzBindAddress": "127.0.0.1:10356",
        "metricsBindAddress": "127.0.0.1:10349",
        "iptables": {"masqueradeBit": 15, "minSyncPeriod": "0s", "localhostNodePorts": True},
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    environment = {
        "PATH": f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin",
        "XTABLES_LOCKFILE": os.environ["XTABLES_LOCKFILE"],
    }
    with (folder / "log").open("w") as log:
        process = run.node.popen(
            [program, "--config", str(folder / "config.yaml")],
            stdout=log, stderr=log, env=environment,
        )  # fmt: skip

    def changed() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        run.churn(rng)
        time.sleep(PERIOD / 2)
        return _contested(run)

    try:
        until(changed, _PATIENCE, (folder / "log").read_text)
        yield
    finally:
        process.terminate()
        process.wait(20)
        if Family.V6 in run.families:
            _remove_firewall(run)


def _remove_firewall(run: Run) -> None:
    """What kube-proxy shares with the kubelet, and leaves; over IPv6 no agent needs it."""
    lines = [
        f"-D {chain} {rule}"
        for chain, rules in run.held(Family.V6)["filter"].items()
        for rule in rules
        if "-j KUBE-FIREWALL" in rule
    ]
    lines += [":KUBE-FIREWALL - [0:0]", "-X KUBE-FIREWALL"]
    run.restore(Family.V6, "\n".join(["*filter", *lines, "COMMIT", ""]), "--noflush")


def _recorded_kube_proxy(run: Run, rng: random.Random) -> Iterator[None]:
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
