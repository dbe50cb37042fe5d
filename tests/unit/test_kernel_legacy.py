from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent.kernel import legacy
from agent.state.values import Family

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]


def test_without_the_library_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """None, and no error, if python-iptables is not installed or finds no libiptc."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "nat\n")
    for failure in (ImportError("none"), OSError("no libiptc")):

        def fail(_: str, error: Exception = failure) -> None:
            raise error

        monkeypatch.setattr(importlib, "import_module", fail)
        assert legacy.read_chain_names(Family.V4, "nat") is None


def test_without_legacy_tables_in_the_kernel_nothing_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None if the kernel does not list its legacy tables; the library is not even loaded."""

    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fail)
    monkeypatch.setattr(importlib, "import_module", fail)

    assert legacy.read_chain_names(Family.V4, "nat") is None


def test_the_daemon_does_not_load_the_library() -> None:
    """libxtables may end the process, so importing what the daemon uses must not bring it in."""
    code = (
        "import sys\n"
        "from agent.kernel import addresses, conntrack, detect, iptables, nfacct, sysctl\n"
        "from agent.kernel import legacy\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'iptc'])\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert said == "[]\n"
