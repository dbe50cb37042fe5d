"""``python -m tests.mutants``: what mutmut's last run left, and whether that is explained.

Usage: python -m tests.mutants [--names] [PATTERN ...]

Patterns choose mutants by name, such as ``agent.state.*``; ``--names`` prints only the names of
those that are left, for ``mutmut run``.
"""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import (
    get_module_from_key,
    orig_function_and_class_names_from_key,
)

from tests.mutants.judge import LEFT, Mutant, excuses, faults, normal, report

EXPLAINED = Path(__file__).with_name("left.toml")


def mutants(patterns: list[str]) -> list[Mutant]:
    """The mutants of mutmut's last run."""
    found: list[Mutant] = []
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if patterns and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                continue
            status = status_by_exit_code[code]
            change = normal(get_diff_for_mutant(name, path=path)) if status in LEFT else ""
            found.append(Mutant(name, function_of(name), status, change))
    return found


def function_of(name: str) -> str:
    """The function's name, as Python has it."""
    function, cls = orig_function_and_class_names_from_key(name)
    return ".".join(part for part in (get_module_from_key(name), cls, function) if part)


def main(arguments: list[str]) -> int:
    """Print the report; 0 if few are left, and each is explained."""
    names = "--names" in arguments
    found = mutants([argument for argument in arguments if argument != "--names"])
    if names:
        print("\n".join(mutant.name for mutant in found if mutant.status in LEFT))  # noqa: T201  a command
        return 0
    known = excuses(EXPLAINED)
    print("\n".join(report(found, known)))  # noqa: T201  the command's output
    return int(any(faults(found, {(excuse.function, excuse.change) for excuse in known})))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
