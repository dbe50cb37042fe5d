from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.documents import MalformedError, parse


def _values(text: str) -> list[object]:
    return [document.value for document in parse(text.encode())]


@pytest.mark.parametrize(
    "text", ["on", "no", "y", "010", "08", "12:30", "2026-01-01", "0x1F", "+1"]
)
def test_a_plain_scalar_is_text_unless_json_reads_it(text: str) -> None:
    """What YAML 1.1 would turn into a boolean, an octal, a base-60 number or a date is text."""
    assert _values(f"a: {text}") == [{"a": text}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("8080", 8080),
        ("-1", -1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("null", None),
        ("~", None),
        ("", None),
        ("'8080'", "8080"),
        ("<<", "<<"),
    ],
)
def test_what_json_reads_has_its_type(text: str, value: object) -> None:
    """Booleans, numbers and null are themselves; quotes make text of anything."""
    assert _values(f"a: {text}") == [{"a": value}]


def test_documents_know_their_lines() -> None:
    """Each of several documents, YAML or JSON, says where it begins; empty ones are none."""
    yaml = parse(b"# head\n\na: 1\n---\n---\n# foot\n---\nb: 2\n")
    json = parse(b'{"a":\t1}\n\n{"b": 2}{"c": 3}\n')

    assert [(d.value, d.line) for d in yaml] == [({"a": 1}, 3), ({"b": 2}, 8)]
    assert [(d.value, d.line) for d in json] == [({"a": 1}, 1), ({"b": 2}, 3), ({"c": 3}, 3)]
    many = parse(b'{\n"a": 1}\n' * 1000)
    assert [d.line for d in many] == list(range(1, 2001, 2))


def test_forms_that_people_write() -> None:
    """Merge keys, flow mappings, tabs in JSON and a byte order mark are all read."""
    assert _values("a: &x {b: 1}\nc: {<<: *x, d: 2}") == [{"a": {"b": 1}, "c": {"b": 1, "d": 2}}]
    assert _values("{a: 1, b: [x]}") == [{"a": 1, "b": ["x"]}]
    assert _values('{\n\t"a": 1\n}') == [{"a": 1}]
    assert _values("\ufeffa: 1") == [{"a": 1}]
    assert _values("") == _values("# nothing\n") == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a: 1\nb: [1\n---\n", 3),
        (b"a: 1\nb: !python/object:os.system x\n", 2),
        (b"a: 1\nb: \xff\n", 2),
        (b"a: 1\nb: \x00\n", 2),
        (b"a: 1\n? [1]\n: 2\n", 2),
        (b'{"a": 1,\n"b": 2,\n"c" 3}\n', 3),
        (b"[" * 100_000, 1),
        (b"a: *nobody\n", 1),
        (b"a: 1\n\tb: 2\n", 2),
    ],
    ids=["flow", "tag", "utf8", "nul", "key", "json", "deep", "alias", "tab"],
)
def test_bad_text_has_a_line(data: bytes, line: int) -> None:
    """The error names the line that a person has to look at."""
    with pytest.raises(MalformedError) as caught:
        parse(data)

    assert caught.value.line == line
    assert caught.value.reason
    assert "\n" not in caught.value.reason


@given(
    st.binary(max_size=80)
    | st.text("{}[]:,-&*!|>'\"?%@#\n\t ab1\u0085", max_size=40).map(str.encode)
)
def test_no_bytes_do_more_than_fail_to_parse(data: bytes) -> None:
    """Any file at all is either documents or a MalformedError with a line."""
    lines = range(1, len(data) + 2)
    try:
        found = [document.line for document in parse(data)]
    except MalformedError as error:
        found = [error.line]

    assert all(line in lines for line in found)
