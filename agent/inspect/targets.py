"""What a rule's target does to a packet."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from agent.inspect.packet import Fate, split_endpoint
from agent.inspect.path import Effect
from agent.inspect.tables import EXTENSIONS, is_goto, target_name, target_words
from agent.rules.rule import Dnat, Masquerade, SetMark
from agent.rules.words import integer
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from agent.rules.rule import Target

_ALL = 0xFFFFFFFF
_LOOPBACK = {Family.V4: "127.0.0.1", Family.V6: "::1"}
#: Targets that change nothing that rules or the outcome depend on.
_INERT = (
    "LOG NFLOG ULOG AUDIT TRACE CHECKSUM CLASSIFY DSCP ECN TOS TTL HL TCPMSS TCPOPTSTRIP SET TEE"
    " SECMARK CONNSECMARK RATEEST IDLETIMER LED"
)
INERT = frozenset(_INERT.split())


class Then(enum.Enum):
    """Where a packet goes after a target."""

    #: To the next rule.
    NEXT = enum.auto()
    #: Into a chain, and back behind the rule.
    JUMP = enum.auto()
    #: Into a chain, and back behind the rule that jumped to this one.
    GOTO = enum.auto()
    #: Back to behind the rule that jumped here.
    RETURN = enum.auto()
    #: To the next table.
    ACCEPT = enum.auto()
    DROP = enum.auto()
    REJECT = enum.auto()
    #: Something that is not in the rules decides.
    UNKNOWN = enum.auto()


class Action(msgspec.Struct, frozen=True):
    """What a target does.

    Attributes:
        then: where the packet goes.
        fate: what has become of it now.
        effect: for the path; None if nothing is worth telling.
        detail: a chain, an endpoint, a mark, or what is not known.
    """

    then: Then
    fate: Fate
    effect: Effect | None = None
    detail: str = ""


def act(target: Target | None, fate: Fate, family: Family, chains: Container[str]) -> Action:
    """Apply a target.

    Args:
        target: of a rule that matches.
        fate: of the packet.
        family: of the packet.
        chains: of the table.

    Raises:
        ParseError: the target has a value that is not of its kind.
    """
    name = target_name(target)
    if name in chains:
        then = Then.GOTO if is_goto(target) else Then.JUMP
        return Action(then, fate, Effect.JUMP, name)
    if name in _VERDICTS:
        then, effect = _VERDICTS[name]
        return Action(then, fate, effect)
    return _extension(target, name, fate, family)


_VERDICTS: dict[str, tuple[Then, Effect | None]] = {
    "ACCEPT": (Then.ACCEPT, Effect.ACCEPT),
    "DROP": (Then.DROP, Effect.DROP),
    "REJECT": (Then.REJECT, Effect.REJECT),
    "RETURN": (Then.RETURN, None),
}


def _extension(target: Target | None, name: str, fate: Fate, family: Family) -> Action:
    """A target that is neither a chain nor a verdict."""
    if target is None or name in INERT:
        return Action(Then.NEXT, fate)
    if (ours := _OURS.get(type(target))) is not None:
        return ours(target, fate)
    make = _OTHERS.get(name)
    if make is not None:
        return make(target_words(target)[2:], fate, family)
    if name in EXTENSIONS:
        return _unknown(fate, f"target {name} decides")
    return _unknown(fate, f"there is no chain {name}, and no target of that name is known")


def _set_our_mark(target: SetMark, fate: Fate) -> Action:
    return _mark(fate, target.mark, target.mark if target.operation == "or" else 0)


def _masquerade_ours(_target: Masquerade, fate: Fate) -> Action:
    done = msgspec.structs.replace(fate, masqueraded=True)
    return Action(Then.ACCEPT, done, Effect.MASQUERADE)


def _translate_ours(target: Dnat, fate: Fate) -> Action:
    return _translate(target.destination, fate)


_OURS: dict[type, Callable[..., Action]] = {
    SetMark: _set_our_mark,
    Masquerade: _masquerade_ours,
    Dnat: _translate_ours,
}


def _unknown(fate: Fate, why: str) -> Action:
    return Action(Then.UNKNOWN, fate, Effect.OTHER, why)


def _mark(fate: Fate, value: int, mask: int) -> Action:
    """Clear the bits of the mask, then flip those of the value, as the kernel does."""
    mark = (fate.mark & ~mask & _ALL) ^ value
    done = msgspec.structs.replace(fate, mark=mark)
    return Action(Then.NEXT, done, Effect.MARK if mark != fate.mark else None, f"{mark:#x}")


def _translate(destination: str, fate: Fate) -> Action:
    address, port = split_endpoint(destination)
    if "-" in destination:
        return _unknown(fate, f"which of {destination} is chosen")
    shown = destination
    if not port and fate.port:
        port = fate.port
        shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    done = msgspec.structs.replace(
        fate, destination=address or fate.destination, port=port, translated=shown
    )
    return Action(Then.ACCEPT, done, Effect.TRANSLATE, shown)


def _dnat(words: list[str], fate: Fate, _family: Family) -> Action:
    plain = [word for word in words if word not in {"--random", "--persistent"}]
    match plain:
        case ["--to-destination", destination]:
            return _translate(destination, fate)
    return _unknown(fate, f"DNAT {' '.join(words)}")


def _redirect(words: list[str], fate: Fate, family: Family) -> Action:
    port = fate.port
    match words:
        case ["--to-ports", text, *_] if text.isdecimal():
            port = int(text)
        case [_, *_]:
            return _unknown(fate, f"REDIRECT {' '.join(words)}")
    address = _LOOPBACK[family]
    return _translate(f"[{address}]:{port}" if family is Family.V6 else f"{address}:{port}", fate)


def _snat(words: list[str], fate: Fate, _family: Family) -> Action:
    source = words[1] if words[:1] == ["--to-source"] and len(words) > 1 else " ".join(words)
    done = msgspec.structs.replace(fate, source_translated=source)
    return Action(Then.ACCEPT, done, Effect.OTHER, f"source becomes {source}")


def _masquerade(_words: list[str], fate: Fate, _family: Family) -> Action:
    return _masquerade_ours(Masquerade(random_fully=False), fate)


def _set_mark(words: list[str], fate: Fate, _family: Family) -> Action:
    match words:
        case ["--set-xmark", text]:
            value, slash, mask = text.partition("/")
            return _mark(fate, integer(value), integer(mask) if slash else _ALL)
        case ["--set-mark", text]:
            value, slash, mask = text.partition("/")
            bits = integer(value) | (integer(mask) if slash else _ALL)
            return _mark(fate, integer(value), bits)
        case ["--and-mark", text]:
            return _mark(fate, 0, ~integer(text) & _ALL)
    return _unknown(fate, f"MARK {' '.join(words)}")


def _connmark(words: list[str], fate: Fate, _family: Family) -> Action:
    """The mark of a connection; that of a new one is 0 until something sets it."""
    if "--restore-mark" not in words:
        return Action(Then.NEXT, msgspec.structs.replace(fate, touched=fate.touched | {"CONNMARK"}))
    if "CONNMARK" in fate.touched:
        return _unknown(fate, "the packet's mark becomes that of its connection")
    mask = words[words.index("--nfmask") + 1] if "--nfmask" in words[:-1] else f"{_ALL:#x}"
    return _mark(fate, 0, integer(mask))


def _untracked(words: list[str], fate: Fate, _family: Family) -> Action:
    if not words or "--notrack" in words:
        return Action(
            Then.NEXT, msgspec.structs.replace(fate, tracked=False), Effect.OTHER, "not tracked"
        )
    return Action(Then.NEXT, fate)


_OTHERS: dict[str, Callable[[list[str], Fate, Family], Action]] = {
    "DNAT": _dnat,
    "REDIRECT": _redirect,
    "SNAT": _snat,
    "MASQUERADE": _masquerade,
    "MARK": _set_mark,
    "CONNMARK": _connmark,
    "CT": _untracked,
    "NOTRACK": _untracked,
}
