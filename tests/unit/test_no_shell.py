"""The agent's code has no way to a shell, to code made of text, or to objects made of bytes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENT = Path(__file__).parents[2] / "agent"
FILES = sorted(AGENT.rglob("*.py"))
#: The only places that start programs: the daemon's runner, the look of ``observe``, this program's
#: own processes for a large table, the demo.
STARTERS = {"kernel/tools.py", "commands/observe.py", "kernel/readout.py"}
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "pty", "commands", "dill", "jsonpickle"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv", "os.execve",
    "os.execvp", "os.spawnv", "os.posix_spawn", "os.fork", "subprocess.getoutput",
    "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "yaml.unsafe_load",
    "yaml.full_load", "tempfile.mktemp",
}  # fmt: skip


def place(file: Path) -> str:
    return file.relative_to(AGENT).as_posix()


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def in_text(node: ast.expr) -> bool:
    """Whether an expression is text, or makes text of parts."""
    if isinstance(node, ast.JoinedStr | ast.BinOp):
        return not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("file", FILES, ids=place)
def test_nothing_runs_what_is_text(file: Path) -> None:
    """No eval, no shell, no unpickling; programs are started in two modules and in the demo."""
    tree = ast.parse(file.read_text("utf-8"))
    names = set(imported(tree))
    assert names & FORBIDDEN_IMPORTS == set()
    if not place(file).startswith("demo/") and place(file) not in STARTERS:
        uses = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        assert "subprocess" not in names & uses
    for call in calls(tree):
        name = ast.unparse(call.func)
        assert name not in FORBIDDEN_CALLS, f"line {call.lineno}"
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        assert "shell" not in given, f"line {call.lineno}"
        if name == "yaml.load":
            assert "SafeLoader" in ast.unparse(given["Loader"]), f"line {call.lineno}"


@pytest.mark.parametrize(
    "file", [file for file in FILES if place(file).startswith("kernel/")], ids=place
)
def test_command_lines_are_lists_of_words(file: Path) -> None:
    """What is handed to a runner is a list, and no word of a list in it is put together."""
    for call in calls(ast.parse(file.read_text("utf-8"))):
        if not ast.unparse(call.func).endswith(("runner.run", "Popen")):
            continue
        argv = call.args[0]
        assert not in_text(argv), f"line {call.lineno}"
        for word in argv.elts if isinstance(argv, ast.List) else ():
            assert not isinstance(word, ast.JoinedStr | ast.BinOp), f"line {word.lineno}"
