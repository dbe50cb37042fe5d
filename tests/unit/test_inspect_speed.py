from __future__ import annotations

import gc
import time

from agent.inspect.survey import Survey
from agent.inspect.tables import read_tables
from agent.inspect.traffic import read_sample
from agent.inspect.verify import verify
from agent.rules.names import service_hash
from agent.rules.static import LAST_RULE
from agent.state.values import Family
from tests.fakes.dumps import Broken, as_dump

SERVICES, ENDPOINTS = 500, 10


def _dump() -> str:
    """What the kernel prints for so many Services, in the words of a large cluster."""
    chains: dict[str, list[str]] = {
        "KUBE-SERVICES": [],
        "KUBE-NODEPORTS": [],
        "KUBE-POSTROUTING": [
            "-m mark ! --mark 0x4000/0x4000 -j RETURN",
            "-j MARK --set-xmark 0x4000/0x0",
            '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE',
        ],
        "KUBE-MARK-MASQ": ["-j MARK --set-xmark 0x4000/0x4000"],
    }
    for number in range(SERVICES):
        name, ip = f"ns/s{number}:http", f"10.96.{number // 250}.{number % 250 + 1}"
        balancer = f"198.51.{number // 250}.{number % 250 + 1}"
        digest = service_hash(name, "tcp")
        svc, ext = f"KUBE-SVC-{digest}", f"KUBE-EXT-{digest}"
        here = f'-p tcp -m comment --comment "{name}'
        chains["KUBE-SERVICES"] += [
            f'-d {ip}/32 {here} cluster IP" -m tcp --dport 80 -j {svc}',
            f'-d {balancer}/32 {here} loadbalancer IP" -m tcp --dport 80 -j {ext}',
        ]
        chains["KUBE-NODEPORTS"].append(f'{here}" -m tcp --dport {30000 + number} -j {ext}')
        masquerade = f'-m comment --comment "masquerade traffic for {name} external destinations"'
        chains[ext] = [f"{masquerade} -j KUBE-MARK-MASQ", f"-j {svc}"]
        chains[svc] = []
        for left in range(ENDPOINTS, 0, -1):
            pod = f"10.128.{number % 250}.{number // 250 * 20 + left}"
            sep = f"KUBE-SEP-{service_hash(name, 'tcp', f'{pod}:8080')}"
            chance = (
                f"-m statistic --mode random --probability {1 / left:.11f} " if left > 1 else ""
            )
            chains[svc].append(f"{chance}-j {sep}")
            chains[sep] = [
                f"-s {pod}/32 -j KUBE-MARK-MASQ",
                f"-p tcp -m tcp -j DNAT --to-destination {pod}:8080",
            ]
    tail = f'-m comment --comment "{LAST_RULE}" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS'
    chains["KUBE-SERVICES"].append(tail)
    forward = [
        "-m conntrack --ctstate INVALID -j DROP",
        "-m mark --mark 0x4000/0x4000 -j ACCEPT",
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    ]
    empty = ("KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL")
    filters = {**dict.fromkeys(empty, ()), "KUBE-FORWARD": forward}
    return as_dump({"nat": chains, "filter": filters})


def test_a_tenth_of_a_large_nodes_rules_takes_a_tenth_of_the_time() -> None:
    """Twenty thousand rules are read and checked in well under a second of processor time.

    The promise is four seconds for 215,000. The bound has room for a slower or busy machine, and
    none for anything that grows with the square.
    """
    text = _dump()
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        tables = read_tables(text, Family.V4)
        found = verify(Survey(tables), tcp_be_liberal=False)
        seconds = time.process_time() - started
    finally:
        gc.enable()

    assert found == []
    assert tables.rules > SERVICES * 35
    assert seconds < 1.5


def test_counters_of_as_many_rules_are_read_quickly() -> None:
    """A look of top costs a fraction of a check."""
    dump = Broken(_dump())
    text = "\n".join(f"[1:60] {line}" if line.startswith("-A") else line for line in dump.lines)
    started = time.process_time()
    sample = read_sample(text)
    seconds = time.process_time() - started

    assert len(sample.lotteries) == SERVICES
    assert seconds < 0.5
