"""YAML and JSON text, taken apart into documents that know their line.

Scalars without quotes mean what JSON would mean by them, and are text otherwise. YAML 1.1,
which PyYAML follows by default, makes booleans of ``on`` and ``no``, octal numbers of ``010``,
base-60 numbers of ``12:30`` and dates of ``2026-01-01``; in a manifest each of those is meant
as it is written, and where the API wants another type the object is rejected by name.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import yaml

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document(msgspec.Struct, frozen=True):
    """One document: what it holds, and the 1-based line that it begins on."""

    value: object
    line: int


class MalformedError(ValueError):
    """Text that is neither YAML nor JSON; ``line`` is 1-based."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class _Loader(_Base):  # type: ignore[misc] # libyaml's where PyYAML was built with it
    """A safe loader with JSON's idea of plain scalars, and the merge key."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^-?(?:0|[1-9][0-9]*)$", "-0123456789"),
    ("float", r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$", "-0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^<<$", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))
# Where a merge key is no key, it is text.
_Loader.add_constructor("tag:yaml.org,2002:merge", _Loader.construct_yaml_str)


def parse(data: bytes) -> list[Document]:
    """Take text apart; JSON documents may follow one another, empty documents are left out.

    Raises:
        MalformedError: the text has a syntax error, or is not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError(line, f"not UTF-8: {error.reason}") from error
    if not text.lstrip().startswith(("{", "[")):
        return _parse_yaml(text)
    try:
        return _parse_json(text)
    except MalformedError as error:
        # A flow mapping is YAML that looks like JSON; if it is neither, it was meant as JSON.
        try:
            return _parse_yaml(text)
        except MalformedError:
            raise error from None


def _parse_yaml(text: str) -> list[Document]:
    documents = []
    try:
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                value = loader.construct_document(node)
                if value is not None:
                    documents.append(Document(value, node.start_mark.line + 1))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise MalformedError(mark.line + 1 if mark else 1, _said(error)) from error
    except (yaml.YAMLError, ValueError) as error:
        # Only a character that YAML forbids has no mark; a scalar may also fail to convert.
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        raise MalformedError(line, str(error).replace("\n", " ")) from error
    except RecursionError as error:
        raise MalformedError(1, "nested too deeply") from error
    return documents


def _said(error: yaml.MarkedYAMLError) -> str:
    """What PyYAML says, without its drawing of the place."""
    return ", ".join(part for part in (error.context, error.problem) if part)


def _parse_json(text: str) -> list[Document]:
    decoder = json.JSONDecoder()
    documents = []
    at = counted = 0
    line = 1
    while (at := _skip_space(text, at)) < len(text):
        line += text.count("\n", counted, at)
        counted = at
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise MalformedError(error.lineno, error.msg) from error
        except (ValueError, RecursionError) as error:
            raise MalformedError(line, str(error)) from error
        documents.append(Document(value, line))
        at = end
    return documents


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
