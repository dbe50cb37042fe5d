"""Words of a rule: from text, and back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(?=\s|$)|([^\s"]+)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = re.compile(r"[^\s\"'\\]+")
_LONGEST = 120


class ParseError(ValueError):
    """Text that is not a rule, a chain or a table as ``iptables-save`` writes them."""


def tokens(text: str) -> list[str]:
    """Words of a rule, quoted ones without their quotes and escapes.

    Raises:
        ParseError: a quotation mark has no counterpart, or a word follows it at once.
    """
    if '"' not in text:
        return text.split()
    parts = text.split('"')
    if len(parts) == 3 and "\\" not in text:
        before, quoted, behind = parts
        if not behind or behind[0] == " ":
            return [*before.split(), quoted, *behind.split()]
    return _quoted_tokens(text)


def _quoted_tokens(text: str) -> list[str]:
    found: list[str] = []
    position = 0
    for match in _TOKEN.finditer(text):
        if text[position : match.start()].strip():
            break
        quoted, plain = match.groups()
        found.append(plain if quoted is None else _ESCAPE.sub(r"\1", quoted))
        position = match.end()
    if text[position:].strip():
        raise ParseError(f"a quotation mark has no counterpart: {shorten(text[position:])}")
    return found


def join(words: Iterable[str]) -> str:
    """Text of words, so that ``tokens`` gives them back."""
    return " ".join(map(quote, words))


def quote(word: str) -> str:
    """A word as ``iptables-save`` writes it."""
    if _PLAIN.fullmatch(word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_number(text: str) -> bool:
    """Whether the text is a decimal number without a sign."""
    return text.isascii() and text.isdecimal()


def integer(text: str) -> int:
    """A number as C reads it: hexadecimal with 0x, octal with 0, else decimal.

    Raises:
        ParseError: it is none.
    """
    digits = text.lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base)
    except ValueError:
        raise ParseError(f"{text!r} is not a number") from None


def shorten(text: str) -> str:
    """Text for an error message, of bounded length."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
