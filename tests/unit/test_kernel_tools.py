from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.kernel import tools
from agent.kernel.errors import ToolMissingError, ToolTimeoutError
from agent.kernel.tools import SubprocessRunner


def script(folder: Path, body: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    path.chmod(0o755)
    return str(path)


def test_input_output_and_status_pass_through(tmp_path: Path) -> None:
    """Standard input reaches the program; both outputs and the status come back."""
    tool = script(tmp_path, 'cat; echo "$1" >&2; exit 3')
    found = SubprocessRunner().run([tool, "a b; c"], stdin="in\n", timeout=5)

    assert (found.status, found.out, found.err) == (3, "in\n", "a b; c\n")


def test_the_environment_is_small(tmp_path: Path) -> None:
    """A program sees the path, a neutral language and the settings of iptables, nothing else."""
    environment = {"XTABLES_LOCKFILE": "/l", "LC_ALL": "de_DE.UTF-8", "SECRET": "x", "PATH": "/x"}
    tool = script(tmp_path, "exec /usr/bin/env")
    found = SubprocessRunner(environment).run([tool], timeout=5).out.splitlines()

    assert sorted(line for line in found if not line.startswith(("PWD=", "SHLVL=", "_="))) == [
        "LANG=C",
        "LC_ALL=C",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "XTABLES_LOCKFILE=/l",
    ]


def test_a_program_leads_a_session_of_its_own(tmp_path: Path) -> None:
    """Signals for the agent's process group do not reach it: its group is another one."""
    tool = script(tmp_path, "cut -d' ' -f5,6 /proc/$$/stat; echo $$")
    group_and_session, own = SubprocessRunner().run([tool], timeout=5).out.splitlines()

    assert group_and_session == f"{own} {own}"
    assert int(own) != os.getpgrp()


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """After the timeout neither the program nor what it started is left, and it is said so."""
    tool = script(
        tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/own; wait"
    )
    started = time.monotonic()
    with pytest.raises(ToolTimeoutError, match=r"tool did not end within 0.5 s and was killed"):
        SubprocessRunner().run([tool], timeout=0.5)

    assert time.monotonic() - started < 5
    for name in ("child", "own"):
        pid = (tmp_path / name).read_text(encoding="ascii").strip()
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "\nState:\tZ" in status.read_text(encoding="ascii")


@pytest.mark.parametrize("make", [False, True])
def test_a_program_that_cannot_be_started_is_missing(tmp_path: Path, *, make: bool) -> None:
    """A missing file and one that is no program give an error with its path."""
    path = tmp_path / "tool"
    if make:
        path.write_text("", encoding="ascii")

    with pytest.raises(ToolMissingError, match=str(path)):
        SubprocessRunner().run([str(path)], timeout=5)


def test_output_in_any_encoding_is_read(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, as in a comment of another tool's rule, do not stop the reading."""
    tool = script(tmp_path, r"printf 'a\377b\n'")

    assert SubprocessRunner().run([tool], timeout=5).out == "a\\xffb\n"


def test_programs_are_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixed folders come before PATH; relative parts of PATH and plain files do not count."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        script(folder, "exit 0")
    monkeypatch.setattr(tools, "DIRECTORIES", (first,))
    monkeypatch.setenv("PATH", f":.:{second}")
    monkeypatch.chdir(second)

    assert tools.find("tool") == first / "tool"
    (first / "tool").chmod(0o644)
    assert tools.find("tool") == second / "tool"
    monkeypatch.setenv("PATH", ":.")
    assert tools.find("tool") is None
