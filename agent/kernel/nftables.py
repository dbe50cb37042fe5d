"""Looking at iptables-nft's tables over netlink: which chains there are, and whether they changed.

``iptables-nft-save`` prints everything and takes seconds for a large table. The kernel can be
asked for less:

- Names of chains cost a tenth of a dump of rules.
- Each change of the ruleset of a network namespace, by whomever, raises one number, the
  generation. If it rose by what our own transactions account for, nobody else changed anything.
- The rules of one chain, as bytes. What they mean is left to the tool; a digest of them tells
  whether they are still like those that were there before. What counts and numbers is left out.

Messages and attributes: ``linux/netfilter/nf_tables.h``. All of it speaks of the network namespace
of the calling thread.
"""

from __future__ import annotations

import errno
import hashlib
import re
import socket
from typing import TYPE_CHECKING

from agent.kernel.errors import DumpInterruptedError, KernelError, NetlinkError
from agent.kernel.netlink import (
    ATTRIBUTES,
    Channel,
    attributes,
    string,
    values,
    without,
)
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SUBSYSTEM = 10 << 8
_GET_CHAIN = _SUBSYSTEM | 4
_GET_RULE = _SUBSYSTEM | 7
_GET_GENERATION = _SUBSYSTEM | 16
_CHAIN_TABLE, _CHAIN_NAME = 1, 3
_RULE_TABLE, _RULE_CHAIN = 1, 2
#: What the kernel numbers a rule by, itself and the one in front of it.
_RULE_NUMBERS = {3, 6}
_GENERATION_ID = 1
_FAMILIES = {Family.V4: socket.AF_INET, Family.V6: socket.AF_INET6}
#: A counter expression: its name, then bytes and packets, each behind a header.
_COUNTER = re.compile(rb"counter\x00.{4}(.{4}).{8}.{4}.{8}", re.DOTALL)
_BLOT = b"counter"
_DUMP_ATTEMPTS = 3


def generation() -> int:
    """The number that every change of any nftables ruleset of this namespace raises.

    Raises:
        PrivilegeError: this process may not ask.
        UnsupportedError: the kernel has no nftables.
        NetlinkError: the kernel refused.
    """
    with Channel() as channel:
        for answer in channel.request("asking for the generation", 0, _GET_GENERATION):
            found = values(answer)
            if _GENERATION_ID in found:
                return int.from_bytes(found[_GENERATION_ID], "big")
    raise NetlinkError("the kernel named no generation", errno.ENODATA)


def chain_names(family: Family, table: str) -> set[str]:
    """Names of a table's chains; none if there is no such table.

    Raises:
        PrivilegeError: this process may not ask.
        UnsupportedError: the kernel has no nftables.
        NetlinkError: the kernel refused, or the table kept changing.
    """
    for attempt in range(_DUMP_ATTEMPTS):
        try:
            return set(_dump_chains(family, table.encode()))
        except DumpInterruptedError:
            if attempt == _DUMP_ATTEMPTS - 1:
                raise
    raise AssertionError


def _dump_chains(family: Family, table: bytes) -> Iterator[str]:
    with Channel() as channel:
        action = f"listing chains of {family.value} {table.decode()}"
        for answer in channel.dump(action, _FAMILIES[family], _GET_CHAIN):
            name = _chain_of(answer, table + b"\0")
            if name:
                yield name.decode()


def _chain_of(answer: bytes, table: bytes) -> bytes:
    """The chain's name if it is in the table (with a zero at its end), else nothing.

    There may be a hundred thousand, so no attribute is looked at in vain.
    """
    mine, name = False, b""
    for kind, start, end in attributes(answer, ATTRIBUTES, len(answer)):
        if kind == _CHAIN_TABLE:
            mine = answer[start:end] == table
            if not mine:
                break
        elif kind == _CHAIN_NAME:
            name = answer[start : end - 1]
        if mine and name:
            return name
    return b""


def digests(family: Family, table: str, chains: Iterable[str]) -> dict[str, bytes]:
    """A digest of the rules of each chain as they are.

    Chains without rules, and chains that do not exist, are left out. The same tool gives the same
    rules the same digest, also when it writes them again.

    Raises:
        PrivilegeError: this process may not ask.
        UnsupportedError: the kernel has no nftables.
        NetlinkError: the kernel refused, or a chain kept changing.
    """
    found: dict[str, bytes] = {}
    of_table = string(_RULE_TABLE, table)
    with Channel() as channel:
        for chain in chains:
            action = f"reading chain {chain} of {family.value} {table}"
            digest = _digest(channel, action, family, of_table + string(_RULE_CHAIN, chain))
            if digest is not None:
                found[chain] = digest
    return found


def _digest(channel: Channel, action: str, family: Family, body: bytes) -> bytes | None:
    for attempt in range(_DUMP_ATTEMPTS):
        digest, empty = hashlib.blake2b(digest_size=16), True
        try:
            for answer in channel.dump(action, _FAMILIES[family], _GET_RULE, body):
                digest.update(_COUNTER.sub(_BLOT, without(answer, ATTRIBUTES, _RULE_NUMBERS)))
                empty = False
        except DumpInterruptedError:
            if attempt == _DUMP_ATTEMPTS - 1:
                raise
        except NetlinkError as error:
            if error.number == errno.ENOENT:
                return None
            raise
        else:
            return None if empty else digest.digest()
    raise AssertionError


class Generations:
    """Tells, for each family, whether anybody but us has changed the ruleset.

    The kernel raises the generation once for each table that a restore commits. If it rose by
    just that since it was last known, everything in between was ours. Whatever cannot be told,
    because the kernel does not answer, counts as changed.
    """

    def __init__(self) -> None:
        self._known: dict[Family, int] = {}

    def confirm(self, family: Family) -> None:
        """Watch from here on.

        Raises:
            NetlinkError, PrivilegeError, UnsupportedError: the kernel does not tell.
        """
        self._known[family] = generation()

    def before(self) -> int | None:
        """The generation in front of a restore, for ``restored``."""
        try:
            return generation()
        except KernelError:
            return None

    def restored(self, before: int | None, commits: int) -> None:
        """A restore of so many tables was accepted."""
        after = self.before()
        ours = before is not None and after == before + commits
        self._known = {
            family: before + commits
            for family, known in self._known.items()
            if ours and before is not None and known == before
        }

    def untouched(self, family: Family) -> bool:
        """Whether everything that changed since ``confirm`` is ours, for certain."""
        known = self._known.get(family)
        return known is not None and known == self.before()
