from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.kernel import detect, tools
from agent.kernel.detect import Backend, Choice, Tool, parse_version
from agent.kernel.errors import HostError, ToolMissingError, ToolTimeoutError
from agent.kernel.iptables import Iptables, probe
from agent.kernel.refusal import Complaint, block_before, needs_second_look, parse, shorten
from agent.kernel.tools import Finished
from agent.state.values import Family
from agent.sync.port import ReadError, Refusal, RestoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

LEGACY = Tool(Backend.LEGACY, Path("/x/xtables-legacy-multi"), (1, 8, 9))
NFT = Tool(Backend.NFT, Path("/x/xtables-nft-multi"), (1, 8, 9))
TEXT = "*nat\n:ONE - [0:0]\n-A ONE -j NONE\nCOMMIT\n"
DONE = Finished(0, "", "")
COMMIT_FAILED = Finished(1, "", "iptables-restore: line 4 failed\n")


class Script:
    """A ``Runner`` that answers from a list and remembers what it was asked."""

    def __init__(self, *answers: Finished | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], str]] = []

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float) -> Finished:
        assert timeout > 0
        self.asked.append((list(argv), stdin))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def refuse(tool: Tool, text: str, *answers: Finished | Exception) -> RestoreError:
    with pytest.raises(RestoreError) as caught:
        Iptables(tool, Family.V4, runner=Script(*answers)).restore(text)
    return caught.value


@pytest.mark.parametrize(
    ("status", "stderr", "refusal", "line"),
    [
        pytest.param(
            4,
            "Another app is currently holding the xtables lock. Stopped waiting after 5s.\n",
            Refusal.LOCKED,
            None,
            id="legacy lock",
        ),
        pytest.param(
            4,
            "Fatal: can't open lock file /run/xtables.lock: Permission denied\n",
            Refusal.BROKEN,
            None,
            id="lock file not ours",
        ),
        pytest.param(
            2,
            "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table"
            " 'nat'\n\nError occurred at line: 1\n",
            Refusal.BROKEN,
            None,
            id="legacy without privilege or table",
        ),
        pytest.param(
            4,
            "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set generation id:"
            " Permission denied (you must be root)\n",
            Refusal.BROKEN,
            None,
            id="nft without privilege",
        ),
        pytest.param(-9, "", Refusal.BROKEN, None, id="killed"),
        pytest.param(
            2,
            "iptables-restore v1.8.9 (legacy): Couldn't load target `NONE':No such file or"
            " directory\n\nError occurred at line: 3\n",
            Refusal.INPUT,
            3,
            id="legacy jump to a missing chain",
        ),
        pytest.param(
            2,
            "iptables-restore v1.8.9 (nf_tables): Chain 'NONE' does not exist\n"
            "Error occurred at line: 4\n",
            Refusal.INPUT,
            3,
            id="nft jump to a missing chain, noticed at COMMIT",
        ),
        pytest.param(
            2,
            "iptables-restore v1.8.9 (nf_tables): Chain 'OTHER' does not exist\n"
            "Error occurred at line: 4\n",
            Refusal.INPUT,
            4,
            id="nft jump that is not in the input",
        ),
        pytest.param(1, "iptables-restore: line 3 failed\n", Refusal.INPUT, 3, id="legacy line"),
        pytest.param(
            1,
            "iptables-restore: line 3 failed: No chain/target/match by that name.\n",
            Refusal.INPUT,
            3,
            id="nft line",
        ),
        pytest.param(
            1, "iptables-restore: COMMIT expected at line 4\n", Refusal.INPUT, 4, id="cut short"
        ),
        pytest.param(
            4,
            "iptables-restore v1.8.9 (nf_tables): \n"
            "line 3: RULE_APPEND failed (Invalid argument): rule in chain ONE\n",
            Refusal.INPUT,
            3,
            id="nft kernel refusal",
        ),
        pytest.param(
            4,
            "iptables-restore v1.8.9 (nf_tables): \n"
            "line 2: CHAIN_ADD failed (Cannot allocate memory): chain ONE\n",
            Refusal.BUSY,
            2,
            id="nft short of memory",
        ),
        pytest.param(
            4,
            "line 2: CHAIN_DEL failed (Device or resource busy): chain ONE\n"
            "line 3: RULE_APPEND failed (Resource temporarily unavailable): rule in chain ONE\n",
            Refusal.INPUT,
            2,
            id="nft chain in use is no moment's matter",
        ),
        pytest.param(
            4,
            "line 2: RULE_APPEND failed (Resource temporarily unavailable): rule in chain ONE\n"
            "line 3: RULE_APPEND failed (Invalid argument): rule in chain ONE\n",
            Refusal.INPUT,
            3,
            id="nft lasting complaint after a passing one",
        ),
        pytest.param(
            4,
            "iptables-restore v1.8.9 (nf_tables): sendto: No buffer space available\n",
            Refusal.BUSY,
            None,
            id="passing, without a line",
        ),
        pytest.param(
            2,
            "/usr/lib/x86_64-linux-gnu/xtables/libxt_statistic.so: libm.so.6: failed to map segment"
            " from shared object\n"
            "ip6tables-restore v1.8.9 (legacy): Couldn't load match `statistic':No such file or"
            " directory\n\nError occurred at line: 3\n",
            Refusal.BUSY,
            None,
            id="no memory for an extension",
        ),
        pytest.param(
            2,
            "iptables-restore v1.8.9 (legacy): Couldn't load match `statistic':No such file or"
            " directory\n\nError occurred at line: 3\n",
            Refusal.INPUT,
            3,
            id="no such extension",
        ),
        pytest.param(2, "iptables-restore: something new\n", Refusal.INPUT, None, id="status 2"),
        pytest.param(1, "iptables-restore: something new\n", Refusal.BROKEN, None, id="unknown"),
        pytest.param(1, "", Refusal.BROKEN, None, id="silent"),
    ],
)
def test_what_the_tools_say_is_understood(
    status: int, stderr: str, refusal: Refusal, line: int | None
) -> None:
    """Recorded complaints of both backends give the kind and the line that they mean."""
    assert parse(status, stderr, TEXT) == Complaint(refusal, line)


def test_the_jump_is_looked_for_in_its_own_table() -> None:
    """The same jump in an earlier table, or as part of a longer name, is not blamed."""
    first = "*filter\n-A X -j NONE\nCOMMIT\n"
    text = f"{first}*nat\n-A Y -j NONE-LONGER\n-A Z -g NONE\n-A Z -j A\nCOMMIT\n"
    stderr = "Chain 'NONE' does not exist\nError occurred at line: 8\n"

    assert parse(2, stderr, text) == Complaint(Refusal.INPUT, 6)


def test_commit_lines_are_recognised() -> None:
    """Only an INPUT complaint about a COMMIT line is looked at again; its table is found."""
    text = "*filter\nCOMMIT\n*nat\n:ONE - [0:0]\nCOMMIT\n"

    assert needs_second_look(Complaint(Refusal.INPUT, 5), text)
    assert not needs_second_look(Complaint(Refusal.INPUT, 4), text)
    assert not needs_second_look(Complaint(Refusal.INPUT, 99), text)
    assert not needs_second_look(Complaint(Refusal.INPUT, None), text)
    assert not needs_second_look(Complaint(Refusal.LOCKED, 5), text)
    assert block_before(text, 5) == (2, "nat")


def test_a_long_complaint_keeps_both_ends() -> None:
    """What goes into an error is bounded."""
    short = shorten("a" * 5000 + "b" * 5000)

    assert len(short) < 4200
    assert short.startswith("aaa")
    assert short.endswith("bbb")


def test_a_race_on_legacy_is_tried_again() -> None:
    """A COMMIT that fails once and then goes through is no error; one table is repeated."""
    text = "*filter\nCOMMIT\n*nat\n:ONE - [0:0]\nCOMMIT\n"
    script = Script(Finished(1, "", "iptables-restore: line 5 failed\n"), DONE)
    Iptables(LEGACY, Family.V4, runner=script).restore(text)

    assert [stdin for _, stdin in script.asked] == [text, "*nat\n:ONE - [0:0]\nCOMMIT\n"]


def test_a_commit_that_fails_for_good_is_the_inputs_fault() -> None:
    """If the table can be written as it is, the transaction is at fault, at its COMMIT."""
    error = refuse(LEGACY, TEXT, COMMIT_FAILED, COMMIT_FAILED, DONE)

    assert (error.refusal, error.line) == (Refusal.INPUT, 4)


def test_a_table_that_cannot_be_written_at_all_is_busy() -> None:
    """If not even the unchanged table goes in, no line is to blame."""
    error = refuse(LEGACY, TEXT, COMMIT_FAILED, COMMIT_FAILED, COMMIT_FAILED)

    assert error.refusal is Refusal.BUSY


def test_the_second_look_may_find_something_else() -> None:
    """The lock, met in the second attempt, is what is reported; lines count from the top."""
    locked = Finished(4, "", "Another app is currently holding the xtables lock.\n")
    text = f"*filter\nCOMMIT\n{TEXT}"
    first = Finished(1, "", "iptables-restore: line 6 failed\n")
    second = Finished(1, "", "iptables-restore: line 3 failed\n")

    assert refuse(LEGACY, TEXT, COMMIT_FAILED, locked).refusal is Refusal.LOCKED
    assert refuse(LEGACY, text, first, second).line == 5


def test_nft_is_believed_at_once() -> None:
    """nft says why a COMMIT failed, so nothing is tried twice."""
    error = refuse(NFT, TEXT, COMMIT_FAILED)

    assert (error.refusal, error.line) == (Refusal.INPUT, 4)


def test_a_tool_that_hangs_or_is_missing_is_broken() -> None:
    """A kill after the timeout and a missing program are BROKEN for a restore, ReadError else."""
    for failure in (ToolTimeoutError("hung"), ToolMissingError("gone")):
        assert refuse(NFT, TEXT, failure).refusal is Refusal.BROKEN
        with pytest.raises(ReadError, match=str(failure)):
            Iptables(NFT, Family.V4, runner=Script(failure)).save("nat")
        with pytest.raises(ReadError, match=str(failure)):
            Iptables(NFT, Family.V4, runner=Script(failure)).chain("nat", "ONE")


def test_the_commands_are_the_chosen_backends() -> None:
    """Each verb runs the explicit program of the backend and the family, without a shell."""
    script = Script(DONE, DONE, Finished(0, "-N ONE\n", ""))
    iptables = Iptables(LEGACY, Family.V6, runner=script, lock_wait=7)
    iptables.restore(TEXT)
    iptables.save("nat")
    iptables.chain("nat", "ONE")

    program = "/x/xtables-legacy-multi"
    assert [argv for argv, _ in script.asked] == [
        [program, "ip6tables-restore", "--noflush", "--counters", "-w", "7"],
        [program, "ip6tables-save", "-t", "nat"],
        [program, "ip6tables", "-w", "7", "-t", "nat", "-S", "ONE"],
    ]


@pytest.mark.parametrize("said", ["", "-A ONE -j RETURN\n", "-N ONE-MORE\n", "-P TWO ACCEPT\n"])
def test_a_list_that_does_not_begin_with_the_chain_is_an_error(said: str) -> None:
    """A program that ends well and tells nothing, or something else, has not been read from.

    Taken for an empty chain it would have all jumps inserted once more.
    """
    with pytest.raises(ReadError, match="printed no such chain"):
        Iptables(NFT, Family.V4, runner=Script(Finished(0, said, ""))).chain("nat", "ONE")


def test_a_chain_that_only_nft_can_list_is_an_error() -> None:
    """iptables-nft 1.8.9 uses one complaint for two things; save tells them apart."""
    said = Finished(1, "", "chain `ONE' in table `nat' is incompatible, use 'nft' tool.\n")
    there = Finished(0, "*nat\n:ONE - [0:0]\nCOMMIT\n", "")
    gone = Finished(0, "*nat\n:ONE-MORE - [0:0]\nCOMMIT\n", "")

    assert Iptables(NFT, Family.V4, runner=Script(said, gone)).chain("nat", "ONE") is None
    with pytest.raises(ReadError, match="incompatible"):
        Iptables(NFT, Family.V4, runner=Script(said, there)).chain("nat", "ONE")


def test_a_machine_without_ipv6_has_one_family() -> None:
    """A family that the kernel lacks is left out with the reason; with none left it is fatal."""
    no = Finished(3, "", "ip6tables: can't initialize: Address family not supported\n")
    found = probe(NFT, "because", runner=Script(DONE, no))

    assert found.families == (Family.V4,)
    assert "Address family not supported" in found.missing[Family.V6]
    with pytest.raises(HostError, match="neither family"):
        probe(NFT, "because", runner=Script(no, no))


def test_random_fully_needs_1_6_2() -> None:
    """The option is used from iptables 1.6.2 on."""
    found = [
        probe(Tool(Backend.LEGACY, Path("/x"), version), "", runner=Script(DONE, DONE))
        for version in ((1, 6, 1), (1, 6, 2), (1, 8, 0))
    ]

    assert [one.random_fully for one in found] == [False, True, True]


def test_a_probe_that_meets_the_lock_is_repeated() -> None:
    """A counter is not given up because the lock was held for a moment; in the end it says why."""
    locked = Finished(4, "", "Another app is currently holding the xtables lock.\n")
    once = probe(LEGACY, "", runner=Script(DONE, locked, DONE, DONE, DONE), counters=["c"])
    always = probe(LEGACY, "", runner=Script(DONE, *[locked] * 3, DONE, DONE), counters=["c"])

    assert once.counters == {(Family.V4, "c"), (Family.V6, "c")}
    assert always.counters == {(Family.V6, "c")}
    assert "xtables lock" in always.uncounted[Family.V4, "c"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("iptables v1.8.9 (legacy)\n", (1, 8, 9)),
        ("iptables v1.8.11 (nf_tables)\n", (1, 8, 11)),
        ("iptables v1.8 (legacy)\n", (1, 8, 0)),
        ("no version here\n", (0, 0, 0)),
    ],
)
def test_versions_are_read(text: str, version: tuple[int, int, int]) -> None:
    """Two and three numbers are understood, in order of size as numbers."""
    assert parse_version(text) == version


def test_a_chosen_backend_that_is_not_installed_says_what_to_do() -> None:
    """auto that ends at nft on a machine with legacy alone does not silently take legacy."""
    choice = Choice(Backend.NFT, "no hint", {Backend.NFT: None, Backend.LEGACY: LEGACY})

    with pytest.raises(ToolMissingError, match=r"set iptables\.backend to legacy"):
        _ = choice.tool


def test_no_backend_at_all_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing installed the error says what to install."""
    monkeypatch.setattr(tools, "DIRECTORIES", ())
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(ToolMissingError, match="install the iptables package"):
        detect.installed(Script())


def test_every_error_while_looking_for_a_hint_is_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that fails, hangs or is missing counts as no hint, and nft is the default."""
    monkeypatch.setattr(detect, "find", lambda name: Path("/x") / name if "nft" in name else None)
    version = Finished(0, "iptables v1.8.9 (nf_tables)\n", "")
    script = Script(version, Finished(1, "", "broken"), ToolTimeoutError("hung"))

    assert detect.choose("auto", script).backend is Backend.NFT
    assert script.answers == []


def test_what_a_failing_save_printed_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the rules that are followed, the output decides, not the status."""
    monkeypatch.setattr(detect, "find", lambda name: Path("/x") / name)
    version = Finished(0, "iptables v1.8.9 (legacy)\n", "")
    hint = Finished(1, "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n", "and then it broke")
    script = Script(version, version, DONE, DONE, hint)

    assert detect.choose("auto", script).backend is Backend.LEGACY
