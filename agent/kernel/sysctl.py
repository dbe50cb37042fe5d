"""Kernel settings below ``/proc/sys``: read, and written only where that changes something.

A setting that may not be written is no reason to stop: in a container ``/proc/sys`` is often
mounted read-only, and in a network namespace that is not the first one the size of the
connection table cannot be changed. Whoever started the agent there may have set the value
already. So a refusal is an outcome with a reason, for one warning, and never an exception.

Settings below ``net`` are those of the network namespace of the calling thread.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

TCP_BE_LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"
#: Node ports on 127.0.0.1 need this: otherwise the kernel drops answers to a loopback address.
ROUTE_LOCALNET = "net/ipv4/conf/all/route_localnet"
_CONNTRACK = "net/netfilter/nf_conntrack_"
_MAX = _CONNTRACK + "max"
#: Not a sysctl: it lies below the root of ``/sys``.
HASH_SIZE = "module/nf_conntrack/parameters/hashsize"
#: kube-proxy does not ask for more entries than this, however many cores there are.
MAX_ENTRIES = 1_048_576
_ENTRIES_PER_BUCKET = 4


@dataclasses.dataclass(frozen=True)
class Reading:
    """A number, or None and why there is none."""

    value: int | None
    reason: str = ""


class Result(enum.Enum):
    """What became of a wish for a value."""

    #: The value that was there suffices.
    KEPT = "kept"
    #: It was written.
    WRITTEN = "written"
    #: It could not be written; ``Outcome.reason`` says why.
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a wish for a value.

    Attributes:
        name: the setting's path below its root.
        wanted: the value that was asked for.
        before: the value that was there, None if it could not be read.
        result: what was done.
        reason: why it was refused.
    """

    name: str
    wanted: int
    before: int | None
    result: Result
    reason: str = ""


class ConntrackSettings(Protocol):
    """kube-proxy's ``conntrack`` configuration; 0 leaves the kernel's value as it is.

    Attributes:
        max_per_core: entries per core; 0 makes ``min`` meaningless.
        min: entries at the least.
        tcp_established_timeout: seconds.
        tcp_close_wait_timeout: seconds.
        tcp_be_liberal: do not call packets outside of the window invalid.
        udp_timeout: seconds.
        udp_stream_timeout: seconds.
    """

    @property
    def max_per_core(self) -> int: ...  # noqa: D102 (described by the class)
    @property
    def min(self) -> int: ...  # noqa: D102
    @property
    def tcp_established_timeout(self) -> float: ...  # noqa: D102
    @property
    def tcp_close_wait_timeout(self) -> float: ...  # noqa: D102
    @property
    def tcp_be_liberal(self) -> bool: ...  # noqa: D102
    @property
    def udp_timeout(self) -> float: ...  # noqa: D102
    @property
    def udp_stream_timeout(self) -> float: ...  # noqa: D102


class Sysctls:
    """Settings as files below a root, ``/proc/sys`` by default; names are paths with slashes."""

    def __init__(self, root: Path = Path("/proc/sys")) -> None:
        self._root = root

    def read_text(self, name: str) -> str:
        """Read a setting that is no single number.

        Raises:
            OSError: it cannot be read.
            UnicodeDecodeError: it is no text.
        """
        return (self._root / name).read_text(encoding="ascii")

    def read_int(self, name: str) -> Reading:
        """Read a number."""
        try:
            text = self.read_text(name).strip()
        except (OSError, UnicodeDecodeError) as error:
            return Reading(None, _why(error))
        try:
            return Reading(int(text))
        except ValueError:
            return Reading(None, f"{text!r} is not a number")

    def could_be(self, name: str, value: int) -> bool:
        """Whether a setting has a value, or could be given it by this process; changes nothing."""
        return self.read_int(name).value == value or os.access(self._root / name, os.W_OK)

    def ensure(self, name: str, value: int, *, at_least: bool = False) -> Outcome:
        """See to it that a setting has a value, writing only if it has not.

        Args:
            name: path below the root.
            value: what it should be.
            at_least: a larger value is as good.
        """
        before = self.read_int(name)
        present = before.value
        if present is not None and (present == value or (at_least and present > value)):
            return Outcome(name, value, present, Result.KEPT)
        try:
            (self._root / name).write_text(f"{value}\n", encoding="ascii")
        except OSError as error:
            return Outcome(name, value, present, Result.REFUSED, _why(error))
        return Outcome(name, value, present, Result.WRITTEN)


def entries_wanted(settings: ConntrackSettings, cores: int) -> int:
    """Entries that the connection table should hold at the least; 0 to leave it as it is."""
    if settings.max_per_core <= 0:
        return 0
    return min(max(settings.max_per_core * cores, settings.min), MAX_ENTRIES)


def apply_conntrack(
    settings: ConntrackSettings,
    *,
    sysctls: Sysctls | None = None,
    modules: Sysctls | None = None,
    cores: int | None = None,
) -> list[Outcome]:
    """Apply kube-proxy's ``conntrack`` settings.

    The table's size is only ever raised; timeouts and flags get exactly the value asked for,
    as in kube-proxy 1.36 (its default for established connections is below the kernel's).

    Args:
        settings: the configuration.
        sysctls: ``/proc/sys``.
        modules: ``/sys``.
        cores: of this machine, by default those that are online.

    Returns:
        What became of each setting that is not left as it is.
    """
    sysctls = sysctls or Sysctls()
    entries = entries_wanted(settings, cores or os.cpu_count() or 1)
    outcomes = []
    if entries > 0:
        outcomes.append(sysctls.ensure(_MAX, entries, at_least=True))
        # Four entries in a hash bucket are what the kernel allows for by itself.
        buckets = entries // _ENTRIES_PER_BUCKET
        outcomes.append(
            (modules or Sysctls(Path("/sys"))).ensure(HASH_SIZE, buckets, at_least=True)
        )
    outcomes += [sysctls.ensure(name, value) for name, value in _values(settings) if value > 0]
    return outcomes


def _values(settings: ConntrackSettings) -> Iterator[tuple[str, int]]:
    yield _CONNTRACK + "tcp_timeout_established", int(settings.tcp_established_timeout)
    yield _CONNTRACK + "tcp_timeout_close_wait", int(settings.tcp_close_wait_timeout)
    yield TCP_BE_LIBERAL, int(settings.tcp_be_liberal)
    yield _CONNTRACK + "udp_timeout", int(settings.udp_timeout)
    yield _CONNTRACK + "udp_timeout_stream", int(settings.udp_stream_timeout)


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
