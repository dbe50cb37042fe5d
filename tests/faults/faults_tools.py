"""What the iptables programs, and the lock that they share, can do wrong.

While they fail nothing is written, so traffic goes on by the rules that are there.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from tests.faults.agent import LOCK_WAIT, TOOL_TIMEOUT
from tests.faults.schedule import Breaks, Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.faults.run import Run
    from tests.faults.schedule import Act

#: Which commands a snippet is for: restores, all that read, or all.
_RESTORE = 'case "$1" in *-restore) ;; *) exec "$real" "$@" ;; esac\n'
_READ = 'case "$1" in *-restore) exec "$real" "$@" ;; esac\n'
_SCOPES = (_RESTORE, _RESTORE, _READ, "")
_FAILED = ("sync failed",)
_NOTICED = ("sync failed", "the kernel's rules could not be read")


def _missing(run: Run, _rng: random.Random) -> Iterator[None]:
    """The program is not there, as in the middle of an upgrade of its package."""
    with run.stage.tools.missing(f"xtables-{run.backend}-multi"):
        yield


def _fails_once(run: Run, rng: random.Random) -> Iterator[None]:
    """One command fails, whatever it is, with a complaint of some kind."""
    complaint, status = rng.choice(_complaints(run))
    done = run.stage.tools.mark("done")
    done.unlink(missing_ok=True)
    snippet = f"if [ ! -e {done} ]; then touch {done}; echo {complaint!r} >&2; exit {status}; fi\n"
    with run.stage.tools.doing(rng.choice(_SCOPES) + snippet):
        yield


def _fails_always(run: Run, rng: random.Random) -> Iterator[None]:
    """Every command that writes fails for a while, or every command."""
    complaint, status = rng.choice(_complaints(run))
    scope = rng.choice([_RESTORE, ""])
    with run.stage.tools.doing(scope + f"echo {complaint!r} >&2; exit {status}\n"):
        yield


def _listing_fails(run: Run, rng: random.Random) -> Iterator[None]:
    """Every command that reads fails for a while; on nft hardly anything needs one."""
    complaint, status = rng.choice(_complaints(run))
    with run.stage.tools.doing(_READ + f"echo {complaint!r} >&2; exit {status}\n"):
        yield


def _complaints(run: Run) -> tuple[tuple[str, int], ...]:
    """What the programs of a backend are known to say."""
    name = "iptables-restore"
    common = (("", 1), ("", 111), (f"{name}: Unknown error", 1), (f"{name}: who knows", 3))
    if run.backend == "legacy":
        return (
            *common,
            (f"{name} v1.8.9 (legacy): unable to initialize table 'nat'", 3),
            ("Another app is currently holding the xtables lock; still 1s 0us time ahead", 4),
            (f"{name}: Resource temporarily unavailable.", 4),
        )
    return (
        *common,
        (f"{name}: Could not fetch rule set generation id: Permission denied", 4),
        (f"{name} v1.8.9 (nf_tables): \\nline 3: CHAIN_ADD failed (Device or resource busy)", 4),
        (f"{name} v1.8.9 (nf_tables): Resource temporarily unavailable", 4),
    )


def _fails_on_a_line(run: Run, rng: random.Random) -> Iterator[None]:
    """One line is refused, of a Service that nobody connects to; its neighbours must work."""
    pattern = rng.choice(["10.96.2.1", "fd00:96:2::1", "default/always"])
    refuse = f"""\
line=$(grep -n -m 1 -e {pattern!r} /proc/self/fd/0 | cut -d: -f1)
if [ "$line" ]; then
    echo "$1: line $line failed" >&2
    exit 1
fi
"""
    with run.stage.tools.doing(_RESTORE + refuse):
        yield


def _hangs(run: Run, rng: random.Random) -> Iterator[None]:
    """A command does not end."""
    with run.stage.tools.doing(rng.choice([_RESTORE, ""]) + "exec sleep 600\n"):
        yield


def _hangs_after(run: Run, _rng: random.Random) -> Iterator[None]:
    """A restore does its work and then does not end."""
    with run.stage.tools.doing(_RESTORE + '"$real" "$@"; exec sleep 600\n'):
        yield


def _killed(run: Run, rng: random.Random) -> Iterator[None]:
    """A command is killed: before, in the middle, or when its work is done but not told."""
    delay = rng.choice(["0", "0.002", "0.005", "0.01"])
    middle = f'exec 3<&0; "$real" "$@" <&3 & sleep {delay}; kill -9 $!; kill -9 $$\n'
    how = rng.choice(["kill -9 $$\n", middle, '"$real" "$@"; kill -9 $$\n'])
    with run.stage.tools.doing(_RESTORE + how):
        yield


def _no_memory(run: Run, rng: random.Random) -> Iterator[None]:
    """There is not enough memory: for the program (truly so), or in the kernel (as it tells)."""
    told = (
        "iptables-restore: line 3 failed"
        if run.backend == "legacy"
        else "line 3: RULE_APPEND failed (Cannot allocate memory): rule in chain KUBE-SERVICES"
    )
    how = rng.choice(
        [f"ulimit -v {rng.choice([1000, 4000, 6000, 8000])}\n", f"echo {told!r} >&2; exit 4\n"]
    )
    with run.stage.tools.doing(rng.choice(_SCOPES) + how):
        yield


def _garbled_output(run: Run, rng: random.Random) -> Iterator[None]:
    """Reading succeeds and tells nonsense, half of it, or nothing."""
    how = rng.choice([
        "head -c 2000 /dev/urandom; exit 0\n",
        '"$real" "$@" | head -c 700; exit 0\n',
        "exit 0\n",
        'echo "-A KUBE-SERVICES -j"; exit 0\n',
    ])  # fmt: skip
    with run.stage.tools.doing(_READ + how):
        yield


def _no_match(name: str) -> Act:
    def act(run: Run, _rng: random.Random) -> Iterator[None]:
        """The kernel lacks a match from the start of an agent; rules do without what they can."""
        option = {"nfacct": "-m nfacct", "recent": "-m recent"}[name]
        refuse = f"""\
line=$(grep -n -m 1 -e '{option}' /proc/self/fd/0 | cut -d: -f1)
if [ "$line" ]; then
    echo "$1: line $line failed" >&2
    exit 1
fi
"""
        with run.stage.tools.doing(_RESTORE + refuse):
            _restart(run, counters=name != "nfacct")
            yield
        _restart(run, counters=True)

    return act


def _restart(run: Run, *, counters: bool) -> None:
    run.agent.stop()
    run.counters = counters
    run.agent.launch()
    run.started()


def _locked(seconds: float) -> Act:
    def act(run: Run, rng: random.Random) -> Iterator[None]:
        """Another program holds the xtables lock (legacy only: nft has none)."""
        if seconds < LOCK_WAIT:  # perhaps again and again
            for _ in range(rng.randint(0, 2)):
                _hold_lock(seconds)
        with open(os.environ["XTABLES_LOCKFILE"], "a") as lock:  # noqa: PTH123
            fcntl.flock(lock, fcntl.LOCK_EX)
            if seconds < LOCK_WAIT:
                time.sleep(seconds)
                fcntl.flock(lock, fcntl.LOCK_UN)
            yield

    return act


def _hold_lock(seconds: float) -> None:
    with open(os.environ["XTABLES_LOCKFILE"], "a") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(seconds)


FAULTS = (
    Fault("tools: missing", _missing, says=_FAILED, seconds=0.5),
    Fault("tools: failing once", _fails_once),
    Fault("tools: failing always", _fails_always, says=_NOTICED, seconds=1.3),
    Fault("tools: listing fails", _listing_fails, seconds=1.3),
    Fault("tools: failing on one line", _fails_on_a_line, seconds=0.5),
    Fault("tools: hanging", _hangs, says=_NOTICED, seconds=TOOL_TIMEOUT + 1.0),
    Fault("tools: hanging when done", _hangs_after, says=_FAILED, seconds=TOOL_TIMEOUT + 0.5),
    Fault("tools: killed", _killed),
    Fault("tools: no memory", _no_memory),
    Fault("tools: garbled output", _garbled_output, seconds=1.2),
    Fault(
        "tools: no nfacct match",
        _no_match("nfacct"),
        alone=True,
        says=("rules do without an nfacct counter",),
    ),
    Fault(
        "tools: no recent match",
        _no_match("recent"),
        Breaks.NEW,
        alone=True,
        says=("the kernel refused a Service; it is set aside, the others work",),
        touches="sticky",
    ),
    Fault("lock: held for a moment", _locked(LOCK_WAIT / 5), backend="legacy"),
    Fault(
        "lock: held for long",
        _locked(LOCK_WAIT * 12),
        backend="legacy",
        alone=True,  # it would keep other faults waiting as well
        says=_NOTICED,
        seconds=LOCK_WAIT + 0.7,
    ),
)
