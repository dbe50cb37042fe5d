"""Walking a packet through tables, hook by hook, as the kernel does.

The first packet of a flow meets, in this order (priorities of the hooks in the kernel's
``linux/netfilter_ipv4.h``):

- coming in: PREROUTING (raw, mangle, nat), then a decision where to, then INPUT (mangle, filter,
  security, nat) or FORWARD (mangle, filter, security) and POSTROUTING (mangle, nat);
- sent by the node: OUTPUT (raw, mangle, nat, filter, security), POSTROUTING (mangle, nat), and
  if it is for the node itself then also PREROUTING and INPUT by the interface ``lo``, without
  nat: that is decided once per flow.

Chances are exact fractions. Where the kernel rolls dice, asks a list of remembered clients, or
looks at something that is not in the rules, the way forks. Ways that come together again share
what follows, so many forks in a row cost little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.inspect.match import View, judge
from agent.inspect.packet import Fate, Host, Packet
from agent.inspect.path import ONE, Effect, End, Kind, Outcome, Place, Step, Way
from agent.inspect.tables import target_name
from agent.inspect.targets import INERT, Then, act
from agent.inspect.trail import Trail
from agent.rules.rule import Comment, Protocol, Recent
from agent.rules.words import ParseError

if TYPE_CHECKING:
    from agent.inspect.match import Verdict
    from agent.inspect.tables import Chain, Entry, Tables
    from agent.inspect.targets import Action

_TABLES = {
    "PREROUTING": ("raw", "mangle", "nat"),
    "INPUT": ("mangle", "filter", "security", "nat"),
    "FORWARD": ("mangle", "filter", "security"),
    "OUTPUT": ("raw", "mangle", "nat", "filter", "security"),
    "POSTROUTING": ("mangle", "nat"),
}
#: Rules that one walk may look at, and forks that may lie within one another.
BUDGET = 1_000_000
DEPTH = 100
_CHAIN_END = {"ACCEPT", "DROP", "REJECT", "DNAT", "SNAT", "MASQUERADE", "REDIRECT"}


class Frame(NamedTuple):
    """Where a packet is: the next rule of a chain (from 0), and where to go after the chain."""

    chain: str
    position: int
    outer: Frame | None


class At(NamedTuple):
    """Where a packet is, and what has become of it.

    ``hook`` is empty behind the last one; ``frame`` is None before the first rule of a table;
    ``back`` is a packet of the node to itself that comes in by ``lo``.
    """

    hook: str
    table: str
    frame: Frame | None
    fate: Fate
    back: bool = False


class TooLongError(Exception):
    """A walk looks at more rules than its budget allows."""


def walk(tables: Tables, packet: Packet, host: Host, *, budget: int = BUDGET) -> Way:
    """Walk a packet through the tables of its family.

    Raises:
        ParseError: a rule on the way has a value that is not of its kind; names the rule.
        TooLongError: more rules are on the way, through all forks, than the budget allows.
    """
    return _Walk(tables, packet, host, budget).run()


class _Walk:
    """One walk; remembers what it has walked."""

    def __init__(self, tables: Tables, packet: Packet, host: Host, budget: int) -> None:
        self._tables = tables
        self._packet = packet
        self._host = host
        self._left = budget
        self._known: dict[At, Way] = {}
        self._returning: dict[tuple[str, str], bool] = {}

    def run(self) -> Way:
        packet = self._packet
        tracked = packet.state != "UNTRACKED"
        fate = Fate(packet.destination, packet.port, packet.mark, tracked=tracked)
        hook = "OUTPUT" if packet.interface == "" else "PREROUTING"
        return self._follow(At(hook, _TABLES[hook][0], None, fate), None, 0)

    def _follow(self, start: At, taken: Entry | None, depth: int) -> Way:
        """The way from here to all ends; ``taken`` is a rule here that is said to match."""
        trail = Trail()
        at: At | Way = start if taken is None else self._take(start, taken, trail)
        while isinstance(at, At):
            at = self._advance(at, trail, depth)
        if taken is None:
            self._known[start] = at
        return at

    def _advance(self, at: At, trail: Trail, depth: int) -> At | Way:
        if not at.hook:
            return trail.finish(self._outcome(at.fate, End.PASSED))
        if at.frame is None:
            return self._enter(at)
        self._left -= 1
        if self._left < 0:
            raise TooLongError("the way forks too often, or goes in a circle")
        view = self._view(at)
        entries = self._tables.entries(at.table, at.frame.chain)
        for position in range(at.frame.position, len(entries)):
            self._left -= 1
            verdict = self._judge(at, entries[position], view)
            if verdict is not None:
                here = at._replace(frame=at.frame._replace(position=position))
                if verdict.chance == 1 and not verdict.unknown and verdict.remembers is None:
                    return self._take(here, entries[position], trail)
                return self._fork(here, entries[position], verdict, trail, depth)
        if self._left < 0:
            raise TooLongError(
                "the way through the rules forks too often to be followed to all ends"
            )
        return self._leave(at, trail)

    def _judge(self, at: At, entry: Entry, view: View) -> Verdict | None:
        try:
            return judge(entry.rule, view)
        except ParseError as error:
            chain = at.frame.chain if at.frame else ""
            raise ParseError(f"{Place(at.table, chain, entry.number)}: {error}") from error

    # Hooks -------------------------------------------------------------------------------

    def _enter(self, at: At) -> At:
        """Into the built-in chain of a table, or past it."""
        nat = at.table == "nat"
        decided = at.back or not at.fate.tracked or self._packet.state not in {"NEW", "RELATED"}
        if (nat and decided) or self._tables.chain(at.table, at.hook) is None:
            return self._next(at)
        return at._replace(frame=Frame(at.hook, 0, None))

    def _next(self, at: At) -> At:
        """To the next table of the hook, or the next hook."""
        tables = _TABLES[at.hook]
        index = tables.index(at.table) + 1
        if index < len(tables):
            return at._replace(table=tables[index], frame=None)
        local = self._host.is_local(self._packet.family, at.fate.destination)
        hook, back = "", at.back
        if at.hook == "PREROUTING":
            hook = "INPUT" if local else "FORWARD"
        elif at.hook in {"FORWARD", "OUTPUT"}:
            hook = "POSTROUTING"
        elif at.hook == "POSTROUTING" and self._packet.interface == "" and local:
            hook, back = "PREROUTING", True
        table = _TABLES[hook][0] if hook else ""
        return At(hook, table, None, at.fate, back)

    def _view(self, at: At) -> View:
        incoming: str | None = ""
        outgoing: str | None = ""
        if at.hook in {"PREROUTING", "INPUT", "FORWARD"}:
            incoming = "lo" if at.back else self._packet.interface
        elif at.hook == "POSTROUTING" and self._packet.interface != "":
            incoming = None  # kernels differ in whether they still know it here
        if at.hook in {"FORWARD", "OUTPUT", "POSTROUTING"}:
            local = self._host.is_local(self._packet.family, at.fate.destination)
            outgoing = "lo" if local else self._host.route(at.fate.destination)
        return View(self._packet, self._host, at.fate, incoming, outgoing)

    def _leave(self, at: At, trail: Trail) -> At | Way:
        """Behind the last rule of a chain: back to where it was jumped to from, or its policy."""
        outer = at.frame.outer if at.frame is not None else None
        if outer is not None:
            trail.returned()
            back = at._replace(frame=outer)
            known = self._known.get(back)
            return trail.join(known) if known is not None else back
        chain = self._tables.chain(at.table, at.hook)
        if chain is None or chain.policy in {"", "ACCEPT"}:
            return self._next(at)
        place = Place(at.table, at.hook, 0)
        trail.step(Step(at.hook, place, Effect.POLICY, chain.policy))
        end = End.DROPPED if chain.policy == "DROP" else End.UNKNOWN
        return trail.finish(self._outcome(at.fate, end, place, f"policy {chain.policy}"))

    def _outcome(self, fate: Fate, end: End, by: Place | None = None, why: str = "") -> Outcome:
        return Outcome(
            end=end,
            endpoint=fate.translated,
            masqueraded=fate.masqueraded,
            local=self._host.is_local(self._packet.family, fate.destination),
            by=by,
            why=why if end is End.UNKNOWN else "",
            source=fate.source_translated,
        )

    # Rules -------------------------------------------------------------------------------

    def _take(self, at: At, entry: Entry, trail: Trail) -> At | Way:
        """Apply the target of a rule that matches."""
        frame = at.frame
        if frame is None:
            raise AssertionError("a rule outside of a chain")  # the caller is in one
        chains = self._tables.tables[at.table]
        action = act(entry.rule.target, at.fate, self._packet.family, chains)
        place = Place(at.table, frame.chain, entry.number)
        behind = frame._replace(position=frame.position + 1)
        if action.effect is not None:
            step = Step(at.hook, place, action.effect, _detail(entry, action), entry.text)
            trail.jump(step) if action.effect is Effect.JUMP else trail.step(step)
        match action.then:
            case Then.NEXT:
                return at._replace(frame=behind, fate=action.fate)
            case Then.JUMP:
                return at._replace(frame=Frame(action.detail, 0, behind))
            case Then.GOTO:
                return at._replace(frame=Frame(action.detail, 0, frame.outer))
            case Then.RETURN:
                return self._leave(at, trail)
            case Then.ACCEPT:
                return self._next(at._replace(fate=action.fate))
        end = _ENDS[action.then]
        return trail.finish(self._outcome(action.fate, end, place, action.detail))

    def _fork(self, at: At, entry: Entry, verdict: Verdict, trail: Trail, depth: int) -> At | Way:
        """A rule that matches sometimes."""
        frame = at.frame
        if frame is None:
            raise AssertionError("a rule outside of a chain")  # the caller is in one
        behind = at._replace(frame=frame._replace(position=frame.position + 1))
        name = target_name(entry.rule.target)
        if not name or name in INERT:
            return behind
        if depth >= DEPTH:
            raise TooLongError(f"more than {DEPTH} conditions lie within one another on the way")
        kind, condition = _condition(verdict)
        chance = verdict.chance if kind is Kind.CHANCE else ONE
        if not self._comes_back(at.table, name):
            trail.fork(kind, chance, condition, self._follow(at, entry, depth + 1))
            return behind
        # The ways may meet again: what follows is walked once, for both.
        after = self._known.get(behind) or self._follow(behind, None, depth + 1)
        way = self._follow(at, entry, depth + 1)
        if way is not after:  # else it makes no difference
            trail.fork(kind, chance, condition, way)
        return trail.join(after)

    def _comes_back(self, table: str, name: str) -> bool:
        """Whether a packet may come back behind a rule with this target."""
        chain = self._tables.chain(table, name)
        if chain is None:
            return name not in _CHAIN_END
        known = self._returning.get((table, name))
        if known is None:
            self._returning[table, name] = True  # in a loop
            known = self._returning[table, name] = self._may_return(table, chain)
        return known

    def _may_return(self, table: str, chain: Chain) -> bool:
        for entry in chain.entries:
            name = target_name(entry.rule.target)
            if name == "RETURN":
                return True
            if name and self._always(entry) and not self._comes_back(table, name):
                return False
        return True

    def _always(self, entry: Entry) -> bool:
        """Whether the rule matches every packet of the protocol."""
        return all(
            type(match) is Comment
            or (type(match) is Recent and not match.seconds)
            or (type(match) is Protocol and match.protocol == self._packet.protocol)
            for match in entry.rule.matches
        )


_ENDS = {Then.DROP: End.DROPPED, Then.REJECT: End.REJECTED, Then.UNKNOWN: End.UNKNOWN}


def _condition(verdict: Verdict) -> tuple[Kind, str]:
    parts = [f"{text} holds" for text in verdict.unknown]
    if verdict.remembers is not None:
        one = verdict.remembers
        parts.append(f"the client is remembered as {one.name} (for {one.seconds} s)")
    if verdict.unknown:
        if verdict.chance != 1:
            parts.append(f"the dice say so ({verdict.chance})")
        return Kind.UNKNOWN, " and ".join(parts)
    return (Kind.AFFINITY if parts else Kind.CHANCE), " and ".join(parts)


def _detail(entry: Entry, action: Action) -> str:
    remembers = [m for m in entry.rule.matches if type(m) is Recent and not m.seconds]
    if remembers:
        return f"{action.detail}, the client is remembered as {remembers[0].name}"
    return action.detail
