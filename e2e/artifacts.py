"""What a failed test leaves behind, by node: rules, connections, logs, metrics, routes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from e2e.shell import CommandError, run

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster import Cluster

#: In each node's network.
_COMMANDS = {
    "nft-ipv4.rules": ("xtables-nft-multi", "iptables-save", "-c"),
    "nft-ipv6.rules": ("xtables-nft-multi", "ip6tables-save", "-c"),
    "legacy-ipv4.rules": ("xtables-legacy-multi", "iptables-save", "-c"),
    "legacy-ipv6.rules": ("xtables-legacy-multi", "ip6tables-save", "-c"),
    "addresses.txt": ("cat", "/proc/net/fib_trie", "/proc/net/if_inet6", "/proc/net/dev"),
    "routes.txt": ("cat", "/proc/net/route", "/proc/net/ipv6_route"),
}
_CONNTRACK = """
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTSocket
with NFCTSocket() as socket:
    for entry in socket.dump():
        print(entry)
"""


def collect(cluster: Cluster, folder: Path) -> None:
    """Write everything that can be had into a folder; what cannot, is noted there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.txt").write_text(cluster.description + "\n", "utf-8")
    for node in cluster.nodes:
        here = folder / node
        here.mkdir(exist_ok=True)
        place = cluster.node(node)
        for name, argv in _COMMANDS.items():
            _write(here / name, [*place.prefix, *argv])
        _write(here / "conntrack.txt", place.command("-c", _CONNTRACK))
        with contextlib.suppress(CommandError, OSError):
            (here / "agent.log").write_text(cluster.agents.logs(node), "utf-8")
        try:
            (here / "metrics.txt").write_text(cluster.agents.metrics(node), "utf-8")
        except (CommandError, OSError) as error:
            (here / "metrics.txt").write_text(f"none: {error}\n", "utf-8")
    cluster.collect(folder)


def _write(path: Path, argv: list[str]) -> None:
    try:
        done = run(*argv, timeout=30, check=False)
    except CommandError as error:
        path.write_text(f"{error}\n", "utf-8")
    else:
        path.write_text(done.stdout + done.stderr, "utf-8")
