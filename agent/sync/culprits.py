"""Finding what a kernel refuses, among many, when it does not say.

Halving, with all that was accepted kept: a part is asked about together with it. So one that is
refused only beside another is found as well, and in the end everything but the culprits has been
accepted together. Nobody is blamed who was not refused alone beside what was accepted: if all was
refused for its size, or for a reason that has passed, nobody is. One among n takes at most
2 * log2(n) + 1 questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agent.sync.port import Refusal, RestoreError
from agent.sync.transaction import Block, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.cluster.objects import Key

    T = TypeVar("T")

#: A chain that no packet visits, for asking the kernel about rules.
PROBE_CHAIN = "KUBE-PROXY-PROBE"


def culprits(
    suspects: Sequence[T], accepts: Callable[[Sequence[T]], bool], *, asked: bool = True
) -> list[T]:
    """Those without whom the others are accepted; all together are refused.

    Args:
        suspects: at least one.
        accepts: asks about some, together with all that it has accepted so far.
        asked: they have just been refused; else it follows from what was accepted.
    """
    if len(suspects) == 1:
        return [] if not asked and accepts(suspects) else list(suspects)
    half = len(suspects) // 2
    first, second = suspects[:half], suspects[half:]
    found = [] if accepts(first) else culprits(first, accepts)
    if found and accepts(second):
        return found
    return found + culprits(second, accepts, asked=bool(found))


def refused_rules(
    table: str, rules: Mapping[Key, Sequence[str]], restore: Callable[[Transaction], None]
) -> list[Key]:
    """Services with rules for shared chains that the kernel refuses.

    They are tried in a chain that no packet visits, which is written anew with each question.

    Raises:
        RestoreError: the question could not be asked.
    """
    accepted: list[str] = []

    def accepts(keys: Sequence[Key]) -> bool:
        probe = Block(table)
        asked = [*accepted, *(rule for key in keys for rule in rules[key])]
        probe.write(PROBE_CHAIN, asked)
        try:
            restore(Transaction([probe]))
        except RestoreError as error:
            if error.refusal is not Refusal.INPUT:
                raise
            return False
        accepted[:] = asked
        return True

    keys = list(rules)
    found = [] if not keys or accepts(keys) else culprits(keys, accepts)
    if accepted:
        gone = Block(table)
        gone.delete(PROBE_CHAIN)
        restore(Transaction([gone]))
    return found
