"""A large table read by several processes is what ``iptables-nft-save`` prints of it.

The table need not be large here: how many chains are many enough is given.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from agent.demo.testbed import Testbed
from agent.inspect.tables import read_tables
from agent.kernel import detect, nfacct, nftables, readout
from agent.kernel.detect import Backend
from agent.kernel.dump import dump
from agent.kernel.expressions import UnknownError
from agent.kernel.facts import COUNTERS
from agent.kernel.netlink import Channel, attributes
from agent.kernel.printer import Printer
from agent.kernel.tools import SubprocessRunner
from agent.rules.saved import parse_save
from agent.state.values import Family
from agent.sync.render import render
from tests.kernel import randomstate
from tests.kernel.test_parity_states import WIPE
from tests.parity.case import build
from tests.parity.test_parity import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace
    from agent.inspect.tables import Tables
    from agent.kernel.detect import Tool

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
#: Chains of ours that there are few of, and that are left to the tool.
STATIC = {"KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"}
Plain = dict[str, dict[str, tuple[str, list[str]]]]


@pytest.fixture(name="tool", scope="module")
def _tool() -> Tool:
    found = detect.installed(SubprocessRunner())[Backend.NFT]
    if found is None:
        pytest.skip("iptables-nft is not installed")
    return found


@pytest.fixture(name="pods", scope="module")
def _pods() -> Iterator[Testbed]:
    with Testbed(pods=3) as bed:
        yield bed


def write(namespace: Namespace, tool: Tool, family: Family, text: str) -> None:
    namespace.run([*tool.command(family, "-restore"), "--noflush"], stdin=text)


def plain(tables: Tables | None) -> Plain:
    """Policies and rules as they are printed, and nothing else."""
    assert tables is not None
    return {
        table: {
            name: (chain.policy, [entry.text for entry in chain.entries])
            for name, chain in chains.items()
        }
        for table, chains in tables.tables.items()
    }


def both(namespace: Namespace, tool: Tool, family: Family) -> tuple[Plain, Plain]:
    """What the processes read, and what the tool prints."""
    runner = SubprocessRunner()
    large = namespace.call(readout.read_large, tool, family, runner, least=1)
    text = namespace.call(dump, tool, family, runner)
    return plain(large), plain(read_tables(text, family))


def test_every_state_that_is_written_down(namespace: Namespace, tool: Tool) -> None:
    """Rules of all kinds, of both families: chain by chain, word by word."""
    for counter in COUNTERS:
        namespace.call(nfacct.ensure, counter)
    for name, case in WRITTEN.items():
        _, rules = build(case)
        family = rules.node.family
        write(namespace, tool, family, WIPE + render(rules))
        printed = parse_save(namespace.call(dump, tool, family, SubprocessRunner()))["nat"]
        chains = [chain for chain in printed if chain.startswith("KUBE-")]
        for chain, run in namespace.call(read_here, family, chains).items():
            if run is None:
                assert chain in STATIC or "-p sctp" in "".join(printed[chain]), name
            else:
                assert run.splitlines() == [f"-A {chain} {text}" for text in printed[chain]], name


def read_here(family: Family, chains: list[str]) -> dict[str, str | None]:
    """What a process would read, None for what it leaves to the tool."""
    printer = Printer(family)
    with Channel() as channel:
        found = {name: readout._chain(channel, printer, family, name) for name in chains}
    return {name: None if one is None else one.run for name, one in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_random_states_among_rules_of_others(
    namespace: Namespace, tool: Tool, pods: Testbed, seed: int
) -> None:
    """Trees and flat layouts, with rules of other programs beside them."""
    rng = random.Random(seed)  # noqa: S311 (a state)
    objects = randomstate.services(rng, pods.pods)
    for family, text in randomstate.rules_of(rng, objects).items():
        write(namespace, tool, family, text)
        write(
            namespace, tool, family, randomstate.foreign(rng, family, ["10.96.0.10", "fd00:96::10"])
        )
        read, printed = both(namespace, tool, family)
        assert read == printed
        assert sum(len(rules) for _, rules in read["nat"].values()) > 20


#: What stands in a chain of ours that we do not write like this.
OTHERS = (
    "-s 192.0.2.0/24 -j RETURN",
    "! -s 192.0.2.7 -d 198.51.100.0/25 -i eth0 -p tcp -m tcp --dport 80 -j ACCEPT",
    "! -d 198.51.100.1 ! -i br+ -p udp -m udp --dport 53 -j ACCEPT",
    "-p tcp -m tcp --dport 1000:2000 -j ACCEPT",
    "-p tcp -m tcp ! --dport 80 -j ACCEPT",
    "-p tcp -m tcp --sport 80 --dport 81 -j ACCEPT",
    "-p tcp -m tcp --tcp-flags SYN,ACK SYN -j ACCEPT",
    "-p sctp -m sctp --dport 9 -j ACCEPT",
    "! -p tcp -j ACCEPT",
    "-p icmp -j ACCEPT",
    "-o eth1 -j ACCEPT",
    "-m comment --comment one-word -j ACCEPT",
    '-m comment --comment "a \\"quoted\\" word" -j ACCEPT',
    '-m comment --comment "b\\\\c" -j ACCEPT',
    '-m comment --comment "zwei Wörter" -j ACCEPT',
    "-m statistic --mode nth --every 3 --packet 0 -j ACCEPT",
    "-m statistic --mode random ! --probability 0.5 -j ACCEPT",
    "-m statistic --mode random --probability 0.123456789 -j ACCEPT",
    "-m recent --set --name one --rdest -j ACCEPT",
    "-m recent --update --seconds 60 --hitcount 4 --name one -j ACCEPT",
    "-m recent ! --rcheck --name one --mask 255.255.0.0 -j ACCEPT",
    "-m mark --mark 0x4000/0x4000 -j ACCEPT",
    "-m addrtype --dst-type LOCAL -j ACCEPT",
    "-m conntrack --ctstate NEW -j ACCEPT",
    "-m comment --comment one -m comment --comment two -j ACCEPT",
    "-p tcp -j DNAT --to-destination 192.0.2.1:80",
    "-p tcp -j DNAT --to-destination 192.0.2.1-192.0.2.9:80-89",
    "-p tcp -j DNAT --to-destination 192.0.2.1:80 --random",
    "-j DNAT --to-destination 192.0.2.1",
    "-g KUBE-OTHER",
    "-j LOG",
    "-m comment --comment nothing",
)


@pytest.mark.parametrize("rule", OTHERS)
def test_a_rule_of_somebody_else_in_a_chain_of_ours(
    namespace: Namespace, tool: Tool, rule: str
) -> None:
    """It is printed as the tool prints it, whether it is known here or not."""
    lines = ("*nat", ":KUBE-OTHER - [0:0]", ":KUBE-ONE - [0:0]", f"-A KUBE-ONE {rule}")
    text = "\n".join([*lines, "-A KUBE-ONE -s 192.0.2.1 -j RETURN", "COMMIT", ""])
    write(namespace, tool, Family.V4, text)
    read, printed = both(namespace, tool, Family.V4)

    assert read == printed
    assert len(read["nat"]["KUBE-ONE"][1]) == 2


@FAMILIES
def test_small_tables_are_left_to_the_tool(
    namespace: Namespace, tool: Tool, family: Family
) -> None:
    """Up to so many chains, starting processes costs more than it saves."""
    write(namespace, tool, family, "*nat\n:KUBE-ONE - [0:0]\n:KUBE-TWO - [0:0]\nCOMMIT\n")
    runner = SubprocessRunner()

    assert namespace.call(readout.read_large, tool, family, runner, least=9) is None
    read = plain(namespace.call(readout.read_large, tool, family, runner, least=2))
    built_in: dict[str, tuple[str, list[str]]] = dict.fromkeys(
        ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"), ("ACCEPT", [])
    )
    assert read == {"nat": {**built_in, "KUBE-ONE": ("", []), "KUBE-TWO": ("", [])}}


def test_a_policy_is_read(namespace: Namespace, tool: Tool) -> None:
    """And nothing is created by looking."""
    text = "*filter\n:INPUT DROP [0:0]\n:KUBE-ONE - [0:0]\n-A INPUT -j KUBE-ONE\nCOMMIT\n"
    text += "*nat\n:KUBE-ONE - [0:0]\nCOMMIT\n"
    write(namespace, tool, Family.V4, text)
    read, printed = both(namespace, tool, Family.V4)

    assert read == printed
    assert read["filter"]["INPUT"] == ("DROP", ["-j KUBE-ONE"])
    assert "OUTPUT" not in namespace.run(["nft", "list", "ruleset"]).stdout


def test_what_only_nft_writes_is_left_to_the_tool(namespace: Namespace, tool: Tool) -> None:
    """Whose word on a table that it cannot read is what is shown."""
    write(namespace, tool, Family.V4, "*nat\n:KUBE-ONE - [0:0]\nCOMMIT\n")
    namespace.run(["nft", "add", "rule", "ip", "nat", "KUBE-ONE", "ct", "mark", "1", "accept"])

    assert namespace.call(readout.read_large, tool, Family.V4, SubprocessRunner(), least=1) is None


def test_a_change_meanwhile_is_noticed(namespace: Namespace, tool: Tool) -> None:
    """While the tool is asked about the rest, somebody adds a rule."""
    write(namespace, tool, Family.V4, "*nat\n:KUBE-ONE - [0:0]\n:OTHER - [0:0]\nCOMMIT\n")

    class Busy(SubprocessRunner):
        def run(self, argv, *, stdin="", timeout):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            write(namespace, tool, Family.V4, "*nat\n-A KUBE-ONE -j RETURN\nCOMMIT\n")
            return super().run(argv, stdin=stdin, timeout=timeout)

    assert namespace.call(readout.read_large, tool, Family.V4, Busy(), least=1) is None
    read, printed = both(namespace, tool, Family.V4)
    assert read == printed


@pytest.mark.parametrize("program", ["/bin/true", "/nonexistent"])
def test_a_process_that_does_not_read(
    namespace: Namespace, tool: Tool, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """The tool is asked for everything then."""
    write(namespace, tool, Family.V4, "*nat\n:KUBE-ONE - [0:0]\nCOMMIT\n")
    monkeypatch.setattr(sys, "executable", program)

    assert namespace.call(readout.read_large, tool, Family.V4, SubprocessRunner(), least=1) is None


# One bit of what the kernel sent -------------------------------------------------------------

#: Chains of all kinds that there are many of, with all that may stand in them.
KINDS = {
    "KUBE-SEP-A": (
        '-s 192.0.2.1 -m comment --comment "one/web:http b" -j KUBE-MARK',
        "-p tcp -m recent --name KUBE-SEP-A --set -m tcp -j DNAT --to-destination 192.0.2.1:80",
    ),
    "KUBE-SVC-A": (
        "! -s 10.0.0.0/9 -d 192.0.2.0/24 ! -i br0 -p udp --dport 53 -j KUBE-MARK",
        "-m recent --name KUBE-SEP-A --rcheck --seconds 300 --reap -j KUBE-SEP-A",
        "-m statistic --mode random --probability 0.25 -j KUBE-SEP-A",
        "-p tcp -m tcp --dport 100:200 -g KUBE-SEP-A",
        "-j RETURN",
    ),
}


def insignificant(data: bytes) -> set[int]:
    """Where bytes are that say nothing of what the rules of a chain do."""
    found: set[int] = set()
    for _, begins, ends in nftables.rule_places(data) or ():
        found.add(begins - 1)
        for _, at, end in attributes(data, begins, ends):
            found |= {at - 1} | _padding(data, at, end)
            fields = {kind: span for kind, *span in attributes(data, at, end)}
            name = data[slice(*fields[1])].rstrip(b"\0")
            inner = {kind: span for kind, *span in attributes(data, *fields[2])}
            if name == b"counter":
                found |= {*range(fields[1][1], end)}
            elif name in {b"match", b"target"}:
                found |= _unused(data, data[slice(*inner[1])].rstrip(b"\0"), *inner[3])
    return found


def counting(data: bytes) -> Iterator[int]:
    """Where bytes are, without names that were asked for and what rules are numbered by."""
    for message, begins, ends in nftables.rule_places(data) or ():
        yield from range(message, message + 6)
        yield from range(begins - 4, ends)


def _padding(data: bytes, start: int, end: int) -> set[int]:
    """Between the attributes below, the two upper bits of whose types are flags."""
    found: set[int] = set()
    for _, at, ends in attributes(data, start, end):
        found |= {at - 1, *range(ends, (ends + 3) & ~3)}
        if ends - at > 4 and int.from_bytes(data[at : at + 2], sys.byteorder) <= ends - at:
            found |= _padding(data, at, ends)
    return found


def _unused(data: bytes, name: bytes, start: int, end: int) -> set[int]:
    """What an extension has in it besides what it is told."""
    if name == b"comment":
        return {*range(data.index(0, start) + 1, end)}
    if name == b"recent":
        return {
            *range(data.index(0, start + 10) + 1, start + 210),
            *range(start + 211, start + 212),
        } | {*range(start + 216, end)}
    return {*range(start + {b"statistic": 8, b"DNAT": 42}.get(name, 12), end)}


@pytest.mark.parametrize("chain", KINDS)
def test_every_bit_counts(namespace: Namespace, tool: Tool, chain: str) -> None:
    """Whether a chain like it was printed before or not, and no bit of a rule is overlooked."""
    lines = [f":{name} - [0:0]" for name in ("KUBE-MARK", *KINDS)]
    lines += [f"-A {name} {rule}" for name, rules in KINDS.items() for rule in rules]
    write(namespace, tool, Family.V4, "\n".join(["*nat", *lines, "COMMIT", ""]))

    def dumped() -> bytes:
        with Channel() as channel:
            return nftables.chain_dump(channel, Family.V4, "nat", chain)

    data = namespace.call(dumped)
    silent = insignificant(data)
    first = printed_or_not(Printer(Family.V4), chain, data)
    assert first is not None
    assert len(silent) < len(data) * 0.8
    for at in counting(data):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        experienced = Printer(Family.V4)
        experienced.chain(chain, data)
        found = printed_or_not(experienced, chain, bytes(changed))
        fresh = printed_or_not(Printer(Family.V4), chain, bytes(changed))
        assert found == fresh or at in silent, at
        assert found != first or at in silent, at


def printed_or_not(printer: Printer, chain: str, data: bytes) -> str | None:
    try:
        return printer.chain(chain, data)
    except UnknownError:
        return None
