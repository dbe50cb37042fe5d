from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cluster.objects import Kind
from agent.state.values import Family
from tests.fakes import objects
from tests.fakes.cluster import NODE
from tests.fakes.hostile import EVIL, JUNK, NODES, SERVICES, SLICES
from tests.grammar.grammar import WRITTEN, GrammarError, check, digest, kind_of
from tests.grammar.pipeline import API_VERSIONS, SETTINGS, Pipeline, encode, event, page

SVC, SEP = digest("shop/web:httptcp"), digest("shop/web:httptcp10.0.0.1:8080")
OTHER = digest("shop/other:httptcp")
PORTAL = '-m comment --comment "shop/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80'
DICE = "-m statistic --mode random --probability"
DNAT = "-m comment --comment shop/web:http -m tcp -p tcp -j DNAT --to-destination"


def nat(*lines: str) -> str:
    chains = ("KUBE-SERVICES", f"KUBE-SVC-{SVC}", f"KUBE-EXT-{SVC}", f"KUBE-SEP-{SEP}")
    return "\n".join(["*nat", *(f":{c} - [0:0]" for c in chains), *lines, "COMMIT", ""])


def test_what_is_right_is_in_the_grammar() -> None:
    """The forms of one Service, with names of chains computed here."""
    assert SEP == "CABXVTEVWWXCT3SI"
    assert check(
        nat(
            f"-A KUBE-SERVICES {PORTAL} -j KUBE-SVC-{SVC}",
            f'-A KUBE-SVC-{SVC} -m comment --comment "shop/web:http -> 10.0.0.1:8080"'
            f" {DICE} 0.5000000000 -j KUBE-SEP-{SEP}",
            f"-A KUBE-SEP-{SEP} {DNAT} 10.0.0.1:8080",
        )
    ) == 9  # fmt: skip


#: Lines that must not be, and what the grammar says of them.
WRONG = {
    "an option more": (f"-A KUBE-SERVICES {PORTAL} -j KUBE-SVC-{SVC} -w", "no form"),
    "another target": (f"-A KUBE-SERVICES {PORTAL} -j ACCEPT", "no form"),
    "another table": ("*filter", "no chain"),
    "a flush": ("-F", "no chain"),
    "a chain of others": ("-A INPUT -j ACCEPT", "no chain"),
    "a policy": (":INPUT DROP [0:0]", "no chain"),
    "a rule without a comment": (
        f"-A KUBE-SERVICES -m tcp -p tcp -d 10.96.0.1 --dport 80 -j KUBE-SVC-{SVC}", "no form",
    ),
    "everybody": (f"-A KUBE-SERVICES {PORTAL} -j KUBE-SVC-{SVC}".replace("10.96.0.1", "0/0"),
                  "no form"),
    "octal": (f"-A KUBE-SERVICES {PORTAL} -j KUBE-SVC-{SVC}".replace("10.96.0.1", "010.96.0.1"),
              "does not appear"),
    "the other family": (f"-A KUBE-SEP-{SEP} {DNAT} [fd00::1]:8080", "the other family"),
    "port 0": (f"-A KUBE-SEP-{SEP} {DNAT} 10.0.0.1:0", "no form"),
    "port 65536": (f"-A KUBE-SEP-{SEP} {DNAT} 10.0.0.1:65536", "is not from 1 to 65535"),
    "another Service's chain": (
        f"-A KUBE-SERVICES {PORTAL} -j KUBE-SVC-{OTHER}", "not of shop/web:http",
    ),
    "another Service's lottery": (
        f"-A KUBE-EXT-{SVC} -j KUBE-SVC-{OTHER}", "another Service's chain",
    ),
    "another endpoint": (f"-A KUBE-SEP-{SEP} {DNAT} 10.0.0.2:8080", "not of shop/web:http at"),
    "a name with a quotation mark": (
        f"-A KUBE-SERVICES {PORTAL} -j KUBE-SVC-{SVC}".replace("web:http", 'web" -j "'), "no form",
    ),
    "a probability of its own": (
        f"-A KUBE-SVC-{SVC} {DICE} 0.4000000000 -j KUBE-SEP-{SEP}", "one in so many",
    ),
    "a chain that was not emptied": ("-A KUBE-NODEPORTS -m tcp -p tcp", "not been emptied"),
    "a line end in the middle": ("-A KUBE-SERVICES\r-F", "neither printable"),
    "a letter of others": (f"-A KUBE-SERVICES {PORTAL}é", "neither printable"),
    "nothing": ("", "no chain"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_not_in_the_grammar(name: str) -> None:
    """A grammar that takes everything would show nothing."""
    line, reason = WRONG[name]
    with pytest.raises(GrammarError, match=reason):
        check(nat(line))


@pytest.mark.parametrize("text", ["", "*nat\n", "*nat\nCOMMIT", "-F\nCOMMIT\n", "*raw\nCOMMIT\n"])
def test_what_is_no_restore_input_is_refused(text: str) -> None:
    """Tables begin, and end, with lines of their own."""
    with pytest.raises(GrammarError):
        check(text)


#: A Service with everything, so that all forms are written.
FULL: dict[str, Any] = {
    "type": "LoadBalancer",
    "clusterIP": "10.96.0.9",
    "clusterIPs": ["10.96.0.9", "fd00:96::9"],
    "ipFamilies": ["IPv4", "IPv6"],
    "ports": [
        {"name": "http", "port": 80, "nodePort": 30080},
        {"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"},
        {"name": "empty", "port": 99, "nodePort": 30099},
    ],
    "externalIPs": ["198.51.100.7", "2001:db8::7"],
    "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/64"],
    "externalTrafficPolicy": "Local",
    "internalTrafficPolicy": "Local",
    "healthCheckNodePort": 30999,
    "sessionAffinity": "ClientIP",
}


@pytest.mark.parametrize("layout", ["flat", "tree"])
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_every_kind_of_chain_is_written_and_right(number: int, layout: Any) -> None:
    """The grammar is about what is really written: no kind of chain is missed here, but for the
    one that asks the kernel."""
    pipeline = Pipeline(number, layout)
    status = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"ip": "2001:db8:1::1"}]}}
    for local in ("Local", "Cluster"):
        policies = {"externalTrafficPolicy": local, "internalTrafficPolicy": local}
        items = [
            objects.service("full") | {"spec": FULL | policies, "status": status},
            *(objects.service(f"s{n}", f"10.96.1.{n}", port=n) for n in range(1, 80)),
        ]
        assert pipeline.objects(Kind.SERVICE, page(Kind.SERVICE, items))
        slices = [objects.endpoint_slice(f"s{n}", f"10.0.1.{n}") for n in range(1, 40)]
        assert pipeline.objects(Kind.SLICE, page(Kind.SLICE, slices))
        for ips in (["10.0.0.1", "10.0.0.2"], [], ["10.0.0.1"]):
            for family in ("IPv4", "IPv6"):
                mine = ips if family == "IPv4" else [ip.replace("10.0.0.", "fd00::") for ip in ips]
                one = objects.endpoint_slice(f"full-{family}", *mine, service="full")
                ports = [{"name": name, "port": 8080, "protocol": protocol}
                         for name, protocol in (("http", "TCP"), ("dns", "UDP"))]  # fmt: skip
                for endpoint in one["endpoints"][:1]:
                    endpoint["nodeName"] = NODE
                one |= {"addressType": family, "ports": ports}
                assert pipeline.line(Kind.SLICE, event("MODIFIED", one))
    kernel = pipeline.world.kernels[Family.V4]
    written = {
        (part.split("\n", 1)[0], kind_of(line[1:].split()[0]))
        for text in kernel.inputs
        for part in text.split("*")[1:]
        for line in part.split("\n")
        if line.startswith(":")
    }
    missing = {(table, chain) for table, chains in WRITTEN.items() for chain in chains} - written
    missing.discard(("filter", "KUBE-FIREWALL"))  # only with node ports on localhost
    if layout == "flat":
        missing -= {("nat", "KUBE-SVC-TREE-"), ("filter", "KUBE-SVC-TREE-")}
    assert missing == {("nat", "KUBE-PROXY-PROBE"), ("filter", "KUBE-PROXY-PROBE")}


OBJECTS = {Kind.SERVICE: SERVICES, Kind.SLICE: SLICES, Kind.NODE: NODES}
ANY = st.sampled_from(list(Kind)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.one_of(OBJECTS[kind], OBJECTS[kind], JUNK))
)
WAYS = st.sampled_from(["ADDED", "MODIFIED", "DELETED", "list", "file"])


@settings(max_examples=60)
@given(
    st.integers(0, len(SETTINGS) - 1),
    st.sampled_from(["flat", "tree"]),
    st.lists(st.tuples(WAYS, ANY), min_size=1, max_size=4),
)
def test_no_object_gets_out_of_its_place(number: int, layout: Any, steps: list[Any]) -> None:
    """Whatever an object says, and however it comes: every line is in the grammar, and nothing of
    it is left when it has gone."""
    pipeline = Pipeline(number, layout)
    for way, (kind, obj) in steps:
        if way == "list":
            pipeline.objects(kind, page(kind, [obj]))
        elif way == "file":
            head = {"kind": kind.value, "apiVersion": API_VERSIONS[kind]}
            pipeline.file(encode({**(obj if isinstance(obj, dict) else {}), **head}))
        else:
            pipeline.line(kind, event(way, obj))
    pipeline.reset()


@settings(max_examples=60)
@given(ANY, st.lists(st.tuples(st.integers(0), st.integers(0, 8), st.binary(max_size=4) | EVIL)))
def test_no_bytes_do_either(found: tuple[Kind, Any], cuts: list[tuple[int, int, Any]]) -> None:
    """Pieces of the bytes are exchanged for others: it is refused by name, or the grammar holds."""
    kind, obj = found
    pipeline = Pipeline()
    for raw in (page(kind, [obj]), event("ADDED", obj), encode(obj)):
        data = bytearray(raw)
        for place, length, new in cuts:
            start = place % (len(data) + 1)
            data[start : start + length] = new if isinstance(new, bytes) else encode(new)
        pipeline.objects(kind, bytes(data))
        pipeline.line(kind, bytes(data))
        pipeline.file(bytes(data))
    pipeline.reset()
