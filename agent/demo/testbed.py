"""A small cluster network in network namespaces: a node, its pods, a client outside.

::

    client (br0 192.168.0.1, 2001:db8::1)
      |  one Ethernet segment
      +-- node (eth0 192.168.0.2, 2001:db8::2; cbr0 10.64.0.1, fd00:10:64::1)
      |     +-- pod-1 (10.64.0.11, fd00:10:64::11), pod-2, ...
      +-- node-2, only if there are remote pods (eth0 192.168.0.3, 2001:db8::3; cbr0 10.64.1.1)
            +-- remote-1 (10.64.1.11, fd00:10:64:1::11), ...

The client sends everything that is not on its own segment to the node, so cluster IPs are
reached from outside too. Pods hold their address with a full-length prefix and send everything
to the node, so traffic between pods of one node is routed and netfilter sees it, whether or not
the kernel has ``br_netfilter``, which is switched off here. IPv6 addresses work at once (no
duplicate address detection). Nothing outside of the namespaces is touched.

Needs root. Everything is removed at the end of the ``with`` block, however it ends: an
exception, Ctrl-C, SIGTERM or SIGHUP; what a killed process leaves is removed by the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyroute2 import IPRoute

from agent.demo import load, namespaces
from agent.demo.namespaces import Namespace

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from types import FrameType, TracebackType

#: All pods, of both nodes.
CLUSTER_CIDRS = ("10.64.0.0/16", "fd00:10:64::/48")
#: The pods of the node.
NODE_CIDRS = ("10.64.0.0/24", "fd00:10:64::/64")
CLIENT_IPS = ("192.168.0.1", "2001:db8::1")
NODE_IPS = ("192.168.0.2", "2001:db8::2")
REMOTE_NODE_IPS = ("192.168.0.3", "2001:db8::3")
#: The bridge that a node's pods are attached to.
BRIDGE = "cbr0"
#: Where pods serve unless told otherwise.
PORT = 8080

_REMOTE_NODE_CIDRS = ("10.64.1.0/24", "fd00:10:64:1::/64")
_GATEWAYS = ("10.64.0.1", "fd00:10:64::1")
_REMOTE_GATEWAYS = ("10.64.1.1", "fd00:10:64:1::1")
_SEGMENT_PREFIX = (24, 64)
_FULL_PREFIX = (32, 128)
_ANYWHERE = ("0.0.0.0/0", "::/0")
_SCOPE_LINK = 253
_FLAG_NODAD = 0x02
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

#: Values that a new namespace may have otherwise (it can inherit them), below /proc/sys/net.
_SYSCTLS = {
    "ipv6/conf/all/disable_ipv6": 0,
    "ipv6/conf/default/disable_ipv6": 0,
    "ipv6/conf/all/accept_dad": 0,
    "ipv6/conf/default/accept_dad": 0,
    "ipv6/conf/default/accept_ra": 0,
    "ipv6/conf/default/accept_redirects": 0,
    "ipv4/conf/all/rp_filter": 0,
    "ipv4/conf/default/rp_filter": 0,
    "ipv4/conf/default/accept_redirects": 0,
    "ipv4/conf/all/send_redirects": 0,
    "ipv4/conf/default/send_redirects": 0,
    "ipv4/conf/all/route_localnet": 0,
    "ipv4/conf/default/route_localnet": 0,
    "bridge/bridge-nf-call-iptables": 0,
    "bridge/bridge-nf-call-ip6tables": 0,
}
_FORWARDING = {"ipv4/ip_forward": 1, "ipv6/conf/all/forwarding": 1}


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod: a namespace with one address per family, which is also its name's."""

    name: str
    namespace: Namespace
    ips: tuple[str, str]
    remote: bool = False


class Testbed:
    """The network of the module's docstring, from ``__enter__`` to ``__exit__``.

    Attributes:
        client: the namespace outside.
        node: the namespace in which the agent and its rules belong.
        pods: the pods of the node.
        remote_pods: the pods of the second node, which has no Service rules.
    """

    __test__ = False  # the name begins like a test's

    def __init__(self, *, pods: int = 3, remote_pods: int = 0) -> None:
        """Describe the network; nothing is made yet.

        Args:
            pods: pods on the node, 0 to 99.
            remote_pods: pods on a second node, 0 to 99.
        """
        self._pod_count = pods
        self._remote_count = remote_pods
        self._namespaces: list[Namespace] = []
        self._children: list[load.Child] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self.pods: tuple[Pod, ...] = ()
        self.remote_pods: tuple[Pod, ...] = ()
        self.client: Namespace
        self.node: Namespace

    def __enter__(self) -> Self:
        """Make the network.

        Raises:
            NamespaceError: no privilege, or the kernel lacks something; nothing is left behind.
        """
        namespaces.sweep()
        self._catch_signals()
        try:
            self._build()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def start(
        self, namespace: Namespace, argv: Sequence[str], **options: Any
    ) -> subprocess.Popen[str]:
        """Start a process in a namespace; it is ended with the testbed at the latest.

        ``options`` go to ``subprocess.Popen``.
        """
        process = namespace.popen(argv, **options)
        self._children.append(load.Child(process))
        return process

    def serve(
        self,
        pods: Sequence[Pod] | None = None,
        *,
        ports: Sequence[int] = (PORT,),
        protocols: Sequence[str] = ("tcp",),
    ) -> list[load.Server]:
        """Start a server in each of the pods (all by default) and return when all listen.

        Raises:
            NamespaceError: one could not listen.
        """
        servers = []
        for pod in (*self.pods, *self.remote_pods) if pods is None else pods:
            server = load.start_server(pod.namespace, pod.name, ports=ports, protocols=protocols)
            self._children.append(server)
            servers.append(server)
        for server in servers:
            server.wait_ready()
        return servers

    def start_client(
        self, namespace: Namespace, address: str, port: int, **options: Any
    ) -> load.Client:
        """Start a client that connects beside what else happens; ``load.start_client`` has more."""
        client = load.start_client(namespace, address, port, **options)
        self._children.append(client)
        return client

    def connect(self, namespace: Namespace, address: str, port: int, **options: Any) -> load.Tally:
        """Connect and count who answers; ``load.start_client`` has the options.

        Raises:
            NamespaceError: the client process failed.
        """
        with load.start_client(namespace, address, port, **options) as client:
            return client.tally()

    def _build(self) -> None:
        self.client = self._namespace("client")
        self.client.call(_make_bridge, "br0", CLIENT_IPS, _SEGMENT_PREFIX)
        self.node = self._namespace("node", forwarding=True)
        self._plug_node(self.node, NODE_IPS, _GATEWAYS)
        self.client.call(_add_routes, _ANYWHERE, NODE_IPS)
        self.pods = self._make_pods("pod", self.node, self._pod_count, _GATEWAYS)
        if self._remote_count:
            other = self._namespace("node-2", forwarding=True)
            self._plug_node(other, REMOTE_NODE_IPS, _REMOTE_GATEWAYS)
            other.call(_add_routes, NODE_CIDRS, NODE_IPS)
            self.node.call(_add_routes, _REMOTE_NODE_CIDRS, REMOTE_NODE_IPS)
            self.remote_pods = self._make_pods(
                "remote", other, self._remote_count, _REMOTE_GATEWAYS
            )

    def _namespace(self, label: str, *, forwarding: bool = False) -> Namespace:
        name = namespaces.owned_name(label)
        # Known before it exists, so that an interruption at any point leaves nothing.
        self._namespaces.append(Namespace(name))
        namespace = Namespace.create(name)
        namespace.call(_prepare, _SYSCTLS | _FORWARDING if forwarding else _SYSCTLS)
        return namespace

    def _plug_node(self, node: Namespace, ips: tuple[str, str], gateways: tuple[str, str]) -> None:
        """Attach a node to the segment and give it a bridge for its pods."""
        port = f"to-{node.name.rpartition('-node')[2] or '1'}"
        self.client.call(_make_port, "br0", port, node.name)
        node.call(_set_up, "eth0", ips, _SEGMENT_PREFIX)
        node.call(_add_routes, _ANYWHERE, CLIENT_IPS)
        node.call(_make_bridge, BRIDGE, gateways, _SEGMENT_PREFIX)

    def _make_pods(
        self, label: str, node: Namespace, count: int, gateways: tuple[str, str]
    ) -> tuple[Pod, ...]:
        pods = []
        for number in range(1, count + 1):
            name = f"{label}-{number}"
            namespace = self._namespace(name)
            v4, v6 = (gateway[:-1] + str(10 + number) for gateway in gateways)
            node.call(_make_port, BRIDGE, f"veth{number}", namespace.name)
            namespace.call(_set_up, "eth0", (v4, v6), _FULL_PREFIX)
            namespace.call(_add_gateways, gateways)
            pods.append(Pod(name, namespace, (v4, v6), remote=label == "remote"))
        return tuple(pods)

    def _catch_signals(self) -> None:
        """Turn signals that would end the process at once into an exception that unwinds it."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, _raise_exit)

    def _close(self) -> None:
        with _signals_held():
            namespaces.end_processes(lambda: namespaces.pids_in(self._namespaces), grace=3.0)
            for child in self._children:
                child.close()
            for namespace in self._namespaces:
                namespace.close(grace=0.0)
            self._children.clear()
            self._namespaces.clear()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


def has_ipv6() -> bool:
    """Whether this kernel has IPv6 at all; without it the testbed has IPv4 only."""
    return Path("/proc/net/if_inet6").exists()


def _families() -> range:
    """Indices of the families in every pair above."""
    return range(2 if has_ipv6() else 1)


def _prepare(sysctls: dict[str, int]) -> None:
    """Set the sysctls of the thread's namespace and bring its loopback up."""
    for name, value in sysctls.items():
        path = Path("/proc/sys/net", name)
        # br_netfilter and IPv6 may be absent; then there is nothing to switch off.
        if path.exists():
            path.write_text(f"{value}\n", encoding="ascii")
    with IPRoute() as route:
        route.link("set", index=1, state="up")


def _make_bridge(name: str, ips: tuple[str, str], prefixes: tuple[int, int]) -> None:
    with IPRoute() as route:
        route.link("add", ifname=name, kind="bridge", br_mcast_snooping=0)
    _set_up(name, ips, prefixes)


def _make_port(bridge: str, name: str, peer_namespace: str) -> None:
    """Make a link from a bridge to ``eth0`` of another namespace."""
    with IPRoute() as route:
        peer = {"ifname": "eth0", "net_ns_fd": peer_namespace}
        route.link("add", ifname=name, kind="veth", peer=peer)
        index = route.link_lookup(ifname=name)[0]
        route.link("set", index=index, master=route.link_lookup(ifname=bridge)[0], state="up")


def _set_up(name: str, ips: tuple[str, str], prefixes: tuple[int, int]) -> None:
    with IPRoute() as route:
        index = route.link_lookup(ifname=name)[0]
        route.link("set", index=index, state="up")
        for family in _families():
            flags = _FLAG_NODAD if family else 0
            route.addr(
                "add", index=index, address=ips[family], prefixlen=prefixes[family], flags=flags
            )


def _add_gateways(gateways: tuple[str, str]) -> None:
    """Route everything to gateways that no prefix of an address covers."""
    with IPRoute() as route:
        index = route.link_lookup(ifname="eth0")[0]
        for family in _families():
            gateway = f"{gateways[family]}/{_FULL_PREFIX[family]}"
            route.route("add", dst=gateway, oif=index, scope=0 if family else _SCOPE_LINK)
    _add_routes(_ANYWHERE, gateways)


def _add_routes(destinations: tuple[str, str], gateways: tuple[str, str]) -> None:
    with IPRoute() as route:
        for family in _families():
            route.route("add", dst=destinations[family], gateway=gateways[family])


def _raise_exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Let signals wait, so that an impatient second Ctrl-C does not cut the cleanup short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    handlers = {
        number: signal.signal(number, lambda received, _frame: waiting.append(received))
        for number in (signal.SIGINT, *_SIGNALS)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for received in waiting:
            signal.raise_signal(received)
