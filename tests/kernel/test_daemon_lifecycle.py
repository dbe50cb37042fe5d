"""How the daemon begins and ends: exit codes, signals, restarts, and what stays behind."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, Testbed
from agent.kernel import nfacct
from agent.kernel.sysctl import ROUTE_LOCALNET
from tests.fakes.apiserver import Fault
from tests.kernel import shapes
from tests.kernel.running import BACKENDS, Host, RunningAgent, iptables, serve_api, tables, until
from tests.kernel.shapes import endpoint, endpoint_slice, service
from tests.kernel.shim import Shim, without_iptables

A, POD = "10.96.0.1", "10.0.0.1"
EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)
SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)


def put_one(host: Host) -> None:
    host.api.put(service("a", A), endpoint_slice("a", endpoint(POD)))


def fails(agent: RunningAgent) -> tuple[int, str]:
    """Run an agent that must end by itself; its exit status and all that it printed."""
    agent.launch()
    status = agent.wait(20)
    return status, agent.story()


# The end ----------------------------------------------------------------------------------


@SIGNALS
@EVERY_BACKEND
def test_a_signal_finishes_the_running_restore(
    host: Host, tmp_path: Path, backend: str, number: signal.Signals
) -> None:
    """Told to end in the middle of a restore, it waits for that one, leaves the rules, exits 0.

    What was not begun is not begun: the other family's rules stay as they were.
    """
    put_one(host)
    host.api.put(service("b", "fd00:96::2"), endpoint_slice("b", endpoint("fd00::2")))
    shim = Shim(tmp_path)
    agent = host.agent(backend=backend, prefix=shim.prefix).start()
    shim.delay(1)
    with host.api.store.condition:
        host.api.put(
            endpoint_slice("a", endpoint("10.0.0.2")), endpoint_slice("b", endpoint("fd00::3"))
        )
    until(lambda: any("10.0.0.2:8080" in text for text in shim.inputs()))
    status = agent.stop(number)

    assert status == 0
    assert "10.0.0.2:8080" in str(agent.tables()["nat"])
    assert "[fd00::3]:8080" not in str(agent.tables("IPv6")["nat"])
    assert "[fd00::2]:8080" in str(agent.tables("IPv6")["nat"])
    assert agent.logs()[-1]["event"] == "stopped; the rules stay"
    assert agent.logs()[-1]["signal"] == number.name
    assert agent.stderr() == ""


def test_a_signal_while_the_lock_is_waited_for(host: Host, tmp_path: Path) -> None:
    """The restore that waits for the xtables lock gets it and its rules go in; then it ends."""
    put_one(host)
    lock = tmp_path / "lock"
    agent = host.agent(backend="legacy", environment={"XTABLES_LOCKFILE": str(lock)}).start()
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    host.api.put(endpoint_slice("a", endpoint("10.0.0.2")))
    until(lambda: "iptables-restore" in children(agent))
    agent.send(signal.SIGTERM)
    time.sleep(0.3)
    waits = agent.running
    os.close(descriptor)

    assert waits
    assert agent.wait() == 0
    assert "10.0.0.2:8080" in str(agent.tables()["nat"])


def children(agent: RunningAgent) -> str:
    """Command lines of the processes inside of the namespace."""
    pids = agent.namespace.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    return pids.stdout


def test_a_signal_before_it_is_ready(host: Host) -> None:
    """Told to end while it still waits for the first list, it writes nothing and exits 0."""
    put_one(host)
    host.api.fail(Fault(hang=True), verb="list", times=None)
    agent = host.agent().launch()
    agent.wait_logged("starting")
    status = agent.stop()

    assert status == 0
    assert "KUBE-SERVICES" not in agent.tables().get("nat", {})


# Exit codes -------------------------------------------------------------------------------


def test_a_misspelt_key_is_a_usage_error(host: Host) -> None:
    """Unknown and wrong keys are all listed, with a suggestion, and nothing is touched: 2."""
    config = host.folder / "config.yaml"
    config.write_text("iptables:\n  syncPeriode: 30s\n  masqueradeBit: 77\n", encoding="utf-8")
    agent = host.agent("--config", str(config))
    status, said = fails(agent)

    assert status == 2
    assert "syncPeriode" in said
    assert "syncPeriod" in said.replace("syncPeriode", "")
    assert "masqueradeBit" in said
    assert agent.tables() == {}


def test_manifests_that_do_not_exist_are_a_usage_error(host: Host) -> None:
    """A folder that is not there is named: 2."""
    missing = host.folder / "missing"
    status, said = fails(host.agent(source=missing))

    assert status == 2
    assert str(missing) in said


def test_all_that_is_wrong_at_once(host: Host) -> None:
    """No name, no kubeconfig and a wrong flag are told together, and nothing was touched: 2.

    Nothing is logged before, no kernel setting is written, and no counter or table is made.
    """
    missing = host.folder / "missing.yaml"
    flags = ["--kubeconfig", str(missing), "--iptables-sync-period", "soon"]
    agent = host.agent(*flags, source=None, node="", backend="")
    host.namespace.write_sysctl(ROUTE_LOCALNET, 0)  # a new namespace takes over the machine's
    status, said = fails(agent)
    localnet = host.namespace.call(Path("/proc/sys", ROUTE_LOCALNET).read_text)

    assert status == 2
    assert agent.logs() == []
    assert said.count("\n  - ") == 3
    assert "--iptables-sync-period: " in said
    assert "--node-name" in said
    assert f"kubeconfig {missing}: No such file or directory" in said
    assert localnet.strip() == "0"
    assert host.namespace.call(nfacct.read_all) == {}
    assert [tables(host.namespace, backend) for backend in BACKENDS] == [{}, {}]


def test_what_is_said_before_the_start_is_a_log_line(host: Host) -> None:
    """What is found while credentials are looked at is told in the log's own format."""
    agent = host.agent("--api-server", host.api.url).start()
    told = [line["event"] for line in agent.logs()]

    assert told[:2] == ["credentials go to the API server unencrypted", "starting"]


def test_an_agent_without_a_node_name_is_a_usage_error(host: Host) -> None:
    """The Node's name is never guessed: 2."""
    status, said = fails(host.agent(node=""))

    assert status == 2
    assert "--node-name" in said


@EVERY_BACKEND
def test_without_the_privilege(host: Host, backend: str) -> None:
    """Without CAP_NET_ADMIN it says which capability is missing: 3."""
    dropped = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    agent = host.agent(backend=backend, prefix=dropped)
    status, said = fails(agent)

    assert status == 3
    assert "NET_ADMIN" in said
    assert "run as root, or in a container" in said
    assert "Traceback" not in said
    assert agent.logs() == []
    assert "KUBE-SERVICES" not in tables(host.namespace, backend).get("nat", {})


def test_without_iptables(host: Host, tmp_path: Path) -> None:
    """Where no iptables is installed it says what to install: 3."""
    status, said = fails(host.agent(backend="", prefix=without_iptables(tmp_path)))

    assert status == 3
    assert "install the iptables package" in said


@pytest.mark.parametrize("code", [401, 403])
def test_refused_by_the_api_server(host: Host, code: int) -> None:
    """A first list that may not be read is final, and names the verbs to allow: 4."""
    host.api.fail(Fault(status=code), verb="list", plural="endpointslices", times=None)
    agent = host.agent()
    status, said = fails(agent)

    assert status == 4
    assert "list and watch on endpointslices" in said
    assert "KUBE-SERVICES" not in agent.tables().get("nat", {})


@EVERY_BACKEND
def test_the_other_backend_already_holds_services(host: Host, backend: str) -> None:
    """It does not start over rules that it cannot see, and says what to do: 1."""
    other = {"nft": "legacy", "legacy": "nft"}[backend]
    iptables(host.namespace, other, "-t", "nat", "-N", "KUBE-SERVICES")
    agent = host.agent(backend=backend)
    status, said = fails(agent)

    assert status == 1
    assert f"onenth cleanup --backend {other}" in said
    assert f"set iptables.backend to {other}" in said.replace("\n", " ")
    assert "KUBE-SERVICES" not in agent.tables().get("nat", {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_kubelets_hint_decides(host: Host, backend: str) -> None:
    """``auto`` takes the backend in which the kubelet has left its hint chain."""
    iptables(host.namespace, backend, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    put_one(host)
    agent = host.agent(backend="").start()

    assert agent.logged("iptables")[0]["backend"] == backend
    assert f"{POD}:8080" in str(tables(host.namespace, backend)["nat"])


def test_a_server_address_that_is_taken(host: Host) -> None:
    """With bindAddressHardFail it ends with 1; without, it works and the address is tried again."""
    put_one(host)
    holder = host.agent("--iptables-sync-period", "1h").start()
    hard = host.agent("--bind-address-hard-fail")
    status, said = fails(hard)
    soft = host.agent("--metrics-bind-address", "127.0.0.1:10250").launch()
    soft.wait_logged("an address cannot be had; trying again")
    soft.wait_logged("synced", family="IPv6")

    assert status == 1
    assert "cannot listen on 0.0.0.0:10256" in said
    assert holder.running
    assert soft.running


# Again ------------------------------------------------------------------------------------


@EVERY_BACKEND
def test_a_restart_changes_nothing(tmp_path: Path, backend: str) -> None:
    """Started over its own rules, it leaves the same rules; no connection breaks or fails."""
    with Testbed(pods=3) as bed, serve_api(bed.node) as api:
        bed.serve()
        pods = [endpoint(pod.ips[0]) for pod in bed.pods]
        api.put(shapes.node(*NODE_IPS), service("a", A), endpoint_slice("a", *pods))
        flags = ("--cluster-cidr", ",".join(CLUSTER_CIDRS))
        agent = RunningAgent(bed.node, tmp_path, api, *flags, backend=backend).start()
        before = agent.tables(), agent.tables("IPv6")
        held = bed.start_client(bed.client, A, 80, count=60, hold=True)
        opened = held.tally()
        stream = bed.start_client(bed.client, A, 80, count=1500, concurrency=8, interval=0.01)
        agent.stop()
        agent.start()
        agent.send(signal.SIGKILL)
        agent.wait()
        agent.start()
        after = agent.tables(), agent.tables("IPv6")
        fresh, still = stream.tally(), held.ask()
        agent.stop()

    assert after == before
    assert (opened.answered, opened.failures) == (60, {})
    assert (still.answers, still.failures) == (opened.answers, {})
    assert (fresh.answered, fresh.failures) == (1500, {})


@EVERY_BACKEND
def test_killed_in_the_middle(host: Host, tmp_path: Path, backend: str) -> None:
    """Killed without a word while it writes, the next one makes the rules right."""
    shim = Shim(tmp_path)
    put_one(host)
    agent = host.agent(backend=backend, prefix=shim.prefix).start()
    right = agent.tables()
    shim.delay(0.5)
    host.api.put(endpoint_slice("a", endpoint("10.0.0.2")))
    until(lambda: any("10.0.0.2:8080" in text for text in shim.inputs()))
    agent.send(signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    shim.delay(None)
    host.api.put(endpoint_slice("a", endpoint(POD)))
    time.sleep(0.7)  # the restore that was running goes in by itself, or not: neither may matter
    agent.start()

    assert agent.tables() == right
