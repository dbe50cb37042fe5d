"""What the running agent may still do. That it works with it is what all other tests here show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel.running import BACKENDS, ROOT, Host, RunningAgent
from tests.kernel.shapes import endpoint, endpoint_slice, service

if TYPE_CHECKING:
    from collections.abc import Sequence

DAC_READ_SEARCH, NET_BIND_SERVICE, NET_ADMIN, NET_RAW = 2, 10, 12, 13
NEEDED = {"nft": {NET_ADMIN}, "legacy": {NET_ADMIN, NET_RAW}}
NOBODY = 65534
#: More than is needed, to a user who is not root.
GIVEN = ("net_admin", "net_raw", "sys_admin", "dac_read_search")


def status(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def numbers(text: str) -> set[int]:
    return {number for number in range(64) if int(text, 16) >> number & 1}


def threads(agent: RunningAgent) -> dict[str, dict[str, str]]:
    """What the kernel says of each of the agent's threads, by their names."""
    assert agent.process is not None
    tasks = Path("/proc", str(agent.process.pid), "task")
    found = [status(task / "status") for task in tasks.iterdir()]
    return {f"{one['Name']} {one['Pid']}": one for one in found}


def sets(agent: RunningAgent, name: str) -> list[set[int]]:
    """A set of capabilities, of each thread; those that are alike are told once."""
    texts = {one[name] for one in threads(agent).values()}
    return sorted((numbers(text) for text in texts), key=len)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_thread_has_only_what_rules_need(host: Host, backend: str) -> None:
    """Root's forty capabilities become one or two, in all threads, with no way back."""
    agent = host.agent(backend=backend).start()
    host.api.put(service("web", "10.96.0.1"), endpoint_slice("web", endpoint("10.0.0.1")))
    agent.wait_rules("10.96.0.1/32")

    needed = NEEDED[backend]
    assert len(threads(agent)) > 8
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert sets(agent, kind) == [set(), needed]  # the thread for signals has none
    assert sets(agent, "CapAmb") == sets(agent, "CapInh") == [set()]
    assert {one["NoNewPrivs"] for one in threads(agent).values()} == {"1"}
    (line,) = agent.logged("privileges")
    assert line["given_up"] is True
    assert "no new privileges" in agent.get("/statusz", 10249).body


def test_it_can_be_left_alone(host: Host) -> None:
    """With dropCapabilities false the agent keeps what it was given."""
    own = numbers(status(Path("/proc/self/status"))["CapPrm"])
    agent = host.agent("--drop-capabilities=false").start()
    assert own in sets(agent, "CapPrm")
    assert agent.logged("privileges", given_up=False, no_new_privs=False)


def test_files_of_somebody_else_can_still_be_read(host: Host) -> None:
    """As with sudo and one's own kubeconfig: the right to read it is kept, and a line says so."""
    agent = host.agent()
    folder = host.folder / "agent-0"
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o700)
    agent.start()
    assert sets(agent, "CapPrm")[-1] == {DAC_READ_SEARCH, NET_ADMIN}
    (line,) = agent.logged("files that only CAP_DAC_READ_SEARCH lets this process read: it is kept")
    assert str(folder / "kubeconfig") in line["files"]


def test_a_low_port_can_still_be_had(host: Host) -> None:
    """A server below port 1024 that was taken at the start can be bound later."""
    agent = host.agent("--healthz-bind-address", "127.0.0.1:256").launch()
    agent.wait_logged("serving", address="127.0.0.1:256")
    assert sets(agent, "CapPrm")[-1] == {NET_BIND_SERVICE, NET_ADMIN}


def as_nobody(*capabilities: str) -> Sequence[str]:
    """A command that runs another one as nobody, with capabilities that survive that."""
    names = ",".join(f"+{name}" for name in capabilities)
    return (
        "setpriv", f"--reuid={NOBODY}", "--clear-groups",
        f"--inh-caps=-all,{names}", f"--ambient-caps=-all,{names}",
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_user_needs_the_same(host: Host, backend: str, tmp_path: Path) -> None:
    """As nobody with ambient capabilities, rules are written by children with only those."""
    # The code, and pytest's folders, may be root's alone; then the right to read is kept as well.
    lock = tmp_path / "lock"
    lock.touch()
    lock.chmod(0o666)
    agent = host.agent(
        backend=backend, prefix=as_nobody(*GIVEN), environment={"XTABLES_LOCKFILE": str(lock)}
    )
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    (host.folder / "agent-0").chmod(0o755)
    (host.folder / "agent-0" / "kubeconfig").chmod(0o644)
    agent.start()
    host.api.put(service("web", "10.96.0.1"), endpoint_slice("web", endpoint("10.0.0.1")))
    agent.wait_rules("10.96.0.1/32")

    assert sets(agent, "CapPrm")[-1] - {DAC_READ_SEARCH} == NEEDED[backend]
    assert sets(agent, "CapAmb")[-1] - {DAC_READ_SEARCH} == NEEDED[backend]
    (line,) = agent.logged("privileges")
    assert line["no_new_privs"] is True


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_a_container_as_in_deploy(host: Host, backend: str) -> None:
    """Root with the two capabilities and no_new_privs starts, works, and keeps what it needs."""
    prefix = ("setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--no-new-privs")
    agent = host.agent(backend=backend, prefix=prefix).start()
    host.api.put(service("web", "10.96.0.1"), endpoint_slice("web", endpoint("10.0.0.1")))
    agent.wait_rules("10.96.0.1/32")

    assert sets(agent, "CapPrm") == [set(), NEEDED[backend]]
    assert sets(agent, "CapBnd") == [{NET_ADMIN, NET_RAW}]  # it takes CAP_SETPCAP to narrow it
    assert agent.logged("privileges could not be given up") == []


CHILD = """
import sys
from agent.kernel.privileges import reduce
from agent.kernel.tools import SubprocessRunner
left, refused = reduce({12, 13})
print(sorted(left.permitted), refused)
print(SubprocessRunner().run(["/bin/cat", "/proc/self/status"], timeout=5).out)
"""


@pytest.mark.parametrize("prefix", [(), as_nobody(*GIVEN)], ids=["root", "nobody"])
def test_what_is_started_gets_no_more(prefix: Sequence[str]) -> None:
    """A program that the agent starts has the capabilities that were kept, and cannot get more."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", CHILD],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=30,
    )  # fmt: skip
    first, _, rest = done.stdout.partition("\n")
    child = dict(line.split(":\t", 1) for line in rest.splitlines() if ":\t" in line)
    assert first == "[12, 13] []"
    assert numbers(child["CapPrm"]) == numbers(child["CapEff"]) == {NET_ADMIN, NET_RAW}
    assert child["NoNewPrivs"] == "1"
