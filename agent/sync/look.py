"""What a full sync learns of the kernel before it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.rules import names
from agent.rules.parse import ParseError, canonical, parse_save, understood
from agent.rules.static import out_of_place
from agent.sync.plan import KernelView
from agent.sync.port import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.rules.dispatch import ChainId
    from agent.rules.static import BaseJump
    from agent.sync.plan import Planner
    from agent.sync.port import Kernel


def read_table(kernel: Kernel, table: str) -> Mapping[str, list[str]]:
    """A table's chains and rules.

    Raises:
        ReadError: it could not be read, or is not what the tool prints.
    """
    try:
        return parse_save(kernel.save(table)).get(table, {})
    except ParseError as error:
        raise ReadError(f"reading table {table}: {error}") from error


def read_chain(kernel: Kernel, table: str, chain: str) -> list[str] | None:
    """A chain's rules, without ``-A CHAIN``; None if there is no such chain.

    Raises:
        ReadError: it could not be read.
    """
    lines = kernel.chain(table, chain)
    return None if lines is None else [line.removeprefix(f"-A {chain}").strip() for line in lines]


class Looker:
    """Reads the kernel for a planner's rules; every method may raise ``ReadError``."""

    def __init__(self, planner: Planner, kernel: Kernel) -> None:
        self._planner = planner
        self._kernel = kernel

    def view(self, *, right: bool) -> KernelView:
        """What is there now.

        Args:
            right: also find out which chains need not be written.
        """
        self._kernel.confirm()  # what others did before this counts for nothing
        tables = {"filter": read_table(self._kernel, "filter")} | self._whole_nat()
        nat = tables.get("nat", {}).keys() or self._kernel.chains("nat")
        chains = [("nat", chain) for chain in nat]
        chains += [("filter", chain) for chain in tables["filter"]]
        ours = frozenset(
            (table, chain)
            for table, chain in chains
            if names.is_service_chain(chain) or names.is_tree_chain(chain)
        )

        def held(table: str, chain: str) -> list[str]:
            if table in tables:
                return tables[table].get(chain, [])
            return self._held(table, chain) if chain in nat else []

        _, standing = self._look_at_jumps(held)
        return KernelView(
            chains=ours,
            filters=dict(tables["filter"]),
            standing_jumps=standing,
            canary=self._kernel.chain("mangle", names.CANARY) is not None,
            right=self._right() if right and ours else {},
        )

    def again(self, before: KernelView) -> KernelView:
        """After a refusal: tables in front of the refused one were accepted, with their jumps."""
        return msgspec.structs.replace(self.view(right=False), right=before.right)

    def wrong_jumps(self) -> dict[BaseJump, int]:
        """How often each of our jumps is there, if not just once, or first out of its place."""
        return self._look_at_jumps(self._held)[0]

    def _held(self, table: str, chain: str) -> list[str]:
        return read_chain(self._kernel, table, chain) or []

    def _whole_nat(self) -> dict[str, Mapping[str, list[str]]]:
        """The nat table where it is read as a whole for the names of its chains alone."""
        if self._kernel.digests("nat", ()) is not None:
            return {}
        try:
            return {"nat": read_table(self._kernel, "nat")}
        except ReadError:
            return {}  # chain by chain it may be read all the same

    def _right(self) -> dict[str, tuple[str, ...]]:
        """Chains that are right already; none if they cannot be read."""
        try:
            return self._planner.right(read_table(self._kernel, "nat"))
        except ReadError:
            return {}  # writing all of them needs no reading

    def _look_at_jumps(
        self, read: Callable[[str, str], list[str]]
    ) -> tuple[dict[BaseJump, int], dict[ChainId, list[str]]]:
        """Jumps that are amiss, and all of ours in their chains, as worded."""
        jumps = self._planner.jumps()
        wrong: dict[BaseJump, int] = {}
        standing: dict[ChainId, list[str]] = {}
        for table, source in dict.fromkeys((jump.table, jump.source) for jump in jumps):
            held = read(table, source)
            present = [understood(text) for text in held]
            mine = [jump for jump in jumps if (jump.table, jump.source) == (table, source)]
            ours = [canonical(jump.rule) for jump in mine]
            counts = zip(mine, map(present.count, ours), strict=True)
            amiss = {jump: count for jump, count in counts if count != 1}
            if not amiss:
                amiss = dict.fromkeys(out_of_place(mine, present)[:1], 1)
            if amiss:
                wrong |= amiss
                standing[table, source] = [
                    text for text, rule in zip(held, present, strict=True) if rule in ours
                ]
        return wrong, standing
