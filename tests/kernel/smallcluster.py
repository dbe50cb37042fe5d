"""A cluster small enough for a test: the testbed, servers in all pods, an API server, the agent.

Making one takes two seconds, so tests that send packets share one for each backend. They must
leave it as they found it: ``putting`` takes away again what it put.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agent.demo.server import has_protocol
from agent.demo.testbed import CLUSTER_CIDRS, NODE_IPS, REMOTE_NODE_IPS, Testbed
from tests.kernel import shapes
from tests.kernel.running import RunningAgent, serve_api, until
from tests.kernel.shapes import OTHER_NODE, TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace
    from tests.fakes.apiserver import FakeAPIServer


class Marker:
    """Shows when everything that was put into an API server has reached the kernel.

    Each kind of object comes through a watch of its own, in order. So behind everything else a
    Service and its slices are changed, and when the rules show that, they hold all before it.
    """

    def __init__(self, api: FakeAPIServer, agent: RunningAgent) -> None:
        self._api = api
        self._agent = agent
        self._number = 0

    def settle(self, seconds: float = 15.0) -> None:
        """Wait until the kernel holds what the API server does, in both families."""
        self._number += 1
        number = self._number
        ips = {"IPv4": f"10.96.255.{number}", "IPv6": f"fd00:96:255::{number}"}
        pods = {"IPv4": f"10.64.255.{number}", "IPv6": f"fd00:10:64:255::{number}"}
        self._api.put(
            shapes.service("marker", *ips.values()),
            *(
                shapes.endpoint_slice("marker", shapes.endpoint(ip, None), suffix=family.lower())
                for family, ip in pods.items()
            ),
        )
        for family in shapes.FAMILIES:
            wanted = f"-d {ips[family]}/", f"{pods[family]}"

            def seen(family: str = family, wanted: tuple[str, ...] = wanted) -> bool:
                nat = str(self._agent.tables(family).get("nat"))
                return all(text in nat for text in wanted)

            until(seen, seconds, self._agent.story)


class SmallCluster:
    """See the module; a context manager.

    Attributes:
        bed: the network, with three pods on the node and one on the other node.
        api: the API server, in the node's namespace.
        agent: on the node.
    """

    def __init__(self, backend: str, *flags: str) -> None:
        self._flags = ("--cluster-cidr", ",".join(CLUSTER_CIDRS), *flags)
        self._backend = backend
        self._stack = contextlib.ExitStack()
        self.bed: Testbed
        self.api: FakeAPIServer
        self.agent: RunningAgent

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onenth-test-"))
            self.bed = stack.enter_context(Testbed(pods=3, remote_pods=1))
            for namespace in (self.bed.node, self.bed.client):
                answer_all(namespace)
            protocols = ("tcp", "udp", *(["sctp"] if has_protocol("sctp") else []))
            self.bed.serve(ports=[TARGET], protocols=protocols)
            self.api = stack.enter_context(serve_api(self.bed.node))
            self.api.put(shapes.node(*NODE_IPS), shapes.node(*REMOTE_NODE_IPS, name=OTHER_NODE))
            agent = RunningAgent(
                self.bed.node, Path(folder), self.api, *self._flags, backend=self._backend
            )
            stack.callback(agent.close)
            self.agent = agent.start()
            self._marker = Marker(self.api, self.agent)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def settle(self) -> None:
        """Wait until the kernel holds what the API server does."""
        self._marker.settle()

    def put(self, *objects: shapes.Object) -> None:
        """Put objects, and wait until the kernel holds them."""
        self.api.put(*objects)
        self.settle()

    @contextlib.contextmanager
    def putting(self, *objects: shapes.Object) -> Iterator[None]:
        """Put objects, and delete them at the end."""
        self.put(*objects)
        try:
            yield
        finally:
            for obj in objects:
                self.api.delete(obj["kind"], obj["metadata"]["name"])
            self.settle()


def answer_all(namespace: Namespace) -> None:
    """Let the kernel send any number of ICMP errors; by default it sends one a second to a host.

    A type that does not exist is the only one that stays limited.
    """
    namespace.write_sysctl("net/ipv4/icmp_ratemask", 1 << 30)
    namespace.write_sysctl("net/ipv6/icmp/ratemask", 255)
