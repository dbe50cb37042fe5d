"""One table's part of a restore input, as the fake kernel applies it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.fakes import kernelrule
from tests.fakes.kernelrule import TARGET_HOOKS, KernelRule, RuleError, words

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Container, Sequence

Chains = dict[str, list[KernelRule]]

BUILT_IN = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}
MAX_NAME = 28
TARGET_TABLES = {"DNAT": "nat", "MASQUERADE": "nat", "REJECT": "filter"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A line that is refused although it is well formed.

    ``names`` is the line that is complained about: ``own``, that of the table's ``COMMIT``, or
    ``none``.
    """

    pattern: re.Pattern[str]
    names: str = "own"


class RefusedError(Exception):
    """An input that is not taken, and the line that is complained about."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class Part:
    """One table's part of an input, applied to a copy.

    Both backends read the lines first; legacy applies each as it is read, nft all of them at
    COMMIT, so that a line which cannot be read is complained about before one in front of it
    that cannot be applied. The kernel itself is asked last.
    """

    def __init__(
        self,
        table: str,
        chains: Chains,
        family: int,
        *,
        legacy: bool,
        faults: Sequence[Fault],
        counters: Container[str],
    ) -> None:
        self.table = table
        self.chains = {chain: list(rules) for chain, rules in chains.items()}
        self.family = family
        self.legacy = legacy
        self.written: set[str] = set()
        self._faults = faults
        self._counters = counters
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._late: list[tuple[str, int, str]] = []
        self._lines: dict[tuple[str, KernelRule], int] = {}

    def read(self, line: str, number: int) -> None:
        """Take one line in."""
        for fault in self._faults:
            if fault.pattern.search(line):
                if fault.names == "own":
                    raise RefusedError(f"injected: {line}", number)
                self._late.append((f"injected: {line}", number, fault.names))
        try:
            apply = self._read(line, number)
        except RuleError as error:
            raise RefusedError(f"{error}\nError occurred at line: {number}", number) from error
        self._waiting.append((number, apply))
        if self.legacy:
            self._apply()

    def _apply(self) -> None:
        for number, apply in self._waiting:
            try:
                apply()
            except RuleError as error:
                raise RefusedError(f"line {number} failed: {error}", number) from error
        self._waiting.clear()

    def _read(self, line: str, number: int) -> Callable[[], None]:
        if line.startswith(":"):
            return self._declaration(line[1:].split())
        verb, *rest = words(line)
        if verb not in {"-A", "-I", "-D", "-F", "-X", "-N", "-E"}:
            raise RuleError(f"Bad argument `{verb}'")
        if not rest:
            raise RuleError(f'option "{verb}" requires an argument')
        chain, *rest = rest
        match verb:
            case "-N":
                return lambda: self._create(chain)
            case "-F":
                return lambda: self._chain(chain).clear()
            case "-X":
                return lambda: self._delete_chain(chain, number)
            case "-E":
                return lambda: self._rename(chain, rest[0])
        return self._change(verb, chain, rest, number)

    def _declaration(self, parts: list[str]) -> Callable[[], None]:
        if len(parts) < 2:
            raise RuleError("policy invalid")
        name, policy = parts[:2]
        if name in BUILT_IN[self.table]:
            if policy not in {"-", "ACCEPT", "DROP"}:
                raise RuleError(f"Bad policy name `{policy}'")
            return lambda: None
        if len(name) > MAX_NAME or name.startswith(("-", "!")):
            raise RuleError(f"Invalid chain name `{name}' ({MAX_NAME} chars max)")
        return lambda: self._create_or_empty(name)

    def _change(self, verb: str, chain: str, rest: list[str], number: int) -> Callable[[], None]:
        position = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
        if verb == "-D" and position is not None:
            return lambda: self._delete_number(chain, position)
        rule = kernelrule.parse(rest, self.family)
        if rule.target == "DROP" and self.table == "nat":
            raise RuleError('The "nat" table is not intended for filtering')
        if rule.interface and chain in {"OUTPUT", "POSTROUTING"}:
            raise RuleError(f"Can't use -i with {chain}")

        def apply() -> None:
            target = rule.target
            if target and not kernelrule.is_target(target) and target not in self.chains:
                raise RuleError(f"Chain '{target}' does not exist")
            if verb == "-D":
                self._delete(chain, rule)
                return
            rules = self._chain(chain)
            index = len(rules) if verb == "-A" else (position or 1) - 1
            if not 0 <= index <= len(rules):
                raise RuleError("Index of insertion too big.")
            rules.insert(index, rule)
            self.written.add(chain)
            self._lines[chain, rule] = number
            if self._lacks_counter(rule) and not self.legacy:
                # nft looks for the object at once, even if the chain is emptied further down.
                self._late.append((f"RULE_APPEND failed: rule in chain {chain}", number, "own"))

        return apply

    def _chain(self, name: str) -> list[KernelRule]:
        if name not in self.chains:
            raise RuleError("No chain/target/match by that name.")
        return self.chains[name]

    def _create_or_empty(self, name: str) -> None:
        self.written.add(name)
        self.chains[name] = []

    def _create(self, name: str) -> None:
        if name in self.chains:
            raise RuleError("Chain already exists.")
        self.chains[name] = []

    def _delete(self, chain: str, rule: KernelRule) -> None:
        if rule not in self.chains.get(chain, ()):
            raise RuleError("Bad rule (does a matching rule exist in that chain?).")
        self.chains[chain].remove(rule)

    def _delete_number(self, chain: str, position: int) -> None:
        rules = self._chain(chain)
        if not 0 < position <= len(rules):
            raise RuleError("Index of deletion too big.")
        del rules[position - 1]

    def _delete_chain(self, chain: str, number: int) -> None:
        rules = self._chain(chain)
        used = any(rule.target == chain for rules in self.chains.values() for rule in rules)
        if chain in BUILT_IN[self.table] or used or rules:
            message = f"CHAIN_DEL failed (Device or resource busy): chain {chain}"
            if self.legacy:
                raise RuleError(message)
            self._late.append((message, number, "own"))
        del self.chains[chain]

    def _rename(self, chain: str, name: str) -> None:
        if name in self.chains or chain in BUILT_IN[self.table]:
            raise RuleError("File exists.")
        self.chains[name] = self.chains.pop(chain)
        for rules in self.chains.values():
            rules[:] = [
                dataclasses.replace(rule, target=name) if rule.target == chain else rule
                for rule in rules
            ]

    def finish(self, commit: int) -> None:
        """COMMIT, which is the line with this number."""
        self._apply()
        for message, number, names in self._late:
            line = {"own": number, "commit": commit, "none": None}[names]
            raise RefusedError(message, line)
        for chain, rules in self.chains.items():
            for rule in rules:
                self._ask_kernel(chain, rule, commit)
        known: dict[str, set[str]] = {}
        for hook in BUILT_IN[self.table]:
            for target in self._reachable(hook, (), commit, known):
                if hook not in TARGET_HOOKS.get(target, {hook}):
                    raise RefusedError(f"{target} cannot be reached from {hook}", commit)

    def _ask_kernel(self, chain: str, rule: KernelRule, commit: int) -> None:
        """What only the kernel refuses; it tells legacy no line."""
        table = TARGET_TABLES.get(rule.target, self.table)
        hooks = TARGET_HOOKS.get(rule.target, {chain})
        why = ""
        if table != self.table or (chain in BUILT_IN[self.table] and chain not in hooks):
            why = "Invalid argument"
        elif self._lacks_counter(rule):
            why = "No such file or directory"
        if why:
            line = commit if self.legacy else self._lines.get((chain, rule))
            raise RefusedError(f"RULE_APPEND failed ({why}): rule in chain {chain}", line)

    def _lacks_counter(self, rule: KernelRule) -> bool:
        names = [match.get("--nfacct-name") for match in rule.matches]
        return any(name is not None and name not in self._counters for name in names)

    def _reachable(
        self, chain: str, path: tuple[str, ...], commit: int, known: dict[str, set[str]]
    ) -> set[str]:
        """Targets that packets in a chain may meet."""
        if chain in known:
            return known[chain]
        if chain in path:
            raise RefusedError(f"RULE_APPEND failed (Too many links): loop in {chain}", commit)
        found = {rule.target for rule in self.chains[chain]}
        for target in found & self.chains.keys():
            found |= self._reachable(target, (*path, chain), commit, known)
        known[chain] = found
        return found
