from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.rules.dispatch import FlatDispatch, TreeDispatch
from agent.rules.service import Place, Portal
from tests.fakes.cluster import key

if TYPE_CHECKING:
    from agent.rules.dispatch import Dispatch, Owner

ALL = {place.value for place in Place}
NAT, FIREWALL = ("nat", "KUBE-SERVICES"), ("filter", "KUBE-PROXY-FIREWALL")
NODE_PORTS = ("filter", "KUBE-NODEPORTS")
#: base32(sha256("nat/KUBE-SERVICESaddress a60070/28")) and so on, made with the usual tools.
LOW, HIGH = ("nat", "KUBE-SVC-TREE-D6XBBQ5DZIVXEP"), ("nat", "KUBE-SVC-TREE-LYOLBBIUQPXH6T")
PORTS_LOW, PORTS_HIGH = (
    ("filter", "KUBE-SVC-TREE-HCWDSJTJ2DZR7Z"),
    ("filter", "KUBE-SVC-TREE-VSMVW5M4JZUFI5"),
)


def owner(name: str) -> Owner:
    return (key(name), "http", "tcp")


def portal(
    text: str, address: str = "10.96.0.1", place: Place = Place.NAT_SERVICES, port: int = 80
) -> Portal:
    return Portal(place, address, "tcp", port, text)


@pytest.fixture(params=[FlatDispatch, lambda: TreeDispatch(32)], ids=["flat", "tree"])
def dispatch(request: pytest.FixtureRequest) -> Dispatch:
    found: Dispatch = request.param()
    return found


def test_everything_has_changed_at_first(dispatch: Dispatch) -> None:
    """The six chains, once; they are there without any rule."""
    assert dispatch.take_changes() == (ALL, set())
    assert dispatch.take_changes() == (set(), set())
    assert set(dispatch.chains()) == ALL
    assert [dispatch.rules(chain) for chain in ALL] == [[]] * 6
    assert (dispatch.count("nat"), dispatch.count("filter")) == (0, 0)
    assert list(dispatch.branches("nat")) == []


def test_portals_are_put_and_replaced(dispatch: Dispatch) -> None:
    """Chains with other rules have changed, and the rules are counted by table."""
    a, b = owner("a"), owner("b")
    dispatch.take_changes()
    dispatch.put(b, [portal("b", "10.96.0.2")])
    dispatch.put(a, [portal("one"), portal("drop", place=Place.FIREWALL)])
    assert dispatch.take_changes() == ({NAT, FIREWALL}, set())
    assert dispatch.rules(NAT) == [(a, "one"), (b, "b")]
    assert dispatch.rules(FIREWALL) == [(a, "drop")]
    assert dispatch.rules(("filter", "KUBE-SERVICES")) == []
    assert (dispatch.count("nat"), dispatch.count("filter")) == (2, 1)

    dispatch.put(a, [portal("one"), portal("two"), portal("three")])
    assert dispatch.take_changes() == ({NAT, FIREWALL}, set())
    assert dispatch.rules(NAT) == [(a, "one"), (a, "two"), (a, "three"), (b, "b")]
    assert dispatch.rules(FIREWALL) == []
    assert (dispatch.count("nat"), dispatch.count("filter")) == (4, 0)

    dispatch.put(a, [portal("one"), portal("two"), portal("three")])
    assert dispatch.take_changes() == (set(), set())
    assert dispatch.count("nat") == 4
    dispatch.put(b, ())
    dispatch.put(b, ())
    assert dispatch.take_changes() == ({NAT}, set())
    assert dispatch.rules(NAT) == [(a, "one"), (a, "two"), (a, "three")]
    dispatch.put(a, ())
    assert dispatch.rules(NAT) == []
    assert (dispatch.count("nat"), dispatch.count("filter")) == (0, 0)


@pytest.mark.parametrize("chain", [("nat", "KUBE-SVC-TREE-X"), ("mangle", "KUBE-SERVICES")])
def test_a_chain_that_is_none_of_the_layout(dispatch: Dispatch, chain: tuple[str, str]) -> None:
    """Asking for it is a fault of the caller."""
    with pytest.raises((KeyError, ValueError), match=chain[1]):
        dispatch.rules(chain)


def tree(place: Place, *addresses: tuple[str, int]) -> TreeDispatch:
    found = TreeDispatch(32)
    for n, (address, port) in enumerate(addresses):
        found.put(owner(f"s{n:02d}"), [portal(f"rule {n}", address, place, port)])
    return found


def test_a_tree_by_address() -> None:
    """33 addresses of one /24: two branches of 16, and one that is not worth a branch."""
    found = tree(Place.NAT_SERVICES, *((f"10.96.7.{n}", 80) for n in range(33)))

    assert found.take_changes() == (ALL | {LOW, HIGH}, set())
    assert set(found.chains()) == ALL | {LOW, HIGH}
    assert found.rules(NAT) == [
        (None, f"-d 10.96.7.0/28 -j {LOW[1]}"),
        (None, f"-d 10.96.7.16/28 -j {HIGH[1]}"),
        (owner("s32"), "rule 32"),
    ]
    assert found.rules(HIGH) == [(owner(f"s{n}"), f"rule {n}") for n in range(16, 32)]
    assert (found.count("nat"), found.count("filter")) == (35, 0)
    assert list(found.branches("filter")) == []
    assert set(found.branches("nat")) == {LOW[1], HIGH[1]}


def test_branches_go_and_come_back() -> None:
    """What is gone is told once, and not what is back before anybody asks."""
    found = tree(Place.NAT_SERVICES, *((f"10.96.7.{n}", 80) for n in range(33)))
    found.take_changes()
    found.put(owner("s32"), ())
    assert found.count("nat") == 32
    assert found.take_changes() == ({NAT}, {LOW, HIGH})
    assert found.take_changes() == (set(), set())

    for _ in range(2):
        found.put(owner("s32"), [portal("rule 32", "10.96.7.32")])
        assert found.count("nat") == 35
        found.put(owner("s32"), ())
        assert found.count("nat") == 32
    assert found.take_changes() == ({NAT}, {LOW, HIGH})
    found.put(owner("s32"), [portal("rule 32", "10.96.7.32")])
    found.take_changes()
    found.put(owner("s32"), ())
    assert found.count("nat") == 32
    found.put(owner("s32"), [portal("rule 32", "10.96.7.32")])
    assert found.take_changes() == ({NAT, LOW, HIGH}, set())


def test_a_tree_by_port() -> None:
    """Rules without an address are told apart by port, and stand behind those with one."""
    found = tree(Place.NODEPORTS, *(("", 30000 + n) for n in range(33)))
    found.put(owner("x"), [portal("x", place=Place.NODEPORTS)])

    assert found.rules(NODE_PORTS) == [
        (owner("x"), "x"),
        (None, f"-m tcp -p tcp --dport 30000:30015 -j {PORTS_LOW[1]}"),
        (None, f"-m tcp -p tcp --dport 30016:30031 -j {PORTS_HIGH[1]}"),
        (owner("s32"), "rule 32"),
    ]
    assert found.take_changes() == (ALL | {PORTS_LOW, PORTS_HIGH}, set())
    assert (found.count("nat"), found.count("filter")) == (0, 36)


def test_only_chains_that_differ_have_changed() -> None:
    """A portal that stays leaves its chain alone, and so does another order of portals."""
    found = tree(Place.NAT_SERVICES, *((f"10.96.7.{n}", 80) for n in range(33)))
    both = [portal("rule 0", "10.96.7.0"), portal("more", "10.96.7.20")]
    found.take_changes()
    found.put(owner("s00"), both)
    assert found.take_changes() == ({HIGH}, set())
    found.put(owner("s00"), both[::-1])
    assert found.take_changes() == (set(), set())
    assert found.rules(HIGH)[4:6] == [(owner("s00"), "more"), (owner("s20"), "rule 20")]
    found.put(owner("s00"), [portal("other", "10.96.7.0")])
    assert found.take_changes() == ({LOW, HIGH}, set())
    assert found.count("nat") == 35
