from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kernel.portrange import RANGE, RESERVED, shared_ports
from agent.kernel.sysctl import Sysctls

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("ports", "reserved", "expected"),
    [
        ("32768\t60999\n", "\n", None),  # the kernel's default: just above
        ("15000\t65000\n", "\n", (2768, 30000, 32767)),
        ("32767\t60999\n", "\n", (1, 32767, 32767)),
        ("1024\t30001\n", "8080,30000\n", (1, 30001, 30001)),
        ("15000\t65000\n", "8080,30000-32767\n", None),
        ("15000\t65000\n", "30001-32766", (2, 30000, 32767)),
        ("15000\n", "\n", None),
        ("a\tb\n", "\n", None),
        ("15000\t65000\n", "x", None),
        ("15000\t65000\n", None, None),
    ],
)
def test_node_ports_that_connections_may_take(
    tmp_path: Path, ports: str, reserved: str | None, expected: tuple[int, int, int] | None
) -> None:
    """Those in the range of outgoing connections that are not reserved (faults 39)."""
    (tmp_path / RANGE).parent.mkdir(parents=True)
    (tmp_path / RANGE).write_text(ports, "ascii")
    if reserved is not None:
        (tmp_path / RESERVED).write_text(reserved, "ascii")

    assert shared_ports(Sysctls(tmp_path)) == expected
