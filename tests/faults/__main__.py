"""``python -m tests.faults``: run schedules of faults, each replayable from its seed."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.catalogue import FAULTS
from tests.faults.run import PATIENCE, play
from tests.faults.schedule import draw
from tests.faults.stage import Stage

if TYPE_CHECKING:
    from tests.faults.run import Result

_ROOT = Path(__file__).parents[2]
#: Misses of one worker after which more would tell nothing new.
_ENOUGH = 5


def main() -> int:
    """Parse the command line; the status is 1 if anything was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first run; drawn by default")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--jobs", type=int, default=4, help="runs at a time; each sleeps for most of it"
    )
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--broken", default="", help="break the agent in a way of broken.py")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds to be right in")
    parser.add_argument("--list", action="store_true", help="name all faults, and end")
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print(*FAULTS, sep="\n")
        return 0
    if os.geteuid() != 0:
        print("needs root: network namespaces and netfilter", file=sys.stderr)
        return 3
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(3), "big")
    return _worker(options) if options.worker >= 0 else _all(options)


def _all(options: argparse.Namespace) -> int:
    """Start the workers, each in a mount namespace of its own: what it mounts ends with it."""
    print(f"seeds {options.seed} to {options.seed + options.runs - 1}", flush=True)
    began = time.monotonic()
    jobs = min(options.jobs, options.runs)
    workers = []
    for number in range(jobs):
        arguments = ["--seed", str(options.seed), "--runs", str(options.runs)]
        arguments += ["--jobs", str(jobs), "--worker", str(number)]
        arguments += ["--patience", str(options.patience)]
        arguments += ["--only", options.only, "--broken", options.broken]
        apart = ["unshare", "--mount", "--propagation", "private"]
        workers.append(
            subprocess.Popen([*apart, sys.executable, "-m", "tests.faults", *arguments], cwd=_ROOT)
        )
    try:
        missed = sum(worker.wait() for worker in workers)
    except KeyboardInterrupt:
        for worker in workers:
            worker.wait()
        raise
    minutes = (time.monotonic() - began) / 60
    verdict = f"{missed} missed something" if missed else "nothing was missed"
    print(f"{options.runs} runs in {minutes:.1f} min: {verdict}", flush=True)
    return int(missed > 0)


def _worker(options: argparse.Namespace) -> int:
    """Every n-th of the runs, until a few missed something; returns how many did."""
    missed = 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onenth-faults-")))
        os.environ["XTABLES_LOCKFILE"] = str(folder / "lock")
        disk = folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "faults", str(disk)], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
        stage = stack.enter_context(Stage(disk))
        for number in range(options.worker, options.runs, options.jobs):
            schedule = draw(options.seed + number, FAULTS, options.only)
            result = play(stage, schedule, FAULTS, options.broken, options.patience)
            _tell(result)
            missed += bool(result.missed)
            if missed >= _ENOUGH:
                break
    return missed


def _tell(result: Result) -> None:
    schedule = result.schedule
    steps = "; ".join(map(str, schedule.steps))
    mark = "MISSED" if result.missed else "ok"
    lines = [f"{mark} seed {schedule.seed} {result.seconds:.1f} s [{schedule}] {steps}"]
    if result.missed:
        lines += [f"  replay: make faults SEED={schedule.seed} RUNS=1", f"  {result.missed}"]
        lines += [f"  | {line}" for line in result.story.splitlines()]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
