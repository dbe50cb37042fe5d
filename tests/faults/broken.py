"""Ways to break the agent on purpose. A machine that does not notice them notices nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.cluster import reflector
from agent.cluster.feed import Replaced, Upserted
from agent.sync import apply, audit, controller
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


WAYS: dict[str, Callable[[], None]] = {
    "forgets-to-repair": _forgets_to_repair,
    "loses-what-failed": _loses_what_failed,
    "empties-before-it-lists": _empties_before_it_lists,
    "merges-lists": _merges_lists,
}


def break_it(way: str) -> None:
    """Break this process's agent; nothing for an empty way."""
    if way:
        WAYS[way]()
