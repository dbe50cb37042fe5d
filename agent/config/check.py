"""Checks that look at more than one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config.table import BY_PATH
from agent.config.values import HostPort, split_host_port

if TYPE_CHECKING:
    from agent.config.model import Source
    from agent.config.values import Plain

_RANK: dict[Source, int] = {"default": 0, "file": 1, "env": 2, "flag": 3}
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  compared with, not listened on
#: kube-proxy's defaults on a node whose address is IPv6.
_V6_BIND_DEFAULTS = {"healthzBindAddress": "[::]:10256", "metricsBindAddress": "[::1]:10249"}


def cross_check(
    values: dict[str, Plain], sources: dict[str, Source], ignored: list[str]
) -> list[str]:
    """Problems between values. Settles what depends on other values in place first."""
    if ":" in str(values["bindAddress"]):
        values |= {path: ip for path, ip in _V6_BIND_DEFAULTS.items() if sources[path] == "default"}
    return [
        *_one_origin(values, sources, ignored),
        *_periods(values),
        *_detect_local(values),
        *_ports(values),
    ]


def _one_origin(
    values: dict[str, Plain], sources: dict[str, Source], ignored: list[str]
) -> list[str]:
    """Objects come from the API server or from manifests; the more important word wins."""
    kubeconfig, manifests = "clientConnection.kubeconfig", "manifests"
    if not (values[kubeconfig] and values[manifests]):
        return []
    if sources[kubeconfig] == sources[manifests]:
        return [f"{kubeconfig} and {manifests} are both set; give one of them"]
    loser, winner = sorted((kubeconfig, manifests), key=lambda path: _RANK[sources[path]])
    ignored.append(
        f"{loser} ({sources[loser]}) gives way to {winner} ({sources[winner]}): objects come "
        "from one place"
    )
    values[loser], sources[loser] = BY_PATH[loser].default, "default"
    return []


def _periods(values: dict[str, Plain]) -> list[str]:
    """The shortest time between syncs is not longer than the longest."""
    shortest, longest = "iptables.minSyncPeriod", "iptables.syncPeriod"
    low, high = values[shortest], values[longest]
    if isinstance(low, float) and isinstance(high, float) and low > high:
        show = BY_PATH[shortest].type.show
        return [f"{shortest} {show(low)} is longer than {longest} {show(high)}"]
    return []


def _detect_local(values: dict[str, Plain]) -> list[str]:
    """Two modes need a name."""
    needs = {
        "BridgeInterface": "detectLocal.bridgeInterface",
        "InterfaceNamePrefix": "detectLocal.interfaceNamePrefix",
    }
    mode = str(values["detectLocalMode"])
    if (path := needs.get(mode)) and not values[path]:
        return [f"detectLocalMode {mode} needs {path}"]
    return []


def _ports(values: dict[str, Plain]) -> list[str]:
    """Two servers do not share an address."""
    paths = [path for path, setting in BY_PATH.items() if isinstance(setting.type, HostPort)]
    used = [split_host_port(str(values[path])) for path in paths if values[path]]
    if len(used) < 2:
        return []
    (host, port), (other, same) = used
    if port != 0 and port == same and (host == other or {host, other} & set(_WILDCARDS)):
        return [f"{' and '.join(paths)} are both on port {port}"]
    return []
