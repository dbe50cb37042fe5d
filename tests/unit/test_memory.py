"""Large texts that are gone are not kept as resident memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Reads texts as large as tables while smaller things come and go, as an agent does, and prints by
#: how many megabytes it has grown. Another process, since the allocator's limits are for good.
READER = """
import random, sys
from agent.memory import give_back_large_blocks
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6
if sys.argv[1] == "limits" and not give_back_large_blocks():
    sys.exit("none")
random.seed(1)
small = [bytes(random.randrange(600, 3000)) for _ in range(8000)]
before = resident()
for _ in range(30):
    raw = bytes(random.randrange(5, 9) << 20)
    text = raw.decode()
    for kept in (raw, text):
        for _ in range(200):
            small[random.randrange(8000)] = bytes(random.randrange(600, 3000))
    del raw, text, kept
print(resident() - before)
"""


def growth(how: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", READER, how], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.stderr.strip() == "none":
        pytest.skip("this C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_texts_of_many_megabytes_leave_nothing_behind() -> None:
    """With the limits growth stays below one such text; without them it does not."""
    assert growth("limits") < 3.0 < growth("as it is")
