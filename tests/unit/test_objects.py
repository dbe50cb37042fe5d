from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.objects import (
    LABEL_HEADLESS,
    LABEL_PROXY_NAME,
    SERVICE_SELECTOR,
    SLICE_SELECTOR,
    EndpointSlice,
    Key,
    Kind,
    Node,
    Service,
    UnusableObjectError,
    convert,
    decode,
    is_ours,
    key_of,
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
_FIELDS = st.sampled_from(
    [
        "metadata",
        "name",
        "namespace",
        "labels",
        "spec",
        "status",
        "ports",
        "port",
        "endpoints",
        "addresses",
        "conditions",
        "ready",
        "clusterIP",
        "addressType",
        "loadBalancer",
        "ingress",
    ]
)
_OBJECTS = st.recursive(
    _JSON, lambda inner: st.dictionaries(_FIELDS, inner, max_size=4), max_leaves=20
)


def _service(raw: bytes) -> Service:
    obj = decode(Kind.SERVICE, raw)
    assert isinstance(obj, Service)
    return obj


def _slice(raw: bytes) -> EndpointSlice:
    obj = decode(Kind.SLICE, raw)
    assert isinstance(obj, EndpointSlice)
    return obj


@pytest.mark.parametrize(
    "rest",
    [b',"endpoints":null,"ports":null', b',"endpoints":[],"ports":[]', b""],
    ids=["null", "empty", "absent"],
)
def test_no_endpoints_in_every_form_the_api_allows(rest: bytes) -> None:
    """Null, empty and absent lists of a slice all mean that there is nothing in them."""
    got = _slice(b'{"metadata":{"name":"s"},"addressType":"IPv4"' + rest + b"}")

    assert not got.endpoints
    assert not got.ports


def test_a_port_without_a_number_is_legal() -> None:
    """The API allows a slice's port without a number; it is None, never 0."""
    got = _slice(
        b'{"metadata":{"name":"s"},"ports":[{"name":"http","protocol":"TCP"},{"port":80}]}'
    )

    assert got.ports is not None
    assert [port.port for port in got.ports] == [None, 80]


def test_missing_conditions_are_none() -> None:
    """Absent and null conditions are None, which rules read as the API says."""
    got = _slice(
        b'{"metadata":{"name":"s"},"endpoints":[{"addresses":["10.0.0.1"]},'
        b'{"addresses":null,"conditions":null},{"conditions":{"ready":null,"serving":false}}]}'
    )

    assert got.endpoints is not None
    first, second, third = got.endpoints
    assert first.conditions is None
    assert second.addresses is None
    assert third.conditions is not None
    assert (third.conditions.ready, third.conditions.serving) == (None, False)


def test_the_fields_have_the_api_s_names() -> None:
    """Each field that is read comes from the name that the API reference gives it."""
    got = _service(
        b'{"metadata":{"name":"s","namespace":"n","resourceVersion":"7"},"spec":{"type":"NodePort",'
        b'"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","2001:db8::1"],"ipFamilies":["IPv4"],'
        b'"ports":[{"name":"a","port":80,"nodePort":30080,"protocol":"UDP"}],'
        b'"externalIPs":["192.0.2.1"],"loadBalancerSourceRanges":["192.0.2.0/24"],'
        b'"externalTrafficPolicy":"Local","internalTrafficPolicy":"Cluster",'
        b'"healthCheckNodePort":31000,"sessionAffinity":"ClientIP",'
        b'"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":60}}},'
        b'"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1","ipMode":"Proxy"}]}}}'
    )

    assert key_of(got) == Key("n", "s")
    assert got.metadata.resource_version == "7"
    spec = msgspec.structs.asdict(got.spec)
    ports, affinity = spec.pop("ports"), spec.pop("session_affinity_config")
    assert spec == {
        "type": "NodePort",
        "cluster_ip": "10.0.0.1",
        "cluster_ips": ["10.0.0.1", "2001:db8::1"],
        "ip_families": ["IPv4"],
        "external_ips": ["192.0.2.1"],
        "load_balancer_source_ranges": ["192.0.2.0/24"],
        "external_traffic_policy": "Local",
        "internal_traffic_policy": "Cluster",
        "health_check_node_port": 31000,
        "session_affinity": "ClientIP",
    }
    assert (ports[0].port, ports[0].name, ports[0].protocol, ports[0].node_port) == (
        80, "a", "UDP", 30080,
    )  # fmt: skip
    assert affinity.client_ip.timeout_seconds == 60
    assert got.status is not None
    assert got.status.load_balancer is not None
    assert got.status.load_balancer.ingress is not None
    assert got.status.load_balancer.ingress[0].ip == "203.0.113.1"
    assert got.status.load_balancer.ingress[0].ip_mode == "Proxy"


def test_hints_and_the_node_s_fields() -> None:
    """Topology hints, the endpoint's node, and what is read of a Node."""
    got = _slice(
        b'{"metadata":{"name":"s"},"endpoints":[{"nodeName":"n1","hints":'
        b'{"forZones":[{"name":"z"}],"forNodes":[{"name":"n"}]}}]}'
    )
    node = decode(
        Kind.NODE,
        b'{"metadata":{"name":"n"},"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24"],'
        b'"taints":[{"key":"k","effect":"NoSchedule"}]},'
        b'"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}',
    )

    assert got.endpoints is not None
    (endpoint,) = got.endpoints
    assert endpoint.node_name == "n1"
    assert endpoint.hints is not None
    assert endpoint.hints.for_zones is not None
    assert endpoint.hints.for_nodes is not None
    assert [z.name for z in endpoint.hints.for_zones + endpoint.hints.for_nodes] == ["z", "n"]
    assert isinstance(node, Node)
    assert node.spec is not None
    assert (node.spec.pod_cidr, node.spec.pod_cidrs) == ("10.1.0.0/24", ["10.1.0.0/24"])
    assert node.status is not None
    assert node.status.addresses is not None
    assert node.status.addresses[0].address == "192.0.2.1"
    assert str(key_of(node)) == "n"


@pytest.mark.parametrize(
    ("raw", "key", "said"),
    [
        (b'{"metadata":{"name":"s","namespace":"n"},"spec":7}', Key("n", "s"), "spec"),
        (b'{"metadata":{"name":"s"},"spec":{"ports":[{"port":"80"}]}}', Key("", "s"), "port"),
        (b'{"metadata":{"name":"s"},"spec":{"ports":[{"port":1e99}]}}', Key("", "s"), "port"),
        (b'{"metadata":{"name":7}}', None, "name"),
        (b'{"metadata":{}}', None, "metadata.name is empty"),
        (b"{}", None, "metadata.name is empty"),
        (b"[]", None, "object"),
        (b"nonsense", None, "malformed"),
        (b"", None, "truncated"),
        (b'{"metadata":{"name":"s"},"later":' + b"[" * 100_000, None, "recursion"),
        (b'{"metadata":{"name":"\xff"}}', None, "utf-8"),
    ],
)
def test_an_unusable_object_is_named(raw: bytes, key: Key | None, said: str) -> None:
    """What does not decode says which object it is, where that can be read, and what is wrong."""
    with pytest.raises(UnusableObjectError) as caught:
        decode(Kind.SERVICE, raw)

    assert caught.value.key == key
    assert said in caught.value.reason.lower()
    assert str(key or "(no name)") in str(caught.value)


def test_unknown_fields_are_skipped() -> None:
    """Fields of newer versions, and a Service's status of conditions, cost nothing."""
    got = _service(
        b'{"kind":"Service","metadata":{"name":"s","managedFields":[{"x":1}]},'
        b'"spec":{"trafficDistribution":"PreferClose","new":{"deep":[1,2]}},"later":null}'
    )

    assert got == Service(metadata=got.metadata)
    assert got.metadata.name == "s"


@pytest.mark.parametrize(
    ("kind", "label", "ours"),
    [
        (Kind.SERVICE, LABEL_PROXY_NAME, False),
        (Kind.SLICE, LABEL_PROXY_NAME, False),
        (Kind.SLICE, LABEL_HEADLESS, False),
        # The controllers put it on slices, and take it off those of other Services (faults 34).
        (Kind.SERVICE, LABEL_HEADLESS, True),
    ],
)
@pytest.mark.parametrize("value", ["other", ""])
def test_a_label_makes_it_another_s(kind: Kind, label: str, value: str, *, ours: bool) -> None:
    """The label counts by its presence, whatever its value, for the selector as for files."""
    raw = b'{"metadata":{"name":"s","labels":{"%b":"%b"}}}' % (label.encode(), value.encode())
    selector = {Kind.SERVICE: SERVICE_SELECTOR, Kind.SLICE: SLICE_SELECTOR}[kind]

    assert is_ours(decode(kind, raw)) is ours
    assert (f"!{label}" not in selector.split(",")) is ours


def test_other_labels_leave_it_ours() -> None:
    """No labels, null labels and other labels are no reason to leave an object out."""
    for labels in (b"{}", b"null", b'{"app":"x"}'):
        assert is_ours(decode(Kind.SERVICE, b'{"metadata":{"name":"s","labels":' + labels + b"}}"))


@given(_OBJECTS, st.sampled_from(Kind))
def test_whatever_is_decoded_is_an_object_or_named(value: object, kind: Kind) -> None:
    """No JSON at all raises anything but UnusableObjectError."""
    try:
        named = convert(kind, value).metadata.name
    except UnusableObjectError as error:
        named = str(error)

    assert named


def test_what_json_cannot_say_is_unusable() -> None:
    """A list within itself, a lone surrogate or an endless number reject the object by name."""
    endless: list[object] = []
    endless.append(endless)
    for value in (endless, "\ud800", 10**40):
        with pytest.raises(UnusableObjectError) as caught:
            convert(Kind.SERVICE, {"metadata": {"name": "s"}, "spec": {"type": value}})
        assert caught.value.key == Key("", "s")
