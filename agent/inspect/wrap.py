"""Text for a terminal: at most 80 columns."""

from __future__ import annotations

import textwrap

WIDTH = 80


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts: "1 rule", "1,240 rules".

    Args:
        number: how many.
        one: the word for one.
        many: the word for several, if it is not the same with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def indented(text: str, first: int, rest: int, width: int = WIDTH) -> list[str]:
    """Lines of a text, indented; words that are too long stay whole.

    Args:
        text: one paragraph.
        first: blanks in front of the first line.
        rest: blanks in front of the others.
        width: columns.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
