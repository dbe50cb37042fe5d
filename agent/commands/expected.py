"""What the kernel should hold, for commands that compare: from manifests or the API server."""

from __future__ import annotations

import contextlib
import os
import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from agent import logs
from agent.cluster.feed import Event, Rejected, Replaced, SourceFailed
from agent.cluster.manifests import ManifestError, load
from agent.cluster.objects import EndpointSlice, Kind, Node, Service
from agent.cluster.observe import NullObserver
from agent.commands.sources import LookError, families_of, quiet, read_held, this_node
from agent.config.node import address_policy, node_settings
from agent.inspect.tables import Tables
from agent.kernel import nfacct
from agent.kernel.errors import NetlinkError, PrivilegeError
from agent.rules import names
from agent.rules.rule import DROP, ConntrackState, Masquerade, Nfacct
from agent.rules.ruleset import RuleSet
from agent.rules.service import COUNTER_LOCALHOST
from agent.rules.static import COUNTER_INVALID, BaseJump
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_info, node_view
from agent.state.store import Store
from agent.state.values import Family
from agent.sync.plan import Planner

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.commands.sources import Held, Options, Tell
    from agent.commands.sources import Node as KnownNode
    from agent.config.model import Config
    from agent.kernel.tools import Runner
    from agent.state.values import NodeView

#: Seconds that the API server gets for its next list, and after which it is told that it is
#: waited for.
PATIENCE = 30.0
SILENCE = 2.5
#: Nodes that a warning names.
_NAMED = 3
_KINDS = {Kind.SERVICE, Kind.SLICE, Kind.NODE}


class Objects(msgspec.Struct, frozen=True):
    """Services and their endpoints, as one source has them.

    Attributes:
        services: Services.
        slices: EndpointSlices.
        nodes: Nodes.
        rejected: objects that cannot be used.
        problems: what else is wrong.
        source: where they are from, in words.
        store: Services and slices, digested.
        compiled: rules that they make, for families of which that was guessed ahead.
    """

    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]
    nodes: tuple[Node, ...]
    rejected: tuple[Rejected, ...]
    problems: tuple[str, ...]
    source: str
    store: Store
    compiled: dict[Family, RuleSet] = {}


class Expected(msgspec.Struct, frozen=True):
    """What one family should hold.

    Attributes:
        rules: rules by chain.
        jumps: jumps from built-in chains.
        store: the objects, digested.
        source: where they are from, in words.
    """

    rules: RuleSet
    jumps: tuple[BaseJump, ...]
    store: Store
    source: str


def has_source(config: Config) -> bool:
    """Whether the configuration says where Services are: manifests or an API server."""
    return bool(config.manifests or config.client_connection.kubeconfig or config.api_server)


def read_objects(config: Config, tell: Tell = quiet) -> Objects:
    """Read everything once.

    Args:
        config: says from where.
        tell: is told what is waited for, if it takes long.

    Raises:
        LookError: manifests or the API server cannot be read.
    """
    if config.manifests:
        return _from_manifests(config)
    return _from_api(config, tell)


def read_both(
    options: Options, config: Config, runner: Runner | None = None
) -> tuple[list[Held], Objects | None]:
    """The tables, and meanwhile everything that they are compared with, if there is anything.

    While the tools work, Services are compiled for the node as it most likely is: only rules that
    name counters tell otherwise.

    Raises:
        LookError: something could not be looked at.
        HostError: no iptables is installed, or this process may not ask.
    """
    if options.file:  # nothing to wait for
        held = read_held(options, runner)
        return held, read_objects(config, options.tell) if has_source(config) else None
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_held, options, runner)
        if not has_source(config):
            return reading.result(), None
        objects = read_objects(config, options.tell)
        node = this_node(options)
        for family in families_of(options):
            if not reading.done():
                guess = _view(config, objects, family, _facts(Tables(family), node))
                objects.compiled[family] = _compile(config, objects, guess)
    return reading.result(), objects


def _from_manifests(config: Config) -> Objects:
    try:
        manifests = load(config.manifests)
    except ManifestError as error:
        raise LookError(str(error)) from error
    return Objects(
        manifests.services,
        manifests.slices,
        manifests.nodes,
        manifests.rejected,
        tuple(str(problem) for problem in manifests.problems),
        "the manifests",
        _digest(config, manifests.services, manifests.slices),
    )


def _digest(
    config: Config, services: Collection[Service], slices: Collection[EndpointSlice]
) -> Store:
    """What rules need of them; made while tools print the tables that they are compared with."""
    store = Store(node_name(config), address_policy(config))
    store.replace_services(services)
    store.replace_slices(slices)
    return store


class _LastError(NullObserver):
    """Remembers why a list failed."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def list_failed(self, kind: Kind, error: Exception) -> None:  # noqa: ARG002  the protocol's
        """Remember."""
        self.error = error


def _from_api(config: Config, tell: Tell) -> Objects:
    from agent.cluster.client import ClientConfigError, make_client  # noqa: PLC0415  memory
    from agent.cluster.kube import KubeSource  # noqa: PLC0415  likewise

    try:
        client = make_client(
            config.client_connection.kubeconfig or None,
            api_server=config.api_server or None,
            tls_server_name=config.tls_server_name or None,
        )
    except ClientConfigError as error:
        raise LookError(str(error)) from error
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    last = _LastError()
    with logs.silenced():  # what goes wrong is in the exception
        source = KubeSource(client, node_name=node_name(config), observer=last)
        source.start(events.put)
        try:
            lists = _collect(events, _Awaited(client.configuration.host, last, tell))
        finally:
            source.stop()
    objects = {kind: lists[kind].objects for kind in _KINDS}
    services = tuple(obj for obj in objects[Kind.SERVICE] if isinstance(obj, Service))
    slices = tuple(obj for obj in objects[Kind.SLICE] if isinstance(obj, EndpointSlice))
    return Objects(
        services,
        slices,
        tuple(obj for obj in objects[Kind.NODE] if isinstance(obj, Node)),
        tuple(one for kind in _KINDS for one in lists[kind].rejected),
        (),
        "the API server",
        _digest(config, services, slices),
    )


class _Awaited:
    """The API server that is waited for, in words."""

    def __init__(self, url: str, last: _LastError, tell: Tell) -> None:
        self._url = url
        self._last = last
        self._tell = tell

    def get(self, events: queue.SimpleQueue[Event], missing: Collection[Kind]) -> Event:
        """The next event; it is told once when that takes long.

        Raises:
            LookError: there is none within ``PATIENCE`` seconds.
        """
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=min(SILENCE, PATIENCE))
        what = ", ".join(sorted(f"{kind.value}s" for kind in missing))
        self._tell(
            f"waiting up to {PATIENCE:g} s for the API server at {self._url} to list {what};"
            f" so far: {self._last.error or 'no answer'}"
        )
        self._tell = quiet
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=PATIENCE - min(SILENCE, PATIENCE))
        raise LookError(
            f"the API server at {self._url} did not list {what} within {PATIENCE:g} s:"
            f" {self._last.error or 'no answer'}. Is it running, and reachable from here under this"
            " address (--api-server gives another)? Manifests need none (--manifests)"
        ) from self._last.error


def _collect(events: queue.SimpleQueue[Event], awaited: _Awaited) -> dict[Kind, Replaced]:
    """The first whole list of each kind."""
    lists: dict[Kind, Replaced] = {}
    while lists.keys() != _KINDS:
        event = awaited.get(events, _KINDS - lists.keys())
        if isinstance(event, SourceFailed):
            raise LookError(f"the API server cannot be read: {event.error}") from event.error
        if isinstance(event, Replaced):
            lists[event.kind] = event
    return lists


def node_name(config: Config) -> str:
    """The Node's name: the configured one, else this machine's."""
    return config.hostname_override or os.uname().nodename.lower()


def node_warning(config: Config, objects: Objects) -> str:
    """What follows if the objects hold no Node of the name that is taken; empty if they do."""
    name = node_name(config)
    others = [node.metadata.name for node in objects.nodes]
    if name in others:
        return ""
    unknown = "zone, addresses and pod range (detectLocalMode NodeCIDR) are not known"
    there = f"; there is {', '.join(others[:_NAMED])}" if others else ""
    if config.hostname_override:
        missing = f"there is no Node {name} in {objects.source}"
        return f"{missing}: its {unknown}; is --node-name right?{there}"
    return (
        f"no --node-name is given, and there is no Node {name} (this machine's name) in"
        f" {objects.source}: which endpoints are local, and the node's {unknown}; give"
        f" --node-name{there}"
    )


def expect(config: Config, objects: Objects, held: Held, node: KnownNode) -> Expected:
    """What a family should hold.

    Args:
        config: of the agent.
        objects: of the cluster.
        held: the family's tables; from a file they also tell what the node could do.
        node: what else is known of it.
    """
    view = _view(config, objects, held.family, _facts(held.tables, node))
    rules = objects.compiled.get(held.family)
    if rules is None or rules.node != view:
        rules = _compile(config, objects, view)
    return Expected(rules, Planner(rules).jumps(), objects.store, objects.source)


def _view(config: Config, objects: Objects, family: Family, facts: KernelFacts) -> NodeView:
    settings = msgspec.structs.replace(node_settings(config), name=node_name(config))
    return node_view(family, settings, _info(objects, settings), facts)


def _compile(config: Config, objects: Objects, view: NodeView) -> RuleSet:
    rules = RuleSet(view, config.dispatch)
    rules.update(objects.store.snapshot(0).records, objects.store)
    return rules


def _info(objects: Objects, settings: NodeSettings) -> NodeInfo:
    mine = [node for node in objects.nodes if node.metadata.name == settings.name]
    return node_info(mine[0]) if mine else NodeInfo()


def _facts(tables: Tables, node: KnownNode) -> KernelFacts:
    """What the agent would find out when it starts, without trying anything out."""
    forwarding, masquerading, node_ports = (
        [entry.rule for entry in tables.entries(table, chain)]
        for table, chain in (
            ("filter", names.FORWARD),
            ("nat", names.POSTROUTING),
            ("nat", names.NODEPORTS),
        )
    )
    counters = {
        m.name for rule in (*forwarding, *node_ports) for m in rule.matches if type(m) is Nfacct
    }
    targets = [rule.target for rule in masquerading if isinstance(rule.target, Masquerade)]
    liberal = node.tcp_be_liberal
    if liberal is None:
        liberal = not any(
            rule.target == DROP and ConntrackState("INVALID") in rule.matches for rule in forwarding
        )
    return KernelFacts(
        tcp_liberal=liberal,
        random_fully=targets[0].random_fully if targets and not node.live else True,
        count_invalid=_counts(COUNTER_INVALID, counters, node),
        count_localhost=_counts(COUNTER_LOCALHOST, counters, node),
        localnet=node.localnet,
        addresses=node.cidrs,
    )


def _counts(counter: str, used: set[str], node: KnownNode) -> bool:
    """Whether the agent's rules would name a counter: they do already, or the kernel has both."""
    if counter in used or not node.live:
        return counter in used
    try:
        return nfacct.read(counter) is not None and _has_match()
    except (NetlinkError, PrivilegeError):
        return False


def _has_match() -> bool:
    """Whether the kernel has the nfacct match loaded; it is not tried out."""
    try:
        with open("/proc/net/ip_tables_matches", encoding="ascii") as listed:  # noqa: PTH123  procfs
            return "nfacct" in listed.read().split()
    except OSError:
        return False
