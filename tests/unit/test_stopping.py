from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.stopping import Interruptible, Stop, StoppedError
from tests.fakes.kernel import FakeKernel

ROOT = Path(__file__).parents[2]

#: Waits for the queue as the agent does, and tells what came. What a signal does to a process is
#: a matter of the whole process, so it is tried in one of its own.
WAITER = """
import queue, signal, sys, threading, time
from agent.stopping import Stop
came = queue.SimpleQueue()
stop = Stop()
stop.catch(came.put)
number = signal.Signals[sys.argv[1]]
how = sys.argv[2]
def send():
    time.sleep(0.3)
    if how == "to another thread":
        # As when it comes just before the main thread waits: nothing interrupts the wait.
        signal.pthread_kill(threading.get_ident(), number)
    else:
        signal.raise_signal(number)
threading.Thread(target=send, daemon=True).start()
found = came.get(timeout=5)
print(found is stop, stop.signal.name)
"""


@pytest.mark.parametrize("how", ["to another thread", "to the process"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_wait_at_once(number: signal.Signals, how: str) -> None:
    """Whichever thread the signal reaches, the queue has the word of it, and the process lives."""
    done = subprocess.run(
        [sys.executable, "-c", WAITER, number.name, how],
        cwd=ROOT, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, f"True {number.name}\n"), done.stderr


def test_nothing_is_begun_after_a_signal() -> None:
    """Calls reach the kernel until the signal has come, and not one after it."""
    stop, kernel = Stop(), FakeKernel()
    guarded = Interruptible(kernel, stop)
    guarded.restore("*nat\n:ONE - [0:0]\nCOMMIT\n")
    before = guarded.chain("nat", "ONE"), ":ONE" in guarded.save("nat")
    stop.signal = signal.SIGTERM

    assert before == ([], True)
    for call in (
        lambda: guarded.restore("*nat\n:TWO - [0:0]\nCOMMIT\n"),
        lambda: guarded.save("nat"),
        lambda: guarded.chain("nat", "ONE"),
    ):
        with pytest.raises(StoppedError):
            call()
    assert kernel.chain("nat", "TWO") is None
