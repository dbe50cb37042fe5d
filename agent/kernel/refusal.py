r"""What a failed ``iptables-restore`` says, read once and turned into a kind and a line.

The two backends complain in different ways (seen with iptables 1.8.9 and 1.8.11):

- Both name the line of an option that they cannot parse: ``Error occurred at line: 3``, status 2.
- Legacy checks a chain operation against its own copy of the table and names the line:
  ``line 3 failed``, status 1. What the *kernel* refuses it reports as ``line N failed`` with the
  number of the COMMIT line and no reason: a bad rule, a race with another writer and a lack of
  memory look the same. ``needs_second_look`` says so, and the caller finds out which it was.
- nft reports what the kernel refused with status 4 (which on legacy means the lock), one line
  each: ``line 4: RULE_APPEND failed (Invalid argument): rule in chain FOO``.
- nft notices a jump to a missing chain only at COMMIT, and names that line and the chain. The
  line that jumps there is looked up in the input.
"""

from __future__ import annotations

import dataclasses
import re

from agent.sync.port import Refusal

_LIMIT = 4096
_NFT = re.compile(r"line (?P<line>\d+): (?P<what>\w+) failed \((?P<why>[^)]*)\)")
_LINE = re.compile(r"(?:Error occurred at line: |\bline |COMMIT expected at line )(?P<line>\d+)")
_MISSING_CHAIN = re.compile(r"Chain '(?P<chain>[^']+)' does not exist")
_BUSY = "Device or resource busy"
#: Errors that another attempt may not meet: texts of EAGAIN, EBUSY, EINTR, ENOBUFS, ENOMEM.
_TRANSIENT = (
    "Resource temporarily unavailable",
    _BUSY,
    "Interrupted system call",
    "No buffer space available",
    "Cannot allocate memory",
)
#: What the dynamic linker says of an extension for which there is no memory, or no descriptor
#: left (glibc's ld.so). The tool goes on to complain about the line that needs it.
_STARVED = (
    "failed to map segment from shared object",
    "cannot create shared object descriptor",
    "cannot allocate memory",
    "cannot map zero-fill pages",
    "Too many open files",
    "Out of memory",
)
_LOCKED = ("holding the xtables lock", "Stopped waiting after")
_BROKEN = (
    "you must be root",
    "Permission denied",
    "Operation not permitted",
    "can't open lock file",
    "unable to initialize table",
    "Could not fetch rule set generation id",
    "Failed to initialize nft",
)


@dataclasses.dataclass(frozen=True)
class Complaint:
    """A kind of refusal and the 1-based line that it concerns, None if none was named."""

    refusal: Refusal
    line: int | None


def parse(status: int, stderr: str, text: str) -> Complaint:
    """Read a failure of ``iptables-restore``.

    Args:
        status: exit status, negative for a signal.
        stderr: what it said.
        text: the input that it was given.
    """
    if status < 0 or any(phrase in stderr for phrase in _BROKEN):
        return Complaint(Refusal.BROKEN, None)
    if any(phrase in stderr for phrase in _LOCKED):
        return Complaint(Refusal.LOCKED, None)
    refused = [match.groupdict() for match in _NFT.finditer(stderr)]
    if refused:
        return _from_nft(refused)
    starved = any(phrase in stderr for phrase in _STARVED)
    match = _LINE.search(stderr)
    if match and not starved:
        line = int(match["line"])
        return Complaint(Refusal.INPUT, _line_of_jump(stderr, text, line) or line)
    if starved or any(phrase in stderr for phrase in _TRANSIENT):
        return Complaint(Refusal.BUSY, None)
    # Status 2 is a parameter problem (xtables.h), so it is about the input; otherwise nothing
    # says so, and calling it the input's fault would set Services aside for nothing.
    return Complaint(Refusal.INPUT if status == 2 else Refusal.BROKEN, None)


def needs_second_look(complaint: Complaint, text: str) -> bool:
    """Whether the complaint is about a COMMIT line, which on legacy can mean anything."""
    if complaint.refusal is not Refusal.INPUT or complaint.line is None:
        return False
    lines = text.splitlines()
    return complaint.line <= len(lines) and lines[complaint.line - 1].strip() == "COMMIT"


def block_before(text: str, line: int) -> tuple[int, str]:
    """The part of the input that a COMMIT line ends: 0-based number and name of its table line."""
    lines = text.splitlines()
    for number in range(line - 1, -1, -1):
        if lines[number].startswith("*"):
            return number, lines[number][1:].strip()
    return 0, ""


def shorten(stderr: str) -> str:
    """The complaint, bounded: its beginning and its end."""
    stderr = stderr.strip()
    if len(stderr) <= _LIMIT:
        return stderr
    return f"{stderr[: _LIMIT // 2]}\n[...]\n{stderr[-_LIMIT // 2 :]}"


def _from_nft(refused: list[dict[str, str]]) -> Complaint:
    """The first complaint that another attempt would meet again, else the first."""
    for one in refused:
        # A chain that is still jumped to is "busy" until the jump is gone, not for a moment.
        in_use = one["why"] == _BUSY and one["what"].endswith("_DEL")
        if in_use or one["why"] not in _TRANSIENT:
            return Complaint(Refusal.INPUT, int(one["line"]))
    return Complaint(Refusal.BUSY, int(refused[0]["line"]))


def _line_of_jump(stderr: str, text: str, before: int) -> int | None:
    """The line that jumps to the chain that nft missed, looking upwards from where it noticed."""
    match = _MISSING_CHAIN.search(stderr)
    if not match:
        return None
    jump = re.compile(rf" -[jg] {re.escape(match['chain'])}(?: |$)")
    lines = text.splitlines()
    for number in range(min(before, len(lines)), 0, -1):
        if lines[number - 1].startswith("*"):
            break
        if jump.search(lines[number - 1]):
            return number
    return None
