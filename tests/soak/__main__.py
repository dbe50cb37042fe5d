"""``python -m tests.soak``: status 0 only if nothing grows and the rules are right at the end."""

from __future__ import annotations

import argparse
import signal
import sys

from agent.demo.namespaces import sweep
from tests.soak.soak import Plan, Soak, say


def main() -> int:
    """Run, print the slopes."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--reconnects", type=int, default=0, help="instead of minutes")
    parser.add_argument("--rate", type=float, default=3.0, help="changes a second")
    parser.add_argument("--backend", choices=("nft", "legacy"), default="nft")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    plan = Plan(**vars(args))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and leave nothing behind
    sweep()
    with Soak(plan) as soak:
        say(f"running: {plan}")
        soak.run()
        lines = list(soak.lines())
        unit = "reconnects" if plan.reconnects else "hours"
        say(f"growth over {soak.span():.2f} {unit} after the warm-up:")
        for line in lines:
            say(str(line))
        right = soak.verify()
        say(f"onenth verify: the kernel {'holds' if right else 'does NOT hold'} what it should")
    return 0 if right and all(line.flat for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
