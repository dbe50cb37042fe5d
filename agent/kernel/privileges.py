"""Giving up the rights that the agent does not need, once it has started.

Rules, conntrack, counters and addresses need CAP_NET_ADMIN; iptables-legacy speaks through a raw
socket and needs CAP_NET_RAW as well. Everything else that root, or a generous container, has is
given up for good, and so is the way back: the bounding set no longer has it, and with
no_new_privs no program that is started can be given more than its parent has.

Capabilities belong to threads. A thread inherits those of the one that starts it, so the main
thread gives up before it starts others, and one that had to start earlier does so itself. A child
of root gets what permitted and bounding set agree on. Any other user's children get the
ambient set, so there the rights that are kept are put into it.

What cannot be given up (the bounding set can only be narrowed with CAP_SETPCAP) is no reason to
stop: it is reported, and no_new_privs closes the way to it all the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.kernel.errors import REMEDY, PrivilegeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT = 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
#: ``_LINUX_CAPABILITY_VERSION_3``: sets of 64 bits, in two halves.
_VERSION = 0x20080522
_HIGHEST = 63


class Capability(enum.IntEnum):
    """Those that the agent may have a use for; others are told by number."""

    DAC_READ_SEARCH = 2
    SETPCAP = 8
    NET_BIND_SERVICE = 10
    NET_ADMIN = 12
    NET_RAW = 13


class Privileges(msgspec.Struct, frozen=True):
    """What a thread may do.

    Attributes:
        permitted: capabilities that it has.
        bounding: those that a program it starts could have.
        ambient: those that programs are given although their user is not root.
        no_new_privs: programs cannot be given more than their parent has.
    """

    permitted: frozenset[int]
    bounding: frozenset[int]
    ambient: frozenset[int]
    no_new_privs: bool

    def names(self) -> list[str]:
        """The capabilities that it has, for people."""
        return [_name(number) for number in sorted(self.permitted)]


def read(task: str = "thread-self") -> Privileges:
    """What a thread may do, this one by default.

    Args:
        task: path of the thread below ``/proc``.

    Raises:
        OSError: there is no such thread.
    """
    lines = Path("/proc", task, "status").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return Privileges(
        permitted=_numbers(fields["CapPrm"]),
        bounding=_numbers(fields["CapBnd"]),
        ambient=_numbers(fields["CapAmb"]),
        no_new_privs=fields.get("NoNewPrivs") == "1",
    )


def demand_net_admin() -> None:
    """Find out before anything is touched whether this process may change rules.

    Raises:
        PrivilegeError: it lacks CAP_NET_ADMIN.
    """
    if Capability.NET_ADMIN not in read().permitted:
        raise PrivilegeError(
            f"changing rules takes the capability NET_ADMIN, which this process of user"
            f" {os.geteuid()} does not have; {REMEDY}"
        )


def reduce(keep: Collection[int]) -> tuple[Privileges, list[str]]:
    """Give up everything but these capabilities, in this thread and those that it starts.

    Returns:
        What is left, and what the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = read()
    kept = before.permitted & frozenset(keep)
    refused: list[str] = []

    def attempt(what: str, result: int) -> None:
        if result != 0:
            refused.append(f"{what}: {os.strerror(ctypes.get_errno())}")

    attempt("no_new_privs", libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if Capability.SETPCAP in before.permitted:
        for number in sorted(before.bounding - kept):
            attempt(f"bounding set, {_name(number)}", libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
    attempt("ambient set", libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0))
    passed_on = kept if os.geteuid() != 0 else frozenset[int]()
    attempt("capabilities", _set(libc, kept, passed_on))
    for number in sorted(passed_on):
        attempt(
            f"ambient set, {_name(number)}",
            libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number, 0, 0),
        )
    return read(), refused


def unreadable(paths: Iterable[Path], keep: Collection[int]) -> list[Path]:
    """Those of the paths that this process can read now, and could not with these capabilities.

    It is tried out in a thread of its own, which gives up all others and ends.
    """
    found: list[Path] = []

    def look() -> None:
        readable = [path for path in paths if _readable(path)]
        kept = read().permitted & frozenset(keep)
        _set(ctypes.CDLL(None, use_errno=True), kept, frozenset())
        found.extend(path for path in readable if not _readable(path))

    thread = threading.Thread(target=look, name="try-reading")
    thread.start()
    thread.join()
    return found


def _readable(path: Path) -> bool:
    """Whether a file can be opened, or a folder looked into, by really doing it."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        return True
    return False


def _set(libc: ctypes.CDLL, permitted: frozenset[int], inheritable: frozenset[int]) -> int:
    """Set this thread's capabilities, effective as permitted; 0 if the kernel agreed."""
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    masks = sum(1 << n for n in permitted), sum(1 << n for n in inheritable)
    words = [
        (mask >> shift) & 0xFFFFFFFF for shift in (0, 32) for mask in (masks[0], masks[0], masks[1])
    ]
    result: int = libc.capset(header, (ctypes.c_uint32 * 6)(*words))
    return result


def _numbers(text: str) -> frozenset[int]:
    """Capabilities of a set as ``/proc`` prints it."""
    mask = int(text, 16)
    return frozenset(number for number in range(_HIGHEST + 1) if mask >> number & 1)


def _name(number: int) -> str:
    try:
        return f"CAP_{Capability(number).name}"
    except ValueError:
        return f"capability {number}"
