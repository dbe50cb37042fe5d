"""``python -m tests.parity CASES``: compare every state of a file with the rules it expects."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.parity.case import differences, load_cases


def main(arguments: list[str]) -> int:
    """Print a diff for each state that differs; 0 if all are equal."""
    if not arguments:
        print("usage: python -m tests.parity CASES.jsonl[.gz] ...", file=sys.stderr)  # noqa: T201  a command
        return 2
    total = unequal = 0
    for argument in arguments:
        for case in load_cases(Path(argument)):
            total += 1
            if difference := differences(case):
                unequal += 1
                print(difference)  # noqa: T201  the command's output
    print(f"{total - unequal} of {total} states equal")  # noqa: T201  the command's output
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
