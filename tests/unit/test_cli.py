from __future__ import annotations

import signal
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from agent.cli import Commands

#: The first import of the command line is slow.
SLOW = """
import sys, time, types
class Slow:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
sys.modules.pop("signal", None)
from agent.__main__ import main
main()
"""


def test_an_interrupted_command_says_so() -> None:
    """Ctrl-C in any command, also while it imports what it needs: a message, and status 130."""

    @click.command
    def work() -> None:
        raise KeyboardInterrupt

    done = CliRunner().invoke(Commands(commands=[work]), ["work"])

    assert done.exit_code == 130
    assert done.output == "Error: interrupted\n"


@pytest.mark.parametrize("name", ["signal", "agent.cli"])
def test_interrupted_before_it_has_begun(name: str) -> None:
    """Ctrl-C while the command line is still being imported ends it silently, as any program."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)

    assert process.returncode == -signal.SIGINT
    assert said == ""
