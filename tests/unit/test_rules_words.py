from __future__ import annotations

import pytest

from agent.rules.words import ParseError, integer, is_number, join, quote, shorten, tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  -s   10.0.0.1\t-j A ", ["-s", "10.0.0.1", "-j", "A"]),
        ('"a b"', ["a b"]),
        ('--comment "a b" -j A', ["--comment", "a b", "-j", "A"]),
        ('--comment "" -j A', ["--comment", "", "-j", "A"]),
        ('--comment "a\nb"', ["--comment", "a\nb"]),
        ('"a" "b c"', ["a", "b c"]),
        (r'--comment "say \"hi\" \\ o\k" -j A', ["--comment", 'say "hi" \\ ok', "-j", "A"]),
        ('--comment\t"a b"\t-j', ["--comment", "a b", "-j"]),
        ("it's a\\b", ["it's", "a\\b"]),
        ('-m x"a b" -j', ["-m", "x", "a b", "-j"]),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    """Blanks part them, quotation marks keep blanks, and a backslash keeps what follows it."""
    assert tokens(text) == words


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('"', '"'),
        ('-j "A', '"A'),
        ('-j "b c"d', '"b c"d'),
        ('-j "b c"d e', '"b c"d e'),
        ('"a" "b" "c', '"c'),
        (r'-j "a\"', r'"a\"'),
        ('"' + "x" * 119, '"' + "x" * 119),
        ('"' + "x" * 120, '"' + "x" * 119 + "..."),
    ],
)
def test_a_quotation_mark_alone_or_within_a_word(text: str, rest: str) -> None:
    """The error shows from where on it cannot be read, up to 120 characters."""
    with pytest.raises(ParseError) as caught:
        tokens(text)
    assert str(caught.value).partition(": ")[0] == "a quotation mark has no counterpart"
    assert str(caught.value).partition(": ")[2].strip() == rest


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("a", "a"),
        ("", '""'),
        ("a b", '"a b"'),
        ("it's", '"it\'s"'),
        ('"', r'"\""'),
        ("\\", r'"\\"'),
        (r"\"", r'"\\\""'),
    ],
)
def test_a_word_in_quotation_marks(word: str, quoted: str) -> None:
    """Only where it must be; ``iptables-save`` writes it so."""
    assert quote(word) == quoted
    assert tokens(join([word, "-j"])) == [word, "-j"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("10", 10), ("0x1F", 31), ("0XfF", 255), ("017", 15), ("00", 0), ("9", 9)],
)
def test_numbers_as_c_reads_them(text: str, number: int) -> None:
    """Decimal, hexadecimal with 0x, and octal with 0."""
    assert integer(text) == number


@pytest.mark.parametrize("text", ["", "x", "08", "0x", "1a", "0xg"])
def test_what_is_no_number(text: str) -> None:
    """Said with the text."""
    with pytest.raises(ParseError) as caught:
        integer(text)
    assert str(caught.value) == f"{text!r} is not a number"


def test_decimal_numbers_without_a_sign() -> None:
    """Digits of other scripts are none."""
    assert [text for text in ("80", "007", "", "-1", "+1", "8a", "٣", "²") if is_number(text)] == [
        "80",
        "007",
    ]


def test_text_for_a_message_is_bounded() -> None:
    """At 120 characters; what is left out is shown."""
    assert shorten("x" * 120) == "x" * 120
    assert shorten("x" * 121) == "x" * 120 + "..."
