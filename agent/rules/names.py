"""Names of chains, as kube-proxy gives them, so that tools and a takeover work.

A name is a prefix and the first 16 characters of base32(sha256(text)), the text being
``namespace/name:port`` (without the colon for a port without a name), the protocol in lower
case and, for an endpoint's chain, its ``ip:port``. A chain name may have 28 characters.
"""

from __future__ import annotations

import hashlib
import re

SVC = "KUBE-SVC-"
SVL = "KUBE-SVL-"
EXT = "KUBE-EXT-"
FW = "KUBE-FW-"
SEP = "KUBE-SEP-"
#: Branches of the tree through which packets find their Service (``agent.rules.dispatch``). The
#: prefix is one of those that kube-proxy takes for chains of Services: after a hand-back it
#: finds them stale and deletes them, and must, since they jump to chains that it deletes later.
TREE = "KUBE-SVC-TREE-"

SERVICES = "KUBE-SERVICES"
EXTERNAL_SERVICES = "KUBE-EXTERNAL-SERVICES"
NODEPORTS = "KUBE-NODEPORTS"
POSTROUTING = "KUBE-POSTROUTING"
MARK_MASQ = "KUBE-MARK-MASQ"
FORWARD = "KUBE-FORWARD"
PROXY_FIREWALL = "KUBE-PROXY-FIREWALL"
#: Shared with the kubelet, which writes the same rule into it; never removed by us.
KUBELET_FIREWALL = "KUBE-FIREWALL"
CANARY = "KUBE-PROXY-CANARY"

_SERVICE_CHAIN = re.compile(r"KUBE-(SVC|SVL|EXT|FW|SEP)-(?!TREE-).+")
_TREE_HASH = 14  # what a chain's name has room for
#: Base32 of two digits at once: the standard library's takes half of the time of a compilation.
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)


def service_hash(port_name: str, protocol: str, endpoint: str = "") -> str:
    """The 16 characters behind the prefix."""
    digest = hashlib.sha256(f"{port_name}{protocol}{endpoint}".encode()).digest()
    bits = int.from_bytes(digest[:10], "big")
    pairs = _PAIRS
    return (
        f"{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}"
        f"{pairs[bits >> 40 & 1023]}{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}"
        f"{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )


def tree_chain(root: str, path: str) -> str:
    """A branch below a dispatch chain; the same path has the same name on every node."""
    return TREE + service_hash(root, path)[:_TREE_HASH]


def is_tree_chain(chain: str) -> bool:
    """Whether the chain is a branch of a dispatch tree."""
    return chain.startswith(TREE)


def is_service_chain(chain: str) -> bool:
    """Whether the chain belongs to one service port, and is deleted with it."""
    return _SERVICE_CHAIN.fullmatch(chain) is not None
