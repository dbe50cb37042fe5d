"""What other programs do to the tables. Connections that are tracked go on; all is mended soon."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from tests.faults.oracle import FOREIGN
from tests.faults.run import PERIOD
from tests.faults.schedule import Breaks, Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from agent.state.values import Family
    from tests.faults.run import Run
    from tests.faults.schedule import Act

_BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_REPAIRED = ("the kernel no longer holds what it accepted; writing it again", "sync failed")
#: Longer than it takes until the agent looks at the kernel.
_NOTICED = PERIOD + 0.3


def _flush(*verbs: str) -> Act:
    def act(run: Run, rng: random.Random) -> Iterator[None]:
        """Tables are flushed, and emptied; of one family or both."""
        wanted = rng.choice([("nat",), ("filter",), ("nat", "filter", "mangle")])
        run.planted = False
        for family in _some(run, rng):
            for table in wanted:
                for verb in verbs:
                    run.iptables("-t", table, verb, family=family)
        yield

    return act


def _some(run: Run, rng: random.Random) -> list[Family]:
    return rng.sample(run.families, rng.randint(1, len(run.families)))


def _delete_rules(run: Run, rng: random.Random) -> Iterator[None]:
    """Single rules go, from anywhere among ours."""
    for family in _some(run, rng):
        for table, chain, number in _positions(run, rng, family):
            run.iptables("-t", table, "-D", chain, str(number), family=family)
    yield


def _positions(run: Run, rng: random.Random, family: Family) -> list[tuple[str, str, int]]:
    """Some places of rules of ours, those further down a chain first."""
    found = [
        (table, chain, number)
        for table, chains in run.held(family).items()
        for chain, rules in chains.items()
        for number, rule in enumerate(rules, 1)
        if FOREIGN not in rule and FOREIGN not in chain
    ]
    return sorted(rng.sample(found, min(len(found), rng.randint(1, 4))), reverse=True)


def _insert_rules(run: Run, rng: random.Random) -> Iterator[None]:
    """Rules of others in front of ours, in our chains."""
    for family in _some(run, rng):
        for table, chain, number in _positions(run, rng, family):
            if chain not in _BUILT_IN:
                rule = ("-m", "comment", "--comment", "intruder", "-j", "RETURN")
                run.iptables("-t", table, "-I", chain, str(number), *rule, family=family)
    yield


def _rename(run: Run, rng: random.Random) -> Iterator[None]:
    """Chains get another name; jumps to them go with it."""
    for family in _some(run, rng):
        chains = [c for c in run.held(family)["nat"] if c.startswith("KUBE-")]
        for chain in rng.sample(sorted(chains), rng.randint(1, 3)):
            name = f"{FOREIGN}-{rng.randrange(1 << 30)}"
            run.iptables("-t", "nat", "-E", chain, name, family=family)
    yield
    # What was renamed is nobody's, and jumps to chains of ours, which cannot go before it does.
    for family in run.families:
        run.afterwards.append(functools.partial(_remove_renamed, run, family))


def _remove_renamed(run: Run, family: Family) -> None:
    """Delete chains that were ours, and the jumps to them from built-in chains."""
    nat = run.held(family)["nat"]
    named = [chain for chain in nat if chain.startswith(f"{FOREIGN}-")]
    jumps = [
        f"-D {chain} {rule}"
        for chain in _BUILT_IN
        for rule in nat.get(chain, ())
        if f"-j {FOREIGN}-" in rule
    ]
    lines = [f":{chain} - [0:0]" for chain in named] + [f"-X {chain}" for chain in named]
    if named:
        run.restore(family, "\n".join(["*nat", *jumps, *lines, "COMMIT", ""]), "--noflush")


def _reload(run: Run, rng: random.Random) -> Iterator[None]:
    """Everything is replaced by somebody else's rules, as a firewall service does on reload."""
    run.planted = False
    foreign = """\
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:FOREIGN-ZONES - [0:0]
-A PREROUTING -j FOREIGN-ZONES
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:FOREIGN-ZONES - [0:0]
-A INPUT -j FOREIGN-ZONES
-A FOREIGN-ZONES -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
COMMIT
"""
    for _ in range(rng.randint(1, 3)):
        for family in run.families:
            run.restore(family, foreign)
        time.sleep(rng.uniform(0.0, 0.5))
    yield


def _flush_ruleset(run: Run, _rng: random.Random) -> Iterator[None]:
    """All that nft has is gone, and with it the hooks that translate tracked connections."""
    run.planted = False
    run.node.run(["nft", "flush", "ruleset"])
    yield
    run.keep_tracking()  # or the next one to flush our rules would end tracking with them


def _canaries(run: Run, rng: random.Random) -> Iterator[None]:
    """A canary goes."""
    for family in run.families:
        table = rng.choice(["mangle", "nat", "filter"])
        run.iptables("-t", table, "-X", "KUBE-PROXY-CANARY", family=family)
    yield


def _foreign_traffic(run: Run, rng: random.Random) -> Iterator[None]:
    """Somebody else changes rules of their own all the while, which is no harm at all."""
    table = rng.choice(["nat", "filter"])
    for number in range(rng.randint(5, 15)):
        for family in run.families:
            chain = f"{FOREIGN}-{number}"
            run.iptables("-t", table, "-N", chain, family=family)
            run.iptables("-t", table, "-A", chain, "-j", "RETURN", family=family)
            run.iptables("-t", table, "-F", chain, family=family)
            run.iptables("-t", table, "-X", chain, family=family)
        time.sleep(0.02)
    yield


FAULTS = (
    Fault("tables: flushed", _flush("-F"), Breaks.NEW, says=_REPAIRED, seconds=_NOTICED),
    Fault("tables: emptied", _flush("-F", "-X"), Breaks.HELD, says=_REPAIRED, seconds=_NOTICED),
    Fault("tables: single rules deleted", _delete_rules, Breaks.NEW),
    Fault("tables: rules of others in ours", _insert_rules, Breaks.NEW),
    Fault("tables: chains renamed", _rename, Breaks.NEW),
    Fault("tables: reloaded by a firewall", _reload, Breaks.NEW),
    Fault("tables: nft flush ruleset", _flush_ruleset, Breaks.HELD, backend="nft"),
    Fault("tables: canaries deleted", _canaries),
    Fault("tables: others change theirs", _foreign_traffic),
)
