"""Other tools that change tables, restores that fail, locks that are held: what users reported."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from tests.kernel.running import BACKENDS, Host, RunningAgent, Tables, stays, until
from tests.kernel.shapes import endpoint, endpoint_slice, port, service
from tests.kernel.shim import Shim

if TYPE_CHECKING:
    from pathlib import Path

    from agent.demo.namespaces import Namespace

A, B, POD = "10.96.0.1", "10.96.0.2", "10.0.0.1"
EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)
#: A look at the kernel every second, as long as the tests wait for one.
QUICK = ("--iptables-sync-period", "1s")
REPAIRED = "the kernel no longer holds what it accepted; writing it again"
WEB_CHAIN = "KUBE-SVC-LOLE4ISW44XBNF3G"  # default/web, TCP
JUMP = '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
FORWARD_JUMP = '-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'
FAILURES = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
PARTIAL_FAILURES = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total"


def put_one(host: Host, *ips: str) -> None:
    host.api.put(service("a", A), endpoint_slice("a", *map(endpoint, ips or (POD,))))


def restore(namespace: Namespace, backend: str, table: str, *lines: str) -> None:
    """Change a table as another tool does."""
    text = "\n".join([f"*{table}", *lines, "COMMIT", ""])
    program = [f"xtables-{backend}-multi", "iptables-restore", "--noflush"]
    namespace.run([*program, "-w"], stdin=text)


def without_foreign(found: Tables) -> Tables:
    """Tables without the rules that a test added as somebody else."""
    return {
        table: {
            chain: [rule for rule in rules if "somebody else" not in rule]
            for chain, rules in chains.items()
            if chain != "FOREIGN"
        }
        for table, chains in found.items()
    }


#: What other tools do: lines of restore input for a table.
SABOTAGE = {
    "nat flushed": ("nat", "-F"),
    "nat flushed and emptied": ("nat", "-F", "-X"),
    "filter flushed and emptied": ("filter", "-F", "-X"),
    "canary of mangle gone": ("mangle", "-X KUBE-PROXY-CANARY"),
    "canary of nat gone": ("nat", "-X KUBE-PROXY-CANARY"),
    "one jump gone": ("nat", f"-D PREROUTING {JUMP}"),
    "one of several jumps gone": ("filter", f"-D FORWARD {FORWARD_JUMP}"),
    "a Service's chain flushed": ("nat", f"-F {WEB_CHAIN}"),
    "a Service's chain short-circuited": ("nat", f"-I {WEB_CHAIN} -j RETURN"),
    "a shared chain short-circuited": ("nat", "-I KUBE-MARK-MASQ -j RETURN"),
    "forward rules gone": ("filter", "-F KUBE-FORWARD"),
}


@EVERY_BACKEND
def test_what_others_destroy_is_back_within_the_sync_period(host: Host, backend: str) -> None:
    """Flushed tables, deleted chains, jumps and canaries are all back, and others' rules stay.

    What is back stands in the order in which it stood.
    """
    host.api.put(service("web", A), endpoint_slice("web", endpoint(POD)))
    period = 0.5
    agent = host.agent("--iptables-sync-period", f"{period}s", backend=backend).start()
    good = agent.tables()
    foreign = '-A FORWARD -m comment --comment "somebody else" -j RETURN'
    seen = []
    for number, (table, *lines) in enumerate(SABOTAGE.values(), 1):
        restore(host.namespace, backend, "mangle", foreign)
        restore(host.namespace, backend, table, *lines)

        def repaired(number: int = number) -> bool:
            return len(agent.logged(REPAIRED)) == number and without_foreign(agent.tables()) == good

        until(repaired, period + 3, agent.story)
        seen.append("somebody else" in str(agent.tables()["mangle"]))

    assert WEB_CHAIN in good["nat"]
    assert seen == [True] * len(SABOTAGE)
    assert agent.metric(FAILURES, ip_family="IPv4") == 0
    audits = "onenth_audit_rounds_total"
    assert agent.metric(audits, ip_family="IPv4", result="different") == len(SABOTAGE)


def test_somebody_who_keeps_writing_is_told_of(host: Host) -> None:
    """Once in the log, by an Event and a metric, and repaired each time; told again when over."""
    put_one(host)
    agent = host.agent("--iptables-sync-period", "300ms").start()
    metric = "onenth_rules_contested"
    before = agent.metric(metric, ip_family="IPv4")

    def sabotaged() -> bool:
        restore(host.namespace, "nft", "nat", "-F KUBE-SERVICES")
        until(lambda: "-d 10.96.0.1/32" in agent.rules(), 5, agent.story)
        return agent.metric(metric, ip_family="IPv4") == 1

    until(sabotaged, 20, agent.story)
    event = until(lambda: [e for e in host.api.events if e["reason"] == "RulesContested"])[0]
    until(lambda: agent.metric(metric, ip_family="IPv4") == 0, 10, agent.story)

    said = "another program keeps writing our rules; they are repaired each time"
    assert before == 0
    assert [line["family"] for line in agent.logged(said)] == ["IPv4"]
    assert "kube-proxy" in event["note"]
    assert agent.logged("nobody else writes our rules any more", family="IPv4")
    assert agent.metric(metric, ip_family="IPv6") == 0


@EVERY_BACKEND
def test_a_chain_that_somebody_deleted_before_a_partial_sync(host: Host, backend: str) -> None:
    """The partial sync fails, counts as one, and the full one after it makes everything right."""
    host.api.put(service("web", A), endpoint_slice("web", endpoint(POD)))
    host.api.put(service("b", B), endpoint_slice("b", endpoint("10.0.0.2")))
    agent = host.agent("--iptables-sync-period", "1h", backend=backend).start()
    restore(host.namespace, backend, "nat", "-F", "-X")
    host.api.put(endpoint_slice("web", endpoint("10.0.0.9")))
    agent.wait_rules("10.0.0.9:8080")
    agent.wait_rules("10.0.0.2:8080")

    assert agent.metric(PARTIAL_FAILURES, ip_family="IPv4") == 1
    assert agent.metric(FAILURES, ip_family="IPv4") == 1
    assert "KUBE-SERVICES" in str(agent.tables()["nat"]["PREROUTING"])


@pytest.mark.parametrize(("backend", "period"), [("nft", 2), ("legacy", 1)])
def test_a_failed_sync_loses_no_change(
    host: Host, tmp_path: Path, backend: str, period: int
) -> None:
    """A restore that fails is tried again by itself, later each time, and in full.

    Nothing else happens in the cluster meanwhile. /healthz says 503 once the change has waited
    for too long, and 200 after one good sync; the other family is not touched by it.
    """
    put_one(host)
    host.api.put(service("b", B), endpoint_slice("b", endpoint("10.0.0.2")))
    shim = Shim(tmp_path)
    agent = host.agent(
        "--iptables-sync-period", f"{period}s", backend=backend, prefix=shim.prefix
    ).start()
    healthy = agent.get("/healthz").status
    shim.fail("10.0.0.9")
    host.api.put(endpoint_slice("a", endpoint("10.0.0.9")))  # an endpoint changes
    host.api.put(endpoint_slice("b"))  # 1 -> 0
    host.api.put(endpoint_slice("b", endpoint("10.0.0.2")))  # -> 1
    until(lambda: agent.get("/healthz").status == 503, 10, agent.story)
    alive = agent.get("/readyz").status
    failed = until(lambda: len(found := agent.logged("sync failed")) >= 3 and found, 10)
    shim.fail(None)
    agent.wait_rules("10.0.0.9:8080")
    until(lambda: agent.get("/healthz").status == 200, 5, agent.story)

    assert (healthy, alive) == (200, 200)
    assert "10.0.0.2:8080" in str(agent.tables()["nat"])
    assert f"{POD}:8080" not in str(agent.tables()["nat"])
    assert {line["family"] for line in failed} == {"IPv4"}
    assert [line["full"] for line in failed] == [False] + [True] * (len(failed) - 1)
    retries = [line["retry_seconds"] for line in failed]
    # From 1 s doubled up to the period, and each jittered down by up to a half.
    assert 0.5 <= retries[0] <= 1
    assert all(period / 2 <= retry <= period for retry in retries[1:])
    failures = agent.metric(FAILURES, ip_family="IPv4")
    assert failures is not None
    assert failures >= 3
    assert agent.metric(PARTIAL_FAILURES, ip_family="IPv4") == 1
    assert agent.metric(FAILURES, ip_family="IPv6") == 0


@EVERY_BACKEND
def test_one_service_that_the_kernel_refuses_costs_only_itself(
    host: Host, tmp_path: Path, backend: str
) -> None:
    """It is set aside, named in the log, a metric and an Event; all others are programmed."""
    put_one(host)
    shim = Shim(tmp_path)
    agent = host.agent(*QUICK, backend=backend, prefix=shim.prefix).start()
    shim.refuse("10.0.0.66")
    host.api.put(
        service("bad", B), endpoint_slice("bad", endpoint("10.0.0.66")),
        service("c", "10.96.0.3"), endpoint_slice("c", endpoint("10.0.0.3")),
    )  # fmt: skip
    agent.wait_rules("10.0.0.3:8080")
    line = agent.wait_logged("the kernel refused a Service; it is set aside, the others work")
    until(lambda: agent.metric("onenth_set_aside_services", ip_family="IPv4") == 1)
    event = until(lambda: [e for e in host.api.events if e["reason"] == "ServiceSetAside"])[0]
    health = agent.get("/healthz").status
    shim.refuse(None)
    host.api.put(endpoint_slice("bad", endpoint("10.0.0.67")))
    agent.wait_rules("10.0.0.67:8080")

    assert line["service"] == "default/bad"
    assert "default/bad" in event["note"]
    assert event["regarding"]["kind"] == "Node"
    assert health == 200
    until(lambda: agent.metric("onenth_set_aside_services", ip_family="IPv4") == 0)


def test_a_held_lock_is_waited_for_and_told(host: Host, tmp_path: Path) -> None:
    """While another tool holds the xtables lock: no change, a count, 503; then everything.

    On legacy only: nft has no lock.
    """
    put_one(host)
    lock = tmp_path / "lock"
    agent = host.agent(*QUICK, backend="legacy", environment={"XTABLES_LOCKFILE": str(lock)})
    agent.start()
    before = agent.tables()
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    host.api.put(endpoint_slice("a", endpoint("10.0.0.2")))
    line = agent.wait_logged("sync failed", 20)
    until(lambda: agent.get("/healthz").status == 503, 10, agent.story)
    during = agent.tables()
    os.close(descriptor)
    agent.wait_rules("10.0.0.2:8080")

    assert line["refusal"] == "locked"
    assert line["seconds"] == pytest.approx(5, abs=1.5)  # -w 5
    assert during == before
    assert (agent.metric(FAILURES, ip_family="IPv4") or 0) >= 1
    until(lambda: agent.get("/healthz").status == 200, 10, agent.story)


def test_idle_is_healthy(host: Host) -> None:
    """Ten periods without any event: 200 throughout, and the moments of metrics are not 0."""
    put_one(host)
    agent = host.agent("--iptables-sync-period", "200ms").start()

    assert stays(lambda: agent.get("/healthz").status == 200, 2)
    for name in ("last_timestamp", "last_queued_timestamp"):
        metric = f"kubeproxy_sync_proxy_rules_{name}_seconds"
        assert (agent.metric(metric, ip_family="IPv6") or 0) > 1_600_000_000


@pytest.mark.usefixtures("counters")
@pytest.mark.parametrize("both", [True, False], ids=["both", "localhost only"])
def test_a_kernel_without_the_nfacct_match(host: Host, tmp_path: Path, *, both: bool) -> None:
    """Counters exist, the match does not: the same rules without it, one line, no failure.

    Each counter is decided by itself.
    """
    host.api.put(
        service("a", A, type="NodePort", ports=[port(node_port=30001)]),
        endpoint_slice("a", endpoint(POD)),
    )
    shim = Shim(tmp_path)
    shim.refuse("-m nfacct" if both else "localhost_nps_accepted_pkts")
    agent = host.agent(prefix=shim.prefix).start()
    invalid = agent.tables()["filter"]["KUBE-FORWARD"][0]
    name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"

    assert f"{POD}:8080" in str(agent.tables()["nat"])
    assert "--ctstate INVALID" in invalid
    assert ("nfacct" in invalid) is not both
    assert "localhost_nps" not in str(agent.tables())
    lines = agent.logged("rules do without an nfacct counter")
    assert len(lines) == (4 if both else 2)  # one for each family and counter
    assert agent.metric(FAILURES, ip_family="IPv4") == 0
    assert (agent.metric(name) is None) is both


LIBERAL = "net/netfilter/nf_conntrack_tcp_be_liberal"
SKIPPED = "nf_conntrack_tcp_be_liberal is set: no rule drops INVALID packets"


def invalid_rules(agent: RunningAgent) -> list[bool]:
    """Whether the first rule of KUBE-FORWARD is about INVALID packets, by family."""
    chains = [agent.tables(family)["filter"]["KUBE-FORWARD"] for family in ("IPv4", "IPv6")]
    return ["INVALID" in chain[0] for chain in chains]


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_invalid_rule_follows_the_sysctl(host: Host, value: str) -> None:
    """Present, and first, while it is 0; absent, with a line for each family, while it is not."""
    host.namespace.write_sysctl(LIBERAL, value)
    agent = host.agent(*QUICK).start()
    before = invalid_rules(agent), len(agent.logged(SKIPPED))
    metric = agent.metric("onenth_conntrack_tcp_be_liberal")
    host.namespace.write_sysctl(LIBERAL, "1" if value == "0" else "0")
    until(lambda: invalid_rules(agent) == [value != "0"] * 2, 5)

    assert before == ([value == "0"] * 2, 2 * int(value != "0"))
    assert metric == int(value)
    assert [line["family"] for line in agent.logged(SKIPPED)] == ["IPv4", "IPv6"]


@pytest.mark.parametrize(("content", "present"), [("", True), ("many", True), ("2", False)])
def test_the_invalid_rule_and_odd_values_of_the_sysctl(
    host: Host, tmp_path: Path, content: str, *, present: bool
) -> None:
    """A value that is no number counts as 0; any number but 0 leaves the rule out."""
    odd = tmp_path / "odd"
    odd.write_text(content, encoding="utf-8")
    mount = f'mount --bind {odd} /proc/sys/{LIBERAL} && exec "$@"'
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"]
    agent = host.agent(prefix=prefix).start()

    assert invalid_rules(agent) == [present] * 2
    assert agent.metric("onenth_conntrack_tcp_be_liberal") == (
        int(content) if content == "2" else None
    )
