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
import functools
import hashlib
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple

from agent.kernel.errors import DumpInterruptedError, KernelError, NetlinkError
from agent.kernel.netlink import (
    ATTRIBUTES,
    FAMILIES,
    Channel,
    attribute,
    attributes,
    string,
    values,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.state.values import Family

_SUBSYSTEM = 10 << 8
_GET_TABLE = _SUBSYSTEM | 1
_GET_CHAIN = _SUBSYSTEM | 4
_GET_RULE = _SUBSYSTEM | 7
_GET_GENERATION = _SUBSYSTEM | 16
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY = 1, 3, 4, 5
_POLICIES = ("DROP", "ACCEPT")
_RULE_TABLE, _RULE_CHAIN = 1, 2
#: What the kernel numbers a rule by, itself and the one in front of it: eight bytes each.
_RULE_HANDLE, _RULE_POSITION = 3, 6
_RULE_NAMES = {_RULE_TABLE, _RULE_CHAIN, _RULE_HANDLE, _RULE_POSITION}
_NUMBER_SIZE = 12
_HANDLE, _POSITION, _CHAIN_HANDLE = (
    attribute(kind, bytes(8))[:-8] for kind in (_RULE_HANDLE, _RULE_POSITION, 2)
)
_CHAIN_NAME_TYPE = attribute(_CHAIN_NAME)[2:]
#: The name of a counter expression; behind it, nested, come bytes and packets.
_COUNTER = string(1, "counter")
_COUNTS_SIZE = 4 + 2 * _NUMBER_SIZE
_RULE_EXPRESSIONS = 4
_HEAD = struct.Struct("=IHH")
_NEW_RULE = _SUBSYSTEM | 6
_INTERRUPTED = 0x10
_GENERATION_ID = 1
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
            return set(_dump_chains(family, table))
        except DumpInterruptedError:
            if attempt == _DUMP_ATTEMPTS - 1:
                raise
    raise AssertionError


def _dump_chains(family: Family, table: str) -> Iterator[str]:
    mine = string(_CHAIN_TABLE, table)
    with Channel() as channel:
        action = f"listing chains of {family.value} {table}"
        for answer in channel.dump(action, FAMILIES[family], _GET_CHAIN):
            name = _chain_of(answer, mine)
            if name:
                yield name.decode()


def _chain_of(answer: bytes, table: bytes) -> bytes:
    """The chain's name if it is in the table, else nothing.

    There may be a hundred thousand, and the kernel lists those of all tables. So it is looked at
    where the kernel puts them: the table, a number, the name.

    Args:
        answer: the message.
        table: the table's name, as an attribute.
    """
    if answer.startswith(table, ATTRIBUTES):
        at = ATTRIBUTES + len(table)
        if answer.startswith(_CHAIN_HANDLE, at):
            at += _NUMBER_SIZE
        if answer[at + 2 : at + 4] == _CHAIN_NAME_TYPE:
            end = at + int.from_bytes(answer[at : at + 2], sys.byteorder)
            return answer[at + 4 : end - 1]
    elif answer[ATTRIBUTES + 2 : ATTRIBUTES + 4] == table[2:4]:
        return b""  # another table's
    found = values(answer)
    name = found.get(_CHAIN_NAME, b"")[:-1]
    return name if found.get(_CHAIN_TABLE) == table[4:].rstrip(b"\0") + b"\0" else b""


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
    of_table, place = string(_RULE_TABLE, table), f"{family.value} {table}"
    with Channel() as channel:
        for chain in chains:
            action = f"reading chain {chain} of {place}"
            digest = _digest(channel, action, family, of_table + string(_RULE_CHAIN, chain))
            if digest is not None:
                found[chain] = digest
    return found


def _digest(channel: Channel, action: str, family: Family, body: bytes) -> bytes | None:
    for attempt in range(_DUMP_ATTEMPTS):
        try:
            data = channel.dump_whole(action, FAMILIES[family], _GET_RULE, body)
            rules = b"".join(_contents(action, data, body))
        except DumpInterruptedError:
            if attempt == _DUMP_ATTEMPTS - 1:
                raise
        except NetlinkError as error:
            if error.number == errno.ENOENT:
                return None
            raise
        else:
            return _digest_of(rules) if rules else None
    raise AssertionError


def _contents(action: str, data: bytes, body: bytes) -> list[bytes]:
    """What rules do: without their table, their chain, and what the kernel numbers them by.

    An audit calls this for ten thousand rules, so it is looked at where the kernel puts these:
    in front of all else. What comes in another order is taken apart.
    """
    found: list[bytes] = []
    start, end = 0, len(data)
    while start < end:
        length, _, flags = _HEAD.unpack_from(data, start)
        following = start + length
        if flags & _INTERRUPTED or not ATTRIBUTES <= length <= end - start:
            raise DumpInterruptedError(f"{action}: the chain changed meanwhile", errno.EINTR)
        at = start + ATTRIBUTES + len(body)
        if data.startswith(body, start + ATTRIBUTES) and data.startswith(_HANDLE, at):
            at += _NUMBER_SIZE
            if data.startswith(_POSITION, at):
                at += _NUMBER_SIZE
            found.append(data[at:following])
        else:
            found.append(without(data[start:following], ATTRIBUTES, _RULE_NAMES))
        start += (length + 3) & ~3
    return found


def _digest_of(rules: bytes) -> bytes:
    """A digest that does not depend on what the rules have counted."""
    first, *others = rules.split(_COUNTER)
    kept = [first, *[part[_COUNTS_SIZE:] for part in others]]
    return hashlib.blake2b(_COUNTER.join(kept), digest_size=16).digest()


class Declared(NamedTuple):
    """A chain as the kernel lists it.

    Attributes:
        table: in which it is.
        name: its name.
        policy: ``ACCEPT`` or ``DROP``; empty for one that is not built in.
    """

    table: str
    name: str
    policy: str


def sizes(family: Family) -> dict[str, int]:
    """How much is in each table of a family: chains, mostly.

    Raises:
        PrivilegeError: this process may not ask.
        UnsupportedError: the kernel has no nftables.
        NetlinkError: the kernel refused.
    """
    with Channel() as channel:
        answers = channel.dump(f"listing tables of {family.value}", FAMILIES[family], _GET_TABLE)
        found = [values(answer) for answer in answers]
    return {one[1][:-1].decode(): int.from_bytes(one.get(3, b""), "big") for one in found}


def declared(family: Family, table: str, prefix: str) -> tuple[list[str], list[Declared]]:
    """The chains of all tables of a family.

    Args:
        family: IPv4 or IPv6.
        table: of which there are many.
        prefix: of the names of these.

    Returns:
        Names of those chains of the table that begin with the prefix, and all others.

    Raises:
        PrivilegeError: this process may not ask.
        UnsupportedError: the kernel has no nftables.
        NetlinkError: the kernel refused, or chains came and went meanwhile.
    """
    names: list[str] = []
    others: list[Declared] = []
    with Channel() as channel:
        action = f"listing chains of {family.value}"
        data = channel.dump_whole(action, FAMILIES[family], _GET_CHAIN)
    mine, wanted = string(_CHAIN_TABLE, table), prefix.encode()
    start = 0
    while start < len(data):
        length, _, flags = _HEAD.unpack_from(data, start)
        if flags & _INTERRUPTED or length < ATTRIBUTES:
            raise DumpInterruptedError(f"{action}: chains came and went", errno.EINTR)
        answer = data[start : start + length]
        name = _chain_of(answer, mine)
        if name.startswith(wanted):
            names.append(name.decode())
        else:
            others.append(_declared(values(answer)))
        start += (length + 3) & ~3
    return names, others


def _declared(fields: dict[int, bytes]) -> Declared:
    policy = int.from_bytes(fields.get(_CHAIN_POLICY, b""), "big")
    return Declared(
        fields[_CHAIN_TABLE][:-1].decode(),
        fields[_CHAIN_NAME][:-1].decode(),
        _POLICIES[policy] if _CHAIN_HOOK in fields else "",
    )


def chain_dump(channel: Channel, family: Family, table: str, chain: str) -> bytes:
    """The rules of a chain as the kernel sends them, for ``rule_places``.

    Raises:
        PrivilegeError: this process may not ask.
        NetlinkError: the kernel refused, or the chain changed meanwhile.
    """
    body = _table_name(table) + string(_RULE_CHAIN, chain)
    action = f"reading chain {chain} of {family.value} {table}"
    return channel.dump_whole(action, FAMILIES[family], _GET_RULE, body)


@functools.lru_cache(maxsize=8)
def _table_name(table: str) -> bytes:
    return string(_RULE_TABLE, table)


def rule_places(data: bytes) -> list[tuple[int, int, int]] | None:
    """Where rules are in what ``chain_dump`` gave.

    Returns:
        Where each message begins, and where its list of expressions begins and ends. None if a
        rule says something besides, which only nft writes, or if the chain changed meanwhile.
    """
    found: list[tuple[int, int, int]] = []
    start = 0
    while start < len(data):
        length, kind, flags = _HEAD.unpack_from(data, start)
        if kind != _NEW_RULE or flags & _INTERRUPTED or start + length > len(data):
            return None
        places = {
            one: (begins, ends)
            for one, begins, ends in attributes(data, start + ATTRIBUTES, start + length)
        }
        expressions = places.pop(_RULE_EXPRESSIONS, (0, 0))
        if not places.keys() <= _RULE_NAMES or expressions[1] != start + length:
            return None
        found.append((start, *expressions))
        start += length
    return found


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
