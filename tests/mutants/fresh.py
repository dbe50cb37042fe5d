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
from typing import TYPE_CHECKING

import pytest
from _pytest.config import _prepareconfig
from mutmut.mutation import trampoline
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

if TYPE_CHECKING:
    from collections.abc import Iterable

_called_at_import: set[str] = set()
isolation.register_timeout = lambda **_: None
trampoline.get_mutant_under_test = lambda: trampoline._mutant_under_test or ""  # no look at environ
_run_tests = PytestRunner.run_tests
_collected: list[pytest.Session] = []


def _run_collected(runner: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
    """Run a mutant's tests, first those of its module, as they were collected for all mutants.

    To collect them anew takes longer than to run them.
    """
    if mutant_name is None or _is_called_at_import(mutant_name):
        code: int = _run_tests(runner, mutant_name=mutant_name, tests=tests)
        if not code and not _collected:
            _collected.append(_collect(runner))
        return code
    _forget_results()
    session = _collected[0]
    own = f"tests/unit/test_{'_'.join(mutant_name.split('.')[1:3])}.py"
    known = {item.nodeid: item for item in session.items}
    session.items = [known[t] for t in sorted(tests, key=lambda test: not test.startswith(own))]
    try:
        with change_cwd("mutants"):
            session.config.hook.pytest_runtestloop(session=session)
    except (Exception, KeyboardInterrupt):  # noqa: BLE001  what makes pytest stop: the first failure
        return 1
    return int(session.testsfailed > 0)


def _collect(runner: PytestRunner) -> pytest.Session:
    selection, more = runner._pytest_add_cli_args_test_selection, runner._pytest_add_cli_args
    with change_cwd("mutants"):
        config = _prepareconfig(["--rootdir=.", "-x", "-s", *selection, *more])
        config._do_configure()
        config.pluginmanager.unregister(name="terminalreporter")
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
    return session


PytestRunner.run_tests = _run_collected


def _is_called_at_import(mutant_name: str) -> bool:
    """Whether the tests are about its function, all of them."""
    function = mutant_name.partition("__mutmut_")[0]
    tests = state().tests_by_mangled_function_name.get(function, ())
    return bool(tests) and len(tests) == len(state().duration_by_test)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before anything of ours is imported for this run."""
    if _is_called_at_import(os.environ.get("MUTANT_UNDER_TEST", "")):
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
