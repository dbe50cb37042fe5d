from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.demo import namespaces
from agent.demo.namespaces import RUN_DIR, Namespace, NamespaceError
from agent.demo.server import has_protocol
from agent.demo.testbed import CLIENT_IPS, NODE_IPS, PORT, Testbed

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.demo.load import Tally

ROOT = Path(__file__).parents[2]
FAMILIES = pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
HOLDER = """
import sys, time
from agent.demo.testbed import Testbed
with Testbed(pods=1) as bed:
    bed.serve()
    print(" ".join(n.name for n in (bed.node, bed.client, bed.pods[0].namespace)), flush=True)
    time.sleep(60)
"""


def hold_testbed() -> tuple[subprocess.Popen[str], list[str]]:
    """Start a process that holds a testbed; returns it and the names of the namespaces."""
    # Under nohup, or in the background of a script, signals are ignored, by children too.
    heeding = ["env", "--default-signal=HUP,INT,TERM"]
    holder = subprocess.Popen(
        [*heeding, sys.executable, "-c", HOLDER],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert holder.stdout
    return holder, holder.stdout.readline().split()


def existing(names: list[str]) -> list[str]:
    return [name for name in names if (RUN_DIR / name).exists()]


@FAMILIES
def test_every_way_through_the_network(family: int) -> None:
    """Client, node, pods and remote pods reach each other, each seen with its own address."""
    with Testbed(pods=2, remote_pods=1) as bed:
        bed.serve(ports=[PORT])
        first, second, remote = *bed.pods, *bed.remote_pods

        def ask(namespace: Namespace, target: str) -> Tally:
            return bed.connect(namespace, target, PORT)

        seen = {
            "client to pod": ask(bed.client, first.ips[family]).peers,
            "client to remote pod": ask(bed.client, remote.ips[family]).peers,
            "node to remote pod": ask(bed.node, remote.ips[family]).peers,
            "pod to pod": ask(second.namespace, first.ips[family]).peers,
            "pod to remote pod": ask(second.namespace, remote.ips[family]).peers,
            "pod to itself": ask(first.namespace, first.ips[family]).peers,
        }

        assert seen == {
            "client to pod": {CLIENT_IPS[family]: 1},
            "client to remote pod": {CLIENT_IPS[family]: 1},
            "node to remote pod": {NODE_IPS[family]: 1},
            "pod to pod": {second.ips[family]: 1},
            "pod to remote pod": {second.ips[family]: 1},
            "pod to itself": {first.ips[family]: 1},
        }


def test_traffic_between_pods_of_one_node_passes_netfilter(bed: Testbed) -> None:
    """A rule in the node's FORWARD chain stops one pod from reaching another."""
    bed.serve()
    before = bed.connect(bed.pods[0].namespace, bed.pods[1].ips[0], PORT)
    bed.node.run(
        ["xtables-nft-multi", "iptables", "-A", "FORWARD", "-p", "tcp", "-j", "REJECT"],
    )
    after = bed.connect(bed.pods[0].namespace, bed.pods[1].ips[0], PORT)

    assert (before.answers, after.failures) == ({"pod-2": 1}, {"refused": 1})


@FAMILIES
@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_many_connections_quickly(bed: Testbed, family: int, protocol: str) -> None:
    """Three thousand connections are opened and answered within five seconds."""
    if not has_protocol(protocol):
        pytest.skip(f"this kernel has no {protocol} sockets")
    bed.serve(bed.pods[:1], protocols=[protocol])

    tally = bed.connect(bed.client, bed.pods[0].ips[family], PORT, count=3000, protocol=protocol)

    assert (tally.answers, tally.failures) == ({"pod-1": 3000}, {})
    assert tally.seconds < 5


def test_failures_are_told_apart(bed: Testbed) -> None:
    """No listener is refused, no route is unreachable, no answer is a timeout."""
    bed.client.run(["ip", "route", "add", "unreachable", "198.51.100.0/24"])

    def fail(address: str) -> dict[str, int]:
        return bed.connect(bed.client, address, 9, timeout=0.3).failures

    assert fail(bed.pods[0].ips[0]) == {"refused": 1}
    assert fail("198.51.100.1") == {"unreachable": 1}
    assert fail("203.0.113.1") == {"timeout": 1}


def test_held_connections_tell_when_their_server_goes(bed: Testbed) -> None:
    """Connections that are kept open are answered again, and are seen to break."""
    server = bed.serve(bed.pods[:1])[0]
    client = bed.start_client(bed.client, bed.pods[0].ips[0], PORT, count=50, hold=True)

    opened = client.tally()
    asked = client.ask()
    server.process.kill()
    server.process.wait()
    broken = client.ask()

    assert opened.answers == {"pod-1": 50}
    assert asked.answers == {"pod-1": 50}
    assert (broken.answers, broken.failures) == ({}, {"reset": 50})


def test_source_address_and_ports_are_chosen(bed: Testbed) -> None:
    """A client binds to the source address and counts its ports up from the given one."""
    bed.client.run(["ip", "address", "add", "192.168.0.77/24", "dev", "br0"])
    bed.serve(bed.pods[:1], protocols=["udp"])
    with bed.start_client(
        bed.client,
        bed.pods[0].ips[0],
        PORT,
        protocol="udp",
        count=2,
        source="192.168.0.77",
        source_port=4000,
        hold=True,
    ) as client:
        tally = client.tally()
        sockets = bed.client.run(["ss", "-Hun"]).stdout

    assert tally.peers == {"192.168.0.77": 2}
    assert "192.168.0.77:4000" in sockets
    assert "192.168.0.77:4001" in sockets


def test_forwarding_is_on_in_the_node_alone(bed: Testbed) -> None:
    """The node forwards; the client and this machine are as they were."""
    machine = Path("/proc/sys/net/ipv4/ip_forward").read_text(encoding="ascii")
    read = ["cat", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"]

    assert bed.node.run(read).stdout.split() == ["1", "1"]
    assert bed.client.run(read).stdout.split()[1] == "0"
    with Testbed(pods=0):
        assert Path("/proc/sys/net/ipv4/ip_forward").read_text(encoding="ascii") == machine


def test_an_exception_removes_everything() -> None:
    """After an exception no namespace and no child process is left."""
    names: list[str] = []
    pids: list[int] = []

    def fail() -> None:
        with Testbed(pods=1) as bed:
            bed.serve()
            process = bed.start(bed.node, ["sleep", "60"])
            pids.extend([process.pid, *namespaces.pids_in([bed.pods[0].namespace])])
            names.extend([bed.node.name, bed.client.name, bed.pods[0].namespace.name])
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()

    assert len(pids) == 2
    assert existing(names) == []
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -2)],
    ids=["SIGTERM", "SIGHUP", "SIGINT"],
)
def test_a_signal_removes_everything(number: signal.Signals, status: int) -> None:
    """A process that is told to end removes its testbed first."""
    holder, names = hold_testbed()
    before = existing(names)
    holder.send_signal(number)
    holder.communicate(timeout=20)

    assert (len(before), existing(names)) == (3, [])
    assert holder.returncode == status


def test_sweep_removes_what_a_killed_owner_left_and_nothing_else(bed: Testbed) -> None:
    """Namespaces of a dead owner go, with the processes in them; those of a live one stay."""
    holder, names = hold_testbed()
    left = Namespace(names[0]).popen(["sleep", "60"])
    holder.kill()
    holder.communicate(timeout=10)
    removed = namespaces.sweep()

    assert set(names) <= set(removed)
    assert existing(names) == []
    assert left.wait(5) == -signal.SIGTERM
    assert existing([bed.node.name, bed.client.name]) == [bed.node.name, bed.client.name]


def test_servers_end_with_their_parent(bed: Testbed) -> None:
    """A server whose standard input ends goes away by itself, so a killed parent leaves none."""
    server = bed.serve(bed.pods[:1])[0]
    assert server.process.stdin
    server.process.stdin.close()

    assert server.process.wait(5) == 0


def test_closing_twice_is_harmless(make_namespace: Callable[[], Namespace]) -> None:
    """A namespace that is gone can be closed again, and cannot be entered."""
    namespace = make_namespace()
    namespace.close()
    namespace.close()

    with pytest.raises(NamespaceError, match="entering"):
        namespace.run(["true"])


def test_a_name_that_is_taken_is_left_alone(namespace: Namespace) -> None:
    """Making a namespace twice is an error, and the first one lives on."""
    with pytest.raises(NamespaceError, match="exists"):
        Namespace.create(namespace.name)

    assert namespace.run(["echo", "alive"]).stdout == "alive\n"


def test_a_namespace_that_cannot_be_mounted_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the last step of making one fails, its name is free again."""
    name = namespaces.owned_name("test")

    def fail(path: str, _: str) -> None:
        Path(path).touch()
        raise PermissionError(1, "mount failed")

    monkeypatch.setattr("pyroute2.netns.attach", fail)
    with pytest.raises(NamespaceError, match="CAP_SYS_ADMIN"):
        Namespace.create(name)

    assert existing([name]) == []


def test_a_failing_command_says_what_it_printed(namespace: Namespace) -> None:
    """The error of a command holds its name, its status and its complaint."""
    with pytest.raises(NamespaceError, match=r"ip link show none .* ended with 1: .*none"):
        namespace.run(["ip", "link", "show", "none"])


def test_processes_are_ended_with_the_namespace(namespace: Namespace) -> None:
    """A process that ignores SIGTERM is killed after the grace."""
    process = namespace.popen(
        [
            sys.executable,
            "-c",
            "import signal,time; signal.signal(15, 1); print(1); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout
        process.stdout.readline()
        started = time.monotonic()
        namespace.close(grace=0.2)
        status = process.wait(5)

    assert status == -signal.SIGKILL
    assert time.monotonic() - started < 3
