"""Objects as no honest client writes them: whatever is in them, others are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cluster.objects import (
    EndpointSlice,
    Kind,
    Node,
    Service,
    UnusableObjectError,
    convert,
)
from agent.cluster.objects import decode as decode_bytes
from agent.rules.ruleset import RuleSet
from agent.state.healthports import HealthPorts
from agent.state.node import KernelFacts, NodeInfo, NodeSettings, node_info, node_view
from agent.state.store import Store
from agent.state.values import Family, NodeView
from agent.sync.apply import Syncer, SyncSettings
from tests.fakes.cluster import NODE, endpoint_slice, key, service
from tests.fakes.kernel import FakeKernel
from tests.fakes.walk import Packet, fate

if TYPE_CHECKING:
    from agent.cluster.objects import Object

#: Text that would be a rule, a line, an option or a shell's if it got anywhere.
EVIL = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "\n",
            "\x00",
            '"',
            "\\",
            "a\nCOMMIT\n*nat\n-F",
            'x" -j ACCEPT -m comment --comment "',
            "-j DROP",
            "$(reboot)",
            "../../etc",
            "10.0.0.1 -j ACCEPT",
            "10.96.0.1",
            "010.0.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "127.0.0.1",
            "::",
            "::ffff:10.0.0.1",
            "fe80::1%eth0",
            "0.0.0.0/0",
            "10.0.0.0/33",
            "None",
            "Local",
            "TCP",
            "SCTP",
            "ClientIP",
            "LoadBalancer",
            "NodePort",
            "ExternalName",
            "IPv4",
            "IPv6",
            "FQDN",
            "VIP",
            "http",
            "web",
            "good",
            "\u202eevil",
            "é" * 300,
            "a" * 63,
        ]
    ),
    st.text(max_size=20),
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 80, 30080, 65535, 65536, -1, 2**31, 2**63, 2**64, 10**30]),
    st.integers(),
)
#: Anything that JSON can say.
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(allow_nan=False), EVIL),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(EVIL, inner, max_size=2)),
    max_leaves=4,
)


def spiced(honest: Any, evil: st.SearchStrategy[Any] = EVIL) -> st.SearchStrategy[Any]:
    """What honest people write, more often than not."""
    good = honest if isinstance(honest, st.SearchStrategy) else st.sampled_from(honest)
    return st.one_of(good, good, good, evil)


def mostly(honest: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What the field's type allows, absent, or (rarely) anything at all."""
    return st.integers(0, 99).flatmap(
        lambda dice: JUNK if dice == 0 else st.none() if dice < 10 else honest
    )


def fields(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={name: mostly(strategy) for name, strategy in strategies.items()}
    )


TEXTS = st.lists(EVIL, max_size=3)
META = st.fixed_dictionaries({"name": st.just("evil"), "namespace": st.just("shop")})
PORT_NUMBERS = spiced([80, 443, 8080], NUMBERS)
PORT_NAMES = spiced(["http", "alt", ""])
ADDRESSES = st.lists(spiced(["198.51.100.7", "2001:db8::7", "203.0.113.9"]), max_size=3)
RANGES = st.lists(spiced(["198.51.100.0/24", "2001:db8::/32", "192.0.2.0/25"]), max_size=3)
PROTOCOLS = spiced(["TCP", "UDP", "SCTP"])
POLICIES = spiced(["Local", "Cluster"])
PORTS = st.lists(
    st.fixed_dictionaries(
        {"port": PORT_NUMBERS},
        optional={
            "name": PORT_NAMES,
            "protocol": PROTOCOLS,
            "nodePort": spiced([30080, 30443, 0], NUMBERS),
        },
    ),
    min_size=1,
    max_size=3,
)
SERVICES = st.fixed_dictionaries(
    {
        "metadata": META,
        "spec": st.builds(
            lambda ip, ports, rest: {"clusterIP": ip, "ports": ports, **rest},
            spiced(["10.96.0.66", "fd00:10:96::66"]),
            mostly(PORTS),
            fields(
                type=spiced(["ClusterIP", "NodePort", "LoadBalancer"]),
                clusterIPs=st.lists(spiced(["10.96.0.66", "fd00:10:96::66"]), max_size=2),
                ipFamilies=st.lists(spiced(["IPv4", "IPv6"]), max_size=2),
                externalIPs=ADDRESSES,
                loadBalancerSourceRanges=RANGES,
                externalTrafficPolicy=POLICIES,
                internalTrafficPolicy=POLICIES,
                healthCheckNodePort=spiced([30999], NUMBERS),
                sessionAffinity=spiced(["ClientIP", "None"]),
                sessionAffinityConfig=fields(
                    clientIP=fields(timeoutSeconds=spiced([60, 10800], NUMBERS))
                ),
            ),
        ),
        "status": fields(
            loadBalancer=fields(
                ingress=st.lists(
                    fields(ip=spiced(["203.0.113.1", "2001:db8::1"]), ipMode=spiced(["VIP"])),
                    max_size=3,
                )
            )
        ),
    }
)
BELONGING = st.just({"kubernetes.io/service-name": "evil"})
SLICES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["evil-1", "evil-2"]),
                "namespace": st.just("shop"),
                "labels": spiced(BELONGING, st.dictionaries(EVIL, EVIL, max_size=2)),
            }
        ),
        "addressType": spiced(["IPv4", "IPv6"]),
        "ports": mostly(
            st.lists(
                fields(name=PORT_NAMES, port=PORT_NUMBERS, protocol=PROTOCOLS),
                min_size=1,
                max_size=3,
            )
        ),
        "endpoints": mostly(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "addresses": st.lists(
                            spiced(["10.0.0.7", "10.0.0.8", "fd00::7"]), min_size=1, max_size=2
                        )
                    },
                    optional={
                        "conditions": fields(
                            ready=st.booleans(), serving=st.booleans(), terminating=st.booleans()
                        ),
                        "nodeName": spiced([NODE, "node-b"]),
                        "hints": fields(forZones=st.lists(fields(name=EVIL), max_size=2)),
                    },
                ),
                max_size=3,
            )
        ),
    }
)
NODES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.just(NODE)}),
        "spec": fields(podCIDR=EVIL, podCIDRs=TEXTS, taints=st.lists(fields(key=EVIL), max_size=2)),
        "status": fields(addresses=st.lists(fields(type=EVIL, address=EVIL), max_size=3)),
    }
)


def decode(kind: Kind, raw: Any) -> Object | None:
    """The object, or None for one that the source would reject by name."""
    try:
        return convert(kind, raw)
    except UnusableObjectError:
        return None


def good_one() -> tuple[Service, EndpointSlice]:
    return service("good", "10.96.0.1"), endpoint_slice("10.0.0.1", service="good")


@settings(max_examples=80)
@given(SERVICES, st.lists(SLICES, max_size=2), st.sampled_from(list(Family)))
def test_no_object_costs_another_one(
    evil: dict[str, Any], slices: list[dict[str, Any]], family: Family
) -> None:
    """Whatever stands in a Service and its slices, the kernel takes the rules at the first attempt,
    and the Service beside it is found and has its endpoint."""
    store, kernel = Store(NODE), FakeKernel(family)
    good, its_slice = good_one()
    store.put_service(good)
    store.put_slice(its_slice)
    found = decode(Kind.SERVICE, evil)
    if isinstance(found, Service):
        store.put_service(found)
    for one in slices:
        found = decode(Kind.SLICE, one)
        if isinstance(found, EndpointSlice):
            store.put_slice(found)
    syncer = Syncer(RuleSet(NodeView(family, NODE)), kernel, SyncSettings(None), lambda: 0.0)
    outcome = syncer.sync(store)
    HealthPorts(family).update(store.snapshot(0).records)

    assert outcome.set_aside == {}
    assert outcome.transactions == 1
    if family is Family.V4:
        assert fate(kernel, Packet("10.96.0.1", 80)).keys() & {"to 10.0.0.1:8080"} or taken(store)


def taken(store: Store) -> bool:
    """Whether the other Service claims the same address and port."""
    record = store.get(key("evil"))
    ports = record.service_ports(Family.V4) if record else ()
    return any(
        "10.96.0.1" in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips)
        for port in ports
    )


@settings(max_examples=60)
@given(NODES, st.sampled_from(list(Family)), st.lists(EVIL, max_size=3))
def test_no_node_object_breaks_the_standing_rules(
    raw: dict[str, Any], family: Family, addresses: list[str]
) -> None:
    """Whatever the Node says, and whatever addresses interfaces have, the kernel takes it all."""
    found = decode(Kind.NODE, raw)
    info = node_info(found) if isinstance(found, Node) else NodeInfo()
    node = node_view(
        family,
        NodeSettings(NODE, detect_mode="NodeCIDR", node_port_addresses=tuple(addresses)),
        info,
        KernelFacts(addresses=tuple(f"{text}/24" for text in addresses)),
    )
    store, kernel = Store(NODE), FakeKernel(family)
    good, its_slice = good_one()
    store.put_service(good)
    store.put_slice(its_slice)

    assert Syncer(RuleSet(node), kernel, SyncSettings(None), lambda: 0.0).sync(store).full


@pytest.mark.parametrize("digits", [20, 400, 4000])
def test_huge_numbers_are_named_in_few_words(digits: int) -> None:
    """A port of thousands of digits costs itself, and does not fill the log."""
    change = Store(NODE).put_service(decoded_service("9" * digits))

    assert change.families == {Family.V4}
    assert len(change.problems) == 1
    assert len(change.problems[0].text) < 200


def test_numbers_without_an_end_cost_their_object() -> None:
    """Python refuses to read them; the object is named."""
    with pytest.raises(UnusableObjectError, match="Service shop/evil cannot be used"):
        decoded_service("9" * 5000)


def decoded_service(port: str) -> Service:
    raw = service("evil", ports=[{"name": "a", "port": 7777777}, {"name": "b", "port": 1}])
    text = msgspec.json.encode(raw).replace(b"7777777", port.encode())
    found = decode_bytes(Kind.SERVICE, text)
    assert isinstance(found, Service)
    return found


def test_a_thousand_problems_are_named_in_few_lines() -> None:
    """Each object gets ten lines at most, and one that says how many more there were."""
    addresses = [{"addresses": [f"pod-{number}"]} for number in range(1000)]
    change = Store(NODE).put_slice(endpoint_slice(*addresses))

    assert len(change.problems) == 11
    assert change.problems[0].text == "endpoint address 'pod-0' is not an IPv4 address"
    assert change.problems[-1].text == "and 990 more"
