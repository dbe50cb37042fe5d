from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rules import edges as module
from agent.rules.edges import differing, edges

if TYPE_CHECKING:
    from agent.rules.endpoints import Chain

ITEMS = st.lists(st.integers(0, 2), max_size=12).map(tuple)
CHAINS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sampled_from([(), ("-j A",), ("-j A", "-j B")]), max_size=8
).map(lambda found: tuple(found.items()))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", (0, 0)),
        ("", "a", (0, 0)),
        ("abc", "abc", (3, 0)),
        ("abc", "abcd", (3, 0)),
        ("bcd", "abcd", (0, 3)),
        ("abcd", "abxd", (2, 1)),
        ("aa", "aaa", (2, 0)),
        ("abc", "xyz", (0, 0)),
    ],
)
def test_what_is_the_same_at_both_ends(before: str, after: str, expected: tuple[int, int]) -> None:
    """What is the same at the beginning is not counted at the end once more."""
    assert edges(before, after) == expected


@pytest.mark.parametrize(
    ("before", "after", "first", "expected"),
    [
        ("abcdef", "abcdef", 2, (6, 0)),
        ("abxdef", "abcdef", 2, (2, 3)),
        ("xbcdef", "abcdef", 1, (6, 0)),
        ("a", "abc", 3, (1, 0)),
        ("abc", "a", 3, (1, 0)),
    ],
)
def test_the_first_ones_are_not_looked_at(
    before: str, after: str, first: int, expected: tuple[int, int]
) -> None:
    """They are counted as the same, as far as both have them."""
    assert edges(before, after, first) == expected


@given(ITEMS, ITEMS, st.integers(1, 4))
def test_edges_are_as_wide_as_they_can_be(
    before: tuple[int, ...], after: tuple[int, ...], step: int
) -> None:
    """They do not overlap, are the same, and what follows is not."""
    with mock.patch.object(module, "_FIRST_STEP", step):
        start, end = edges(before, after)
    old, new = before[start : len(before) - end], after[start : len(after) - end]

    assert before[:start] == after[:start]
    assert before[len(before) - end :] == after[len(after) - end :]
    assert len(before) == start + len(old) + end
    assert len(after) == start + len(new) + end
    if old and new:
        assert old[0] != new[0]
        assert old[-1] != new[-1]


def test_one_of_a_thousand() -> None:
    """Wherever it is."""
    before = tuple(range(1000))
    for place in (0, 1, 15, 16, 47, 48, 500, 998, 999):
        after = (*before[:place], -1, *before[place + 1 :])
        assert edges(before, after) == (place, 999 - place)


@pytest.mark.parametrize("place", [0, 3, 4, 50, 99])
def test_one_chain_of_a_hundred(place: int) -> None:
    """That has other rules, that is gone, and that is new."""
    before = tuple((f"c{number}", ("-j A",)) for number in range(100))
    other = f"c{place}", ("-j B",)
    without = (*before[:place], *before[place + 1 :])

    assert differing(before, (*before[:place], other, *before[place + 1 :])) == ([other], [])
    assert differing(before, without) == ([], [f"c{place}"])
    assert differing(without, before) == ([before[place]], [])


@given(CHAINS, CHAINS, st.integers(0, 4))
def test_chains_that_differ(before: tuple[Chain, ...], after: tuple[Chain, ...], own: int) -> None:
    """Each that is new or has other rules, and each that is gone, whatever their order."""
    with mock.patch.multiple(module, _FIRST_STEP=1, _OWN=own):
        written, gone = differing(before, after)
    held, wanted = dict(before), dict(after)

    assert sorted(written) == sorted(c for c in after if held.get(c[0]) != c[1])
    assert sorted(gone) == sorted(held.keys() - wanted.keys())
