"""``hack/setup.sh``, with an apt-get that only says what it was asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "hack/setup.sh"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install packages")
@pytest.mark.parametrize(("status", "shown"), [(0, ""), (100, "asked for: update")])
def test_it_leaves_no_file_behind(tmp_path: Path, status: int, shown: str) -> None:
    """What apt-get prints is shown if it fails, and is in no file afterwards."""
    apt_get = tmp_path / "bin/apt-get"
    apt_get.parent.mkdir()
    apt_get.write_text(f'#!/bin/sh\necho "asked for: $*"\nexit {status}\n', "utf-8")
    apt_get.chmod(0o755)
    left = tmp_path / "tmp"
    left.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{apt_get.parent}:{os.environ['PATH']}",
        "TMPDIR": str(left),
        "PYTHON": "python-that-is-not-there",
    }
    done = subprocess.run(
        [SETUP, "run"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 3
    assert "installing" in done.stdout
    assert done.stderr.startswith(shown)
    assert list(left.iterdir()) == []
