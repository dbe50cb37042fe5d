"""Chains of one service port, each written out; hashes by sha256sum and base32."""

from __future__ import annotations

from typing import Any

import pytest

from agent.rules.endpoints import EndpointChains
from agent.rules.service import Compiled, Place, compile_port
from agent.state.selection import select
from agent.state.values import DetectLocal, Endpoint, Family, NodeView, ServicePort
from tests.fakes.cluster import NODE, key

SUFFIX = "67NZLRHBNDSAWJRO"
SVC, SVL, EXT, FW = (f"KUBE-{kind}-{SUFFIX}" for kind in ("SVC", "SVL", "EXT", "FW"))
EP1, EP2 = "KUBE-SEP-CABXVTEVWWXCT3SI", "KUBE-SEP-MPXWHJSGYP7ZOTSA"
EP6 = "KUBE-SEP-PRTWWW33BNMHRNLL"
TO = "-m comment --comment"
SEP1 = [
    f"{TO} shop/web:http -s 10.0.0.1 -j KUBE-MARK-MASQ",
    f"{TO} shop/web:http -m tcp -p tcp -j DNAT --to-destination 10.0.0.1:8080",
]
SEP2 = [
    f"{TO} shop/web:http -s 10.0.0.2 -j KUBE-MARK-MASQ",
    f"{TO} shop/web:http -m tcp -p tcp -j DNAT --to-destination 10.0.0.2:8080",
]
LOTTERY = [
    (
        f'{TO} "shop/web:http -> 10.0.0.1:8080" -m statistic --mode random'
        f" --probability 0.5000000000 -j {EP1}"
    ),
    f'{TO} "shop/web:http -> 10.0.0.2:8080" -j {EP2}',
]
HERE, THERE = Endpoint("10.0.0.1", 8080, local=True), Endpoint("10.0.0.2", 8080)
NODE_VIEW = NodeView(Family.V4, NODE, ip="192.0.2.2")


def build(
    *endpoints: Endpoint,
    node: NodeView = NODE_VIEW,
    comments: bool = True,
    made: EndpointChains | None = None,
    **fields: Any,
) -> Compiled:
    values: dict[str, Any] = {
        "cluster_ip": "10.96.0.1",
        "port": 80,
        "protocol": "tcp",
        "port_name": "http",
    }
    port = ServicePort(key(), **(values | fields))
    selection = select(port, endpoints, NODE, "")
    return compile_port(port, selection, node, made or EndpointChains(), comments=comments)


def chains(found: Compiled) -> dict[str, list[str]]:
    return {chain: list(rules) for chain, rules in found.chains}


def portals(found: Compiled, place: Place) -> list[str]:
    return [portal.text for portal in found.portals if portal.place is place]


def detect(mode: DetectLocal, value: str) -> NodeView:
    return NodeView(Family.V4, NODE, detect_local=mode, detect_value=value)


# Cluster IP ---------------------------------------------------------------------------------


def test_a_cluster_ip_with_two_endpoints() -> None:
    """One rule leads to the lottery, and one chain for each endpoint rewrites the destination."""
    found = build(HERE, THERE)

    assert chains(found) == {SVC: LOTTERY, EP1: SEP1, EP2: SEP2}
    assert [(portal.place, portal.address, portal.port) for portal in found.portals] == [
        (Place.NAT_SERVICES, "10.96.0.1", 80)
    ]
    assert portals(found, Place.NAT_SERVICES) == [
        f'{TO} "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j {SVC}'
    ]
    assert found.rules == 6
    assert not found.no_local_internal
    assert not found.no_local_external


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (NODE_VIEW, None),
        (detect(DetectLocal.CIDR, "10.64.0.0/10"), " ! -s 10.64.0.0/10"),
        (detect(DetectLocal.BRIDGE, "cbr0"), " ! -i cbr0"),
        (detect(DetectLocal.PREFIX, "cali"), " ! -i cali+"),
        (NodeView(Family.V4, NODE, masquerade_all=True), ""),
        (
            NodeView(
                Family.V4,
                NODE,
                masquerade_all=True,
                detect_local=DetectLocal.CIDR,
                detect_value="10.64.0.0/10",
            ),
            "",
        ),
    ],
)
def test_who_is_masqueraded_on_the_way_to_a_cluster_ip(node: NodeView, match: str | None) -> None:
    """Traffic that is not from this node's pods, all of it, or none if they cannot be told."""
    marked = (
        f'{TO} "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80{match}'
        " -j KUBE-MARK-MASQ"
    )

    assert chains(build(HERE, THERE, node=node))[SVC] == [
        *([] if match is None else [marked]),
        *LOTTERY,
    ]


def test_a_cluster_ip_without_endpoints() -> None:
    """There is no chain; the filter table refuses (faults 25)."""
    found = build()

    assert found.chains == ()
    assert found.rules == 0
    assert [portal.place for portal in found.portals] == [Place.SERVICES]
    assert portals(found, Place.SERVICES) == [
        f'{TO} "shop/web:http has no endpoints" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j REJECT'
    ]


def test_a_local_cluster_ip() -> None:
    """Policy Local goes to the local lottery, which has the masquerade rule then."""
    found = build(HERE, THERE, internal_local=True, node=detect(DetectLocal.BRIDGE, "cbr0"))

    assert chains(found) == {
        SVL: [
            (
                f'{TO} "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 ! -i cbr0'
                " -j KUBE-MARK-MASQ"
            ),
            f'{TO} "shop/web:http -> 10.0.0.1:8080" -j {EP1}',
        ],
        EP1: SEP1,
    }
    assert portals(found, Place.NAT_SERVICES) == [
        f'{TO} "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j {SVL}'
    ]


def test_a_local_cluster_ip_without_a_local_endpoint() -> None:
    """It is dropped, not refused: endpoints exist elsewhere (faults 25)."""
    found = build(THERE, internal_local=True)

    assert found.chains == ()
    assert portals(found, Place.SERVICES) == [
        f'{TO} "shop/web:http has no local endpoints" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j DROP'
    ]
    assert found.no_local_internal


# Affinity -----------------------------------------------------------------------------------


def test_affinity() -> None:
    """One question for each endpoint in front of the lottery; the answer is kept at the DNAT."""
    found = chains(build(HERE, THERE, affinity_seconds=60))

    assert found[SVC] == [
        (
            f'{TO} "shop/web:http -> 10.0.0.1:8080" -m recent --name {EP1} --rcheck --seconds 60'
            f" --reap -j {EP1}"
        ),
        (
            f'{TO} "shop/web:http -> 10.0.0.2:8080" -m recent --name {EP2} --rcheck --seconds 60'
            f" --reap -j {EP2}"
        ),
        *LOTTERY,
    ]
    assert found[EP1] == [
        SEP1[0],
        (
            f"{TO} shop/web:http -m recent --name {EP1} --set -m tcp -p tcp -j DNAT"
            " --to-destination 10.0.0.1:8080"
        ),
    ]


def test_affinity_in_the_local_lottery() -> None:
    """Both lotteries ask, before any dice (faults 26)."""
    found = chains(build(HERE, THERE, affinity_seconds=60, node_port=30000, external_local=True))

    assert found[SVL] == [
        (
            f'{TO} "shop/web:http -> 10.0.0.1:8080" -m recent --name {EP1} --rcheck --seconds 60'
            f" --reap -j {EP1}"
        ),
        f'{TO} "shop/web:http -> 10.0.0.1:8080" -j {EP1}',
    ]
    assert len(found[SVC]) == 4


# From outside -------------------------------------------------------------------------------


def test_a_node_port() -> None:
    """Everything from outside is masqueraded on its way to the lottery."""
    found = build(HERE, node_port=30000)

    assert chains(found)[EXT] == [
        f'{TO} "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ',
        f"-j {SVC}",
    ]
    assert portals(found, Place.NAT_NODEPORTS) == [
        f"{TO} shop/web:http -m tcp -p tcp --dport 30000 -j {EXT}"
    ]
    assert len(found.portals) == 2


def test_a_node_port_on_localhost_is_counted() -> None:
    """With the counter there is a twin for 127.0.0.0/8 in front; without there is none."""
    counted = NodeView(Family.V4, NODE, localhost_node_ports=True, count_localhost=True)
    uncounted = NodeView(Family.V4, NODE, localhost_node_ports=True)
    off = NodeView(Family.V4, NODE, count_localhost=True)
    plain = f"{TO} shop/web:http -m tcp -p tcp --dport 30000 -j {EXT}"
    twin = (
        f"{TO} shop/web:http -m tcp -p tcp -d 127.0.0.0/8 --dport 30000 -m nfacct"
        f" --nfacct-name localhost_nps_accepted_pkts -j {EXT}"
    )

    for node, expected in ((counted, [twin, plain]), (uncounted, [plain]), (off, [plain])):
        found = build(HERE, node_port=30000, node=node)
        assert portals(found, Place.NAT_NODEPORTS) == expected


def test_a_node_port_without_endpoints() -> None:
    """Only packets to this node itself are refused."""
    found = build(node_port=30000)

    assert found.chains == ()
    assert portals(found, Place.EXTERNAL) == [
        (
            f'{TO} "shop/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp -p tcp'
            " --dport 30000 -j REJECT"
        )
    ]


EXTERNAL_LOCAL_TAIL = [
    (
        f'{TO} "masquerade LOCAL traffic for shop/web:http external destinations" -m addrtype'
        " --src-type LOCAL -j KUBE-MARK-MASQ"
    ),
    (
        f'{TO} "route LOCAL traffic for shop/web:http external destinations" -m addrtype'
        f" --src-type LOCAL -j {SVC}"
    ),
]


def test_external_policy_local() -> None:
    """The node and its pods bypass the policy, the rest goes to local endpoints (faults 24)."""
    node = detect(DetectLocal.CIDR, "10.64.0.0/10")
    found = build(HERE, THERE, node_port=30000, external_local=True, node=node)

    assert chains(found)[EXT] == [
        f'{TO} "pod traffic for shop/web:http external destinations" -s 10.64.0.0/10 -j {SVC}',
        *EXTERNAL_LOCAL_TAIL,
        f"-j {SVL}",
    ]
    assert chains(found)[SVL] == [f'{TO} "shop/web:http -> 10.0.0.1:8080" -j {EP1}']
    assert set(chains(found)) == {SVC, SVL, EXT, EP1, EP2}
    assert not found.no_local_external


def test_external_policy_local_without_a_local_endpoint() -> None:
    """The node and its pods still get through; from outside it is dropped (faults 24, 25)."""
    found = build(THERE, node_port=30000, external_local=True, external_ips=("198.51.100.1",))

    assert chains(found)[EXT] == EXTERNAL_LOCAL_TAIL
    assert set(chains(found)) == {SVC, EXT, EP2}
    assert portals(found, Place.EXTERNAL) == [
        (
            f'{TO} "shop/web:http has no local endpoints" -m tcp -p tcp -d 198.51.100.1 --dport 80'
            " -j DROP"
        ),
        (
            f'{TO} "shop/web:http has no local endpoints" -m addrtype --dst-type LOCAL'
            " -m tcp -p tcp --dport 30000 -j DROP"
        ),
    ]
    assert found.no_local_external
    assert not found.no_local_internal


def test_both_policies_local() -> None:
    """The cluster IP goes to the local lottery, from outside the node's own traffic to all."""
    found = build(HERE, THERE, node_port=30000, external_local=True, internal_local=True)

    assert set(chains(found)) == {SVC, SVL, EXT, EP1, EP2}
    assert portals(found, Place.NAT_SERVICES)[0].endswith(f"-j {SVL}")


def test_external_and_load_balancer_addresses() -> None:
    """Each address has a rule to the same chain, in the object's order."""
    found = build(
        HERE, external_ips=("198.51.100.1", "198.51.100.2"), load_balancer_ips=("203.0.113.1",)
    )

    assert portals(found, Place.NAT_SERVICES)[1:] == [
        f'{TO} "shop/web:http external IP" -m tcp -p tcp -d 198.51.100.1 --dport 80 -j {EXT}',
        f'{TO} "shop/web:http external IP" -m tcp -p tcp -d 198.51.100.2 --dport 80 -j {EXT}',
        f'{TO} "shop/web:http loadbalancer IP" -m tcp -p tcp -d 203.0.113.1 --dport 80 -j {EXT}',
    ]


def test_addresses_without_endpoints() -> None:
    """Each is refused where packets from outside come by, and has no nat rule."""
    found = build(external_ips=("198.51.100.1",), load_balancer_ips=("203.0.113.1",))

    assert portals(found, Place.NAT_SERVICES) == []
    assert portals(found, Place.EXTERNAL) == [
        f'{TO} "shop/web:http has no endpoints" -m tcp -p tcp -d 198.51.100.1 --dport 80 -j REJECT',
        f'{TO} "shop/web:http has no endpoints" -m tcp -p tcp -d 203.0.113.1 --dport 80 -j REJECT',
    ]


# Source ranges ------------------------------------------------------------------------------

RANGES: dict[str, Any] = {
    "load_balancer_ips": ("203.0.113.1",),
    "source_ranges": ("198.51.100.0/24",),
}
BALANCER = f'{TO} "shop/web:http loadbalancer IP"'
OTHERS = f'{TO} "other traffic to shop/web:http will be dropped by KUBE-PROXY-FIREWALL"'
DROPPED = (
    f'{TO} "shop/web:http traffic not accepted by {FW}" -m tcp -p tcp -d 203.0.113.1 --dport 80'
    " -j DROP"
)


def test_source_ranges() -> None:
    """A firewall chain in front lets the ranges through, the filter table drops the rest."""
    found = build(HERE, **RANGES)

    assert chains(found)[FW] == [f"{BALANCER} -s 198.51.100.0/24 -j {EXT}", OTHERS]
    assert portals(found, Place.NAT_SERVICES)[1].endswith(f"-j {FW}")
    assert portals(found, Place.FIREWALL) == [DROPPED]


@pytest.mark.parametrize(
    ("ip", "inside"), [("198.51.100.2", True), ("192.0.2.2", False), ("", False)]
)
def test_a_node_in_the_range_may_use_the_address_itself(ip: str, *, inside: bool) -> None:
    """Such a packet has the load balancer's address as its source (faults 29)."""
    found = build(HERE, node=NodeView(Family.V4, NODE, ip=ip), **RANGES)

    assert chains(found)[FW] == [
        f"{BALANCER} -s 198.51.100.0/24 -j {EXT}",
        *([f"{BALANCER} -s 203.0.113.1 -j {EXT}"] if inside else []),
        OTHERS,
    ]


def test_source_ranges_without_an_address_or_without_endpoints() -> None:
    """There is nothing to protect then: no firewall chain, and everybody is refused alike."""
    without_address = build(HERE, source_ranges=("198.51.100.0/24",), node_port=30000)
    without_endpoints = build(**RANGES)

    for found in (without_address, without_endpoints):
        assert FW not in chains(found)
        assert portals(found, Place.FIREWALL) == []
    assert len(portals(without_endpoints, Place.EXTERNAL)) == 1


def test_source_ranges_do_not_filter_other_ways_in() -> None:
    """Node ports and external addresses are open to everybody (faults 29)."""
    found = build(HERE, node_port=30000, external_ips=("198.51.100.1",), **RANGES)

    assert portals(found, Place.NAT_NODEPORTS)[0].endswith(f"-j {EXT}")
    assert portals(found, Place.NAT_SERVICES)[1].endswith(f"-j {EXT}")


# The rest -----------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoints", [(), (HERE,), (THERE,)])
def test_the_health_check_port_is_open_whatever_the_endpoints(
    endpoints: tuple[Endpoint, ...],
) -> None:
    """The answer says how many there are; the port answers always (faults 23)."""
    found = build(
        *endpoints,
        external_local=True,
        load_balancer_ips=("203.0.113.1",),
        health_check_node_port=30999,
    )

    assert portals(found, Place.NODEPORTS) == [
        f'{TO} "shop/web:http health check node port" -m tcp -p tcp --dport 30999 -j ACCEPT'
    ]


@pytest.mark.parametrize("local", [True, False])
def test_what_each_portal_matches(*, local: bool) -> None:
    """Its chain, address, protocol and port, by which a tree finds its place."""
    found = build(
        HERE if local else THERE,
        protocol="udp",
        port=53,
        external_local=True,
        external_ips=("198.51.100.1",),
        load_balancer_ips=("203.0.113.1",),
        source_ranges=("198.51.100.0/24",),
        node_port=30053,
        health_check_node_port=30999,
    )
    refused = [
        (Place.EXTERNAL, "198.51.100.1", "udp", 53),
        (Place.EXTERNAL, "203.0.113.1", "udp", 53),
        (Place.EXTERNAL, "", "udp", 30053),
    ]
    matched = [(p.place, p.address, p.protocol, p.port) for p in found.portals]

    assert [one for one in matched if one[0] is Place.EXTERNAL] == ([] if local else refused)
    assert [one for one in matched if one[0] is not Place.EXTERNAL] == [
        (Place.NAT_SERVICES, "10.96.0.1", "udp", 53),
        (Place.NAT_SERVICES, "198.51.100.1", "udp", 53),
        (Place.NAT_SERVICES, "203.0.113.1", "udp", 53),
        (Place.FIREWALL, "203.0.113.1", "udp", 53),
        (Place.NAT_NODEPORTS, "", "udp", 30053),
        (Place.NODEPORTS, "", "tcp", 30999),
    ]
    assert (found.no_local_internal, found.no_local_external) == (False, not local)


def test_affinity_in_a_large_cluster() -> None:
    """Likewise without comments."""
    found = chains(build(HERE, THERE, comments=False, affinity_seconds=60))

    assert found[SVC] == [
        f"-m recent --name {EP1} --rcheck --seconds 60 --reap -j {EP1}",
        f"-m recent --name {EP2} --rcheck --seconds 60 --reap -j {EP2}",
        f"-m statistic --mode random --probability 0.5000000000 -j {EP1}",
        f"-j {EP2}",
    ]
    assert found[EP1] == [
        "-s 10.0.0.1 -j KUBE-MARK-MASQ",
        f"-m recent --name {EP1} --set -m tcp -p tcp -j DNAT --to-destination 10.0.0.1:8080",
    ]


def test_a_large_cluster_has_no_comments_on_endpoints() -> None:
    """Those of dispatch and policy rules stay."""
    found = chains(build(HERE, THERE, comments=False, node_port=30000))

    assert found[SVC] == [
        f"-m statistic --mode random --probability 0.5000000000 -j {EP1}",
        f"-j {EP2}",
    ]
    assert found[EP1] == [
        "-s 10.0.0.1 -j KUBE-MARK-MASQ",
        "-m tcp -p tcp -j DNAT --to-destination 10.0.0.1:8080",
    ]
    assert found[EXT][0].startswith(f'{TO} "masquerade traffic')


@pytest.mark.parametrize("protocol", ["udp", "sctp"])
def test_other_protocols(protocol: str) -> None:
    """The protocol stands in every rule that has a port, and in the names."""
    found = build(HERE, protocol=protocol, node_port=30000)

    assert EXT not in chains(found)
    for portal in found.portals:
        assert f"-m {protocol} -p {protocol} " in portal.text
    assert any(f"-m {protocol} -p {protocol} -j DNAT" in text for text in found.chains[-1][1])


def test_ipv6() -> None:
    """A destination with a port has brackets; names are hashed over that form."""
    found = build(
        Endpoint("fd00::1", 8080),
        cluster_ip="fd00:10:96::a",
        node=NodeView(Family.V6, NODE),
    )

    assert chains(found) == {
        SVC: [f'{TO} "shop/web:http -> [fd00::1]:8080" -j {EP6}'],
        EP6: [
            f"{TO} shop/web:http -s fd00::1 -j KUBE-MARK-MASQ",
            f"{TO} shop/web:http -m tcp -p tcp -j DNAT --to-destination [fd00::1]:8080",
        ],
    }


def test_one_address_with_two_ports_has_two_chains() -> None:
    """Endpoints are told apart by address and port."""
    found = build(Endpoint("10.0.0.1", 8080), Endpoint("10.0.0.1", 9090))

    assert len(found.chains) == 3


@pytest.mark.parametrize("comments", [False, True])
def test_many_endpoints_are_compiled_alike_whatever_was_compiled_before(*, comments: bool) -> None:
    """Chains of many endpoints, and the rules that lead to them, are taken again from the last
    time: only those that are right."""
    many = [Endpoint(f"10.0.1.{number}", 8080) for number in range(100)]
    changed = [Endpoint("10.0.1.200", 8080), *many[1:50], Endpoint("10.0.1.50", 8081), *many[51:]]
    here, there = [Endpoint(f"10.0.0.{number}", 80, local=True) for number in (1, 2)]
    runs: list[tuple[list[Endpoint], dict[str, Any]]] = [
        (many, {}),
        (changed, {}),
        (changed, {"affinity_seconds": 60}),
        (many[5:90], {"affinity_seconds": 60}),
        ([*many[:20], Endpoint("10.0.1.7", 81), *many[20:]], {"affinity_seconds": 60}),
        (many, {"affinity_seconds": 61}),
        (many[1:], {}),
        (many, {}),
        ([Endpoint("10.0.0.1", 80), *many], {}),
        ([here, *many], {"node_port": 30000, "external_local": True}),
        ([here, *changed], {"node_port": 30000, "external_local": True}),
        ([*many, there], {"node_port": 30000, "external_local": True}),
        (changed, {"port_name": "other"}),
        (changed, {"protocol": "udp"}),
        (many, {}),
    ]
    made = EndpointChains()
    after_each_other = [
        build(*endpoints, comments=comments, made=made, **fields) for endpoints, fields in runs
    ]

    for found, (endpoints, fields) in zip(after_each_other, runs, strict=True):
        assert found == build(*endpoints, comments=comments, **fields)
    first, second = (dict(found.chains) for found in after_each_other[:2])
    assert len(first.keys() - second.keys()) == len(second.keys() - first.keys()) == 2


@pytest.mark.parametrize("fields", [{}, {"affinity_seconds": 60}])
def test_many_endpoints_come_to_this_node_and_leave_it(fields: dict[str, Any]) -> None:
    """What led to some of them leads to all, and to others again; nothing of before is in it."""
    made = EndpointChains()
    for first, last in ((0, 70), (0, 100), (30, 100), (0, 100), (99, 100), (0, 1)):
        endpoints = [
            Endpoint(f"10.0.1.{number}", 8080, local=first <= number < last)
            for number in range(100)
        ]
        kept, fresh = (
            build(
                *endpoints, comments=False, made=one, node_port=30000, external_local=True, **fields
            )
            for one in (made, EndpointChains())
        )
        assert kept == fresh
        assert len(chains(kept)[SVL]) == (last - first) * (2 if fields else 1)


def taken_again(made: EndpointChains, *runs: list[Endpoint]) -> bool:
    """Whether the last compilation takes the chain of the last endpoint from the first."""
    built = [build(*endpoints, comments=False, made=made) for endpoints in runs]
    return built[0].chains[-1] is built[-1].chains[-1]


def test_chains_are_kept_for_as_long_as_a_service_port_is_large() -> None:
    """Of 65 endpoints and more, until the service port shrinks or is gone."""
    many = [Endpoint(f"10.0.1.{number}", 8080) for number in range(65)]
    gone = EndpointChains()
    first = build(*many, comments=False, made=gone)
    gone.forget((key(), "http", "tcp"))
    second = build(*many, comments=False, made=gone)

    assert taken_again(EndpointChains(), many, many)
    assert not taken_again(EndpointChains(), many[:64], many[:64])
    assert not taken_again(EndpointChains(), many, many[1:], many)
    assert first == second
    assert first.chains[-1] is not second.chains[-1]


def test_chains_between_two_that_change_are_kept() -> None:
    """Their rules are not made anew."""
    many = [Endpoint(f"10.0.1.{number}", 8080) for number in range(65)]
    made = EndpointChains()
    first, second = (
        dict(build(*endpoints, comments=False, made=made).chains)
        for endpoints in (many, [Endpoint("10.0.2.1", 80), *many[1:-1], Endpoint("10.0.2.2", 80)])
    )
    both = (first.keys() & second.keys()) - {SVC}

    assert len(both) == 63
    assert all(first[chain] is second[chain] for chain in both)


def test_chains_of_64_service_ports_are_kept() -> None:
    """Those that were compiled last: memory does not grow with the number of large Services."""
    many = [Endpoint(f"10.0.1.{number}", 8080) for number in range(65)]
    made = EndpointChains()
    names = [f"p{number}" for number in range(65)]
    first = [build(*many, comments=False, made=made, port_name=name) for name in names]
    again = [build(*many, comments=False, made=made, port_name=name) for name in reversed(names)]

    same = [one.chains[-1] is two.chains[-1] for one, two in zip(first, again[::-1], strict=True)]
    assert same == [False] + [True] * 64
