"""A large table of iptables-nft's, read by more than one process.

``iptables-nft-save`` asks the kernel about one chain after the other and prints the first line
when it has them all: with 60,000 chains 3 to 4 s, on one core. Here as many processes as there
are cores (up to four) ask, each about its share of the chains, print the rules
(``agent.kernel.printer``) and read them (``agent.inspect.usual``), while this one takes in what
is ready.

What is not known there is asked of the tool, chain by chain: rules of others, and those of ours
that there are few of. Whenever anything is not as expected - too much that is not known, a table
that changes meanwhile, a process that ends early - there is no result, and the caller asks the
tool for everything. So what this does not know costs time and nothing else.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from agent.inspect.tables import Chain, Tables, chain_of, read_tables
from agent.inspect.usual import UsualEndpoint, UsualLottery, usual
from agent.kernel import nftables
from agent.kernel.errors import KernelError
from agent.kernel.expressions import UnknownError
from agent.kernel.iptables import Iptables
from agent.kernel.netlink import Channel
from agent.kernel.nftables import Declared
from agent.kernel.printer import Printer
from agent.rules.words import ParseError
from agent.state.values import Family
from agent.sync.port import ReadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner

#: Chains from which on this is worth it, and how many may be left to the tool.
LARGE = 5000
_MOST_OTHERS = 200
#: The tables that iptables knows, with their built-in chains, which it prints even when the kernel
#: has made none of them yet.
_TABLES = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "raw": ("PREROUTING", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}
_TABLE, _PREFIX = "nat", "KUBE-"
#: Processes at most: each begins with a list of all chains.
_MOST_PROCESSES = 4
_BATCH = 500
_SIZE = 4
_ROOT = Path(__file__).parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from agent.kernel.readout import main; main()"
)


class Read(msgspec.Struct, array_like=True, gc=False):
    """A chain as a process read it.

    Attributes:
        name: its name.
        run: its rules, a line each.
        endpoint: what it does, if it is an endpoint's.
        lottery: or if it is a lottery.
    """

    name: str
    run: str
    endpoint: UsualEndpoint | None = None
    lottery: UsualLottery | None = None


class Part(msgspec.Struct, array_like=True):
    """What a process sends.

    Attributes:
        chains: some that it knows.
        others: chains that it does not know: at last, with which it has sent everything.
    """

    chains: list[Read] = []
    others: list[Declared] | None = None


def read_large(tool: Tool, family: Family, runner: Runner, *, least: int = LARGE) -> Tables | None:
    """All tables of a family of iptables-nft's, if there are many chains.

    Args:
        tool: of the nft backend.
        family: IPv4 or IPv6.
        runner: runs the tool.
        least: chains from which on.

    Returns:
        None if there are fewer, or if only the tool can tell what is there.
    """
    try:
        before = nftables.generation()
        if nftables.sizes(family).get(_TABLE, 0) < least:
            return None
        found = _read(Iptables(tool, family, runner=runner))
        return found if nftables.generation() == before else None
    except (KernelError, ReadError, ParseError, OSError, msgspec.DecodeError):
        return None


def _read(iptables: Iptables) -> Tables | None:
    shares = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    read: dict[str, Chain] = {}
    others: set[Declared] = set()
    with ThreadPoolExecutor(shares) as pool:
        parts = [pool.submit(_share, iptables.family, n, shares) for n in range(shares)]
        for part in parts:
            known, unknown = part.result()
            read |= known
            others |= set(unknown)
    if not read or len(others) > _MOST_OTHERS:
        return None
    tables = read_tables(_printed(iptables, sorted(others)), iptables.family)
    tables.tables.setdefault(_TABLE, {}).update(sorted(read.items()))
    return tables


def _share(family: Family, number: int, shares: int) -> tuple[dict[str, Chain], list[Declared]]:
    """Have a process read one of so many shares of the chains; and those that it does not know.

    Raises:
        OSError: it cannot be started, or ended early.
    """
    argv = [
        sys.executable,
        "-I",
        "-c",
        _PROGRAM,
        str(_ROOT),
        family.value,
        str(number),
        str(shares),
    ]
    chains: dict[str, Chain] = {}
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    ) as process:
        for part in _parts(process.stdout):
            for one in part.chains:
                chains[one.name] = chain_of(one.name, one.run, one.endpoint or one.lottery)
            if part.others is not None:
                return chains, part.others
    raise OSError("it ended early")


def _parts(stream: IO[bytes] | None) -> Iterator[Part]:
    decoder = msgspec.msgpack.Decoder(Part)
    while stream is not None and (head := stream.read(_SIZE)):
        yield decoder.decode(stream.read(int.from_bytes(head, "big")))


def _printed(iptables: Iptables, chains: Sequence[Declared]) -> str:
    """What the tool says of some chains, as if their tables had no others."""
    version = ".".join(map(str, iptables.tool.version))
    lines = [f"# Generated by {iptables.tool.command(iptables.family, '-save')[1]} v{version}"]
    for table in dict.fromkeys((_TABLE, *[one.table for one in chains if one.table in _TABLES])):
        mine = {one.name: one.policy or "-" for one in chains if one.table == table}
        lines.append(f"*{table}")
        declared = dict.fromkeys(_TABLES[table], "ACCEPT") | mine
        lines += [f":{name} {policy} [0:0]" for name, policy in declared.items()]
        for name in mine:
            rules = iptables.chain(table, name)
            if rules is None:
                raise ReadError(f"chain {name} of table {table} cannot be listed, or went away")
            lines += rules
        lines.append("COMMIT")
    return "\n".join([*lines, ""])


# In a process of its own -------------------------------------------------------------------


def main() -> None:
    """Read a share of the chains; parts go to the standard output."""
    gc.disable()  # nothing here is garbage before the end
    family, number, shares = Family(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    names, others = nftables.declared(family, _TABLE, _PREFIX)
    names = names[number::shares]
    printer = Printer(family)
    with Channel() as channel:
        for start in range(0, len(names), _BATCH):
            part = Part()
            for name in names[start : start + _BATCH]:
                read = _chain(channel, printer, family, name)
                if read is None:
                    others.append(Declared(_TABLE, name, ""))
                else:
                    part.chains.append(read)
            _send(part)
            if len(others) > _MOST_OTHERS:
                return  # too much is not known: the tool will tell
    _send(Part(others=others))


def _send(part: Part) -> None:
    data = msgspec.msgpack.encode(part)
    sys.stdout.buffer.write(len(data).to_bytes(_SIZE, "big") + data)
    sys.stdout.buffer.flush()


def _chain(channel: Channel, printer: Printer, family: Family, name: str) -> Read | None:
    """A chain, if its rules are known."""
    try:
        run = printer.chain(name, nftables.chain_dump(channel, family, _TABLE, name))
    except UnknownError:
        return None
    does = usual(name, run)
    if isinstance(does, UsualEndpoint):
        return Read(name, run, endpoint=does)
    return Read(name, run, lottery=does)
