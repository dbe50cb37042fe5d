from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.objects import EndpointSlice, Kind, convert
from agent.state.endpoints import SliceState, count, merge, slice_state
from agent.state.services import Problem
from agent.state.values import Endpoint, Family
from tests.fakes.cluster import NODE, endpoint, endpoint_slice, hints, key

if TYPE_CHECKING:
    from agent.state.endpoints import PortId

V4, V6 = Family.V4, Family.V6
HTTP = ("http", "tcp")


def states(*slices: EndpointSlice) -> list[SliceState]:
    found = [slice_state(one, NODE)[0] for one in slices]
    return [state for state in found if state is not None]


def merged(*slices: EndpointSlice, family: Family = V4) -> dict[PortId, tuple[Endpoint, ...]]:
    return merge(states(*slices), family)


def problems(one: EndpointSlice) -> list[str]:
    found = slice_state(one, NODE)[1]
    assert {problem.key for problem in found} <= {key("web-1")}
    return [problem.text for problem in found]


def test_every_field_of_an_endpoint() -> None:
    """Each field of the object ends up in its field of the endpoint."""
    one = endpoint_slice(
        endpoint(
            "10.0.0.1",
            node=NODE,
            ready=False,
            serving=True,
            terminating=True,
            hints=hints(zones=["z1", "z2"], nodes=["node-b"]),
        )
    )

    assert problems(one) == []
    assert merged(one) == {
        HTTP: (
            Endpoint(
                "10.0.0.1",
                8080,
                local=True,
                ready=False,
                serving=True,
                terminating=True,
                zones=("z1", "z2"),
                nodes=("node-b",),
            ),
        )
    }


@pytest.mark.parametrize("form", [{}, {"endpoints": None}, {"endpoints": []}])
def test_no_endpoints_in_every_form(form: dict[str, Any]) -> None:
    """Absent, null and empty endpoints all mean none (faults 1)."""
    one = endpoint_slice(**form)

    assert problems(one) == []
    assert merged(one) == {HTTP: ()}


@pytest.mark.parametrize("form", [{"ports": None}, {"ports": []}])
def test_a_slice_without_ports_offers_nothing(form: dict[str, Any]) -> None:
    """Null ports are legal and say nothing, whatever the endpoints are (faults 2)."""
    one = endpoint_slice("10.0.0.1", **form)

    assert problems(one) == []
    assert merged(one) == {}


def test_a_port_without_a_number_costs_only_itself() -> None:
    """It is named once, and the ports beside it work (faults 2)."""
    one = endpoint_slice(
        "10.0.0.1",
        "10.0.0.2",
        ports=[{"name": "a"}, {"name": "http", "port": 8080}, {"name": "b", "port": None}],
    )

    assert list(merged(one)) == [HTTP]
    assert problems(one) == ["port 'a' has no number", "port 'b' has no number"]


@pytest.mark.parametrize(
    ("port", "problem"),
    [
        ({"name": "x", "port": 0}, "port 'x' has no number"),
        ({"name": "x", "port": -3}, "port 'x' has the number -3"),
        ({"name": "x", "port": 65536}, "port 'x' has the number 65536"),
        (
            {"name": "x", "port": 1, "protocol": "ICMP"},
            "port 'x' has the unknown protocol 'ICMP'",
        ),
    ],
)
def test_a_bad_port_costs_only_itself(port: dict[str, Any], problem: str) -> None:
    """What cannot be served is left out and named."""
    one = endpoint_slice("10.0.0.1", ports=[port, {"name": "http", "port": 8080}])

    assert list(merged(one)) == [HTTP]
    assert problems(one) == [problem]


def test_ports_are_told_apart_by_name_and_protocol() -> None:
    """An absent name is the empty one, and an absent protocol is TCP."""
    one = endpoint_slice(
        "10.0.0.1",
        ports=[
            {"port": 1},
            {"name": "", "port": 2, "protocol": "UDP"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns", "port": 54, "protocol": "TCP"},
            {"name": "assoc", "port": 55, "protocol": "SCTP"},
        ],
    )

    assert {port: [e.port for e in found] for port, found in merged(one).items()} == {
        ("", "tcp"): [1],
        ("", "udp"): [2],
        ("dns", "udp"): [53],
        ("dns", "tcp"): [54],
        ("assoc", "sctp"): [55],
    }


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, (True, True, False)),
        ({"ready": None, "serving": None, "terminating": None}, (True, True, False)),
        ({"ready": True}, (True, True, False)),
        ({"ready": False}, (False, True, False)),
        ({"serving": False}, (True, False, False)),
        ({"ready": False, "serving": True, "terminating": True}, (False, True, True)),
    ],
)
def test_conditions(conditions: dict[str, Any], expected: tuple[bool, bool, bool]) -> None:
    """A condition that is not known counts as ready and serving, and not as terminating."""
    ((found,),) = merged(endpoint_slice(endpoint("10.0.0.1", **conditions))).values()

    assert (found.ready, found.serving, found.terminating) == expected


def test_conditions_may_be_absent() -> None:
    """An endpoint without the whole field is ready."""
    ((found,),) = merged(endpoint_slice({"addresses": ["10.0.0.1"]})).values()

    assert (found.ready, found.serving, found.terminating) == (True, True, False)


def test_local_is_by_the_name_of_the_node() -> None:
    """An endpoint without a node, or with another's name, is elsewhere (faults 33)."""
    one = endpoint_slice(
        endpoint("10.0.0.1", node=NODE), endpoint("10.0.0.2", node=f"{NODE}.example"), "10.0.0.3"
    )
    ((first, second, third),) = merged(one).values()

    assert (first.local, second.local, third.local) == (True, False, False)


def test_without_a_node_name_nothing_is_local() -> None:
    """An agent that does not know its node must not claim the endpoints that have none."""
    state, _ = slice_state(endpoint_slice(endpoint("10.0.0.1", nodeName="")), "")

    assert state is not None
    assert [one.local for one in state.endpoints] == [False]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"addresses": None}, "an endpoint has no address"),
        ({"addresses": []}, "an endpoint has no address"),
        ({"addresses": ["fd00::1"]}, "endpoint address 'fd00::1' is not an IPv4 address"),
        ({"addresses": ["web-0.shop"]}, "endpoint address 'web-0.shop' is not an IPv4 address"),
        ({"addresses": ["x" * 999]}, f"endpoint address {'x' * 80!r} is not an IPv4 address"),
    ],
)
def test_a_bad_address_costs_only_itself(entry: dict[str, Any], problem: str) -> None:
    """The other endpoints work, and what is wrong is named."""
    one = endpoint_slice(entry, "10.0.0.1")

    assert [e.ip for e in merged(one)[HTTP]] == ["10.0.0.1"]
    assert problems(one) == [problem]


def test_only_the_first_address_counts_and_it_is_canonical() -> None:
    """The API defines the others as unused; leading zeros are decimal."""
    one = endpoint_slice({"addresses": ["010.0.0.001", "10.0.0.2"]})

    assert [e.address for e in merged(one)[HTTP]] == ["10.0.0.1:8080"]


@pytest.mark.parametrize("kind", ["FQDN", "", "ipv4", "IPv5"])
def test_other_address_types_are_not_for_a_proxy(kind: str) -> None:
    """FQDN slices are legal, and ignored in silence; what the API does not know is named."""
    state, problems = slice_state(endpoint_slice("10.0.0.1", family=kind), NODE)

    assert state is None
    named = [f"address type {kind!r} is unknown"] if kind != "FQDN" else []
    assert [problem.text for problem in problems] == named


def test_families_do_not_mix() -> None:
    """A slice counts for the family that it names."""
    four = endpoint_slice("10.0.0.1", name="a")
    six = endpoint_slice("fd00::1", name="b", family="IPv6")

    assert [e.address for e in merged(four, six, family=V4)[HTTP]] == ["10.0.0.1:8080"]
    assert [e.address for e in merged(four, six, family=V6)[HTTP]] == ["[fd00::1]:8080"]


@pytest.mark.parametrize("labels", [None, {}, {"kubernetes.io/service-name": ""}, {"app": "web"}])
def test_a_slice_that_names_no_service_is_skipped(labels: dict[str, str] | None) -> None:
    """It is named to the operator, and counts for nothing (faults 34)."""
    one = convert(
        Kind.SLICE,
        {"metadata": {"name": "s", "namespace": "shop", "labels": labels}, "addressType": "IPv4"},
    )
    assert isinstance(one, EndpointSlice)
    state, (problem,) = slice_state(one, NODE)

    assert state is None
    assert problem.key == key("s")
    assert problem.text == "it has no label kubernetes.io/service-name"


def test_a_slice_of_something_that_is_no_service_is_skipped() -> None:
    """Its name would go into rules, so it must be a label."""
    state, problems = slice_state(endpoint_slice("10.0.0.1", service="A" * 100, name="s"), NODE)

    assert state is None
    assert problems == (Problem(key("s"), f"its Service is named '{'A' * 80}', no DNS label"),)


def test_long_text_is_shown_in_part() -> None:
    """80 characters of what the object says."""
    long = "X" * 100
    one = endpoint_slice(ports=[{"name": long, "port": 1}, {"port": 1, "protocol": long}])

    assert problems(endpoint_slice(family=long)) == [f"address type '{'X' * 80}' is unknown"]
    assert problems(one) == [
        f"port name '{'X' * 80}' is not a DNS label",
        f"port None has the unknown protocol '{'X' * 80}'",
    ]


def test_endpoints_of_a_slice_without_ports() -> None:
    """They are kept, with no port of their own."""
    state, _ = slice_state(endpoint_slice("10.0.0.1", ports=None), NODE)

    assert state == SliceState(key(), V4, (), (Endpoint("10.0.0.1", 0),))


def test_endpoints_are_sorted_by_text_and_each_is_there_once() -> None:
    """kube-proxy sorts addresses as text, so 10.0.0.10 comes in front of 10.0.0.9."""
    one = endpoint_slice("10.0.0.9", "10.0.0.10", name="a")
    two = endpoint_slice("10.0.0.10", "10.0.0.2", name="b")

    assert [e.ip for e in merged(one, two)[HTTP]] == ["10.0.0.10", "10.0.0.2", "10.0.0.9"]


def test_one_name_may_have_several_numbers() -> None:
    """Slices of one Service may map a named port differently; all of that is used."""
    one = endpoint_slice("10.0.0.1", name="a", ports=[{"name": "http", "port": 8080}])
    two = endpoint_slice("10.0.0.1", name="b", ports=[{"name": "http", "port": 9090}])

    assert [e.address for e in merged(one, two)[HTTP]] == ["10.0.0.1:8080", "10.0.0.1:9090"]
    assert count(states(one, two), V4) == {HTTP: 2}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"terminating": False, "ready": False}, {"terminating": True, "ready": True}),
        ({"ready": True}, {"ready": False}),
        ({"ready": False, "serving": True}, {"ready": False, "serving": False}),
        ({"node": NODE}, {"node": "node-b"}),
        ({"hints": hints(zones=["z2"])}, {"hints": hints(zones=["z1"])}),
        ({"hints": hints(nodes=["n1"])}, {}),
    ],
)
def test_one_address_in_two_slices(better: dict[str, Any], worse: dict[str, Any]) -> None:
    """The entry that says more for the address wins, in whichever slice it stands."""
    good, bad = endpoint("10.0.0.1", **better), endpoint("10.0.0.1", **worse)
    expected = merged(endpoint_slice(good))

    assert merged(endpoint_slice(good, name="a"), endpoint_slice(bad, name="b")) == expected
    assert merged(endpoint_slice(bad, name="a"), endpoint_slice(good, name="b")) == expected


def test_one_address_twice_in_a_slice() -> None:
    """Within a slice the last entry that is not terminating wins, else the first."""
    running = endpoint("10.0.0.1", ready=False)
    later = endpoint("10.0.0.1", ready=True, node=NODE)
    going = endpoint("10.0.0.1", ready=False, terminating=True)
    gone = endpoint("10.0.0.1", ready=False, serving=False, terminating=True)

    def only(*entries: dict[str, Any]) -> tuple[bool, bool, bool]:
        ((found,),) = merged(endpoint_slice(*entries)).values()
        return found.ready, found.serving, found.terminating

    assert only(running, later) == (True, True, False)
    assert only(later, running) == (False, True, False)
    assert only(running, going) == (False, True, False)
    assert only(going, running) == (False, True, False)
    assert only(going, gone) == (False, True, True)
    assert only(gone, going) == (False, False, True)


ENTRIES = st.builds(
    lambda last, node, flags: endpoint(f"10.0.0.{last}", node=node, **flags),
    st.integers(1, 4),
    st.sampled_from([None, NODE, "node-b"]),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["ready", "serving", "terminating"], st.booleans())
    ),
)
SLICES = st.lists(st.lists(ENTRIES, max_size=4), min_size=1, max_size=4).map(
    lambda groups: [endpoint_slice(*group, name=f"s{i}") for i, group in enumerate(groups)]
)


@given(SLICES, st.randoms(use_true_random=False))
def test_the_order_of_slices_has_no_meaning(slices: list[EndpointSlice], dice: Any) -> None:
    """Whatever the same slices are, and in whatever order they come, the outcome is the same."""
    shuffled = list(slices)
    dice.shuffle(shuffled)

    assert merged(*shuffled) == merged(*slices)


@given(SLICES)
def test_counting_is_merging_without_the_endpoints(slices: list[EndpointSlice]) -> None:
    """Each address is counted once, however often it stands there; the other family is not."""
    assert count(states(*slices), V4) == {port: len(e) for port, e in merged(*slices).items()}
    assert count(states(*slices), V6) == {}


def test_an_endpoint_is_never_this_host_or_a_link() -> None:
    """With route_localnet on, a Service to 127.0.0.1 would open what listens for its own host."""
    bad = endpoint_slice("127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0")
    state, problems = slice_state(bad, "node-a")

    assert state is not None
    assert [one.ip for one in state.endpoints] == ["10.0.0.1"]
    assert [problem.text for problem in problems] == [
        "endpoint address 127.0.0.1 is a loopback or link-local one",
        "endpoint address 169.254.169.254 is a loopback or link-local one",
        "endpoint address 0.0.0.0 is a loopback or link-local one",
    ]
