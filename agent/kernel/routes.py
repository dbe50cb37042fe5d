"""Which way packets leave this network namespace."""

from __future__ import annotations

import functools

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError as PyrouteError


@functools.lru_cache(maxsize=4096)
def interface_towards(address: str) -> str | None:
    """The interface by which packets to an address leave; None if there is no way.

    Asked once for each address: this is for commands that end soon.
    """
    try:
        with IPRoute() as route:
            (found,) = route.route("get", dst=address)
            return _name(route, found.get_attr("RTA_OIF"))
    except (OSError, PyrouteError, ValueError):
        return None


def source_towards(address: str) -> str | None:
    """The address that this node would send from to another one; None if there is no way."""
    try:
        with IPRoute() as route:
            (found,) = route.route("get", dst=address)
            source: str | None = found.get_attr("RTA_PREFSRC")
            return source
    except (OSError, PyrouteError, ValueError):
        return None


def _name(route: IPRoute, index: int | None) -> str | None:
    if index is None:
        return None
    (link,) = route.get_links(index)
    name: str | None = link.get_attr("IFLA_IFNAME")
    return name
