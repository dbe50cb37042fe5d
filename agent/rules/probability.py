"""Chances as the kernel keeps them: multiples of 2^-31."""

from __future__ import annotations

from agent.rules.words import ParseError

#: A kernel probability is a whole number of these steps in 1.
PROBABILITY_STEPS = 2**31
#: A kernel probability is a multiple of this; ten decimals are a little finer.
PROBABILITY_STEP = 1 / PROBABILITY_STEPS


def probability_steps(text: str) -> int:
    """A probability as the kernel keeps it: a multiple of 2^-31.

    Raises:
        ParseError: it is not a number from 0 to 1.
    """
    try:
        chance = float(text)
    except ValueError:
        chance = -1.0
    if not 0 <= chance <= 1:
        raise ParseError(f"{text!r} is not a probability")
    return round(chance * PROBABILITY_STEPS)


def share(steps: int) -> int:
    """The n whose 1/n the kernel keeps as so many steps; 0 if there is none.

    A step of rounding is allowed: ten decimals are a little coarser than a step.
    """
    if steps <= 0:
        return 0
    one_in = round(PROBABILITY_STEPS / steps)
    return one_in if abs(PROBABILITY_STEPS / one_in - steps) <= 1 else 0
