from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.rules.ruleset import RuleSet
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from agent.sync.port import Wrapped
from tests.fakes.cluster import NODE, endpoint_slice, service
from tests.fakes.kernel import FakeKernel

if TYPE_CHECKING:
    from agent.sync.port import Kernel

NAT = ("PREROUTING", "OUTPUT", "POSTROUTING")


class Reads(Wrapped):
    """Notes what is read as text, which is a program each time, and may fail to read nat."""

    def __init__(self, kernel: Kernel, *, garbled: bool = False) -> None:
        super().__init__(kernel)
        self.read: list[str] = []
        self.garbled = garbled

    def save(self, table: str) -> str:
        """The table; garbled, nat is cut short."""
        self.read.append(f"save {table}")
        text = super().save(table)
        return text.partition("COMMIT")[0] if self.garbled and table == "nat" else text

    def chain(self, table: str, chain: str) -> list[str] | None:
        """The chain."""
        self.read.append(f"chain {table} {chain}")
        return super().chain(table, chain)


def made(kernel: Kernel) -> tuple[Syncer, Store]:
    store = Store(NODE)
    store.put_service(service("web", "10.96.0.1"))
    store.put_slice(endpoint_slice("10.0.0.1", service="web"))
    rules = RuleSet(NodeView(Family.V4, NODE))
    return Syncer(rules, kernel, SyncSettings(None), lambda: 0.0), store


@pytest.mark.parametrize(
    ("backend", "nat"),
    [("legacy", ["save nat"]), ("nft", [f"chain nat {chain}" for chain in NAT])],
)
def test_a_full_sync_reads_no_more_than_it_needs(backend: str, nat: list[str]) -> None:
    """Of a table that was read as a whole, no chain is read again."""
    kernel = Reads(FakeKernel(backend=backend))
    syncer, store = made(kernel)
    syncer.sync(store)

    assert sorted(kernel.read) == sorted(["save filter", *nat, "chain mangle KUBE-PROXY-CANARY"])


def test_chains_that_do_not_exist_are_not_read() -> None:
    """On nft, the built-in chains of nat do not exist before somebody uses them."""

    class Empty(Reads):
        def chains(self, table: str) -> set[str]:
            """None yet."""
            return set() if table == "nat" else super().chains(table)

    kernel = Empty(FakeKernel())
    syncer, store = made(kernel)
    syncer.sync(store)

    assert kernel.read == ["save filter", "chain mangle KUBE-PROXY-CANARY"]
    assert syncer.wrong_jumps() == {}


@pytest.mark.parametrize("backend", ["legacy", "nft"])
def test_jumps_in_another_order_are_put_right_in_one_transaction(backend: str) -> None:
    """All of the chain's, and no other chain's: they go and come in one block."""
    kernel = FakeKernel(backend=backend)
    syncer, store = made(kernel)
    syncer.sync(store)
    before = kernel.texts("filter")
    first = before["FORWARD"][0]
    kernel.tamper("filter", f"-D FORWARD {first}", f"-A FORWARD {first}")
    assert [(jump.source, count) for jump, count in syncer.wrong_jumps().items()] == [
        ("FORWARD", 1)
    ]

    sent: list[str] = []

    class Sent(Wrapped):
        def restore(self, text: str) -> None:
            """Keep the text."""
            sent.append(text)
            super().restore(text)

    syncer.kernel = Sent(kernel)
    syncer.sync(store, full=True)
    (block,) = (part for text in sent for part in text.split("COMMIT") if " FORWARD " in part)

    assert kernel.texts("filter") == before
    assert block.count("-D FORWARD ") == block.count("-I FORWARD ") == len(before["FORWARD"])
    assert "INPUT" not in block


@pytest.mark.parametrize("garbled", [False, True])
@pytest.mark.parametrize("backend", ["legacy", "nft"])
def test_jumps_are_put_right_wherever_they_are_seen(backend: str, *, garbled: bool) -> None:
    """One that is there twice, some that are gone, and a chain with a rule of somebody else's.

    A table that cannot be read as a whole is read chain by chain.
    """
    kernel = FakeKernel(backend=backend)
    syncer, store = made(kernel)
    syncer.sync(store)
    before = {table: kernel.texts(table) for table in ("nat", "filter", "mangle")}
    (first, *_), other = before["nat"]["PREROUTING"], "-s 192.0.2.1 -j ACCEPT"
    kernel.tamper("nat", f"-A PREROUTING {first}", f"-D OUTPUT {before['nat']['OUTPUT'][0]}")
    kernel.tamper("filter", f"-I INPUT {other}", f"-D INPUT {before['filter']['INPUT'][0]}")
    assert len(syncer.wrong_jumps()) == 3

    syncer.kernel = Reads(kernel, garbled=garbled)
    syncer.sync(store, full=True)
    after = {table: kernel.texts(table) for table in before}
    inputs = after["filter"]["INPUT"]

    assert [text for text in inputs if "192.0.2.1" in text] == [inputs[-1]]
    after["filter"]["INPUT"] = inputs[:-1]
    assert after == before
    assert syncer.wrong_jumps() == {}
