"""Commands of other programs, and waiting."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")


class CommandError(Exception):
    """A command failed; the message holds what it printed."""


class NotInTimeError(AssertionError):
    """Something did not come true; the message says what, and what was seen last."""


def run(
    *argv: str,
    stdin: str = "",
    timeout: float = 120.0,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a shell.

    Raises:
        CommandError: it ended with another status than 0 (unless ``check`` is off), or not in
            time.
    """
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, errors="backslashreplace",
            timeout=timeout, check=False, env=env, cwd=cwd,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{_short(argv)} did not end in {timeout:g} s") from error
    except OSError as error:
        raise CommandError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if check and done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-4000:]
        raise CommandError(f"{_short(argv)} ended with {done.returncode}: {said}")
    return done


def wait_for(
    what: str,
    ask: Callable[[], T],
    *,
    timeout: float = 60.0,
    interval: float = 0.1,
    accept: Callable[[T], bool] = bool,
) -> T:
    """Ask until an answer is acceptable; errors of commands count as "not yet".

    Raises:
        NotInTimeError: it was not in time.
    """
    end = time.monotonic() + timeout
    while True:
        seen: object
        try:
            answer = ask()
        except (CommandError, OSError, AssertionError) as error:
            seen = error
        else:
            if accept(answer):
                return answer
            seen = answer
        if time.monotonic() > end:
            raise NotInTimeError(f"{what}: not in {timeout:g} s; last seen: {seen!s:.4000}")
        time.sleep(interval)


def _short(argv: Sequence[str]) -> str:
    return " ".join(arg if len(arg) < 200 else arg[:100] + "..." for arg in argv)
