"""Are few enough mutants left, and is it said why of each?"""

from __future__ import annotations

import tomllib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

#: In a hundred mutants, no more than so many may be left.
MOST_LEFT = 5
NOTICED = {"killed", "timeout", "segfault", "suspicious", "caught by type check"}
LEFT = {"survived", "no tests"}


class Mutant(NamedTuple):
    """A change of one function, and what became of it.

    Attributes:
        name: mutmut's, for ``mutmut show``.
        function: where it is, such as ``agent.state.store.Store.forget``.
        status: mutmut's word.
        change: removed and added lines, without indentation; only of one that is left.
    """

    name: str
    function: str
    status: str
    change: str = ""


class Excuse(NamedTuple):
    """Why a mutant may be left."""

    function: str
    change: str
    why: str


def excuses(path: Path) -> list[Excuse]:
    """What the file explains.

    Raises:
        ValueError: an entry lacks its function, its changes or its reason.
    """
    found: list[Excuse] = []
    for entry in tomllib.loads(path.read_text("utf-8"))["left"]:
        function, why = entry.get("function", ""), entry.get("why", "").strip()
        changes = [normal(change) for change in entry.get("changes", ())]
        if not function or not why or not changes or not all(changes):
            raise ValueError(f"{path}: an entry needs a function, changes and a why: {entry}")
        found += [Excuse(function, change, why) for change in changes]
    return found


def normal(diff: str) -> str:
    """The changed lines of a diff, each without its indentation."""
    lines = [line.strip() for line in diff.strip().splitlines()]
    changed = [line for line in lines if line[:1] in {"-", "+"} and line[:3] not in {"---", "+++"}]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in changed)


def report(mutants: Collection[Mutant], known: Sequence[Excuse]) -> Iterator[str]:
    """Lines of a table, by module, and of every mutant that is left without a reason."""
    explained = {(excuse.function, excuse.change) for excuse in known}
    columns = ("mutants", "noticed", "left", "explained")
    yield f"{'':32}" + "".join(f"{column:>11}" for column in columns)
    totals = Counter[str]()
    for module in sorted({module_of(mutant) for mutant in mutants}):
        mine = [mutant for mutant in mutants if module_of(mutant) == module]
        left = [mutant for mutant in mine if mutant.status in LEFT]
        counts = {
            "mutants": len(mine),
            "noticed": sum(mutant.status in NOTICED for mutant in mine),
            "left": len(left),
            "explained": sum((one.function, one.change) in explained for one in left),
        }
        totals.update(counts)
        yield f"{module:32}" + "".join(f"{counts[column]:>11}" for column in columns)
    yield f"{'all':32}" + "".join(f"{totals[column]:>11}" for column in columns)
    yield from faults(mutants, explained)
    there = {(mutant.function, mutant.change) for mutant in mutants if mutant.status in LEFT}
    modules = {module_of(mutant) for mutant in mutants}
    for excuse in known:
        is_here = excuse.function.startswith(tuple(f"{module}." for module in modules))
        if is_here and (excuse.function, excuse.change) not in there:
            yield f"\nexplained, but not left: {excuse.function}\n{excuse.change}"


def faults(mutants: Collection[Mutant], explained: Collection[tuple[str, str]]) -> Iterator[str]:
    """What makes the run fail; nothing if it is good."""
    if not mutants:
        yield "there are no mutants: nothing was run"
        return
    left = [mutant for mutant in mutants if mutant.status in LEFT]
    for mutant in left:
        if (mutant.function, mutant.change) not in explained:
            yield f"\nleft, and not explained: {mutant.name}\n{mutant.change}"
    undecided = sum(mutant.status not in LEFT | NOTICED for mutant in mutants)
    if undecided:
        yield f"{undecided} have no verdict; run it again"
    if len(left) * 100 >= MOST_LEFT * len(mutants):
        yield f"{len(left) / len(mutants):.1%} are left, and it should be less than {MOST_LEFT} %"


def module_of(mutant: Mutant) -> str:
    """The first three parts of the function's name."""
    return ".".join(mutant.function.split(".")[:3])
