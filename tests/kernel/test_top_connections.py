from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.demo.server import has_protocol
from agent.demo.testbed import NODE_IPS
from agent.kernel.connections import parse, translated
from agent.state.values import Family

if TYPE_CHECKING:
    from agent.demo.testbed import Testbed

RULES = """*nat
-A PREROUTING -d 10.96.0.1 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.64.0.11:8080
-A PREROUTING -d 10.96.0.1 -p udp -m udp --dport 80 -j DNAT --to-destination 10.64.0.12:8080
-A PREROUTING -d 10.96.0.1 -p sctp -m sctp --dport 80 -j DNAT --to-destination 10.64.0.13:8080
COMMIT
"""


def test_established_connections_of_all_protocols_are_counted(bed: Testbed) -> None:
    """Those that were translated, at who answers; those that ended, or never began, are none."""
    protocols = [one for one in ("tcp", "udp", "sctp") if has_protocol(one)]
    bed.serve(protocols=protocols)
    bed.node.run(["iptables-nft-restore"], stdin=RULES)
    held = [
        bed.start_client(bed.client, "10.96.0.1", 80, count=7, protocol=one, hold=True)
        for one in protocols
    ]
    for client in held:
        assert client.tally().answered == 7
    bed.connect(bed.client, "10.64.0.11", 8080, count=5)  # not translated
    bed.connect(bed.client, NODE_IPS[0], 81, count=3, timeout=0.3)  # refused

    found = Counter(bed.node.call(lambda: list(translated(Family.V4))))

    endpoints = {"tcp": "10.64.0.11", "udp": "10.64.0.12", "sctp": "10.64.0.13"}
    assert found == {((one, "10.96.0.1", 80), (one, endpoints[one], 8080)): 7 for one in protocols}
    assert list(bed.node.call(lambda: list(translated(Family.V6)))) == []


def test_an_entry_that_is_cut_short_is_none() -> None:
    """Whatever the kernel sends, nothing is made up."""
    assert parse(Family.V4, b"") is None
    assert parse(Family.V4, bytes(20) + b"\x08\x00\x01\x00abcd") is None
