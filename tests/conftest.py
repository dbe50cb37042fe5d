from __future__ import annotations

from typing import TYPE_CHECKING

from tests import given

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Processes of pytest-xdist have the environment of the one that starts them.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        given.take()
