from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from agent.kernel.sysctl import (
    HASH_SIZE,
    ROUTE_LOCALNET,
    TCP_BE_LIBERAL,
    Result,
    Sysctls,
    apply_conntrack,
)
from tests.unit.test_kernel_sysctl import Settings

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace

SYSCTLS = Sysctls()


def test_a_setting_is_that_of_the_namespace(namespace: Namespace) -> None:
    """Writing in a namespace is seen there and nowhere else."""
    machine = SYSCTLS.read_int(TCP_BE_LIBERAL).value
    wanted = 1 - namespace.call(SYSCTLS.read_int, TCP_BE_LIBERAL).value  # type: ignore[operator]
    written = namespace.call(SYSCTLS.ensure, TCP_BE_LIBERAL, wanted)
    again = namespace.call(SYSCTLS.ensure, TCP_BE_LIBERAL, wanted)

    assert (written.before, written.result, again.result) == (
        1 - wanted,
        Result.WRITTEN,
        Result.KEPT,
    )
    assert namespace.call(SYSCTLS.read_int, TCP_BE_LIBERAL).value == wanted
    assert SYSCTLS.read_int(TCP_BE_LIBERAL).value == machine


def test_route_localnet_can_be_set(namespace: Namespace) -> None:
    """The setting that node ports on 127.0.0.1 need exists under its name."""
    assert namespace.call(SYSCTLS.ensure, ROUTE_LOCALNET, 1).result is Result.WRITTEN
    assert namespace.call(SYSCTLS.read_int, ROUTE_LOCALNET).value == 1


def test_the_size_of_the_table_is_refused_outside_of_the_first_namespace(
    namespace: Namespace,
) -> None:
    """Where only the first namespace may, timeouts are set and the size is refused, with why."""
    size = Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text(encoding="ascii")
    cores = os.cpu_count() or 1
    settings = Settings(
        max_per_core=int(size) // cores + 1,
        tcp_established_timeout=500_000,
        udp_timeout=30,
    )

    def apply() -> list[tuple[str, Result, bool]]:
        # Not below /sys: the hash size is the machine's, and root may change it.
        modules = Sysctls(Path("/nonexistent"))
        return [
            (outcome.name.rpartition("/")[2], outcome.result, bool(outcome.reason))
            for outcome in apply_conntrack(settings, modules=modules)
        ]

    assert namespace.call(apply) == [
        ("nf_conntrack_max", Result.REFUSED, True),
        (HASH_SIZE.rpartition("/")[2], Result.REFUSED, True),
        ("nf_conntrack_tcp_timeout_established", Result.WRITTEN, False),
        ("nf_conntrack_udp_timeout", Result.KEPT, False),
    ]
    assert Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text(encoding="ascii") == size
