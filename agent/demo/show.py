"""What the demo prints: the split as bars, checks with their outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.inspect.chance import p_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

_WIDTH = 30


class Report:
    """Prints to a console, and remembers whether everything that it showed held."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.failed: list[str] = []

    def heading(self, text: str) -> None:
        """A new part of the demo."""
        self._console.print(f"\n[bold]{text}[/bold]")

    def line(self, text: str) -> None:
        """Plain text, shown as it is."""
        self._console.print(text, markup=False, highlight=False)

    def check(self, claim: str, *, held: bool) -> None:
        """A claim and whether it held."""
        mark = "[green]holds[/green]" if held else "[red]FAILS[/red]"
        self._console.print(f"  {mark}  {claim}", highlight=False)
        if not held:
            self.failed.append(claim)

    def split(self, answers: Mapping[str, int], expected: Sequence[str]) -> float:
        """Draw the answers of each endpoint beside its 1/n; returns the p-value."""
        counts = [answers.get(name, 0) for name in expected]
        total = sum(counts) or 1
        fair = 1 / len(expected)
        for name, count in zip(expected, counts, strict=True):
            share = count / total
            bar = _bar(share, fair)
            self.line(
                f"  {name:<6} {bar} {count:>5}  {share:6.1%}  (1/{len(expected)} = {fair:.1%})"
            )
        chance = p_value(counts)
        self.line(
            f"  chi-square p = {chance:.3f}: {chance:.0%} of fair lotteries are this uneven or more"
        )
        return chance


def _bar(share: float, fair: float) -> str:
    """A bar whose full width is twice the fair share, with a mark at the fair share."""
    scale = _WIDTH / max(2 * fair, share, 1e-9)
    filled, mark = round(share * scale), round(fair * scale)
    cells = ["█" if cell < filled else "·" for cell in range(_WIDTH)]
    if 0 < mark <= _WIDTH:
        cells[mark - 1] = "┃"
    return "".join(cells)
