"""The agent as people run it: a child process in a node's namespace, watched from outside.

``RunningAgent`` starts ``python -m agent run`` on a fake API server or on manifests, waits until it
is ready, and reads what it shows: its log, its metrics, its probes and its exit status. What the
kernel holds is read here with the real tools and taken apart without any code of the agent.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.apiserver import FakeAPIServer, write_kubeconfig
from tests.kernel.shapes import NODE, node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.demo.namespaces import Namespace

ROOT = Path(__file__).parents[2]
BACKENDS = ("nft", "legacy")
#: Addresses of a ``Host``.
HOST_IPS = ("192.0.2.10", "2001:db8::10")
#: Chains by table and name, each a list of rules without ``-A CHAIN``.
Tables = dict[str, dict[str, list[str]]]

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer over HTTP; ``status`` 0 means that there was none."""

    status: int
    body: str = ""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def until(
    true: Callable[[], Any], seconds: float = 40.0, what: Callable[[], object] = lambda: ""
) -> Any:
    """Wait until something is true and return it; fail with what ``what`` tells if it is not."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.02)
    return found


def stays(true: Callable[[], Any], seconds: float) -> bool:
    """Whether something is true at every look for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not true():
            return False
        time.sleep(0.02)
    return True


def environment() -> dict[str, str]:
    """This process's variables, without those that the agent, or these tests, are set by."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("ONENTH_")}
    return found | {"PYTHONPATH": str(ROOT)}


def serve_api(namespace: Namespace, **options: Any) -> FakeAPIServer:
    """A fake API server that listens on the loopback address of a namespace."""
    return namespace.call(FakeAPIServer, **options)


def fetch(namespace: Namespace, url: str, timeout: float = 3.0) -> Reply:
    """GET from inside a namespace."""

    def get() -> Reply:
        try:
            with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 (http only)
                return Reply(answer.status, answer.read().decode(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read().decode(), dict(error.headers))
        except OSError:
            return Reply(0)

    return namespace.call(get)


class RunningAgent:
    """``python -m agent run`` in a namespace; ``flags`` are added to what the tests need.

    Attributes:
        process: the child, once started.
        namespace: where it runs.
    """

    def __init__(
        self,
        namespace: Namespace,
        folder: Path,
        source: FakeAPIServer | Path | None,
        *flags: str,
        backend: str = "nft",
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        node: str = NODE,
        module: str = "agent",
    ) -> None:
        """Nothing runs yet.

        Args:
            namespace: where to run.
            folder: for its log and its kubeconfig.
            source: an API server, or manifests, or None if the flags name it.
            flags: further arguments.
            backend: of iptables.
            prefix: a command that runs the agent's command.
            environment: variables besides this process's.
            node: name of the Node.
            module: what is run as the agent.
        """
        self._module = module
        self.namespace = namespace
        self.backend = backend
        self._folder = folder
        self._prefix = list(prefix)
        self._environment = environment or {}
        self._flags = [*flags]
        if backend:
            self._flags = ["--iptables-backend", backend, *self._flags]
        if node:
            self._flags = ["--node-name", node, *self._flags]
        if isinstance(source, FakeAPIServer):
            kubeconfig = write_kubeconfig(folder / "kubeconfig", source)
            self._flags = ["--kubeconfig", str(kubeconfig), *self._flags]
        elif source is not None:
            self._flags = ["--manifests", str(source), *self._flags]
        self._out = folder / "agent.log"
        self._err = folder / "agent.err"
        self.process: subprocess.Popen[str] | None = None

    # Its life ----------------------------------------------------------------------------

    def launch(self, *, mode: str = "w") -> RunningAgent:
        """Start it, again if it has ended; its log begins anew, or goes on with ``mode`` "a"."""
        assert self.process is None or self.process.poll() is not None
        argv = [*self._prefix, sys.executable, "-m", self._module, "run", "--log-format", "json"]
        argv += ["--iptables-min-sync-period", "0s", "--conntrack-max-per-core", "0"]
        with self._out.open(mode) as out, self._err.open(mode) as err:
            self.process = self.namespace.popen(
                [*argv, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self._folder,
                env=environment() | self._environment,
            )
        return self

    def start(self, seconds: float = 30.0) -> RunningAgent:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait_ready(seconds)
        return self

    def wait_ready(self, seconds: float = 30.0) -> None:
        """Wait until ``/readyz`` answers 200."""

        def ready() -> bool:
            assert self.running, f"it ended with {self.wait(1)}: {self.story()}"
            return self.get("/readyz").status == 200

        until(ready, seconds, self.story)

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        """Wait for its end; returns the exit status."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; returns the exit status."""
        self.send(number)
        return self.wait()

    def close(self) -> None:
        """Make sure that it has ended."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()

    # What it tells -----------------------------------------------------------------------

    def logs(self) -> list[dict[str, Any]]:
        """Its log so far; every line is a JSON object."""
        text = self._out.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def logged(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Lines of its log that say this."""
        wanted = {"event": event, **fields}
        return [line for line in self.logs() if wanted.items() <= line.items()]

    def wait_logged(self, event: str, seconds: float = 10.0, **fields: Any) -> dict[str, Any]:
        """Wait for a line in its log; returns the first one."""
        found = until(lambda: self.logged(event, **fields), seconds, self.story)
        return dict(found[0])

    def stderr(self) -> str:
        """What it printed besides."""
        return self._err.read_text(encoding="utf-8")

    def story(self) -> str:
        """The end of all that it printed, for a failing test."""
        return "\n".join([*self._out.read_text(encoding="utf-8").splitlines()[-15:], self.stderr()])

    def get(self, path: str, port: int = 10256, address: str = "127.0.0.1") -> Reply:
        """Ask one of its servers."""
        return fetch(self.namespace, f"http://{address}:{port}{path}")

    def metrics(self) -> dict[Sample, float]:
        """All samples of ``/metrics``."""
        reply = self.get("/metrics", 10249)
        assert reply.status == 200, reply
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(reply.body)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample; None if it is not there."""
        return self.metrics().get((name, frozenset(labels.items())))

    # What it wrote -----------------------------------------------------------------------

    def tables(self, family: str = "IPv4") -> Tables:
        """What the kernel holds of the agent's backend."""
        return tables(self.namespace, self.backend, family)

    def rules(self, chain: str = "KUBE-SERVICES", table: str = "nat", family: str = "IPv4") -> str:
        """The rules of one chain as text; empty if there is none."""
        return "\n".join(self.tables(family).get(table, {}).get(chain, ()))

    def wait_rules(
        self,
        text: str,
        *,
        gone: bool = False,
        chain: str = "",
        table: str = "nat",
        family: str = "IPv4",
        seconds: float = 10.0,
    ) -> None:
        """Wait until the kernel's rules hold a text, or no longer do; all chains by default."""

        def look() -> bool:
            chains = self.tables(family).get(table, {})
            rules = chains.get(chain, []) if chain else [r for c in chains.values() for r in c]
            return any(text in rule for rule in rules) is not gone

        until(look, seconds, lambda: f"{text!r} gone={gone}; {self.story()}")


class Host:
    """A node that is a single namespace, with an API server on its loopback interface.

    Attributes:
        namespace: the node.
        api: the API server, which holds the Node.
        folder: for files.
    """

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        for ip in HOST_IPS:
            namespace.run(["ip", "address", "add", ip, "dev", "lo"])
        self.namespace = namespace
        self.folder = folder
        self.api = serve_api(namespace)
        self._agents: list[RunningAgent] = []

    def __enter__(self) -> Self:
        self.api.__enter__()
        self.api.put(node(*HOST_IPS))
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.close()
        self.api.stop()

    def agent(self, *flags: str, **options: Any) -> RunningAgent:
        """An agent on the API server, not started yet; ``RunningAgent`` has the options."""
        folder = self.folder / f"agent-{len(self._agents)}"
        folder.mkdir()
        source = options.pop("source", self.api)
        agent = RunningAgent(self.namespace, folder, source, *flags, **options)
        self._agents.append(agent)
        return agent


def iptables(namespace: Namespace, backend: str, *argv: str, family: str = "IPv4") -> str:
    """Run a command of a backend, such as ``-t nat -F``."""
    program = "iptables" if family == "IPv4" else "ip6tables"
    wait = () if argv[0].startswith("save") else ("-w",)
    name = f"{program}-save" if argv[0] == "save" else program
    rest = argv[1:] if argv[0] == "save" else argv
    command = [f"xtables-{backend}-multi", name, *wait, *rest]
    return namespace.run(command, timeout=120.0).stdout  # another namespace may be in its way


def tables(namespace: Namespace, backend: str, family: str = "IPv4") -> Tables:
    """All tables of a backend that exist in a namespace."""
    found: Tables = {}
    chains: dict[str, list[str]] = {}
    for line in iptables(namespace, backend, "save", family=family).splitlines():
        if line.startswith("*"):
            chains = found.setdefault(line[1:], {})
        elif line.startswith(":"):
            chains[line[1:].split()[0]] = []
        elif line.startswith("-A "):
            _, chain, rule = (*line.split(" ", 2), "")[:3]
            chains[chain].append(rule)
    return found


def flows(namespace: Namespace, *selection: str, family: str = "ipv4") -> list[str]:
    """Connection entries of a namespace, as ``conntrack -L`` prints them."""
    return namespace.run(["conntrack", "-L", "-f", family, *selection]).stdout.splitlines()
