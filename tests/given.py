"""What the environment names for tests: programs, and states to compare with.

Every variable that begins with ONENTH_ is a setting to the agent, and one that it does not know
is an error. So these are taken out of the environment before any test starts an agent.
"""

from __future__ import annotations

import os

NAMES = ("ONENTH_ALL_STATES", "ONENTH_GOLDEN", "ONENTH_KUBE_PROXY")
_taken: dict[str, str] = {}


def take() -> None:
    """Take the variables out of the environment."""
    _taken.update({name: os.environ.pop(name) for name in NAMES if name in os.environ})


def given(name: str) -> str:
    """The value of a variable, empty if it is not set."""
    return _taken.get(name) or os.environ.get(name, "")
