"""Where the looking commands get tables from: this node's kernel, or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.packet import Host
from agent.inspect.survey import Survey
from agent.inspect.tables import Tables, read_tables
from agent.kernel.addresses import list_addresses
from agent.kernel.detect import Backend, choose, installed
from agent.kernel.dump import dump
from agent.kernel.errors import HostError, KernelError
from agent.kernel.readout import read_large
from agent.kernel.routes import interface_towards, source_towards
from agent.kernel.sysctl import ROUTE_LOCALNET, TCP_BE_LIBERAL, Sysctls
from agent.kernel.tools import SubprocessRunner
from agent.rules import names
from agent.rules.words import ParseError
from agent.state.values import Family
from agent.sync.port import ReadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner


class LookError(Exception):
    """The rules could not be looked at (exit status 2); says what was tried."""


class Held(msgspec.Struct, frozen=True):
    """The tables of one family, and where they are.

    Attributes:
        survey: of the tables.
        backend: of the kernel; empty for a file.
        path: the file; empty for the kernel.
        other: the same family's tables in the other backend, if any exist there.
    """

    survey: Survey
    backend: str = ""
    path: str = ""
    other: Tables | None = None

    @property
    def tables(self) -> Tables:
        """The tables."""
        return self.survey.tables

    @property
    def family(self) -> Family:
        """The family."""
        return self.survey.tables.family

    @property
    def where(self) -> str:
        """In words: family, and backend or file."""
        place = f"iptables-{self.backend}" if self.backend else self.path
        return f"{self.family.value}, {place}"


class Node(msgspec.Struct, frozen=True):
    """What is known of the node besides its rules.

    Attributes:
        host: its addresses and routes.
        cidrs: its addresses with their prefixes.
        tcp_be_liberal: the sysctl, None if unknown.
        localnet: packets from 127.0.0.1 can be routed, or an agent here could make it so.
        live: it is this one.
    """

    host: Host
    cidrs: tuple[str, ...] = ()
    tcp_be_liberal: bool | None = None
    localnet: bool = True
    live: bool = False


Tell = Callable[[str], None]


def quiet(_: str) -> None:
    """Tell nobody."""


class Options(msgspec.Struct, frozen=True):
    """Which tables to look at.

    Attributes:
        file: path of a saved dump, ``-`` for the standard input; empty for the kernel.
        family: only this one.
        backend: ``auto``, ``legacy`` or ``nft``.
        addresses: of the node, for a file.
        tell: is told what is waited for, if it takes long.
    """

    file: str = ""
    family: Family | None = None
    backend: str = "auto"
    addresses: tuple[str, ...] = ()
    tell: Tell = quiet


def read_held(options: Options, runner: Runner | None = None) -> list[Held]:
    """Read the tables, of both families unless one is asked for.

    Raises:
        LookError: nothing could be read, or what was read is no dump.
        HostError: no iptables is installed, or this process may not ask.
    """
    if options.file:
        return [_from_file(options)]
    runner = runner or SubprocessRunner()
    families = [options.family] if options.family else list(Family)
    try:
        return _from_kernel(options.backend, families, runner)
    except (ReadError, ParseError) as error:
        raise LookError(f"the kernel's rules cannot be read: {error}") from error


def _from_file(options: Options) -> Held:
    name = "the standard input" if options.file == "-" else options.file
    try:
        if options.file == "-":
            text = sys.stdin.buffer.read().decode()
        else:
            text = Path(options.file).read_bytes().decode()
    except OSError as error:
        raise LookError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LookError(f"{name} is not text: byte {error.start} is not UTF-8") from error
    try:
        tables = read_tables(text, options.family)
    except ParseError as error:
        raise LookError(f"{name}: {error}") from error
    return Held(Survey(tables), path=name)


def _from_kernel(backend: str, families: Sequence[Family], runner: Runner) -> list[Held]:
    chosen, texts = _texts(backend, families, runner)
    readable = [family for family in families if (chosen, family) in texts]
    return [_held(chosen, family, texts) for family in readable]


#: What both backends hold of each family: texts, or tables that were too large for that.
_Texts = dict[tuple[Backend, Family], str | Tables]


def _texts(backend: str, families: Sequence[Family], runner: Runner) -> tuple[Backend, _Texts]:
    """The backend to look at, and what both hold of each family that can be read."""
    tools = installed(runner)
    if backend != "auto" and tools[Backend(backend)] is None:
        raise HostError(f"iptables-{backend} is not installed; choose another backend")
    texts: _Texts = {}
    failures: dict[Family, ReadError] = {}
    wanted = [(one, tool, family) for one, tool in tools.items() if tool for family in families]
    with ThreadPoolExecutor(len(wanted)) as pool:  # they are other processes: all cores have work
        dumps = [(o, f, pool.submit(_dump, tool, f, runner)) for o, tool, f in wanted]
    for one, family, dumped in dumps:
        try:
            texts[one, family] = dumped.result()
        except ReadError as error:
            failures[family] = error
    chosen = _pick(backend, texts, runner)
    if not any(one is chosen for one, _ in texts):
        raise next(iter(failures.values()))
    return chosen, texts


def _dump(tool: Tool, family: Family, runner: Runner) -> str | Tables:
    large = read_large(tool, family, runner) if tool.backend is Backend.NFT else None
    return large or dump(tool, family, runner)


def _pick(backend: str, texts: _Texts, runner: Runner) -> Backend:
    """The backend to look at: the one that holds Service rules; the kubelet's, if both do."""
    if backend != "auto":
        return Backend(backend)
    holding = {one for (one, _), held in texts.items() if _names(held, names.SERVICES)}
    if len(holding) == 1:
        return holding.pop()
    chosen = choose("auto", runner).backend
    return chosen if any(one is chosen for one, _ in texts) else chosen.other


def _held(chosen: Backend, family: Family, texts: _Texts) -> Held:
    held = texts[chosen, family]
    tables = held if isinstance(held, Tables) else read_tables(held, family)
    if tables.unreadable:
        raise LookError(
            f"iptables-{chosen.value} cannot read the {family.value} table"
            f" {', '.join(tables.unreadable)}: something has written into it with nft, past"
            " iptables; 'nft list ruleset' shows it"
        )
    other: str | Tables | None = texts.get((chosen.other, family), "")
    if isinstance(other, str):
        other = read_tables(other, family) if "\n:KUBE-" in other else None
    return Held(Survey(tables), backend=chosen.value, other=other)


def _names(held: str | Tables, chain: str) -> bool:
    """Whether there is such a chain."""
    if isinstance(held, Tables):
        return any(chain in chains for chains in held.tables.values())
    return f"\n:{chain} " in held


def chosen_tool(options: Options, runner: Runner) -> Tool:
    """The program of the backend that holds Service rules.

    Raises:
        LookError: the rules cannot be read.
        HostError: no iptables is installed, or this process may not ask.
    """
    tools = installed(runner)
    present = [tool for tool in tools.values() if tool is not None]
    if len(present) == 1 and options.backend == "auto":
        return present[0]
    try:
        chosen, _ = _texts(options.backend, families_of(options), runner)
    except ReadError as error:
        raise LookError(f"the kernel's rules cannot be read: {error}") from error
    tool = tools[chosen]
    if tool is None:
        raise HostError(f"iptables-{chosen.value} is not installed")
    return tool


def families_of(options: Options) -> tuple[Family, ...]:
    """The families that are asked for."""
    return (options.family,) if options.family else tuple(Family)


def this_node(options: Options) -> Node:
    """What is known of the node: this one's, unless a file is looked at.

    Raises:
        LookError: its addresses cannot be listed.
    """
    if options.file:
        given = tuple(options.addresses)
        return Node(Host(_plain(given)), given)
    try:
        cidrs = (*list_addresses(), *options.addresses)
    except KernelError as error:
        raise LookError(str(error)) from error
    sysctls = Sysctls()
    liberal = sysctls.read_int(TCP_BE_LIBERAL).value
    return Node(
        Host(_plain(cidrs), interface_towards, source_towards),
        cidrs,
        None if liberal is None else bool(liberal),
        # In a container without privilege the agent goes without, and so are its rules.
        sysctls.could_be(ROUTE_LOCALNET, 1),
        live=True,
    )


def _plain(cidrs: Sequence[str]) -> frozenset[str]:
    return frozenset(cidr.partition("/")[0] for cidr in cidrs)
