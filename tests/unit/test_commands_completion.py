"""Completion in the three shells: what the program says, and what a real shell makes of it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import cli
from tests.fakes.dumps import rules_for, sample_store, saved

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> Path:
    """The program under its name, as an installation puts it into PATH."""
    path = tmp_path / "bin/onenth"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m agent "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def completions(words: str, program: Path) -> list[str]:
    """What the program offers for the last of some words."""
    parts = words.split(" ")
    environment = os.environ | {
        "_ONENTH_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
    }
    found = subprocess.run(
        [str(program)], env=environment, capture_output=True, text=True, check=True
    )
    return [line.partition(",")[2] for line in found.stdout.splitlines() if line]


def in_bash(words: list[str], program: Path) -> list[str]:
    """What bash offers after it has read the script."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        eval "$(onenth completion bash)"
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        _onenth_completion onenth
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script(shell: str) -> None:
    """That completes the command onenth, and asks by the variable that the program knows."""
    result = CliRunner().invoke(cli, ["completion", shell])

    assert result.exit_code == 0
    assert f"_ONENTH_COMPLETE={shell}_complete" in result.output
    assert "onenth" in result.output


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_is_here_accepts_its_script(shell: str, tmp_path: Path) -> None:
    """It parses."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / "script"
    script.write_text(CliRunner().invoke(cli, ["completion", shell]).output, "utf-8")

    subprocess.run([found, "-n", str(script)], check=True)


def test_commands_options_and_choices_are_completed(program: Path) -> None:
    """Of every kind that there is."""
    assert completions("onenth ver", program) == ["verify", "version"]
    assert "--from-file" in completions("onenth verify --from", program)
    assert completions("onenth top --sort e", program) == ["established"]
    assert completions("onenth explain x --proto ", program) == ["tcp", "udp", "sctp"]
    assert completions("onenth verify --from-file ", program) == [""]  # files: the shell's


def test_targets_are_services_of_the_rules(program: Path, tmp_path: Path) -> None:
    """Of the file, if one is given; nothing, and no error, if it cannot be read."""
    dump = tmp_path / "saved.txt"
    dump.write_text(saved(rules_for(sample_store())), "utf-8")

    found = completions(f"onenth explain --from-file {dump} shop/s", program)
    assert found == ["shop/sticky:http"]
    assert completions(f"onenth explain --from-file {tmp_path}/none shop/", program) == []


def test_bash_completes(program: Path) -> None:
    """A real bash, with the script that the program printed."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed here")

    assert in_bash(["onenth", "ex"], program) == ["explain"]
    assert in_bash(["onenth", "plan", "--di"], program) == ["--diff", "--dispatch"]


def typed_in_bash(line: str, program: Path, folder: Path, wanted: str) -> str:
    """What bash shows on a terminal when a line and a tab are typed; waits for what is wanted."""
    terminal, inside = pty.openpty()
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    shown = ""
    with subprocess.Popen(
        ["bash", "--norc", "-i"],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        cwd=folder,
        env=os.environ | {"PATH": path, "TERM": "dumb"},
        start_new_session=True,
    ) as shell:
        try:
            os.write(terminal, b'eval "$(onenth completion bash)"; echo rea""dy\r')
            for awaited, text in (("ready\r\n", f"{line}\t"), (wanted, "")):
                end = time.monotonic() + 60
                while awaited not in shown and time.monotonic() < end:
                    if select.select([terminal], [], [], 0.5)[0]:
                        shown += os.read(terminal, 65536).decode(errors="replace")
                os.write(terminal, text.encode())
        finally:
            shell.kill()
    os.close(inside)
    os.close(terminal)
    return shown


@pytest.mark.parametrize("part", ["shop/st", "shop/sticky:", "shop/sticky:ht"])
def test_bash_completes_names_with_colons(part: str, program: Path, tmp_path: Path) -> None:
    """A service port's name is one word, although bash ends words at colons."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed here")
    (tmp_path / "saved").write_text(saved(rules_for(sample_store())), "utf-8")
    line = f"onenth explain --from-file saved {part}"

    shown = typed_in_bash(line, program, tmp_path, wanted="shop/sticky:http ")
    assert shown.endswith("onenth explain --from-file saved shop/sticky:http ")


def in_zsh(words: list[str], program: Path) -> list[str]:
    """What zsh would offer: its completion system needs a terminal, so what is added is printed."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        compdef() {{ :; }}
        compadd() {{ print -rl -- ${{(P)@[-1]}}; }}
        _describe() {{ print -rl -- ${{(P)3}}; }}
        eval "$(onenth completion zsh)"
        words=({quoted}); CURRENT={len(words)}
        _onenth_completion
    """
    return run_shell(["zsh", "-f", "-c", script], program)


def run_shell(command: list[str], program: Path) -> list[str]:
    """The lines that a shell prints which finds the program."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_zsh_completes(program: Path) -> None:
    """A real zsh, with commands, what they do, and values."""
    first, *rest = in_zsh(["onenth", "ver"], program)

    assert first.startswith("verify:Check the rules")
    assert rest[0].startswith("version:Print versions")
    assert in_zsh(["onenth", "top", "--sort", "e"], program) == ["established"]


def test_fish_completes(program: Path, tmp_path: Path) -> None:
    """A real fish, asked as it asks itself; Services of the rules as well."""
    dump = tmp_path / "saved.txt"
    dump.write_text(saved(rules_for(sample_store())), "utf-8")

    def in_fish(line: str) -> list[str]:
        script = f"onenth completion fish | source; complete -C '{line}'"
        found = run_shell(["fish", "--no-config", "-c", script], program)
        return [offered.partition("\t")[0] for offered in found]

    assert in_fish("onenth ver") == ["verify", "version"]
    assert in_fish("onenth plan --di") == ["--diff", "--dispatch"]
    assert in_fish(f"onenth explain --from-file {dump} shop/st") == ["shop/sticky:http"]
