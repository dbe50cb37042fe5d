from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from agent.kernel import nftables
from agent.state.values import Family

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

RULES = (
    "-s 192.0.2.1 -p tcp -m tcp --dport 80 -j MARK --or-mark 0x4000",
    "-m statistic --mode random --probability 0.5000000000 -j ACCEPT",
    "-m comment --comment here -j RETURN",
)


def write(namespace: Namespace, *rules: str, chain: str = "ONE") -> None:
    lines = [f"-A {chain} {rule}" for rule in rules]
    text = "\n".join(["*mangle", f":{chain} - [0:0]", *lines, "COMMIT", ""])
    namespace.run(["xtables-nft-multi", "iptables-restore", "--noflush"], stdin=text)


def digest(namespace: Namespace, chain: str = "ONE") -> bytes | None:
    return namespace.call(nftables.digests, Family.V4, "mangle", [chain]).get(chain)


def send() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(20):
            sock.sendto(b"x", ("127.0.0.1", 9))


def test_the_same_rules_have_the_same_digest(namespace: Namespace) -> None:
    """Written again, the kernel numbers them anew; packets that they count do not matter."""
    write(namespace, *RULES)
    first = digest(namespace)
    write(namespace, *RULES)
    again = digest(namespace)
    jump = ["xtables-nft-multi", "iptables", "-t", "mangle", "-A", "OUTPUT", "-j", "ONE"]
    namespace.run(jump)
    namespace.call(send)
    save = ["xtables-nft-multi", "iptables-save", "-c", "-t", "mangle"]
    counted = namespace.run(save).stdout

    assert first is not None
    assert first == again == digest(namespace)
    assert "[0:0] -A ONE" in counted
    assert counted.count("] -A ONE") - counted.count("[0:0] -A ONE") >= 1


@pytest.mark.parametrize(
    "rules",
    [
        RULES[:2],
        (*RULES, RULES[0]),
        (RULES[1], RULES[0], RULES[2]),
        (RULES[0].replace("192.0.2.1", "192.0.2.2"), *RULES[1:]),
        (RULES[0].replace("80", "81"), *RULES[1:]),
        (RULES[0], RULES[1].replace("0.5", "0.4"), RULES[2]),
        (*RULES[:2], RULES[2].replace("here", "there")),
        (*RULES[:2], RULES[2].replace("RETURN", "ACCEPT")),
    ],
)
def test_other_rules_have_another_digest(namespace: Namespace, rules: tuple[str, ...]) -> None:
    """One rule less, more, moved, or with one other word."""
    write(namespace, *RULES)
    first = digest(namespace)
    write(namespace, *rules)

    assert digest(namespace) not in {None, first}


def test_chains_without_rules_have_none(namespace: Namespace) -> None:
    """Empty ones and absent ones are left out."""
    write(namespace)

    assert digest(namespace) is None
    assert digest(namespace, "ABSENT") is None
