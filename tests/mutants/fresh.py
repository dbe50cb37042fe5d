"""A pytest plugin for mutmut's runs: each begins with nothing left from before.

mutmut imports everything once, runs all tests to learn which functions each is about, and forks
for every mutant. What was made at import, and what is cached, would be the original's there. And
a function that is called at import, or whose results are cached, would be taken for one that
only the first test is about. Nor does a busy machine decide anything: a mutant that goes on and on
runs out of processor time, for which mutmut has a limit as well.
"""

from __future__ import annotations

import functools
import os
import sys

import pytest
from mutmut.state import state
from mutmut.workers import isolation

_called_at_import: set[str] = set()
isolation.register_timeout = lambda **_: None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before anything of ours is imported for this run."""
    function = os.environ.get("MUTANT_UNDER_TEST", "").partition("__mutmut_")[0]
    tests = state().tests_by_mangled_function_name.get(function, ())
    if tests and len(tests) == len(state().duration_by_test):  # all of them: called at import
        for name in [name for name in sys.modules if name.startswith(("agent.", "tests."))]:
            if name not in {"tests.mutants", __name__}:
                del sys.modules[name]
    _forget_results()


def _forget_results() -> None:
    for name in [name for name in sys.modules if name.startswith("agent.")]:
        for value in vars(sys.modules[name]).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def pytest_collection_finish() -> None:
    """All is imported, and nothing has been tried yet."""
    _called_at_import.update(state()._stats)


def pytest_runtest_setup() -> None:
    """While mutmut learns which functions a test is about."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        state()._stats.update(_called_at_import)
        _forget_results()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A mutant that cannot even be imported is noticed; mutmut takes that for an interruption."""
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
