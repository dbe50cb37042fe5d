"""Commands whose output nobody reads to its end, through a real pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.dumps import Broken, rules_for, sample_store, saved

SOUND = saved(rules_for(sample_store()))
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rules that are sound, and some that are not."""
    folder = tmp_path_factory.mktemp("pipe")
    (folder / "sound.txt").write_text(SOUND, "utf-8")
    broken = Broken(SOUND)
    broken.drop("-A PREROUTING .*KUBE-SERVICES")
    (folder / "broken.txt").write_text(str(broken), "utf-8")
    return folder


def unread(
    folder: Path, command: str, *, everything: bool = False, buffered: bool = True
) -> tuple[int, str]:
    """Run a command in front of somebody who reads nothing: its status, and what it complains of.

    Args:
        folder: where it runs.
        command: its words.
        everything: nobody reads the standard error either.
        buffered: what is printed waits in the process for more.
    """
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "agent", *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer if everything else subprocess.PIPE,
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": "" if buffered else "1"},
            cwd=folder,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "explain --help",
        "config",
        "config -o yaml",
        "version -o json",
        "completion bash",
        "explain shop/web --from-file sound.txt",
        "explain shop/web --from-file sound.txt -o json",
        "verify --from-file sound.txt",
    ],
)
def test_what_nobody_reads_ends_quietly_and_well(folder: Path, command: str) -> None:
    """No traceback, no complaint of the interpreter, status 0."""
    assert unread(folder, command) == (0, "")


@pytest.mark.parametrize("command", ["config", "verify --from-file sound.txt"])
def test_output_without_a_buffer_as_well(folder: Path, command: str) -> None:
    """As in a container that sets PYTHONUNBUFFERED."""
    assert unread(folder, command, buffered=False) == (0, "")


@pytest.mark.parametrize(
    ("command", "status"),
    [("verify --from-file broken.txt", 1), ("verify --from-file broken.txt -o json", 1)],
)
def test_what_was_found_is_in_the_status_all_the_same(
    folder: Path, command: str, status: int
) -> None:
    """A script that shows the first findings learns that there are some."""
    assert unread(folder, command) == (status, "")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("explain shop/nobody --from-file sound.txt", 1),
        ("verify --from-file nowhere.txt", 2),
        ("explain", 2),
        ("nothing", 2),
    ],
)
def test_errors_that_nobody_reads_keep_their_status(
    folder: Path, command: str, status: int
) -> None:
    """Also when the standard error goes the same way."""
    assert unread(folder, command, everything=True) == (status, "")


def test_the_first_line_is_there(folder: Path) -> None:
    """A reader that takes one line gets it; the rest costs nothing but itself."""
    argv = [sys.executable, "-m", "agent", "config"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=folder, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        complaints = process.stderr.read()
        status = process.wait(timeout=60)

    assert first.startswith("clientConnection.kubeconfig ")
    assert (status, complaints) == (0, "")
