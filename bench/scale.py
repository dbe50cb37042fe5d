"""How large a run is, and what is asked of it.

The targets are for 5,000 Services with ten endpoints. A quick run is smaller, so that it can be
made all the time; where a target is an absolute number at 5,000, it is made smaller by what
grows with the number of Services, and the rest is kept. ``Scale.of`` does that, and every figure
of a quick run says so.
"""

from __future__ import annotations

import dataclasses

#: The size that the targets are for.
SERVICES, ENDPOINTS = 5000, 10


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes of one run.

    Attributes:
        quick: it is the small one.
        services: Services in most measurements.
        endpoints: of each.
        single: Services for the comparison with a single restore.
        single_times: how many times faster than that a full sync must be.
        legacy_times: how many times as long as a single restore on legacy it may take on nft.
        bare_times: how many times as long as the bare restore of its text it may take on legacy.
        growth: two numbers of Services, for how a full sync grows.
        runs: first syncs on nft of which the best counts.
        legacy_runs: likewise on legacy, each with both bare restores.
        python: two numbers of Services, for how the agent's own share grows.
        packets: Services for what a packet costs.
        turns: measurements of the agent's own share of a change.
        samples: pairs of measurements of one changed endpoint, on nft.
        legacy_samples: likewise on legacy.
        singles: changes with a sync of their own, of which the cheapest counts.
        storm: events of a storm.
        storm_seconds: over so long.
        rounds: batches of new flows for each kind of packet.
        again: how many times a figure that misses is measured on.
    """

    quick: bool
    services: int
    endpoints: int
    single: int
    single_times: float
    legacy_times: float
    bare_times: float
    growth: tuple[int, int]
    runs: int
    legacy_runs: int
    python: tuple[int, int]
    packets: int
    turns: int
    samples: int
    legacy_samples: int
    singles: int
    storm: int
    storm_seconds: float
    rounds: int
    again: int

    def of(self, fixed: float, whole: float) -> float:
        """A target that is ``whole`` at 5,000 Services, of which ``fixed`` does not grow."""
        return fixed + (whole - fixed) * self.services / SERVICES

    def note(self, fixed: float, whole: float, unit: str) -> str:
        """Says how a target was adapted; empty at the size that it is for."""
        if self.services == SERVICES:
            return ""
        return f"{whole:g} {unit} at {SERVICES}, of which {fixed:g} does not grow"


#: A single restore grows with more than the square of its chains: from 2,000 Services to 1,000
#: it gets about three times nearer to ours, so fifteen times faster becomes five. One on legacy
#: takes eight to twelve times as long for five times as many, where ours takes five to six times:
#: three becomes four and a half. Before a restore the agent reads three tables, each with a
#: program: 5 to 10 ms that do not grow, of 0.2 s here.
QUICK = Scale(
    quick=True,
    services=1000,
    endpoints=ENDPOINTS,
    single=1000,
    single_times=5,
    legacy_times=4.5,
    bare_times=1.3,
    growth=(250, 1000),
    runs=1,
    legacy_runs=2,
    python=(100, 1000),
    packets=1000,
    turns=24,
    samples=14,
    legacy_samples=5,
    singles=2,
    storm=100,
    storm_seconds=2.0,
    rounds=16,
    again=4,
)
FULL = Scale(
    quick=False,
    services=SERVICES,
    endpoints=ENDPOINTS,
    single=2000,
    single_times=15,
    legacy_times=3,
    bare_times=1.25,
    growth=(1000, 10_000),
    runs=2,
    legacy_runs=3,
    python=(100, 10_000),
    packets=10_000,
    turns=50,
    samples=200,
    legacy_samples=9,
    singles=3,
    storm=1000,
    storm_seconds=10,
    rounds=40,
    again=3,
)
