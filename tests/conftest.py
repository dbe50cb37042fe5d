from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests import given

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background jobs ignore SIGINT, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Processes of pytest-xdist have the environment of the one that starts them.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        given.take()
