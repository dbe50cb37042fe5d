"""All tables of a backend as text, for looking at them. Asking changes nothing.

Asking legacy about one table by name would create it, with hooks that every packet passes; so
all tables are asked for, which lists those that exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kernel.errors import REMEDY, KernelError, PrivilegeError
from agent.sync.port import ReadError

if TYPE_CHECKING:
    from agent.kernel.detect import Tool
    from agent.kernel.tools import Runner
    from agent.state.values import Family

#: Seconds; a hundred thousand rules take a second or two.
TIMEOUT = 120.0
_PRIVILEGE = ("must be root", "Permission denied", "Operation not permitted")


def dump(
    tool: Tool, family: Family, runner: Runner, *, counters: bool = False, table: str = ""
) -> str:
    """What ``iptables-save`` prints.

    Args:
        tool: the backend's program.
        family: the family.
        runner: runs it.
        counters: with the packets and bytes of every rule.
        table: this one only; never give it for legacy, unless it is known to exist.

    Raises:
        PrivilegeError: this process may not ask.
        ReadError: the tables could not be read.
    """
    argv = [*tool.command(family, "-save"), *(["-c"] if counters else [])]
    argv += ["-t", table] if table else []
    try:
        finished = runner.run(argv, timeout=TIMEOUT)
    except KernelError as error:
        raise ReadError(str(error)) from error
    if finished.status == 0:
        return finished.out
    said = " ".join(finished.err.split())[:400] or "it said nothing"
    text = (
        f"{' '.join(argv[1:])} ({tool.backend.value}) ended with status {finished.status}: {said}"
    )
    if any(phrase in finished.err for phrase in _PRIVILEGE):
        raise PrivilegeError(f"{text}; {REMEDY}")
    raise ReadError(text)
