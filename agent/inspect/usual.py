"""Endpoints' chains as nearly all of them are, told by their text at a glance.

A large node has a hundred thousand rules in such chains, and reading them word by word takes
longer than everything else together. A chain whose text is not exactly as expected here is read
like any other; so what this does not know costs time and nothing else.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent.rules.words import quote

_NO_MASK = r"(?:255\.255\.255\.255|ffff(?::ffff){7})"
_COMMENT = r'(?: -m comment --comment "([^"\\]*)")?'
_MARKING = re.compile(rf"-s (?:([\d.]+)/32|([\da-f:]+)/128){_COMMENT} -j KUBE-MARK-MASQ")
_TRANSLATING = re.compile(
    rf"-p (tcp|udp|sctp){_COMMENT}"
    rf"(?: -m recent --set --name (\S+) --mask {_NO_MASK} --rsource)?"
    r" -m \1 -j DNAT --to-destination (([\d.]+):\d+|\[([\da-f:]+)\]:\d+)"
)


class UsualEndpoint(NamedTuple):
    """What an endpoint's chain does that marks the endpoint's own packets, and translates all.

    Attributes:
        ip: of the endpoint.
        destination: ``ip:port``.
        protocol: of the packets.
        comment: of both rules, empty if they have none.
        remembers: the name under which clients are remembered, empty if they are not.
    """

    ip: str
    destination: str
    protocol: str
    comment: str
    remembers: str

    def as_written(self) -> tuple[str, str]:
        """The two rules in our words (``Rule.text``), to compare them by text."""
        ip, destination, protocol, said, remembers = self
        comment = f"-m comment --comment {quote(said)} " if said else ""
        recent = f"-m recent --name {remembers} --set " if remembers else ""
        translate = f"-m {protocol} -p {protocol} -j DNAT --to-destination {destination}"
        return f"{comment}-s {ip} -j KUBE-MARK-MASQ", f"{comment}{recent}{translate}"


def usual_endpoint(marking: str, translating: str) -> UsualEndpoint | None:
    """What two rules say that are all of a chain; None if they say it in other words."""
    first = _MARKING.fullmatch(marking)
    second = _TRANSLATING.fullmatch(translating)
    if first is None or second is None:
        return None
    four, six, comment = first.groups("")
    protocol, same, remembers, destination, to_four, to_six = second.groups("")
    if (four, six, comment) != (to_four, to_six, same):
        return None
    return UsualEndpoint(four or six, destination, protocol, comment, remembers)
