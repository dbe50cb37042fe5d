"""The tables of one family through the chosen backend's own programs.

``iptables-restore`` is the only writer. It takes a whole transaction, hands each table to the
kernel in one call, and with ``--noflush`` leaves alone what the transaction does not name; so
no packet ever meets a half-written table, and rules of others stay. A text with more than one
table is that many transactions: if the second is refused, the first has happened.

On legacy, every writer holds one lock per machine (``/run/xtables.lock``; in a container the
host's file must be mounted, or it excludes nobody). nft has no lock, the kernel detects a
conflict and the program tries again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from agent.kernel import nftables, refusal
from agent.kernel.detect import Backend, Tool
from agent.kernel.errors import REMEDY, HostError, KernelError, PrivilegeError
from agent.state.values import Family
from agent.sync.port import ReadError, Refusal, RestoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from agent.kernel.tools import Finished, Runner

P = ParamSpec("P")
T = TypeVar("T")

#: A chain that no packet visits, for asking the kernel about a rule.
PROBE_CHAIN = "KUBE-PROXY-PROBE"
#: Seconds that a program gets. The slowest restore that was measured took four minutes, with
#: everything in one transaction; in transactions of the usual size two seconds. The wait for the
#: lock is part of it.
TIMEOUT = 120.0
#: ``MASQUERADE --random-fully`` came with this version of iptables (its changelog).
_RANDOM_FULLY_SINCE = (1, 6, 2)
_PROBE_ATTEMPTS = 3
_PRIVILEGE = ("you must be root", "Permission denied", "Operation not permitted")
_NO_CHAIN = "No chain/target/match by that name"
_INCOMPATIBLE = "is incompatible, use 'nft' tool"


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What this machine can do, asked once at start.

    Attributes:
        tool: the chosen backend's program.
        reason: why that backend was chosen.
        families: those that work.
        missing: the others, and what the program said.
        random_fully: MASQUERADE may use ``--random-fully``.
        counters: which nfacct counters a rule can name, by family.
        uncounted: the others, and why.
    """

    tool: Tool
    reason: str
    families: tuple[Family, ...]
    missing: dict[Family, str]
    random_fully: bool
    counters: frozenset[tuple[Family, str]]
    uncounted: dict[tuple[Family, str], str]

    @property
    def backend(self) -> Backend:
        """The chosen backend."""
        return self.tool.backend

    def counts(self, family: Family, counter: str) -> bool:
        """Whether rules of the family can name the counter."""
        return (family, counter) in self.counters


class Iptables:
    """The port ``agent.sync.port.Kernel`` for one family, by running the backend's programs."""

    def __init__(
        self,
        tool: Tool,
        family: Family,
        *,
        runner: Runner,
        lock_wait: int = 5,
        timeout: float = TIMEOUT,
        generations: nftables.Generations | None = None,
    ) -> None:
        """Nothing is run yet.

        Args:
            tool: the backend's program.
            family: IPv4 or IPv6.
            runner: runs it.
            lock_wait: seconds to wait for the xtables lock (legacy only).
            timeout: seconds until a program that hangs is killed.
            generations: on nft, watches for changes by others; one for all families.
        """
        self.tool = tool
        self.family = family
        self._runner = runner
        self._wait = ("-w", str(lock_wait))
        self._timeout = timeout
        self._generations = generations if tool.backend is Backend.NFT else None

    def restore(self, text: str) -> None:
        """Apply restore input, each table atomically, keeping chains that it does not name.

        Raises:
            RestoreError: it was not accepted; tables before the one at fault were.
        """
        before = self._generations.before() if self._generations else None
        finished = self._restore(text)
        if finished.status == 0:
            if self._generations:
                commits = f"\n{text}".count("\nCOMMIT")
                self._generations.restored(before, commits)
            return
        complaint = refusal.parse(finished.status, finished.err, text)
        if self.tool.backend is Backend.LEGACY and refusal.needs_second_look(complaint, text):
            self._look_again(text, complaint, finished)
        else:
            raise self._refused(finished, complaint)

    def save(self, table: str) -> str:
        """Return the table's chains and rules as ``iptables-save -t TABLE`` prints them.

        Raises:
            ReadError: they could not be read.
        """
        return self._read("-save", "-t", table).out

    def save_all(self) -> str:
        """Return all tables that exist as ``iptables-save`` prints them, creating none.

        Raises:
            ReadError: they could not be read.
        """
        return self._read("-save").out

    def chains(self, table: str) -> set[str]:
        """Return the names of the table's chains.

        Raises:
            ReadError: they could not be read.
        """
        if self.tool.backend is Backend.NFT:
            return self._asking(nftables.chain_names, self.family, table)
        return {
            line[1:].split(" ", 1)[0]
            for line in self.save(table).splitlines()
            if line.startswith(":")
        }

    def confirm(self) -> None:
        """From here on, watch whether anybody else changes the rules of this machine.

        Raises:
            ReadError: the kernel could not be asked.
        """
        if self._generations:
            self._asking(self._generations.confirm, self.family)

    def untouched(self) -> bool:
        """Whether, for certain, nobody else has changed any rule since ``confirm``.

        Legacy cannot tell.
        """
        return self._generations is not None and self._generations.untouched(self.family)

    def digests(self, table: str, chains: Collection[str]) -> dict[str, bytes] | None:
        """Return a digest of the rules of each chain that has any; None on legacy.

        Raises:
            ReadError: they could not be read.
        """
        if self.tool.backend is not Backend.NFT:
            return None
        return self._asking(nftables.digests, self.family, table, chains)

    def _asking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask over netlink; what the kernel refuses is a ``ReadError``."""
        try:
            return function(*args, **kwargs)
        except KernelError as error:
            raise ReadError(str(error)) from error

    def chain(self, table: str, chain: str) -> list[str] | None:
        """Return the chain's rules as ``-A CHAIN ...`` lines, or None if there is no such chain.

        Raises:
            ReadError: it could not be read.
        """
        finished = self._run("", *self._wait, "-t", table, "-S", chain)
        if finished.status == 0:
            head, *rules = finished.out.splitlines() or [""]
            if head.split()[:2] not in (["-P", chain], ["-N", chain]):
                raise ReadError(
                    f"listing chain {chain} of table {table} printed no such chain: {head[:80]!r}"
                )
            return [line for line in rules if line.startswith("-A ")]
        if _NO_CHAIN in finished.err:
            return None
        # iptables-nft 1.8.9 says this both of a chain that only nft can list and of one that
        # does not exist.
        if _INCOMPATIBLE in finished.err and f"\n:{chain} " not in self.save(table):
            return None
        raise ReadError(self._failed(f"listing chain {chain} of table {table}", finished))

    def check(self) -> None:
        """Ask for one built-in chain, to see whether the family works here at all.

        Raises:
            PrivilegeError: this process may not ask.
            ReadError: the kernel or the program cannot do it.
        """
        finished = self._run("", *self._wait, "-t", "nat", "-S", "POSTROUTING")
        if finished.status == 0:
            return
        if any(phrase in finished.err for phrase in _PRIVILEGE):
            raise PrivilegeError(f"{self._failed('listing the nat table', finished)}; {REMEDY}")
        raise ReadError(self._failed("listing the nat table", finished))

    def accepts(self, match: str) -> bool:
        """Whether the kernel takes a rule with this match, by really adding one.

        The rule stands for a moment in a chain of the filter table that nothing jumps to. Only
        that asks the kernel: ``--test`` does not on either backend.

        Raises:
            RestoreError: the question could not be asked.
        """
        text = (
            f"*filter\n:{PROBE_CHAIN} - [0:0]\n-A {PROBE_CHAIN} {match} -j RETURN\nCOMMIT\n"
            f"*filter\n-F {PROBE_CHAIN}\n-X {PROBE_CHAIN}\nCOMMIT\n"
        )
        try:
            self.restore(text)
        except RestoreError as error:
            if error.refusal is not Refusal.INPUT:
                raise
            return False
        return True

    def _look_again(self, text: str, complaint: refusal.Complaint, finished: Finished) -> None:
        """Find out why legacy refused a COMMIT: it gives no reason (see ``refusal``).

        What was refused is tried once more, which settles a race. If it is refused again, the
        table is written as it is: if even that fails, the reason is not in the input.
        """
        line = complaint.line or 0
        start, table = refusal.block_before(text, line)
        rest = "".join(f"{part}\n" for part in text.splitlines()[start:])
        again = self._restore(rest)
        if again.status == 0:
            return
        found = refusal.parse(again.status, again.err, rest)
        if found.line is not None:
            found = dataclasses.replace(found, line=found.line + start)
        if found == complaint:
            unchanged = f"*{table}\n:{PROBE_CHAIN} - [0:0]\n-X {PROBE_CHAIN}\nCOMMIT\n"
            if self._restore(unchanged).status != 0:
                found = dataclasses.replace(found, refusal=Refusal.BUSY)
        raise self._refused(again if found != complaint else finished, found)

    def _restore(self, text: str) -> Finished:
        try:
            return self._runner.run(
                [
                    *self.tool.command(self.family, "-restore"),
                    "--noflush",
                    "--counters",
                    *self._wait,
                ],
                stdin=text,
                timeout=self._timeout,
            )
        except KernelError as error:
            raise RestoreError(str(error), Refusal.BROKEN, line=None, stderr="") from error

    def _refused(self, finished: Finished, complaint: refusal.Complaint) -> RestoreError:
        return RestoreError(
            self._failed("restoring a transaction", finished),
            complaint.refusal,
            line=complaint.line,
            stderr=refusal.shorten(finished.err),
        )

    def _read(self, verb: str, *options: str) -> Finished:
        finished = self._run(verb, *options)
        if finished.status != 0:
            what = " ".join((verb, *options))
            raise ReadError(self._failed(f"reading rules ({what})", finished))
        return finished

    def _run(self, verb: str, *options: str) -> Finished:
        argv = [*self.tool.command(self.family, verb), *options]
        try:
            return self._runner.run(argv, timeout=self._timeout)
        except KernelError as error:
            raise ReadError(str(error)) from error

    def _failed(self, action: str, finished: Finished) -> str:
        name = f"{self.tool.command(self.family)[1]} ({self.tool.backend.value})"
        said = " ".join(refusal.shorten(finished.err).split()) or "it said nothing"
        return f"{action} with {name} ended with status {finished.status}: {said}"


def probe(tool: Tool, reason: str, *, runner: Runner, counters: Iterable[str] = ()) -> Capabilities:
    """Ask once what this machine can do.

    Args:
        tool: the chosen backend's program.
        reason: why it was chosen.
        runner: runs it.
        counters: nfacct counters that exist in this network namespace; each is tried in a rule.

    Raises:
        PrivilegeError: this process may not change rules.
        HostError: neither family works.
    """
    missing: dict[Family, str] = {}
    counting: dict[tuple[Family, str], str] = {}
    names = tuple(counters)
    for family in Family:
        iptables = Iptables(tool, family, runner=runner)
        try:
            iptables.check()
        except ReadError as error:
            missing[family] = str(error)
        else:
            counting |= {(family, name): _why_not_count(iptables, name) for name in names}
    if len(missing) == len(Family):
        raise HostError(
            f"the {tool.backend.value} backend works for neither family: "
            + "; ".join(missing.values())
            + f". If this kernel lacks it, set iptables.backend to {tool.backend.other.value}"
        )
    return Capabilities(
        tool=tool,
        reason=reason,
        families=tuple(family for family in Family if family not in missing),
        missing=missing,
        random_fully=tool.version >= _RANDOM_FULLY_SINCE,
        counters=frozenset(counter for counter, why in counting.items() if not why),
        uncounted={counter: why for counter, why in counting.items() if why},
    )


def _why_not_count(iptables: Iptables, counter: str) -> str:
    """Why rules cannot name a counter; empty if they can."""
    for _ in range(_PROBE_ATTEMPTS):
        try:
            if iptables.accepts(f"-m nfacct --nfacct-name {counter}"):
                return ""
        except RestoreError as error:
            why = str(error)  # no answer: the lock, say
        else:
            return "the kernel takes no rule with the nfacct match and this counter"
    return why
