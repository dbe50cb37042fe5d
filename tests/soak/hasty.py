"""``python -m agent`` with back-offs of milliseconds, so that 1,000 reconnects take minutes.

Everything else is the agent's: a watch that breaks early is followed by a delay, only a short one.
"""

from __future__ import annotations

import functools

from agent import daemon
from agent.cli import main
from agent.cluster.reflector import WatchSettings

if __name__ == "__main__":
    vars(daemon)["WatchSettings"] = functools.partial(
        WatchSettings, backoff_first=0.02, backoff_cap=0.1
    )
    main()
