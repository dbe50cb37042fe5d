"""``onenth explain``: where a packet goes, by which rules, with which chances."""

from __future__ import annotations

import difflib
from fractions import Fraction
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from agent.commands.expected import expect, node_warning, read_both
from agent.commands.sources import Held, LookError, Node, Options, this_node
from agent.commands.strangers import of_address, of_nothing, of_sender, of_service
from agent.inspect.aim import Aim, Goal, goals, known_services, ways_in
from agent.inspect.origins import From, Origin, node_address, origin
from agent.inspect.packet import Packet
from agent.inspect.path import End, Outcome, Way, outcomes
from agent.inspect.reasons import reasons
from agent.inspect.show import SHOWN, outcome_text, plain, plain_outcome, tree
from agent.inspect.walk import TooLongError, walk
from agent.inspect.wrap import indented
from agent.rules.words import ParseError
from agent.state.addresses import parse_ip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.commands.expected import Expected
    from agent.config.model import Config
    from agent.kernel.tools import Runner

_SUGGESTIONS = 3


class Question(msgspec.Struct, frozen=True):
    """What to explain.

    Attributes:
        aim: the target.
        sender: ``pod``, ``node``, ``outside``, an address, or empty for the likely one.
        interface: by which the packet comes, empty for the likely one.
    """

    aim: Aim
    sender: str = ""
    interface: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """The way of one packet.

    Attributes:
        where: family, and backend or file.
        goal: where it was sent to.
        sender: who sent it.
        way: through the rules.
        usual: outcomes with their chances, if nobody is remembered and nothing may match.
        also: other ways into the same service port.
        reasons: why there is no endpoint, if there is none and the slices tell.
        remarks: what else can be said of a target that no rule is for, or of who is kept out.
    """

    where: str
    goal: Goal
    sender: Origin
    way: Way
    usual: dict[Outcome, Fraction]
    also: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether a rule knows the target: that of a Service, or one that translates it."""
        return bool(self.goal.service) or any(outcome.endpoint for outcome in self.usual)


class Unknown(msgspec.Struct, frozen=True):
    """A target that the rules do not know.

    Attributes:
        text: what can be said about it.
        reasons: what the API server or the manifests say.
    """

    text: str
    reasons: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people, behind a heading of seven characters."""
        first, *rest = indented(self.text, 7, 2)
        yield first.lstrip()
        yield from rest
        for reason in self.reasons:
            yield from indented(reason, 0, 2)


class Answer(msgspec.Struct, frozen=True):
    """What can be told.

    Attributes:
        ways: of the packets that are meant.
        unknown: why there are none, if there are none.
        warnings: what makes the answer say less than it could.
    """

    ways: tuple[Explanation, ...]
    unknown: Unknown | None = None
    warnings: tuple[str, ...] = ()


def run(
    question: Question, options: Options, config: Config, runner: Runner | None = None
) -> Answer:
    """Walk the packets that are meant.

    Raises:
        LookError: something could not be looked at.
        HostError: no iptables is installed, or this process may not ask.
        OriginError: the sender is none.
    """
    family = question.aim.family
    if family is not None:
        options = msgspec.structs.replace(options, family=family)
    held, objects = read_both(options, config, runner)
    node = this_node(options)
    expected = [expect(config, objects, one, node) for one in held] if objects is not None else []
    found: list[Explanation] = []
    sender = parse_ip(question.sender)
    mine = {one.family for one in held if sender and one.family is sender[0]}
    for one, should in zip_longest(held, expected):
        if mine and one.family not in mine:
            continue
        # An address can be explained where no proxy has written anything.
        known = one.survey.is_held() or question.aim.address
        meant = goals(question.aim, one.survey, node.host.addresses) if known else []
        found += [_explain(question, goal, one, node, should) for goal in meant]
    warning = node_warning(config, objects) if objects is not None else ""
    unknown = None if found else _unknown(question.aim, held, expected)
    return Answer(tuple(found), unknown, (warning,) if warning else ())


def _explain(
    question: Question, goal: Goal, held: Held, node: Node, expected: Expected | None
) -> Explanation:
    survey = held.survey
    sender = question.sender or (From.OUTSIDE if goal.external else From.POD).value
    address = goal.address or node_address(survey, node.host)
    made_up = frozenset({node_address(survey, node.host)})
    host = msgspec.structs.replace(node.host, addresses=node.host.addresses | made_up)
    who = origin(sender, survey, host, question.interface, address)
    packet = Packet(
        family=held.family,
        protocol=goal.protocol,
        source=who.source,
        destination=address,
        port=goal.port,
        interface=who.interface,
        avoids=who.avoids,
    )
    try:
        way = walk(held.tables, packet, host)
    except (TooLongError, ParseError) as error:
        raise LookError(f"{held.where}: {error}") from error
    usual = outcomes(way).usual
    also = [text for text in ways_in(goal.service, survey) if text != goal.label]
    tell = expected is not None and goal.service and not _reaches(usual)
    why = _why(goal, expected) if tell and expected is not None else ()
    found = Explanation(held.where, goal, who, way, usual, tuple(also), tuple(why))
    if found.known:
        remarks = of_sender(who.source, goal, held) if not _reaches(usual) else iter(())
    else:
        remarks = of_address(question.aim, goal, held, expected)
    return msgspec.structs.replace(found, remarks=tuple(remarks))


def _reaches(usual: dict[Outcome, Fraction]) -> bool:
    return any(outcome.end is End.PASSED and outcome.endpoint for outcome in usual)


def _why(goal: Goal, expected: Expected) -> list[str]:
    """What the slices say of a service port."""
    name, _, port_name = goal.service.partition(":")
    node = expected.rules.node
    for record in expected.store:
        if str(record.key) == name:
            ports = record.service_ports(node.family)
            mine = [p for p in ports if (p.port_name, p.protocol) == (port_name, goal.protocol)]
            return reasons(record, mine[0] if mine else None, node)
    return reasons(None, None, node)


def _unknown(aim: Aim, held: list[Held], expected: list[Expected]) -> Unknown:
    """What can be said of a target that no rule names."""
    told = tuple(of_service(aim, expected)) if aim.service else ()
    if nothing := of_nothing(held):
        return Unknown(f"no rule names {aim.text}: {nothing}", told)
    known = sorted({name for one in held for name in known_services(one.survey)})
    close = difflib.get_close_matches(aim.text, known, _SUGGESTIONS)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return Unknown(f"no rule names {aim.text}{hint}", told)


# For people --------------------------------------------------------------------------------


def as_text(found: Sequence[Explanation]) -> Iterator[str]:
    """Explanations as lines, at most 80 columns wide."""
    for number, one in enumerate(found):
        if number:
            yield ""
        yield from _heading(one)
        yield ""
        yield from tree(one.way)
        yield ""
        yield from _sum(one)


def _heading(one: Explanation) -> Iterator[str]:
    name = f"{one.goal.service} = " if one.goal.service else ""
    yield from indented(f"{name}{one.goal.label}, from {one.sender.label}", 0, 2)
    interface = one.sender.interface
    if interface is None:
        via = "by an interface that is not known (--interface)"
    else:
        via = f"by interface {interface}" if interface else "sent by a process of the node"
    yield from indented(f"{one.where}; {via}", 0, 2)
    if one.sender.assumed:
        yield from indented(one.sender.assumed, 0, 2)
    if one.also:
        yield from indented(f"also reached by {', '.join(one.also)}", 0, 2)


def _sum(one: Explanation) -> Iterator[str]:
    yield "Each new connection:"
    ordered = sorted(one.usual.items(), key=lambda item: (-item[1], item[0].endpoint))
    shown = ordered if len(ordered) <= SHOWN + 1 else ordered[:SHOWN]
    for outcome, chance in shown:
        text = outcome_text(outcome).removeprefix("= ")
        yield from indented(f"{chance!s:>6}  {text}", 2, 10)
    if len(shown) < len(ordered):
        yield f"          ... and {len(ordered) - len(shown)} more"
    for reason in one.reasons:
        yield from indented(f"No endpoint, because: {reason}", 0, 2)
    for remark in one.remarks:
        yield from indented(remark, 0, 2)


def as_json(found: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Plain values, for ``-o json``."""
    return [
        {
            "where": one.where,
            "service": one.goal.service,
            "destination": one.goal.label,
            "from": one.sender.label,
            "interface": one.sender.interface,
            "assumed": one.sender.assumed,
            "also": list(one.also),
            "way": plain(one.way),
            "outcomes": [
                {"chance": str(chance), **plain_outcome(outcome)}
                for outcome, chance in one.usual.items()
            ],
            "reasons": list(one.reasons),
            "known": one.known,
            "remarks": list(one.remarks),
        }
        for one in found
    ]
