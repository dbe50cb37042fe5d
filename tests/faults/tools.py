"""The folder that stands for ``/usr/sbin`` in the agent's mount namespace, and what it may do.

The agent runs where a folder with nothing but wrappers is mounted over ``/usr/sbin``. A wrapper
runs the real program, unless a snippet of shell lies beside it: then that decides. The machine
itself uses the real programs.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from tests.kernel.shim import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_WRAPPER = """\
#!/bin/sh
real={folder}/real/{program}
[ -e {folder}/snippet ] && . {folder}/snippet
exec "$real" "$@"
"""
_PREPARE = """\
for place in /usr/sbin /sbin; do
    [ -L "$place" ] || mount --bind {folder}/sbin "$place" || exit 9
done
if [ -e {folder}/read-only ]; then
    mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys || exit 9
fi
exec "$@"
"""


class Tools:
    """The wrappers; ``snippet`` makes them do something else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sbin = folder / "sbin"
        self.sbin.mkdir(parents=True)
        (folder / "real").mkdir()
        for program in PROGRAMS:
            real = shutil.which(program, path="/usr/sbin:/sbin")
            if real is None:
                continue
            shutil.copy(real, folder / "real" / program)
            wrapper = self.sbin / program
            wrapper.write_text(_WRAPPER.format(folder=folder, program=program), "utf-8")
            wrapper.chmod(0o755)

    @property
    def prefix(self) -> Sequence[str]:
        """A command that runs another one where the wrappers are."""
        script = _PREPARE.format(folder=self._folder)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]

    @contextlib.contextmanager
    def doing(self, snippet: str) -> Iterator[None]:
        """Run a snippet in front of each command; ``$1`` is the name, ``$real`` the program."""
        path = self._folder / "snippet"
        new = self._folder / "snippet.new"
        new.write_text(snippet, "utf-8")
        new.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def missing(self, program: str) -> Iterator[None]:
        """Take a program away."""
        (self.sbin / program).rename(self._folder / "away")
        try:
            yield
        finally:
            (self._folder / "away").rename(self.sbin / program)

    @contextlib.contextmanager
    def read_only_sysctls(self) -> Iterator[None]:
        """Whoever is started meanwhile cannot write sysctls."""
        path = self._folder / "read-only"
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def mark(self, name: str) -> Path:
        """A file for a snippet to leave word in."""
        return self._folder / name
