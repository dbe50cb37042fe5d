from __future__ import annotations

import pytest

from tests.soak.slope import BLOCKS, measure

PLACES = [float(place) for place in range(100)]


def test_a_straight_line_is_found_without_an_error() -> None:
    """Three bytes a reading over 99 steps are 297 bytes of growth, for certain."""
    found = measure(PLACES, [1000 + 3 * place for place in PLACES])
    assert found.growth == pytest.approx(297)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.level == pytest.approx(1000 + 3 * 49.5)
    assert found.flat(298)
    assert not found.flat(296)


def test_what_goes_up_and_down_is_flat() -> None:
    """A value that swings between 5 and 9 in every block has no slope."""
    found = measure(PLACES, [5.0, 9.0, 7.0, 7.0, 7.0] * BLOCKS)
    assert (found.growth, found.error, found.level) == (0, 0, 7)
    assert found.flat(0)


def test_what_cannot_be_ruled_out_is_not_flat() -> None:
    """With blocks of means 0 and 10 by turns, no growth is measured that means anything.

    The line through twenty such blocks rises by 50/665 a block: 1.49 over the run. The
    error is far larger, so a growth of 2 cannot be ruled out although the line stays below.
    """
    found = measure(PLACES, ([0.0] * 5 + [10.0] * 5) * (BLOCKS // 2))
    assert found.growth == pytest.approx(50 / 665 * 99 / 5)
    assert found.error > 5
    assert not found.flat(2)


def test_one_outlier_in_a_block_counts_for_nothing() -> None:
    """A child process that is just being started has pipes open for an instant."""
    found = measure(PLACES, [12.0, 7.0, 7.0, 7.0, 7.0] * BLOCKS)
    assert (found.growth, found.level) == (0, 7)


def test_too_few_readings_are_refused() -> None:
    """Nothing is said from nineteen readings."""
    with pytest.raises(ValueError, match="19 readings"):
        measure(PLACES[:19], PLACES[:19])
