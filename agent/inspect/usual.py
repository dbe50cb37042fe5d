"""Chains as nearly all of them are, told by their text at a glance.

A large node has two hundred thousand rules in lotteries and in chains of endpoints, and reading
them word by word takes longer than everything else together. A chain whose text is not exactly as
expected here is read like any other; so what this does not know costs time and nothing else.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from agent.rules import names
from agent.rules.lottery import shares
from agent.rules.printed import printed_share
from agent.rules.words import quote

_NO_MASK = r"(?:255\.255\.255\.255|ffff(?::ffff){7})"
_COMMENT = r'(?: -m comment --comment "([^"\\\n]*)")?'
_ENDPOINT = re.compile(
    rf"-A (KUBE-SEP-\S+) -s (?:([\d.]+)/32|([\da-f:]+)/128){_COMMENT} -j KUBE-MARK-MASQ\n"
    rf"-A \1 -p (tcp|udp|sctp){_COMMENT}"
    rf"(?: -m recent --set --name (\S+) --mask {_NO_MASK} --rsource)?"
    r" -m \5 -j DNAT --to-destination (([\d.]+):\d+|\[([\da-f:]+)\]:\d+)\n"
)
#: The rule of a lottery that marks packets, in front of those that lead to endpoints.
_MARKING = re.compile(
    r"(?:(?:! )?-s [\da-f.:]+/\d+ )?-d [\da-f.:]+/\d+ (?:! -i [\w.+-]+ )?-p (tcp|udp|sctp)"
    r' -m comment --comment "[^"\\\n]*" -m \1 --dport \d+ -j KUBE-MARK-MASQ\n'
)
_REMEMBERED = re.compile(
    rf"-m recent --rcheck --seconds ([1-9]\d*) --reap --name KUBE-SEP-.{{16}} --mask ({_NO_MASK}) "
)
_HASH = 16


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

    def as_written(self) -> tuple[str, ...]:
        """The two rules in our words (``Rule.text``), to compare them by text."""
        ip, destination, protocol, said, remembers = self
        comment = f"-m comment --comment {quote(said)} " if said else ""
        recent = f"-m recent --name {remembers} --set " if remembers else ""
        translate = f"-m {protocol} -p {protocol} -j DNAT --to-destination {destination}"
        return f"{comment}-s {ip} -j KUBE-MARK-MASQ", f"{comment}{recent}{translate}"


class UsualLottery(NamedTuple):
    """What a lottery does that gives each of its endpoints, each there once, the same chance.

    Attributes:
        marking: the rule that marks packets, as it is printed; empty for none.
        endpoints: chains of endpoints, in the order of the rules.
        seconds: for which clients are remembered, all of them; 0 for not at all.
    """

    marking: str
    endpoints: tuple[str, ...]
    seconds: int

    def as_written(self) -> tuple[str, ...]:
        """The rules in our words behind the one that marks packets."""
        dice = map(str.__add__, shares(len(self.endpoints)), self.endpoints)
        if not self.seconds:
            return tuple(dice)
        ask = f"--rcheck --seconds {self.seconds} --reap -j"
        return (*[f"-m recent --name {one} {ask} {one}" for one in self.endpoints], *dice)


def usual(chain: str, run: str) -> UsualEndpoint | UsualLottery | None:
    """What a chain does; None if it is of another kind, or says it in other words.

    Args:
        chain: its name.
        run: its rules, a line each, as they are printed.
    """
    if chain.startswith(names.SEP):
        return _endpoint(run)
    if chain.startswith((names.SVC, names.SVL)) and not names.is_tree_chain(chain):
        return _lottery(chain, run)
    return None


def _endpoint(run: str) -> UsualEndpoint | None:
    found = _ENDPOINT.fullmatch(run)
    if found is None:
        return None
    _, four, six, comment, protocol, same, remembers, destination, *to = found.groups("")
    if [four, six, comment] != [*to, same]:
        return None
    return UsualEndpoint(four or six, destination, protocol, comment, remembers)


def _lottery(chain: str, run: str) -> UsualLottery | None:
    rules = run.replace(f"-A {chain} ", "")
    marking = _MARKING.match(rules)
    leading = rules[marking.end() :] if marking else rules
    remembered = _REMEMBERED.match(leading)
    # What is between the hashes of the endpoints' chains depends on their number alone.
    before, *parts = leading.split(names.SEP)
    count = len(parts) // 3 if remembered else len(parts)
    seconds, mask = remembered.groups() if remembered else ("", "")
    hashes = [part[:_HASH] for part in parts]
    if [before, *[part[_HASH:] for part in parts]] != _between(count, seconds, mask):
        return None
    thrown = hashes[-count:]
    if len(set(thrown)) < count or not "".join(thrown).isalnum():
        return None
    if remembered and (hashes[: 2 * count : 2], hashes[1 : 2 * count : 2]) != (thrown, thrown):
        return None
    endpoints = tuple([names.SEP + one for one in thrown])
    return UsualLottery(marking[0][:-1] if marking else "", endpoints, int(seconds or 0))


@functools.lru_cache(maxsize=256)
def _between(count: int, seconds: str, mask: str) -> list[str]:
    """What is printed of a lottery in front of, between and behind the hashes of endpoints."""
    ask = f"-m recent --rcheck --seconds {seconds} --reap --name \0 --mask {mask} --rsource -j \0\n"
    dice = "-m statistic --mode random --probability {} -j \0\n"
    rules = [ask] * count if seconds else []
    rules += [dice.format(printed_share(one_in)) for one_in in range(count, 1, -1)]
    return "".join([*rules, "-j \0\n"]).split("\0")
