"""Ways to break the agent on purpose. A machine that does not notice them notices nothing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from agent.cluster import reflector, transport
from agent.cluster.feed import Replaced, Upserted
from agent.sync import apply, audit, contest, controller
from agent.sync.port import RestoreError

if TYPE_CHECKING:
    from collections.abc import Callable


def _replace(owner: type, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _forgets_to_repair() -> None:
    """It never looks at what the kernel holds."""
    _replace(audit.Audit, "run", lambda _: [])


def _loses_what_failed() -> None:
    """A sync that failed is taken for done."""
    sync = apply.Syncer.sync

    def forgetful(self: apply.Syncer, *args: Any, **kwargs: Any) -> apply.Outcome:
        try:
            return sync(self, *args, **kwargs)
        except RestoreError:
            self._pending.clear()
            self.needs_full = False
            return apply.Outcome(full=False)

    _replace(apply.Syncer, "sync", forgetful)


def _empties_before_it_lists() -> None:
    """After every broken watch it forgets all that it knows, until the next list comes."""
    failed = reflector.Reflector._pause

    def pause(self: reflector.Reflector, *args: Any) -> None:
        self._put(Replaced(self._resource.kind, ()))
        failed(self, *args)

    _replace(reflector.Reflector, "_pause", pause)


def _merges_lists() -> None:
    """What a new list lacks stays."""

    def replace(self: controller.Controller, event: Any) -> None:
        for obj in event.objects:
            self.handle(Upserted(event.kind, obj))
        self._list_taken(event)

    _replace(controller.Controller, "_replace", replace)


def _trusts_silence() -> None:
    """An API server that says nothing is waited for as long as it likes."""
    get = transport.Transport.get

    def patient(self: transport.Transport, path: str, query: Any, _read_timeout: float) -> Any:
        return get(self, path, query, 3600.0)

    _replace(transport.Transport, "get", patient)


def _keeps_quiet() -> None:
    """Somebody else keeps writing its rules, and it just repairs them."""
    _replace(contest.Contest, "looked", lambda _self, _now, **_: False)


@dataclasses.dataclass(frozen=True)
class Way:
    """How the agent is broken, and the faults that must show it."""

    do: Callable[[], None]
    shown_by: str


WAYS = {
    "forgets-to-repair": Way(_forgets_to_repair, "tables: flushed"),
    "loses-what-failed": Way(_loses_what_failed, "tools: missing"),
    "empties-before-it-lists": Way(_empties_before_it_lists, "API server: connections cut"),
    "merges-lists": Way(_merges_lists, "API server: things missing"),
    "trusts-silence": Way(_trusts_silence, "API server: silent"),
    "keeps-quiet": Way(_keeps_quiet, "others: a kube-proxy"),
}


def break_it(way: str) -> None:
    """Break this process's agent; nothing for an empty way."""
    if way:
        WAYS[way].do()


def main() -> int:
    """See whether the machine notices each way; the status is 1 if it misses one."""
    unnoticed = []
    for name, way in WAYS.items():
        command = [sys.executable, "-m", "tests.faults", "--seed", "1", "--runs", "1"]
        command += ["--only", way.shown_by, "--broken", name, "--patience", "12"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        noticed = "\nMISSED seed" in said and "\n  step " in said
        word = "noticed" if noticed else "NOT NOTICED"
        print(f"{word}: an agent that {name.replace('-', ' ')}", flush=True)
        if not noticed:
            unnoticed.append(name)
            print(said)
    return int(bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main())
