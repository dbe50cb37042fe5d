from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.kernel import detect
from agent.kernel.detect import Backend, Tool
from agent.kernel.errors import PrivilegeError
from agent.kernel.iptables import PROBE_CHAIN, Iptables, probe
from agent.kernel.tools import SubprocessRunner
from agent.state.values import Family
from agent.sync.port import ReadError, Refusal, RestoreError
from tests.kernel.inside import NamespaceRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.demo.namespaces import Namespace

LOCALHOST = {Family.V4: "127.0.0.1/32", Family.V6: "::1/128"}


@pytest.fixture(params=list(Backend), ids=lambda backend: backend.value)
def tool(request: pytest.FixtureRequest) -> Tool:
    found = detect.installed(SubprocessRunner())[request.param]
    if found is None:
        pytest.skip(f"{request.param.program} is not installed")
    return found


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def iptables(request: pytest.FixtureRequest, tool: Tool, namespace: Namespace) -> Iptables:
    return Iptables(tool, request.param, runner=NamespaceRunner(namespace), lock_wait=1)


def refuse(iptables: Iptables, *lines: str) -> tuple[Refusal, int | None]:
    with pytest.raises(RestoreError) as caught:
        iptables.restore("".join(f"{line}\n" for line in lines))
    return caught.value.refusal, caught.value.line


def test_what_was_restored_is_read_back(iptables: Iptables) -> None:
    """Chains and rules of a transaction are what save and chain return."""
    rule = f"-A ONE -s {LOCALHOST[iptables.family]} -p tcp -j TWO"
    iptables.restore(f"*nat\n:ONE - [0:0]\n:TWO - [0:0]\n{rule}\nCOMMIT\n")
    saved = iptables.save("nat").splitlines()

    assert iptables.chain("nat", "ONE") == [rule]
    assert iptables.chain("nat", "TWO") == []
    assert iptables.chain("nat", "THREE") is None
    assert iptables.chain("nat", "PREROUTING") == []
    assert [line for line in saved if line.startswith((":ONE", ":TWO", "-A"))] == [
        ":ONE - [0:0]",
        ":TWO - [0:0]",
        rule,
    ]


def test_what_a_transaction_does_not_name_stays(iptables: Iptables) -> None:
    """A second transaction flushes only the chains that it declares."""
    iptables.restore("*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A ONE -j TWO\n-A TWO -j RETURN\nCOMMIT\n")
    iptables.restore("*nat\n:ONE - [0:0]\n-A ONE -j RETURN\nCOMMIT\n")

    assert iptables.chain("nat", "ONE") == ["-A ONE -j RETURN"]
    assert iptables.chain("nat", "TWO") == ["-A TWO -j RETURN"]


def test_tables_that_do_not_exist_are_not_made_by_reading_all(iptables: Iptables) -> None:
    """save_all lists what is there; on legacy a table that nobody used is not."""
    before = iptables.save_all()
    iptables.restore("*filter\n:ONE - [0:0]\nCOMMIT\n")
    after = iptables.save_all()

    assert ":ONE" not in before
    assert ":ONE - [0:0]" in after
    if iptables.tool.backend is Backend.LEGACY:
        assert [line for line in after.splitlines() if line.startswith("*")] == ["*filter"]


@pytest.mark.parametrize(
    "line",
    [
        "-A ONE --bogus 1 -j RETURN",
        "-A ONE -s 300.1.1.1 -j RETURN",
        "-A ONE -m nosuchmatch -j RETURN",
        "-A NONE -j RETURN",
        "-D ONE -j ACCEPT",
        "-X NONE",
        "-A ONE -m statistic --mode random --probability 7 -j RETURN",
        "-A ONE -j NONE",
        "-A ONE -g NONE",
        "hello",
        ":AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA - [0:0]",
    ],
)
def test_a_line_that_the_tool_refuses_is_named(iptables: Iptables, line: str) -> None:
    """Whatever the tool itself finds wrong, the error has the number of the line."""
    before = ("*nat", ":ONE - [0:0]", ":TWO - [0:0]", "-A ONE -j TWO")

    assert refuse(iptables, *before, line, "COMMIT") == (Refusal.INPUT, 5)
    assert iptables.chain("nat", "ONE") is None


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("-A ONE -j MASQUERADE",), id="target of another table"),
        pytest.param(("-A ONE -m nfacct --nfacct-name none -j RETURN",), id="missing counter"),
        pytest.param(("-A TWO -j ONE", "-A ONE -j TWO", "-A INPUT -j ONE"), id="loop"),
    ],
)
def test_what_the_kernel_refuses_is_the_inputs_fault(
    iptables: Iptables, lines: tuple[str, ...]
) -> None:
    """nft names the line that the kernel refused, legacy only the COMMIT; nothing is changed."""
    iptables.restore("*filter\n:ONE - [0:0]\n-A ONE -j ACCEPT\nCOMMIT\n")
    before = ("*filter", ":ONE - [0:0]", ":TWO - [0:0]")
    found = refuse(iptables, *before, *lines, "COMMIT")

    commit = len(before) + len(lines) + 1
    expected = commit if iptables.tool.backend is Backend.LEGACY else commit - 1
    assert found == (Refusal.INPUT, expected)
    assert iptables.chain("filter", "ONE") == ["-A ONE -j ACCEPT"]
    assert PROBE_CHAIN not in iptables.save("filter")


def test_a_chain_that_is_jumped_to_cannot_be_deleted(iptables: Iptables) -> None:
    """Deleting a chain that somebody else jumps to is refused at its line, on both backends."""
    iptables.restore("*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A ONE -j TWO\nCOMMIT\n")

    assert refuse(iptables, "*nat", ":NEW - [0:0]", "-X TWO", "COMMIT") == (Refusal.INPUT, 3)
    assert iptables.chain("nat", "NEW") is None


def test_a_refused_second_table_does_not_repeat_the_first(iptables: Iptables) -> None:
    """A line number counts from the top, and the first table has been written exactly once."""
    bad = "-A TWO -m nfacct --nfacct-name none"
    found = refuse(
        iptables,
        *("*nat", ":ONE - [0:0]", "-I OUTPUT -j ONE", "COMMIT"),
        *("*filter", ":TWO - [0:0]", bad, "COMMIT"),
    )

    assert found == (Refusal.INPUT, 8 if iptables.tool.backend is Backend.LEGACY else 7)
    assert iptables.chain("nat", "OUTPUT") == ["-A OUTPUT -j ONE"]
    assert iptables.chain("filter", "TWO") is None


def test_input_that_ends_early_is_refused(iptables: Iptables) -> None:
    """Without COMMIT nothing is applied."""
    assert refuse(iptables, "*nat", ":ONE - [0:0]")[0] is Refusal.INPUT
    assert iptables.chain("nat", "ONE") is None


@pytest.fixture
def held_lock() -> Iterator[None]:
    with Path(os.environ["XTABLES_LOCKFILE"]).open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("held_lock")
def test_a_held_lock_stops_legacy_alone(iptables: Iptables) -> None:
    """Legacy gives up after the wait and says LOCKED; nft has no such lock."""
    text = "*nat\n:ONE - [0:0]\nCOMMIT\n"
    if iptables.tool.backend is Backend.LEGACY:
        assert refuse(iptables, *text.splitlines()) == (Refusal.LOCKED, None)
        with pytest.raises(ReadError, match="xtables lock"):
            iptables.chain("nat", "ONE")
    else:
        iptables.restore(text)
        assert iptables.chain("nat", "ONE") == []


def test_a_lock_file_that_cannot_be_opened_is_named(
    tool: Tool, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock file in a folder that does not exist is BROKEN on legacy, and its name is shown."""
    if tool.backend is Backend.NFT:
        pytest.skip("nft has no lock file")
    monkeypatch.setenv("XTABLES_LOCKFILE", "/nonexistent/lock")
    iptables = Iptables(tool, Family.V4, runner=NamespaceRunner(namespace))
    with pytest.raises(RestoreError, match="/nonexistent/lock") as caught:
        iptables.restore("*nat\n:ONE - [0:0]\nCOMMIT\n")

    assert caught.value.refusal is Refusal.BROKEN


def test_writers_beside_each_other_all_succeed(iptables: Iptables) -> None:
    """Twenty restores from four threads at the same time lose nothing."""
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for part in range(5):
                name = f"C{number}-{part}"
                iptables.restore(f"*nat\n:{name} - [0:0]\n-A {name} -j RETURN\nCOMMIT\n")
        except RestoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert iptables.save("nat").count("-j RETURN") == 20


def test_the_nfacct_match_is_asked_of_the_kernel(iptables: Iptables, namespace: Namespace) -> None:
    """A match is accepted if kernel and counter have it; asking leaves no chain behind."""
    namespace.run(["nfacct", "add", "there"])

    assert iptables.accepts("-m nfacct --nfacct-name there")
    assert not iptables.accepts("-m nfacct --nfacct-name missing")
    assert not iptables.accepts("-m nosuchmatch")
    assert PROBE_CHAIN not in iptables.save("filter")


def test_capabilities_are_probed(tool: Tool, namespace: Namespace) -> None:
    """Both families work here, counters are decided one by one, and the version is read."""
    namespace.run(["nfacct", "add", "there"])
    found = probe(tool, "because", runner=NamespaceRunner(namespace), counters=["there", "missing"])

    assert (found.backend, found.families, found.missing) == (tool.backend, tuple(Family), {})
    assert found.random_fully
    assert found.counters == {(Family.V4, "there"), (Family.V6, "there")}
    assert set(found.uncounted) == {(Family.V4, "missing"), (Family.V6, "missing")}
    assert found.counts(Family.V4, "there")
    assert not found.counts(Family.V4, "missing")


def test_missing_privilege_is_told_at_start(tool: Tool, namespace: Namespace) -> None:
    """Without CAP_NET_ADMIN the probe says so and names the capability."""
    unprivileged = ("setpriv", "--reuid", "65534", "--clear-groups", "--bounding-set", "-all")
    Path(os.environ["XTABLES_LOCKFILE"]).touch()
    Path(os.environ["XTABLES_LOCKFILE"]).chmod(0o666)
    with pytest.raises(PrivilegeError, match="NET_ADMIN"):
        probe(tool, "because", runner=NamespaceRunner(namespace, *unprivileged))
