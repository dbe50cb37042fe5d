"""The real iptables programs behind a wrapper that can be told to be slow, or to fail.

The agent finds its programs in ``/usr/sbin`` first. So it is run in a mount namespace of its own
(``Shim.prefix``), in which the wrapper is mounted over the program of the chosen backend. Nothing
outside of that namespace sees it. The wrapper is steered by files, so it can be told at any time.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = ("xtables-nft-multi", "xtables-legacy-multi")

#: Every restore's input is kept; ``delay``, ``fail`` and ``refuse`` are read at each restore.
_WRAPPER = """\
#!/bin/sh
cd {folder} || exit 9
if [ -e break ] && case "$1" in "$(cat break)"*) true ;; *) false ;; esac; then
    echo "$1: cannot initialize table: the kernel has none of this family" >&2
    exit 3
fi
case "$1" in *-restore) ;; *) exec ./real-{program} "$@" ;; esac
input=input.$(date +%s.%N).$$
cat > "$input.part"
mv "$input.part" "$input"
if [ -e delay ]; then sleep "$(cat delay)"; fi
if [ -e fail ] && grep -q "$(cat fail)" "$input"; then
    echo "$1: injected: Device or resource busy" >&2
    exit 1
fi
line=
[ -e refuse ] && line=$(grep -n -m 1 -e "$(cat refuse)" "$input" | cut -d: -f1)
if [ "$line" ]; then
    echo "$1: line $line failed: injected" >&2
    exit 1
fi
exec ./real-{program} "$@" < "$input"
"""


class Shim:
    """The wrappers of both backends in a folder."""

    def __init__(self, folder: Path) -> None:
        """Make them; nothing uses them yet."""
        self._folder = folder
        mounts = []
        for program in PROGRAMS:
            real = next(
                (path for root in ("/usr/sbin", "/sbin") if (path := Path(root, program)).exists()),
                None,
            )
            if real is None:
                continue
            shutil.copy(real, folder / f"real-{program}")
            wrapper = folder / program
            wrapper.write_text(_WRAPPER.format(folder=folder, program=program), encoding="utf-8")
            wrapper.chmod(0o755)
            mounts.append((wrapper, real))
        if not mounts:
            pytest.skip("iptables is not installed")
        self._mounts = mounts

    @property
    def prefix(self) -> Sequence[str]:
        """A command that runs another one where the wrappers stand for the programs."""
        return _mounted([f"mount --bind {wrapper} {real}" for wrapper, real in self._mounts])

    def inputs(self) -> list[str]:
        """What was to be restored so far, in order."""
        return [
            path.read_text(encoding="utf-8")
            for path in sorted(self._folder.glob("input.*"))
            if path.suffix != ".part"
        ]

    def delay(self, seconds: float | None) -> None:
        """Make every restore wait before it begins; None ends that."""
        self._set("delay", None if seconds is None else str(seconds))

    def fail(self, pattern: str | None) -> None:
        """Fail every restore whose input has this (a basic regular expression); None ends that.

        The complaint is one that may pass, as if the kernel had been busy.
        """
        self._set("fail", pattern)

    def refuse(self, pattern: str | None) -> None:
        """Refuse the first line that has this, as a kernel does that lacks a match."""
        self._set("refuse", pattern)

    def break_family(self, program: str | None) -> None:
        """Fail all commands of ``iptables`` or ``ip6tables``, as without kernel support."""
        self._set("break", program)

    def _set(self, name: str, value: str | None) -> None:
        path = self._folder / name
        if value is None:
            path.unlink(missing_ok=True)
        else:
            new = self._folder / f"{name}.new"
            new.write_text(value, encoding="utf-8")
            new.replace(path)


def without_iptables(folder: Path) -> Sequence[str]:
    """A command that runs another one where no iptables is installed."""
    nothing = folder / "nothing"
    nothing.touch()
    nothing.chmod(0o644)
    paths = [Path(root, program) for root in ("/usr/sbin", "/sbin") for program in PROGRAMS]
    found = {path.resolve() for path in paths if path.exists()}
    return _mounted([f"mount --bind {nothing} {path}" for path in sorted(found)])


def _mounted(commands: Sequence[str]) -> Sequence[str]:
    script = " && ".join([*commands, 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
