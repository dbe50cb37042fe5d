"""A clock of the agent's own, that can be set.

Only the time of day jumps (for Python, OpenSSL and everything else in the process). Linux lets
nobody set the monotonic clock, which everything that waits goes by.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """``environment`` makes a program follow it; ``set`` moves it.

    Args:
        folder: for the library and for the file that says how far it is off.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._library = folder / "clock.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE), "-ldl"],
            check=True,
        )
        self.set(0)

    def set(self, seconds: int) -> None:
        """Be off by so many seconds from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds}\n")
        new.replace(self._file)

    def environment(self) -> dict[str, str]:
        """For a program that is started."""
        return {"LD_PRELOAD": str(self._library), "FAULTS_CLOCK": str(self._file)}
