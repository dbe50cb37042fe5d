"""What a process holds, read from ``/proc``."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Vitals:
    """One reading.

    Attributes:
        threads: of the process.
        descriptors: open file descriptors.
        resident: bytes of memory.
        anonymous: of these, bytes that belong to no file.
        cpu: seconds of its own so far, without its children's.
    """

    threads: int
    descriptors: int
    resident: int
    anonymous: int
    cpu: float

    def worse(self, other: Vitals) -> Vitals:
        """The higher one of each value."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Vitals(*(max(pair) for pair in pairs))


def read(pid: int) -> Vitals:
    """Read a process's vitals.

    Raises:
        OSError: it has ended.
    """
    folder = Path("/proc", str(pid))
    fields = dict(
        line.split(":", 1) for line in (folder / "status").read_text("utf-8").splitlines()
    )
    stat = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
    return Vitals(
        threads=int(fields["Threads"]),
        descriptors=sum(1 for _ in (folder / "fd").iterdir()),
        resident=_kilobytes(fields["VmRSS"]),
        anonymous=_kilobytes(fields["RssAnon"]),
        cpu=(int(stat[11]) + int(stat[12])) / 100,
    )


def _kilobytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024
