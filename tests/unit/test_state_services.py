from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.state.services import AddressPolicy, Problem, problems_of, service_ports
from agent.state.values import Family, ServicePort
from tests.fakes.cluster import key, service

if TYPE_CHECKING:
    from agent.cluster.objects import Service

V4, V6 = Family.V4, Family.V6


def ports_of(obj: Service, family: Family = V4) -> tuple[ServicePort, ...]:
    return service_ports(obj)[0].get(family, ())


def one(obj: Service, family: Family = V4) -> ServicePort:
    (port,) = ports_of(obj, family)
    return port


def problems(obj: Service) -> list[str]:
    found = service_ports(obj)[1]
    assert {problem.key for problem in found} <= {key()}
    return [problem.text for problem in found]


def test_every_field_of_a_load_balancer() -> None:
    """Each field of the object ends up in its field of the service port."""
    obj = service(
        type="LoadBalancer",
        ports=[{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053, "targetPort": 1}],
        externalIPs=["198.51.100.1", "198.51.100.2"],
        ingress=["203.0.113.1", {"ip": "203.0.113.2", "ipMode": "VIP"}],
        loadBalancerSourceRanges=["192.0.2.0/24"],
        externalTrafficPolicy="Local",
        internalTrafficPolicy="Local",
        healthCheckNodePort=30999,
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}},
    )

    assert problems(obj) == []
    assert ports_of(obj, V6) == ()
    assert one(obj) == ServicePort(
        service=key(),
        port_name="dns",
        protocol="udp",
        cluster_ip="10.96.0.1",
        port=53,
        node_port=30053,
        external_ips=("198.51.100.1", "198.51.100.2"),
        load_balancer_ips=("203.0.113.1", "203.0.113.2"),
        source_ranges=("192.0.2.0/24",),
        affinity_seconds=60,
        external_local=True,
        internal_local=True,
        health_check_node_port=30999,
    )


def test_a_plain_service_has_only_what_it_says() -> None:
    """Absent and null fields are their empty values, and the protocol is TCP."""
    nothing: dict[str, Any] = dict.fromkeys(
        [
            "externalIPs",
            "loadBalancerSourceRanges",
            "externalTrafficPolicy",
            "sessionAffinity",
            "internalTrafficPolicy",
            "healthCheckNodePort",
            "sessionAffinityConfig",
            "ipFamilies",
        ]
    )
    expected = ServicePort(
        service=key(), port_name="", protocol="tcp", cluster_ip="10.96.0.1", port=80
    )

    assert one(service(ports=[{"port": 80}])) == expected
    assert one(service(ports=[{"port": 80, "nodePort": None, "name": None}], **nothing)) == expected
    assert ports_of(service(ports=())) == ()


@pytest.mark.parametrize(
    "spec", [{"ip": "None"}, {"ip": ""}, {"ip": None}, {"type": "ExternalName"}]
)
def test_headless_and_external_name_services_have_no_ports(spec: dict[str, Any]) -> None:
    """They are nobody's to proxy, and that is no problem (faults 34)."""
    assert service_ports(service(**spec)) == ({}, ())


@pytest.mark.parametrize(
    ("spec", "v4", "v6"),
    [
        ({}, "10.96.0.1", None),
        ({"ip": "fd00::a"}, None, "fd00::a"),
        ({"ipFamilies": ["IPv4"], "clusterIPs": ["10.96.0.1"]}, "10.96.0.1", None),
        (
            {"ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.96.0.1", "FD00::000A"]},
            "10.96.0.1",
            "fd00::a",
        ),
        (
            {"ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd00::a", "10.96.0.1"]},
            "10.96.0.1",
            "fd00::a",
        ),
        ({"ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.96.0.1"]}, "10.96.0.1", None),
        ({"ipFamilies": ["IPv4"], "clusterIPs": ["10.96.0.1", "fd00::a"]}, "10.96.0.1", None),
        ({"ipFamilies": ["IPv4"], "clusterIPs": []}, "10.96.0.1", None),
        ({"ip": " 010.96.0.1 "}, "10.96.0.1", None),
        ({"ipFamilies": ["IPv9", "IPv4"], "clusterIPs": ["x", "10.96.0.1"]}, "10.96.0.1", None),
    ],
)
def test_the_cluster_ip_of_each_family(
    spec: dict[str, Any], v4: str | None, v6: str | None
) -> None:
    """clusterIPs are paired with ipFamilies; without those, clusterIP counts for its family."""
    obj = service(**spec)

    assert [port.cluster_ip for port in ports_of(obj, V4)] == ([v4] if v4 else [])
    assert [port.cluster_ip for port in ports_of(obj, V6)] == ([v6] if v6 else [])
    unknown = ["IP family 'IPv9' is unknown"] if "IPv9" in str(spec) else []
    assert problems(obj) == unknown


def test_a_cluster_ip_of_the_wrong_family_is_named() -> None:
    """A pair that does not match costs its family, and the other one works."""
    obj = service(ipFamilies=["IPv6", "IPv4"], clusterIPs=["10.96.0.2", "10.96.0.1"])

    assert one(obj, V4).cluster_ip == "10.96.0.1"
    assert ports_of(obj, V6) == ()
    assert problems(obj) == ["cluster IP '10.96.0.2' is not an IPv6 address"]


def test_addresses_are_sorted_by_family() -> None:
    """Of a dual-stack Service each family sees its own addresses and ranges, in their order."""
    obj = service(
        type="LoadBalancer",
        ipFamilies=["IPv4", "IPv6"],
        clusterIPs=["10.96.0.1", "fd00::a"],
        externalIPs=["2001:db8::5", "198.51.100.2", "198.51.100.1"],
        ingress=["203.0.113.1", "2001:db8::6"],
        loadBalancerSourceRanges=["2001:db8::/32", "192.0.2.0/24"],
    )
    v4, v6 = one(obj, V4), one(obj, V6)

    assert v4.external_ips == ("198.51.100.2", "198.51.100.1")
    assert (v4.load_balancer_ips, v4.source_ranges) == (("203.0.113.1",), ("192.0.2.0/24",))
    assert v6.external_ips == ("2001:db8::5",)
    assert (v6.load_balancer_ips, v6.source_ranges) == (("2001:db8::6",), ("2001:db8::/32",))


def test_a_bad_external_ip_costs_only_itself() -> None:
    """Leading zeros and blanks are read, empty text is silent, the rest is named (faults 9)."""
    obj = service(externalIPs=["", " ", "192.0.2.010", "x" * 200, " 192.0.2.11 "])

    assert one(obj).external_ips == ("192.0.2.10", "192.0.2.11")
    assert problems(obj) == [f"external IP {'x' * 80!r} is not an address"]


def test_one_port_may_have_as_many_addresses_as_a_service() -> None:
    """Addresses are counted once for every port, and there is one."""
    many = [f"198.51.{n // 250}.{n % 250}" for n in range(6000)]

    assert one(service(externalIPs=many)).external_ips == tuple(many)


def test_load_balancer_addresses_that_count() -> None:
    """Host names and addresses in mode Proxy are no destinations here (KEP-1860)."""
    obj = service(
        type="LoadBalancer",
        ingress=[
            {"hostname": "lb.example.com"},
            {"ip": "203.0.113.1", "ipMode": "Proxy"},
            {"ip": "203.0.113.2", "ipMode": "VIP"},
            {"ip": "203.0.113.3"},
            {"ip": "203.0.113.999"},
        ],
    )

    assert one(obj).load_balancer_ips == ("203.0.113.2", "203.0.113.3")
    assert problems(obj) == ["load balancer IP '203.0.113.999' is not an address"]


@pytest.mark.parametrize(
    ("ranges", "expected", "problem"),
    [
        ([" 192.0.2.0/24 "], ("192.0.2.0/24",), []),
        (["192.0.2.7/24", "010.0.0.0/8"], ("192.0.2.0/24", "10.0.0.0/8"), []),
        (["192.0.2.0/24", "0.0.0.0/0"], (), []),
        (["192.0.2.0/24", "198.51.100.1/0"], (), []),
        (["192.0.2.0/24", "::/0"], ("192.0.2.0/24",), []),
        (["", "192.0.2.0/24"], ("192.0.2.0/24",), []),
        (
            ["192.0.2.0", "192.0.2.0/24"],
            ("192.0.2.0/24",),
            ["load balancer source range '192.0.2.0' is not a CIDR"],
        ),
        (None, (), []),
    ],
)
def test_source_ranges(ranges: Any, expected: tuple[str, ...], problem: list[str]) -> None:
    """Blanks and host bits are mended, one range of length zero means everybody (faults 9, 29)."""
    obj = service(type="LoadBalancer", loadBalancerSourceRanges=ranges)

    assert one(obj).source_ranges == expected
    assert problems(obj) == problem


@pytest.mark.parametrize(
    ("ranges", "ips", "exposed"),
    [
        (["192.0.2.0", "bogus"], ["203.0.113.1"], ["IPv4"]),
        (["", " "], ["203.0.113.1"], ["IPv4"]),
        (["192.0.2.0/24"], ["203.0.113.1", "2001:db8::1"], ["IPv6"]),
        (["bogus"], ["203.0.113.1", "2001:db8::1"], ["IPv4", "IPv6"]),
        (["192.0.2.0/24", "bogus"], ["203.0.113.1"], []),  # what can be used restricts
        (["bogus"], [], []),  # there is no way in yet
        (["bogus"], [{"ip": "203.0.113.1", "ipMode": "Proxy"}], []),
        (["0.0.0.0/0", "bogus"], ["203.0.113.1", "2001:db8::1"], []),  # everybody was meant
        (None, ["203.0.113.1"], []),
    ],
)
def test_a_load_balancer_that_is_open_by_mistake(ranges: Any, ips: Any, exposed: list[str]) -> None:
    """Ranges of which none can be used restrict nothing, as in kube-proxy; but that is said."""
    obj = service(
        type="LoadBalancer",
        ipFamilies=["IPv4", "IPv6"],
        clusterIPs=["10.96.0.1", "fd00::a"],
        ingress=ips,
        loadBalancerSourceRanges=ranges,
    )
    found = [problem.text for problem in service_ports(obj)[1] if problem.exposes]

    assert [text.partition("used for ")[2].partition(",")[0] for text in found] == exposed
    for family in exposed:
        assert one(obj, Family(family)).source_ranges == ()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"sessionAffinity": "None"}, 0),
        ({"sessionAffinity": "ClientIP"}, 10800),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {}}, 10800),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": None}}, 10800),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86400}},
            },
            86400,
        ),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}},
            },
            1,
        ),
        (
            {
                "sessionAffinity": "None",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            },
            0,
        ),
    ],
)
def test_affinity(spec: dict[str, Any], expected: int) -> None:
    """ClientIP affinity lasts three hours unless the object says otherwise."""
    assert one(service(**spec)).affinity_seconds == expected


@pytest.mark.parametrize("seconds", [0, -1, 86401, 2**31])
def test_an_absurd_affinity_timeout_is_replaced_by_the_default(seconds: int) -> None:
    """A timeout that the API would not accept keeps affinity on, and is named."""
    obj = service(
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": seconds}},
    )

    assert one(obj).affinity_seconds == 10800
    assert problems(obj) == [f"affinity timeout of {seconds} s is not between 1 and 86400"]


@pytest.mark.parametrize(
    ("spec", "external"),
    [
        ({"type": "ClusterIP"}, False),
        ({"type": "ClusterIP", "externalIPs": ["198.51.100.1"]}, True),
        ({"type": "NodePort"}, True),
        ({"type": "LoadBalancer"}, True),
    ],
)
def test_external_policy_needs_external_traffic(spec: dict[str, Any], *, external: bool) -> None:
    """externalTrafficPolicy Local means nothing for a Service without a way in from outside."""
    assert one(service(externalTrafficPolicy="Local", **spec)).external_local is external
    assert not one(service(externalTrafficPolicy="Cluster", **spec)).external_local


@pytest.mark.parametrize(
    ("spec", "number"),
    [
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, 30999),
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster"}, 0),
        ({"type": "NodePort", "externalTrafficPolicy": "Local"}, 0),
    ],
)
def test_the_health_check_port_is_for_local_load_balancers(
    spec: dict[str, Any], number: int
) -> None:
    """Only a load balancer with policy Local asks nodes for their health."""
    assert one(service(healthCheckNodePort=30999, **spec)).health_check_node_port == number


@pytest.mark.parametrize(
    ("port", "problem"),
    [
        ({"name": "bad", "port": 0}, "port 'bad' has the number 0"),
        ({"name": "bad", "port": 65536}, "port 'bad' has the number 65536"),
        ({"name": "bad", "port": -1}, "port 'bad' has the number -1"),
        ({"name": "bad"}, "port 'bad' has the number 0"),
        (
            {"name": "bad", "port": 80, "protocol": "SCTPX"},
            "port 'bad' has the unknown protocol 'SCTPX'",
        ),
        (
            {"name": "bad", "port": 80, "protocol": "tcp"},
            "port 'bad' has the unknown protocol 'tcp'",
        ),
        ({"name": "Bad", "port": 80}, "port name 'Bad' is not a DNS label"),
        ({"name": 'a" -j x', "port": 80}, "port name 'a\" -j x' is not a DNS label"),
        ({"name": "a\nb", "port": 80}, "port name 'a\\nb' is not a DNS label"),
        ({"name": "a\n", "port": 80}, "port name 'a\\n' is not a DNS label"),
        ({"name": "-a", "port": 80}, "port name '-a' is not a DNS label"),
        ({"name": "a" * 64, "port": 80}, f"port name '{'a' * 64}' is not a DNS label"),
    ],
)
def test_a_bad_port_costs_only_itself(port: dict[str, Any], problem: str) -> None:
    """The other ports of the Service work, and what is wrong is named."""
    obj = service(ports=[port, {"name": "good", "port": 443}])

    assert [found.port_name for found in ports_of(obj)] == ["good"]
    assert problems(obj) == [problem]


def test_a_bad_node_port_leaves_the_cluster_ip() -> None:
    """A node port that cannot be served is dropped, the port itself stays."""
    obj = service(type="NodePort", ports=[{"name": "a", "port": 80, "nodePort": 70000}])

    assert (one(obj).port, one(obj).node_port) == (80, 0)
    assert problems(obj) == ["port 'a' has the node port 70000"]


def test_a_bad_health_check_port_leaves_the_service() -> None:
    """A health check port that cannot be served is dropped and named."""
    obj = service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=-5)

    assert one(obj).health_check_node_port == 0
    assert problems(obj) == ["health check node port is -5"]


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("A", "shop"), ("web", "Shop"), ("a b", "shop"), ("web", ""), ("a.b", "x")],
)
def test_a_name_that_is_no_label_costs_the_service(name: str, namespace: str) -> None:
    """Names go into comments, so one that could end a comment is not used at all."""
    ports, (problem,) = service_ports(service(name, namespace=namespace))

    assert ports == {}
    assert problem.text == "its name or namespace is not a DNS label"


def test_the_last_of_two_ports_with_one_name_wins() -> None:
    """The API forbids this; the outcome is one port, and the place of the first."""
    obj = service(
        ports=[
            {"name": "a", "port": 1},
            {"name": "b", "port": 2},
            {"name": "a", "port": 3},
            {"name": "a", "port": 4, "protocol": "UDP"},
        ]
    )

    assert [(p.port_name, p.protocol, p.port) for p in ports_of(obj)] == [
        ("a", "tcp", 3),
        ("b", "tcp", 2),
        ("a", "udp", 4),
    ]
    assert problems(obj) == ["port 'a' is there twice; the last one counts"]


def test_words_that_the_api_does_not_have() -> None:
    """Each is named with its field, up to 80 characters; the Service is one of the default kind."""
    obj = service(
        ipFamilies=["IPv4", "IPv5"],
        clusterIPs=["10.96.0.1"],
        type="T" * 100,
        externalTrafficPolicy="local",
        internalTrafficPolicy="Zone",
        sessionAffinity="Cookie",
        ingress=[{"ip": "203.0.113.1", "ipMode": "Vip"}],
    )
    found = one(obj)

    assert problems(obj) == [
        f"type '{'T' * 80}' is unknown",
        "external traffic policy 'local' is unknown",
        "internal traffic policy 'Zone' is unknown",
        "session affinity 'Cookie' is unknown",
        "IP family 'IPv5' is unknown",
        "load balancer IP mode 'Vip' is unknown",
    ]
    assert (found.external_local, found.internal_local, found.affinity_seconds) == (False, False, 0)
    assert found.load_balancer_ips == ()


@pytest.mark.parametrize("kind", ["ClusterIP", "NodePort", "LoadBalancer"])
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
def test_words_that_the_api_has(kind: str, policy: str, affinity: str) -> None:
    """None of them is a problem."""
    obj = service(
        type=kind,
        externalTrafficPolicy=policy,
        internalTrafficPolicy=policy,
        sessionAffinity=affinity,
        ingress=[{"ip": "203.0.113.1", "ipMode": mode} for mode in ("VIP", "Proxy")],
    )

    assert problems(obj) == []


def test_a_cluster_ip_that_is_none() -> None:
    """It may have been meant for either family, so both say it."""
    obj = service(ip="bogus")

    assert service_ports(obj)[0] == {V4: (), V6: ()}
    assert problems(obj) == [f"cluster IP 'bogus' is not an {family} address" for family in (
        "IPv4", "IPv6"
    )]  # fmt: skip


def test_long_text_is_shown_in_part() -> None:
    """80 characters of what the object says."""
    long = "x" * 100
    obj = service(
        ports=[{"name": long, "port": 1}, {"name": "a", "port": 1, "protocol": long}],
        loadBalancerSourceRanges=[long],
    )

    assert problems(obj) == [
        f"load balancer source range '{'x' * 80}' is not a CIDR",
        f"port name '{'x' * 80}' is not a DNS label",
        f"port 'a' has the unknown protocol '{'x' * 80}'",
    ]


def test_problems_are_few_and_short() -> None:
    """Ten of an object, each once and in 160 characters, and how many more there are."""
    texts = [f"{n}" for n in range(10)]

    assert [p.text for p in problems_of(key(), texts + texts)] == texts
    assert [p.text for p in problems_of(key(), [*texts, "x"])] == [*texts, "and 1 more"]
    assert [p.text for p in problems_of(key(), [*texts, "x", "y", "y"])] == [*texts, "and 2 more"]
    assert problems_of(key(), ["x" * 160, "y" * 161]) == (
        Problem(key(), "x" * 160),
        Problem(key(), "y" * 160 + "..."),
    )


def test_a_load_balancer_that_is_open_is_said_so() -> None:
    """In words that say what it means."""
    obj = service(type="LoadBalancer", ingress=["203.0.113.1"], loadBalancerSourceRanges=["x"])

    assert service_ports(obj)[1] == (
        Problem(key(), "load balancer source range 'x' is not a CIDR"),
        Problem(
            key(),
            (
                "none of its load balancer source ranges can be used for IPv4, so there its load"
                " balancer is open to everybody"
            ),
            exposes=True,
        ),
    )


def test_a_problem_is_named_once() -> None:
    """What is wrong in both families, or in every port, is one problem."""
    obj = service(
        ipFamilies=["IPv4", "IPv6"],
        clusterIPs=["10.96.0.1", "fd00::a"],
        externalIPs=["x", "x"],
        ports=[{"name": "a", "port": 1}, {"name": "b", "port": 2}],
    )

    assert problems(obj) == ["external IP 'x' is not an address"]


@pytest.mark.parametrize(
    ("internal", "external", "node_port", "cluster", "local"),
    [
        (False, False, 0, True, False),
        (False, False, 30000, True, False),
        (True, False, 0, False, True),
        # External traffic that starts on this node may leave it, whatever the policy.
        (True, False, 30000, True, True),
        (False, True, 0, True, False),
        (False, True, 30000, True, True),
        (True, True, 0, False, True),
        (True, True, 30000, True, True),
    ],
)
def test_which_endpoints_policies_ask_for(
    *, internal: bool, external: bool, node_port: int, cluster: bool, local: bool
) -> None:
    """Any way in makes all endpoints reachable; a Local policy in use asks for local ones."""
    port = ServicePort(
        service=key(),
        port_name="",
        protocol="tcp",
        cluster_ip="10.96.0.1",
        port=80,
        node_port=node_port,
        internal_local=internal,
        external_local=external,
    )

    assert (port.uses_cluster_endpoints, port.uses_local_endpoints) == (cluster, local)


def test_the_name_of_a_port() -> None:
    """Chains are named after it; a port without a name has no colon."""
    assert one(service(ports=[{"port": 80}])).name == "shop/web"
    assert one(service()).name == "shop/web:http"


CLAIMS = service(
    type="LoadBalancer",
    externalIPs=["198.51.100.1", "8.8.8.8", "2001:db8:e::1"],
    ingress=["203.0.113.1", "9.9.9.9", "2001:db8:ba::1"],
)


@pytest.mark.parametrize(
    ("policy", "external", "balanced"),
    [
        (AddressPolicy(), ("198.51.100.1", "8.8.8.8"), ("203.0.113.1", "9.9.9.9")),
        (AddressPolicy((), ()), (), ()),
        (AddressPolicy(external=()), (), ("203.0.113.1", "9.9.9.9")),
        (
            AddressPolicy(external=("198.51.100.0/24",)),
            ("198.51.100.1",),
            ("203.0.113.1", "9.9.9.9"),
        ),
        (
            AddressPolicy(load_balancer=("203.0.113.1/32", "2001:db8:ba::/48")),
            ("198.51.100.1", "8.8.8.8"),
            ("203.0.113.1",),
        ),
        (AddressPolicy(("::/0",), ("::/0",)), (), ()),
    ],
    ids=["any", "none", "no external IPs", "external ranges", "load balancer ranges", "only IPv6"],
)
def test_addresses_that_a_service_may_claim(
    policy: AddressPolicy, external: tuple[str, ...], balanced: tuple[str, ...]
) -> None:
    """Addresses outside of the allowed ranges are left out; all of them work by default."""
    (port,) = service_ports(CLAIMS, policy)[0][V4]
    assert port.external_ips == external
    assert port.load_balancer_ips == balanced
    assert port.cluster_ip == "10.96.0.1"


def test_addresses_that_are_not_allowed_are_named() -> None:
    """What was left out is a problem of the Service; the rest of it works."""
    policy = AddressPolicy(external=("198.51.100.0/24",), load_balancer=())
    _, problems_found = service_ports(CLAIMS, policy)
    assert [problem.text for problem in problems_found] == [
        "external IP 8.8.8.8 is not one that the configuration allows",
        "load balancer IP 203.0.113.1 is not one that the configuration allows",
        "load balancer IP 9.9.9.9 is not one that the configuration allows",
    ]


def test_an_address_in_disguise_is_the_address() -> None:
    """Blanks, leading zeros and mapped addresses are read first and then compared."""
    claims = service(externalIPs=[" 008.8.8.8", "::ffff:8.8.4.4", "198.51.100.010"])
    (port,) = service_ports(claims, AddressPolicy(external=("198.51.100.0/24",)))[0][V4]
    assert port.external_ips == ("198.51.100.10",)
