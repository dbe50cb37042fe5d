"""The running daemon starts only what it must, and opens no file that it was not told to.

Everything is seen by an audit hook inside the process (``audited``), while objects come whose
every text is an attempt.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernel.running import BACKENDS, ROOT, Host, RunningAgent
from tests.kernel.shapes import endpoint, endpoint_slice, port, service

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTEMPT = "$(touch /tmp/owned);`id`|sh -c 'x' -j ACCEPT\n-A INPUT -j ACCEPT"
#: Words that a command line may consist of, after the program.
WORDS = re.compile(
    r"ip6?tables(-save|-restore)?|--version|--noflush|--counters|-w|5|-[tSLnc]"
    r"|filter|nat|mangle|raw|INPUT|FORWARD|OUTPUT|PREROUTING|POSTROUTING|KUBE-PROXY-CANARY|KUBE-FIREWALL"
)
PROGRAM = re.compile(r"/usr/sbin/xtables-(nft|legacy)-multi")
ENVIRONMENT = {"PATH", "LC_ALL", "LANG", "XTABLES_LOCKFILE", "XTABLES_LIBDIR"}
#: What the kernel says, besides what the agent was told to read.
KERNEL = re.compile(
    r"/proc/(stat|self/(stat|limits|fd|status)|thread-self/status)"
    r"|/proc/net/ip6?_tables_names"
    r"|/proc/sys/net/(netfilter/nf_conntrack_\w+|ipv4/(conf/all/route_localnet|ip_local_\w+))"
    r"|/sys/module/nf_conntrack/parameters/hashsize"
)
WRITTEN = re.compile(r"/proc/sys/net/(netfilter/nf_conntrack_tcp_timeout_\w+|ipv4/conf/all/\w+)")
Event = list[Any]


class Audited:
    """An agent and what it was seen doing."""

    def __init__(self, host: Host, *flags: str, **options: Any) -> None:
        self._file = host.folder / "audit"
        given = {"AUDITED": str(self._file), "DATABASE_PASSWORD": "hunter2"}
        self.agent: RunningAgent = host.agent(
            *flags, module="tests.kernel.audited", environment=given, **options
        )
        self._from = 0

    def mark(self) -> None:
        """From here on."""
        self._from = len(self._lines())

    def _lines(self) -> list[str]:
        return self._file.read_text("utf-8").splitlines()

    def events(self, *names: str) -> list[Event]:
        """What was seen, of these kinds."""
        found = [json.loads(line) for line in self._lines()[self._from :]]
        return [event for event in found if event[0] in names]

    def opened(self) -> dict[str, set[str]]:
        """Files by name, and how they were opened; descriptors that are there are no files."""
        found: dict[str, set[str]] = {}
        for _, path, mode, *_ in self.events("open"):
            if not path.isdecimal():
                found.setdefault(path, set()).add(mode)
        return found


def hostile(number: int) -> Sequence[dict[str, Any]]:
    """A Service and its slice with attempts wherever the API takes text."""
    name = f"web-{number}"
    made = service(
        name, f"10.96.0.{number}", ports=[port(80, name=ATTEMPT), port(81, name="good")],
        labels={"x": ATTEMPT}, externalIPs=[ATTEMPT], loadBalancerSourceRanges=[ATTEMPT],
        sessionAffinity=ATTEMPT, type="LoadBalancer", ingress=[ATTEMPT],
    )  # fmt: skip
    made["metadata"]["annotations"] = {ATTEMPT: ATTEMPT}
    ports = [{"name": ATTEMPT, "port": 8080}, {"name": "good", "port": 8081}]
    return made, endpoint_slice(name, endpoint(f"10.0.0.{number}", ATTEMPT), ports=ports)


def code(path: str) -> bool:
    """Whether it is Python's own, or the agent's code."""
    roots = (sys.prefix, sys.base_prefix, str(ROOT), "/usr/lib/python3", "/etc/localtime")
    return path.startswith(roots) and not path.endswith((".json", ".yaml"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_running_daemon_touches(host: Host, backend: str) -> None:
    """At work: iptables with fixed words, the kernel's files, and nothing else, whatever comes."""
    seen = Audited(host, backend=backend)
    agent = seen.agent.start()
    kubeconfig = str(host.folder / "agent-0" / "kubeconfig")
    folder = str(host.folder / "agent-0")  # the present one, from which Python could import

    assert {
        path for path in seen.opened() if not KERNEL.fullmatch(path) and not code(path)
    } <= {kubeconfig, folder}  # fmt: skip
    assert kubeconfig in seen.opened()
    for path, modes in seen.opened().items():
        assert WRITTEN.fullmatch(path) or not modes & {"w", "a", "x", "w+"}, (path, modes)

    for number in range(1, 4):
        host.api.put(*hostile(number))
        agent.wait_rules(f"10.96.0.{number}/32")
        if number == 1:
            agent.metrics()
            agent.get("/statusz", 10249)
            seen.mark()  # what is imported when it is first needed has been
    host.api.cut()
    agent.metrics()
    agent.get("/statusz", 10249)
    agent.wait_rules("10.0.0.3:8081")

    assert seen.events("exec", "compile", "os.system", "os.exec", "os.posix_spawn") == []
    assert {path for path in seen.opened() if not KERNEL.fullmatch(path)} == set()
    assert {mode for modes in seen.opened().values() for mode in modes} <= {"r", "rb", "None"}
    assert not Path("/tmp/owned").exists()  # noqa: S108
    assert len(seen.events("subprocess.Popen")) >= 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_command_lines_and_environments(host: Host, backend: str) -> None:
    """From the start on: only iptables, with words that no object has a part in; few variables."""
    seen = Audited(host, backend=backend)
    agent = seen.agent.start()
    host.api.put(*hostile(1))
    agent.wait_rules("10.96.0.1/32")

    started = seen.events("subprocess.Popen")
    assert len(started) > 5
    for _, program, argv, folder, variables in started:
        assert PROGRAM.fullmatch(program)
        assert argv[0] == program
        assert [word for word in argv[1:] if not WORDS.fullmatch(word)] == []
        assert folder == "/"
        assert {"PATH", "LC_ALL"} <= variables.keys() <= ENVIRONMENT
        assert variables["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    others = ("os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn", "pty.spawn")
    assert seen.events(*others) == []
