"""``onenth run`` in a hurry: the same program with times a fraction of the real ones.

``python -m tests.faults.agent run ...`` is the command line of the agent. What has no setting is
scaled here: how long a silent API server is waited for, how long a program may take, how long the
xtables lock is waited for, and how long a refused Service is set aside. The proportions
are those of production. ``FAULTS_BREAK`` names a way in which the agent is broken on
purpose, to see that the machine notices (``broken``).
"""

from __future__ import annotations

import functools
import os

import agent.daemon
from agent.cli import main
from agent.cluster import reflector
from agent.kernel import iptables
from agent.sync import setaside
from tests.faults import broken

READ_TIMEOUT = 2.0
TOOL_TIMEOUT = 3.0
LOCK_WAIT = 1


def hurry() -> None:
    """Scale what has no setting."""
    quick = functools.partial(
        reflector.WatchSettings,
        connect_timeout=1.0,
        watch_min=4.0,
        watch_max=8.0,
        backoff_first=0.1,
        backoff_cap=1.0,
        healthy_after=1.0,
    )
    impatient = functools.partial(iptables.Iptables, lock_wait=LOCK_WAIT, timeout=TOOL_TIMEOUT)
    for module, name, value in (
        (agent.daemon, "WatchSettings", quick),
        (agent.daemon, "Iptables", impatient),
        (setaside, "FIRST_DELAY", 1.0),
    ):
        if not hasattr(module, name):
            raise AttributeError(f"{module.__name__} has no {name} any more: scale it elsewhere")
        setattr(module, name, value)


if __name__ == "__main__":
    hurry()
    broken.break_it(os.environ.get("FAULTS_BREAK", ""))
    main()
