from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from agent.kernel import detect
from agent.kernel.detect import Backend, Tool
from agent.kernel.iptables import Iptables
from agent.kernel.tools import SubprocessRunner
from agent.rules.parse import parse_save
from agent.state.values import Family
from agent.sync.port import RestoreError
from tests.fakes.kernel import FakeKernel
from tests.fakes.kernelpart import BUILT_IN
from tests.kernel.inside import NamespaceRunner

if TYPE_CHECKING:
    from agent.demo.namespaces import Namespace
    from agent.sync.port import Kernel

CHAINS = ("ONE", "TWO", "THREE", "FOUR")
TABLES = ("nat", "filter")
RULES = (
    '-m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d {ip} --dport 80 -j TWO',
    "-m comment --comment plain_words -m udp -p udp ! -s {net} --dport 53 -j THREE",
    "-p tcp --dport 443 -i cali+ -j FOUR",
    "-m udp -p udp -d {net} --dport 1024:2047 -j FOUR",
    "! -i eth0 -j ONE",
    "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-m conntrack ! --ctstate DNAT,NEW -j RETURN",
    "-m statistic --mode random --probability 0.3333333333 -j TWO",
    "-m statistic --mode random --probability 0.0142857143 -j TWO",
    "-m recent --name ONE --rcheck --seconds 10800 --reap -j ONE",
    "-m comment --comment a/b -m recent --name ONE --set -m tcp -p tcp {dnat}",
    "-m mark ! --mark 0x004000/0x004000 -j RETURN",
    "-j MARK --or-mark 0x004000",
    "-j MARK --xor-mark 0x004000",
    "-j MASQUERADE --random-fully",
    "-m addrtype --dst-type LOCAL -m sctp -p sctp --dport 7 -j REJECT",
    "-d {net} -m addrtype --src-type LOCAL -j ACCEPT",
    "-j ACCEPT",
    "-j DROP",
    "",
    # What is refused for itself:
    "-j NO-SUCH-CHAIN",
    "--nonsense 1 -j ACCEPT",
    "--dport 80 -j ACCEPT",
    "-m tcp -p tcp --dport 65536 -j ACCEPT",
    "-d {other} -j ACCEPT",
    "-m conntrack --ctstate WRONG -j ACCEPT",
    "-m nfacct --nfacct-name no_such_counter -j ACCEPT",
    "{dnat}",
)
VALUES = {
    Family.V4: {
        "ip": "10.96.0.1",
        "net": "10.1.2.3/8",
        "dnat": "-j DNAT --to-destination 10.0.0.1:8080",
        "other": "fd00::1",
    },
    Family.V6: {
        "ip": "fd00::1",
        "net": "fd00:1:2::3/48",
        "dnat": "-j DNAT --to-destination [fd00::9]:8080",
        "other": "10.0.0.1",
    },
}


@pytest.fixture(params=list(Backend), ids=lambda backend: backend.value)
def tool(request: pytest.FixtureRequest) -> Tool:
    found = detect.installed(SubprocessRunner())[request.param]
    if found is None:
        pytest.skip(f"{request.param.program} is not installed")
    return found


class Inputs:
    """Random restore inputs, many of which make sense."""

    def __init__(self, seed: int, family: Family) -> None:
        self.random = random.Random(seed)  # noqa: S311  a test's dice
        self.rules = [rule.format(**VALUES[family]) for rule in RULES]

    def __call__(self) -> str:
        parts = [
            self._part(table) for table in self.random.sample(TABLES, self.random.choice((1, 2)))
        ]
        return "".join(parts)

    def _part(self, table: str) -> str:
        chains = self.random.sample(CHAINS, self.random.randint(0, 4))
        lines = [f":{chain} - [0:0]" for chain in chains]
        lines += [self._line(table) for _ in range(self.random.randint(0, 4))]
        return "\n".join([f"*{table}", *lines, "COMMIT", ""])

    def _line(self, table: str) -> str:
        dice = self.random
        chain = dice.choice((*CHAINS, *BUILT_IN[table]))
        rule = dice.choice(self.rules)
        jumps_back = CHAINS[: CHAINS.index(chain) + 1] if chain in CHAINS else ()
        if rule.endswith(jumps_back) and jumps_back:
            return f"-F {chain}"  # whether a loop is noticed depends on the kernel's version
        return dice.choice(
            [f"-A {chain} {rule}"] * 12
            + [f"-I {chain} {rule}"] * 3
            + [
                f"-I {chain} 1 {rule}",
                f"-D {chain} {rule}",
                f"-F {chain}",
                f"-N {chain}",
                f"-X {dice.choice(CHAINS)}",
                f"-X {dice.choice(CHAINS)}",
                f":{dice.choice(CHAINS)} - [0:0]",
                "nonsense",
            ]
        ).rstrip()


def outcome(kernel: Kernel, text: str) -> tuple[str, int | None]:
    """Accepted, or the kind of refusal and the line."""
    try:
        kernel.restore(text)
    except RestoreError as error:
        return error.refusal.value, error.line
    return "accepted", None


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.parametrize("seed", range(2))
def test_the_fake_kernel_does_what_the_real_tools_do(
    tool: Tool, family: Family, seed: int, namespace: Namespace
) -> None:
    """Random inputs, one after the other: both take or refuse the same ones, complain about the
    same line, and hold the same chains with the same text afterwards."""
    real = Iptables(tool, family, runner=NamespaceRunner(namespace), lock_wait=1)
    fake = FakeKernel(family, backend=tool.backend.value)
    make = Inputs(seed, family)
    accepted = 0
    for _ in range(40):
        text = make()
        expected = outcome(real, text)
        found = outcome(fake, text)

        # With several faults in one input, nft may complain about another one first.
        assert found[0] == expected[0], text
        if tool.backend is Backend.LEGACY:
            assert found == expected, text
        for table in TABLES:
            assert parse_save(fake.save(table)) == parse_save(real.save(table)), text
        accepted += expected[0] == "accepted"
    assert accepted >= 3


ONE_FAULT = {
    "a line that is none": ("*nat\n:ONE - [0:0]\nnonsense\nCOMMIT\n", 3),
    "an unknown option": ("*nat\n:ONE - [0:0]\n-A ONE --nonsense 1\nCOMMIT\n", 3),
    "a missing value": ("*nat\n:ONE - [0:0]\n-A ONE -j\nCOMMIT\n", 3),
    "a jump to a missing chain": ("*nat\n:ONE - [0:0]\n-A ONE -j TWO\nCOMMIT\n", 3),
    "a chain that is declared too late": (
        "*nat\n:ONE - [0:0]\n-A ONE -j TWO\n:TWO - [0:0]\nCOMMIT\n",
        3,
    ),
    "a rule for a missing chain": ("*nat\n-A ONE -j ACCEPT\nCOMMIT\n", 2),
    "a chain that is jumped to": (
        "*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A ONE -j TWO\n-X TWO\nCOMMIT\n",
        5,
    ),
    "a chain that is not empty": ("*nat\n:ONE - [0:0]\n-A ONE -j ACCEPT\n-X ONE\nCOMMIT\n", 4),
    "a chain to delete that is missing": ("*nat\n-X ONE\nCOMMIT\n", 2),
    "a rule to delete that is missing": ("*nat\n-D OUTPUT -j ACCEPT\nCOMMIT\n", 2),
    "a long chain name": (f"*nat\n:{'X' * 29} - [0:0]\nCOMMIT\n", 2),
    "no COMMIT": ("*nat\n:ONE - [0:0]\n", 3),
    "no table": (":ONE - [0:0]\n", 1),
    "the second part": ("*filter\n:ONE - [0:0]\nCOMMIT\n*nat\n-A OUTPUT -j TWO\nCOMMIT\n", 5),
}


@pytest.mark.parametrize(("text", "line"), ONE_FAULT.values(), ids=ONE_FAULT)
def test_a_single_fault_is_blamed_on_its_line(
    tool: Tool, text: str, line: int, namespace: Namespace
) -> None:
    """The real tools and the fake name the same line when only one is at fault."""
    real = Iptables(tool, Family.V4, runner=NamespaceRunner(namespace), lock_wait=1)
    fake = FakeKernel(backend=tool.backend.value)

    assert outcome(real, text) == ("input", line)
    assert outcome(fake, text) == ("input", line)
    assert parse_save(fake.save("filter")) == parse_save(real.save("filter"))


ONLY_THE_KERNEL = {
    "a target of another table": ("*filter\n-A OUTPUT -p tcp {dnat}\nCOMMIT\n", 2, 3),
    "a target of another hook": ("*nat\n-A OUTPUT -j MASQUERADE\nCOMMIT\n", 2, 3),
    "a counter that is missing": (
        "*nat\n:ONE - [0:0]\n-A ONE -m nfacct --nfacct-name nothing -j ACCEPT\nCOMMIT\n",
        3,
        4,
    ),
}


@pytest.mark.parametrize(("text", "nft", "legacy"), ONLY_THE_KERNEL.values(), ids=ONLY_THE_KERNEL)
def test_what_only_the_kernel_refuses_is_blamed_on_the_table_by_legacy(
    tool: Tool, text: str, nft: int, legacy: int, namespace: Namespace
) -> None:
    """nft names the rule that the kernel refused; legacy knows only that its COMMIT failed."""
    text = text.format(dnat="-j DNAT --to-destination 10.0.0.1:80")
    line = legacy if tool.backend is Backend.LEGACY else nft
    real = Iptables(tool, Family.V4, runner=NamespaceRunner(namespace), lock_wait=1)
    fake = FakeKernel(backend=tool.backend.value)

    assert outcome(real, text) == ("input", line)
    assert outcome(fake, text) == ("input", line)


def test_positions_and_renames(tool: Tool, namespace: Namespace) -> None:
    """Inserting at and deleting by a position, and renaming a chain, come out alike."""
    real = Iptables(tool, Family.V4, runner=NamespaceRunner(namespace), lock_wait=1)
    fake = FakeKernel(backend=tool.backend.value)
    first = "*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A ONE -j TWO\n-A ONE -j ACCEPT\nCOMMIT\n"
    second = (
        "*nat\n-I ONE 2 -j RETURN\n-I ONE 4 -p tcp -j RETURN\n-I ONE -p udp -j ACCEPT\nCOMMIT\n"
    )
    third = "*nat\n-D ONE 1\n-E TWO THREE\nCOMMIT\n"
    for text in (first, second, third):
        assert outcome(real, text) == outcome(fake, text) == ("accepted", None)
        assert fake.chain("nat", "ONE") == real.chain("nat", "ONE")
    assert fake.chain("nat", "ONE") == [
        "-A ONE -j THREE",
        "-A ONE -j RETURN",
        "-A ONE -j ACCEPT",
        "-A ONE -p tcp -j RETURN",
    ]
    assert fake.chain("nat", "TWO") is None
