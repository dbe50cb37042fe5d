"""What ``iptables-save`` prints for our rules: for the kinds of which there are most.

The kernel gives a rule back in other words than it was given, so rules are compared by meaning
(``agent.rules.parse``), which takes reading both. For rules by which packets find a Service, and
those of endpoints, of which a large node has two hundred thousand, the printed text can be told
from ours. Equal text is equal meaning; unequal text means nothing, so what is told here of a rule
of any other kind, or told wrongly, costs time and nothing else.
"""

from __future__ import annotations

import functools

from agent.rules.probability import PROBABILITY_STEPS, probability_steps
from agent.state.values import Family

_COMMENT = "-m comment --comment "
_DICE = "-m statistic --mode random --probability "
_RECENT = "-m recent --name "
_PREFIX = {Family.V4: "/32", Family.V6: "/128"}
_MASK = {Family.V4: "255.255.255.255", Family.V6: ":".join(["ffff"] * 8)}


def printed(rule: str, family: Family) -> str:
    """The text that the tools print for a rule of ours.

    Args:
        rule: behind ``-A CHAIN``, as ``Rule.text`` makes it.
        family: whose addresses it has.

    Returns:
        The text; a wrong one for a rule of another kind than there are many of.
    """
    comment = ""
    if rule.startswith(_COMMENT):
        comment, rest = _split_comment(rule)
        if not rest:
            return rule
        rule = rest
    if rule.startswith(_DICE):
        return f"{comment}{_printed_dice(rule)}"
    if rule.startswith(_RECENT) and "--rcheck" in rule:
        return f"{comment}{_printed_check(rule, family)}"
    return _printed_portal(comment, rule, family) if "--dport" in rule else f"{comment}{rule}"


def _split_comment(rule: str) -> tuple[str, str]:
    """The comment in quotation marks with a blank behind it, and the rest if there is one."""
    start = len(_COMMENT)
    if rule[start] == '"':
        text, _, rest = rule[start + 1 :].partition('" ')
    else:
        text, _, rest = rule[start:].partition(" ")
    return f'{_COMMENT}"{text}" ', rest


def _printed_dice(rule: str) -> str:
    """Eleven digits of the multiple of 2^-31 that the kernel makes of ten."""
    start = len(_DICE)
    end = rule.find(" ", start)
    return f"{_DICE}{_kept(rule[start:end])}{rule[end:]}"


def printed_share(one_in: int) -> str:
    """The probability of a rule that takes one in so many."""
    return _kept(f"{1 / one_in:.10f}")


@functools.lru_cache(maxsize=4096)
def _kept(probability: str) -> str:
    return f"{probability_steps(probability) / PROBABILITY_STEPS:.11f}"


def _printed_check(rule: str, family: Family) -> str:
    """Whether a client is remembered: ``-m recent --name N --rcheck --seconds S --reap -j N``."""
    words = rule.split()
    if len(words) != 10:
        return rule
    return (
        f"-m recent --rcheck --seconds {words[6]} --reap --name {words[3]}"
        f" --mask {_MASK[family]} --rsource -j {words[9]}"
    )


def _printed_portal(comment: str, rule: str, family: Family) -> str:
    """``-m tcp -p tcp [-d A] --dport P [! -s C] -j X``: addresses come first."""
    words = rule.split()
    if words[2] != "-p":
        return f"{comment}{rule}"
    protocol, source, destination, rest = words[1], "", "", words[4:]
    if rest[0] == "-d":
        destination = f"-d {rest[1]}{'' if '/' in rest[1] else _PREFIX[family]} "
        rest = rest[2:]
    if rest[2:4] == ["!", "-s"]:
        source = f"! -s {rest[4]} "
        del rest[2:5]
    return f"{source}{destination}-p {protocol} {comment}-m {protocol} {' '.join(rest)}"
