"""Which way packets leave this network namespace.

Only ``explain`` and a few others ask, so pyroute2 is imported when they do: all of it takes as
long as reading ten thousand rules.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.lru_cache(maxsize=4096)
def interface_towards(address: str) -> str | None:
    """The interface by which packets to an address leave; None if there is no way.

    Asked once for each address: this is for commands that end soon.
    """
    return _ask(address, lambda route, found: _name(route, found.get_attr("RTA_OIF")))


@functools.lru_cache(maxsize=4096)
def source_towards(address: str) -> str | None:
    """The address that this node would send from to another one; None if there is no way."""
    return _ask(address, lambda _, found: found.get_attr("RTA_PREFSRC"))


def _ask(address: str, read: Callable[[Any, Any], str | None]) -> str | None:
    from pyroute2 import IPRoute  # noqa: PLC0415  see above
    from pyroute2.netlink.exceptions import NetlinkError as PyrouteError  # noqa: PLC0415  likewise

    try:
        with IPRoute() as route:
            (found,) = route.route("get", dst=address)
            return read(route, found)
    except (OSError, PyrouteError, ValueError):
        return None


def _name(route: Any, index: int | None) -> str | None:
    if index is None:
        return None
    (link,) = route.get_links(index)
    name: str | None = link.get_attr("IFLA_IFNAME")
    return name
