"""A bad object among fifty good Services: they work as without it, and it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.cluster.objects import Kind
from agent.state.values import Family
from tests.fakes import objects
from tests.fakes.cluster import NODE
from tests.fakes.poison import HONEST, QUIET, REJECTED, SAYS, doses, fields, is_leaf, poisoned
from tests.fakes.walk import Packet, fate
from tests.grammar.pipeline import Pipeline, event, page

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = 50
SHARED = ("KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL")
PLACES = [(kind, path) for kind in Kind for path in fields(kind)]
Tables = dict[tuple[Family, str, str], list[Any]]


class Fifty(Pipeline):
    """An agent with fifty good Services, of which the first has a node port."""

    def __init__(self) -> None:
        super().__init__()
        self.relist()
        self.alone = self.tables()

    def relist(self) -> None:
        """There is nothing but the fifty."""
        services = [objects.service(f"s{n}", f"10.96.1.{n}") for n in range(1, GOOD + 1)]
        services[0]["spec"] |= {"type": "NodePort"}
        services[0]["spec"]["ports"][0]["nodePort"] = 30001
        slices = [objects.endpoint_slice(f"s{n}", f"10.0.1.{n}") for n in range(1, GOOD + 1)]
        assert self.objects(Kind.SERVICE, page(Kind.SERVICE, services))
        assert self.objects(Kind.SLICE, page(Kind.SLICE, slices))
        assert self.objects(Kind.NODE, page(Kind.NODE, [HONEST[Kind.NODE]]))

    def tables(self) -> Tables:
        """All rules; those in chains of one Service as the kernel has them."""
        return {
            (family, table, chain): [rule.text() for rule in rules] if chain in SHARED else rules
            for family, kernel in self.world.kernels.items()
            for table in ("nat", "filter", "mangle")
            for chain, rules in kernel.rules(table).items()
        }

    def put(self, kind: Kind, obj: Any) -> None:
        """An event of an object."""
        assert self.line(kind, event("MODIFIED", obj))

    def beside(self, name: str) -> Tables:
        """The rules of all others than this Service: what it adds to shared chains is named in its
        comment, and its chains are none of the others'."""
        return {
            place: [rule for rule in rules if name not in rule] if place[2] in SHARED else rules
            for place, rules in self.tables().items()
            if place in self.alone
        }


@pytest.fixture(scope="module")
def fifty() -> Fifty:
    return Fifty()


@pytest.fixture
def evil(fifty: Fifty) -> Iterator[Fifty]:
    """The fifty, with an honest Service and slice of that name, which the test makes worse."""
    fifty.put(Kind.SERVICE, HONEST[Kind.SERVICE])
    fifty.put(Kind.SLICE, HONEST[Kind.SLICE])
    yield fifty
    fifty.relist()
    assert fifty.tables() == fifty.alone
    fifty.world.notes.told.clear()
    fifty.start_over()


def test_every_field_has_a_poison() -> None:
    """A field that is added to the structs needs an entry in the table, and an honest value."""
    for kind in Kind:
        leaves = {path for path, cls in fields(kind).items() if is_leaf(cls)}
        assert leaves == SAYS[kind].keys()
        for path in fields(kind):
            assert poisoned(kind, path, "here") != HONEST[kind]
    assert len(PLACES) > 90


@pytest.mark.parametrize(("kind", "path"), PLACES, ids=[f"{k.value}-{p}" for k, p in PLACES])
def test_the_fifty_do_not_notice(evil: Fifty, kind: Kind, path: str) -> None:
    """Whatever stands in the field: no other rule changes, the kernel refuses nothing, every line
    is in the grammar, and what is wrong with the object is said."""
    for value, reason in doses(kind, path, fields(kind)[path]):
        evil.world.notes.told.clear()
        bad = poisoned(kind, path, value)
        evil.put(kind, bad)

        shown = repr(value)[:60]
        assert evil.beside("shop/evil") == evil.alone, shown
        named = [text for _, text in evil.named()]
        if reason == REJECTED:
            assert evil.world.notes.of("rejected"), shown
        elif reason is not None:
            assert not evil.world.notes.of("rejected"), shown
            assert bool(named) is (reason != QUIET), (shown, named)
            assert all(reason in text for text in named), (shown, named)
            assert all(len(text) < 200 for text in named), shown
        if path.startswith("metadata.name") or path == "metadata.namespace":
            take_away(evil, kind, bad)
            evil.put(kind, HONEST[kind])


def take_away(evil: Fifty, kind: Kind, bad: dict[str, Any]) -> None:
    """Delete an object that has another name than the honest one."""
    if bad["metadata"]["name"] != NODE:
        evil.line(kind, event("DELETED", bad))


def test_a_packet_for_one_of_the_fifty(evil: Fifty) -> None:
    """The rules that do not change are rules that work."""
    kernel = evil.world.kernels[Family.V4]
    for number in range(1, GOOD + 1):
        assert fate(kernel, Packet(f"10.96.1.{number}", 80)) == {f"to 10.0.1.{number}:8080": 1}


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        (Kind.SERVICE, "spec.ports[].port", 0),
        (Kind.SERVICE, "spec.ports", "none"),
        (Kind.SLICE, "addressType", "IPv5"),
        (Kind.NODE, "spec.podCIDR", "10.0.0.0"),
        (Kind.NODE, "spec", []),
    ],
)
def test_an_object_that_was_mended_is_named_no_longer(
    evil: Fifty, kind: Kind, path: str, value: Any
) -> None:
    """Whether a part of it was left out or all of it; of each kind."""
    evil.world.notes.told.clear()
    evil.put(kind, poisoned(kind, path, value))
    before = evil.world.notes.of("settled")
    evil.put(kind, HONEST[kind])

    assert len(evil.named()) >= 1
    assert before == []
    assert [one for one, _ in evil.world.notes.of("settled")] == [kind]
