"""What happens in a run, all of it drawn from one seed before anything happens."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.rules.ruleset import Layout
    from tests.faults.run import Run

    Act = Callable[[Run, random.Random], Iterator[None]]

BACKENDS = ("nft", "legacy")
#: IPv4 and IPv6 by number; both more often than one.
FAMILIES = ((0, 1), (0, 1), (0, 1), (0,), (1,))
STEPS = (2, 4)
SECONDS = (0.1, 1.2)
#: Chance of a second fault at the same time.
_TWO = 0.3


class Breaks(enum.IntEnum):
    """What a fault may take away until it is over and mended; nothing else may fail."""

    NOTHING = 0
    #: Connections that begin meanwhile.
    NEW = 1
    #: Those, and connections that are held: whoever did it removed what tracks them.
    HELD = 2


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way to do harm.

    Attributes:
        name: ``domain: what``.
        act: begins it, yields while it lasts, ends it; what it draws comes from its own seed.
        breaks: what may fail.
        backend: the only backend that it concerns; empty for both.
        says: events of which the agent must log one, if it is the only fault of its step.
        seconds: the shortest time that it lasts.
        alone: never together with another one.
        weight: how often it is drawn, compared with the others.
        touches: the only Service that it may take anything away from; empty for all.
    """

    name: str
    act: Act
    breaks: Breaks = Breaks.NOTHING
    backend: str = ""
    says: tuple[str, ...] = ()
    seconds: float = 0.0
    alone: bool = False
    weight: float = 1.0
    touches: str = ""

    @property
    def domain(self) -> str:
        """What it harms."""
        return self.name.partition(":")[0]

    def during(self, run: Run, rng: random.Random) -> contextlib.AbstractContextManager[None]:
        """The fault, from ``__enter__`` to ``__exit__``."""
        return contextlib.contextmanager(self.act)(run, rng)


@dataclasses.dataclass(frozen=True)
class Step:
    """Faults at the same time, how long, and the seed of what they draw."""

    faults: tuple[str, ...]
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{' + '.join(self.faults)} for {self.seconds:.1f} s"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """One run."""

    seed: int
    backend: str
    layout: Layout
    families: tuple[int, ...]
    tls: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        names = "+".join(("IPv4", "IPv6")[n] for n in self.families)
        return f"{self.backend} {self.layout} {names} {'https' if self.tls else 'http'}"


def draw(seed: int, catalogue: Mapping[str, Fault], only: str = "") -> Schedule:
    """The schedule of a seed; with ``only``, of faults with this in their name."""
    rng = random.Random(seed)
    backend = rng.choice(BACKENDS)
    layout: Layout = "tree" if rng.random() < 0.4 else "flat"
    families, tls = rng.choice(FAMILIES), rng.random() < 0.6
    usable = [
        fault
        for fault in catalogue.values()
        if fault.backend in {"", backend} and only in fault.name
    ]
    if not usable:
        raise ValueError(f"no fault on {backend} has {only!r} in its name")
    if not tls:
        usable = [fault for fault in usable if "certificate" not in fault.name] or usable
        tls = all("certificate" in fault.name for fault in usable)
    steps = tuple(_step(rng, usable) for _ in range(rng.randint(*STEPS)))
    return Schedule(seed, backend, layout, families, tls, steps)


def _step(rng: random.Random, usable: list[Fault]) -> Step:
    first = rng.choices(usable, [fault.weight for fault in usable])[0]
    chosen = [first]
    others = [one for one in usable if one.domain != first.domain and not one.alone]
    if not first.alone and others and rng.random() < _TWO:
        chosen += rng.choices(others, [fault.weight for fault in others])
    seconds = max(rng.uniform(*SECONDS), *(fault.seconds for fault in chosen), 0.0)
    return Step(tuple(fault.name for fault in chosen), round(seconds, 2), rng.randrange(1 << 32))
