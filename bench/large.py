"""20,000 Services with five endpoints, on both backends: what it takes, and what grows too fast.

Everything is measured at a quarter of the size as well; the figures say how much more than four
times as much four times as many Services take. There are no targets: this is for looking.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from agent.kernel.detect import Backend
from agent.sync.audit import Audit
from bench import objects
from bench.bed import Bed, store, syncer
from bench.figures import Figure
from bench.timing import median, spend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.state.store import Store
    from agent.sync.apply import Syncer
    from bench.daemon import Clusters
    from bench.scale import Scale

_SERVICES, _ENDPOINTS, _TIMES = 20_000, 5, 4
_CHANGES, _ROUNDS = 5, 3
#: Pods that no Service has; state is made once and used on both backends.
_FRESH = itertools.count(_SERVICES * _ENDPOINTS)


@dataclasses.dataclass(frozen=True)
class _Taken:
    """Seconds of CPU of each step."""

    compiled: float
    first: float
    again: float
    endpoint: float
    audit: float


def measure(_scale: Scale, _clusters: Clusters) -> Iterator[Figure]:
    """Both sizes, on both backends."""
    for backend in Backend:
        small = _all_steps(backend, _SERVICES // _TIMES)
        large = _all_steps(backend, _SERVICES)
        for what, name, grows in (
            ("compiled", "compiling", True),
            ("first", "first sync", True),
            ("again", "full sync over live rules", True),
            ("endpoint", "one endpoint", False),
            ("audit", "audit round, others write", True),
        ):
            taken, before = getattr(large, what), getattr(small, what)
            growth = taken / before / (_TIMES if grows else 1)
            yield Figure(
                f"{name}, {backend.value}, {_SERVICES} x {_ENDPOINTS}, CPU",
                taken,
                "s",
                note=f"{growth:.2f} x what {'linear' if grows else 'no'} growth from"
                f" {_SERVICES // _TIMES} Services ({before:.3g} s) would make it",
                details={"growth": growth, "small": before},
            )


def _all_steps(backend: Backend, services: int) -> _Taken:
    state = store(services, _ENDPOINTS)
    with Bed(backend) as bed:
        writer = syncer(bed.kernel, backend)
        _, compiled = spend(lambda: writer.prepare(state))
        return bed.call(_in_kernel, bed, writer, state, compiled.cpu)


def _in_kernel(bed: Bed, writer: Syncer, state: Store, compiled: float) -> _Taken:
    _, first = spend(lambda: writer.sync(state))
    _, again = spend(lambda: writer.sync(state, full=True))
    audit = Audit(writer)
    while audit.learning:
        audit.run()
    changes = []
    for number in range(_CHANGES):
        pods = [*objects.pods_of(number, _ENDPOINTS)[1:], next(_FRESH)]
        state.put_slice(objects.decoded_slice(objects.endpoint_slice(number, pods)))
        changes.append(spend(lambda: writer.sync(state))[1].cpu)
    bed.bare("*filter\n:OTHERS - [0:0]\nCOMMIT\n")
    rounds = [spend(audit.run)[1].cpu for _ in range(_ROUNDS)]
    return _Taken(compiled, first.cpu, again.cpu, median(changes), median(rounds))
