"""A pytest plugin for mutmut's runs: each begins with the project imported anew.

mutmut imports everything once and forks for each mutant, so what is made at import, and what is
cached, would be the original's. And it takes a function that is called at import for one that
only the first test is about, while all tests are.
"""

from __future__ import annotations

import os
import sys

import pytest
from mutmut.state import state

_OURS = ("agent", "tests")
#: The written-down states are data, and take long to read.
_KEPT = {"tests", "tests.mutants", "tests.parity", "tests.parity.written", __name__}
_called_at_import: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before anything of ours is imported for this run."""
    for name in list(sys.modules):
        if name.partition(".")[0] in _OURS and name not in _KEPT:
            del sys.modules[name]


def pytest_collection_finish() -> None:
    """All is imported, and nothing has been tried yet."""
    _called_at_import.update(state()._stats)


def pytest_runtest_setup() -> None:
    """While mutmut finds out which functions a test is about."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        state()._stats.update(_called_at_import)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A mutant that cannot even be imported is noticed; mutmut takes that for an interruption."""
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
