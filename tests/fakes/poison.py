"""Absurd values for every field that the agent reads, and what must come of each.

The fields are read off the agent's structs, so one that is added without a poison is missed by
no one: ``tests/unit/test_poison.py`` fails. What a type rules out is made here from the types of
JSON; what text or numbers of the right type may say stands in the tables.
"""

from __future__ import annotations

import copy
import types
import typing
from typing import Any, NamedTuple

import msgspec

from agent.cluster.objects import LABEL_SERVICE_NAME, LABEL_ZONE, Kind

if typing.TYPE_CHECKING:
    from collections.abc import Iterator

#: The object as a whole is refused by name.
REJECTED = "cannot be used"
#: It has no effect, or means what it says.
QUIET = ""

_KEY = {"name": "evil", "namespace": "shop"}
_META = _KEY | {
    "resourceVersion": "7",
    "labels": {"app": "evil"},
    "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
    "deletionTimestamp": None,
}
#: Honest objects with every field.
HONEST: dict[Kind, dict[str, Any]] = {
    Kind.SERVICE: {
        "metadata": _META,
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.9.9",
            "clusterIPs": ["10.96.9.9", "fd00:96::9:9"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "nodePort": 31080},
                {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 31053},
            ],
            "externalIPs": ["198.51.100.9", "2001:db8:9::9"],
            "loadBalancerSourceRanges": ["192.0.2.0/24", "198.51.100.0/24", "2001:db8::/64"],
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "healthCheckNodePort": 31999,
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9", "ipMode": "VIP"}]}},
    },
    Kind.SLICE: {
        "metadata": _META | {"name": "evil-1", "labels": {LABEL_SERVICE_NAME: "evil"}},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["10.0.9.9"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": "node-a",
                "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "node-a"}]},
            },
            {"addresses": ["10.0.9.8"], "conditions": {}},
        ],
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 5353, "protocol": "UDP"},
        ],
    },
    Kind.NODE: {
        "metadata": _META | {"name": "node-a", "namespace": "", "labels": {LABEL_ZONE: "a"}},
        "spec": {
            "podCIDR": "10.64.0.0/24",
            "podCIDRs": ["10.64.0.0/24", "fd00:64::/64"],
            "taints": [{"key": "example.com/full"}],
        },
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
    },
}

#: Blanks, and what a shell, iptables, a terminal or a file system would take for something else.
BLANK = ("", " ", "\t\n")
TEXTS = (
    "a\nCOMMIT\n*nat\n-F", 'x" -j ACCEPT -m comment --comment "', "x -j DROP", "--modprobe=/bin/sh",
    "$(reboot)", "`id`", "'; rm -rf / #", "a\x00b", "\x1b[2J", "%s%n%x", "../../etc/passwd", "\\",
    "\u202egpj.exe", "é" * 300, "🐍", "a" * 100_000, "-", "!", "KUBE-MARK-MASQ",
)  # fmt: skip
#: Text that is nearly an address.
NO_ADDRESS = (
    "10.96.0.256", "10.96.0", "10.96.0.1.2", "0x0a.0.0.1", "10.96.0.1/32", "10.96.0.1 -j DROP",
    "10.96.0.1\n-F", "1e1.0.0.1", "-1.0.0.0", "٣.0.0.1", "fe80::1%eth0", "fd00:::1", "::1::2",
    "[fd00::1]", "localhost", "999999999.1.1.1",
)  # fmt: skip
#: Text that is nearly a range.
NO_RANGE = (
    "10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "/24", "10.0.0.0/24/24", "fd00::/129",
    "10.0.0.0/255.0.0.0", "10.0.0.0/ 8 -j DROP", "!10.0.0.0/8",
)  # fmt: skip
NO_PORT = (-1, 65536, 2**31, 2**63, 2**64, 10**30)


class Says(NamedTuple):
    """What comes of values of the right type.

    Attributes:
        reason: what is said of text, or a number, that the field has no meaning for.
        wrong: such values besides ``TEXTS``.
        right: odd values that mean something, or nothing, and are no problem.
    """

    reason: str
    wrong: tuple[Any, ...] = ()
    right: tuple[Any, ...] = ()


_ANY = Says(QUIET, (), BLANK)
_WORD = "is unknown"
_NO_LABEL = "not a DNS label"
#: Every field that holds text, a number or a truth value.
SAYS: dict[Kind, dict[str, Says]] = {
    Kind.SERVICE: {
        "metadata.name": Says(_NO_LABEL, (" ", "\t\n", "Evil", "a.b", "a" * 64, "-a", "a-", "a/b")),
        "metadata.namespace": Says(_NO_LABEL, (*BLANK, "Shop", "a.b", "a" * 64, "a/b")),
        "metadata.resourceVersion": _ANY,
        "metadata.labels{}": _ANY,
        "metadata.annotations{}": _ANY,
        "metadata.deletionTimestamp": _ANY,
        "spec.type": Says(_WORD, (" ", "\t\n", "loadbalancer"), ("", "ExternalName", "ClusterIP")),
        "spec.clusterIP": Says(QUIET, (), ("", "None", "10.96.9.010", "fd00::9")),
        "spec.clusterIPs[]": Says(
            "cluster IP", (" ", "\t\n", *NO_ADDRESS, "fd00::1"), ("", "010.096.09.9")
        ),
        "spec.ipFamilies[]": Says(_WORD, (" ", "\t\n", "ipv4", "IPv5"), ("",)),
        "spec.ports[].name": Says(_NO_LABEL, (" ", "\t\n", "HTTP", "a.b", "a" * 64), ("", "alt")),
        "spec.ports[].port": Says("has the number", (0, *NO_PORT), (1, 65535)),
        "spec.ports[].protocol": Says(
            "unknown protocol", (" ", "\t\n", "tcp", "ICMP", "all"), ("", "SCTP")
        ),
        "spec.ports[].nodePort": Says("has the node port", NO_PORT, (0, 1, 80, 65535)),
        "spec.externalIPs[]": Says("external IP", NO_ADDRESS, (*BLANK, "0.0.0.0", "::", "010.1.1.1",
                                   " 10.1.1.1 ", "::ffff:10.1.1.1", "10.96.0.1")),
        "spec.loadBalancerSourceRanges[]": Says(
            "source range", NO_RANGE, (*BLANK, "192.0.2.7/24", " 010.0.0.0/8 ", "0.0.0.0/0", "::/0")
        ),
        "spec.externalTrafficPolicy": Says(_WORD, (" ", "\t\n", "local"), ("", "Cluster")),
        "spec.internalTrafficPolicy": Says(_WORD, (" ", "\t\n", "local"), ("", "Local")),
        "spec.healthCheckNodePort": Says("health check node port is", NO_PORT, (0, 65535)),
        "spec.sessionAffinity": Says(_WORD, (" ", "\t\n", "clientIP"), ("", "None")),
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds": Says(
            "affinity timeout", (0, 86401, -1, 2**31, 2**63, 10**30), (1, 86400)
        ),
        "status.loadBalancer.ingress[].ip": Says("load balancer IP", NO_ADDRESS, (*BLANK, "::1")),
        "status.loadBalancer.ingress[].ipMode": Says(_WORD, (" ", "\t\n", "vip"), ("", "Proxy")),
    },
    Kind.SLICE: {
        "metadata.name": Says(QUIET, (), (" ", "\t\n")),
        "metadata.namespace": _ANY,
        "metadata.resourceVersion": _ANY,
        "metadata.labels{}": Says("no DNS label", (" ", "\t\n", "Evil", "a.b"), ("other",)),
        "metadata.annotations{}": Says(QUIET, (), (*BLANK, "0001-01-01T00:00:00+23:59")),
        "metadata.deletionTimestamp": _ANY,
        "addressType": Says(_WORD, (" ", "\t\n", "ipv4"), ("FQDN",)),
        "endpoints[].addresses[]": Says(
            "endpoint address", (*BLANK, *NO_ADDRESS, "fd00::1"), ("010.0.9.9", " 10.0.9.9")
        ),
        "endpoints[].conditions.ready": Says(QUIET, (), (True, False)),
        "endpoints[].conditions.serving": Says(QUIET, (), (True, False)),
        "endpoints[].conditions.terminating": Says(QUIET, (), (True, False)),
        "endpoints[].nodeName": _ANY,
        "endpoints[].hints.forZones[].name": _ANY,
        "endpoints[].hints.forNodes[].name": _ANY,
        "ports[].name": Says(_NO_LABEL, (" ", "\t\n", "HTTP"), ("", "other")),
        "ports[].protocol": Says("unknown protocol", (" ", "\t\n", "tcp"), ("", "SCTP")),
        "ports[].port": Says("has the number", NO_PORT, (1, 65535)),
    },
    Kind.NODE: {
        "metadata.name": Says(QUIET, (), (" ", "\t\n")),
        "metadata.namespace": _ANY,
        "metadata.resourceVersion": _ANY,
        "metadata.labels{}": _ANY,
        "metadata.annotations{}": _ANY,
        "metadata.deletionTimestamp": _ANY,
        "spec.podCIDR": Says("pod CIDR", NO_RANGE, (*BLANK, "010.64.0.7/24", "0.0.0.0/0")),
        "spec.podCIDRs[]": Says("pod CIDR", NO_RANGE, (*BLANK, "010.64.0.7/24", "::/0")),
        "spec.taints[].key": _ANY,
        "status.addresses[].type": _ANY,
        "status.addresses[].address": Says(
            "is not an address", (*BLANK, *NO_ADDRESS), ("0.0.0.0", "::1", "010.0.0.1")
        ),
    },
}  # fmt: skip
#: What is said of a zero where a port must be, and of nothing at all.
SPECIAL = {
    (Kind.SERVICE, "metadata.name", ""): REJECTED,
    (Kind.SLICE, "metadata.name", ""): REJECTED,
    (Kind.NODE, "metadata.name", ""): REJECTED,
    (Kind.SLICE, "ports[].port", None): "has no number",
    (Kind.SLICE, "ports[].port", 0): "has no number",
    (Kind.SLICE, "metadata.labels{}", ""): "has no label",
    (Kind.SLICE, "metadata.labels", None): "has no label",
    (Kind.SLICE, "metadata.labels", "{}"): "has no label",
    (Kind.SLICE, "addressType", ""): _WORD,
    (Kind.SLICE, "endpoints[].addresses", None): "has no address",
    (Kind.SLICE, "endpoints[].addresses", "[]"): "has no address",
    (Kind.SERVICE, "spec.ports[].port", None): REJECTED,
}
_JUNK: tuple[Any, ...] = (
    None, True, 0, -7, 1.5, 1e300, "80", "true", [], {}, [None], [[]], [1], {"a": None}, {"a": {}},
)  # fmt: skip


def fields(kind: Kind) -> dict[str, Any]:
    """Every field of a kind, as ``spec.ports[].port``, with its type."""
    from agent.cluster.objects import KIND_TYPES  # noqa: PLC0415

    return dict(_fields(KIND_TYPES[kind], ""))


def _fields(cls: Any, path: str) -> Iterator[tuple[str, Any]]:
    bare = _without_none(cls)
    if path:
        yield path, cls
    if typing.get_origin(bare) is list:
        yield from _fields(typing.get_args(bare)[0], f"{path}[]")
    elif typing.get_origin(bare) is dict:
        yield f"{path}{{}}", typing.get_args(bare)[1]
    elif isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        hints = typing.get_type_hints(bare)
        for field in msgspec.structs.fields(bare):
            inner = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _fields(hints[field.name], inner)


def _without_none(cls: Any) -> Any:
    if typing.get_origin(cls) in {types.UnionType, typing.Union}:
        return next(one for one in typing.get_args(cls) if one is not type(None))
    return cls


def takes(cls: Any, value: Any) -> bool:
    """Whether a value of JSON has the type that the API gives to a field."""
    bare = _without_none(cls)
    if value is None:
        return bare is not cls
    if typing.get_origin(bare) is list:
        return isinstance(value, list) and all(takes(typing.get_args(bare)[0], v) for v in value)
    if typing.get_origin(bare) is dict:
        of = typing.get_args(bare)[1]
        return isinstance(value, dict) and all(takes(of, one) for one in value.values())
    if bare in {str, bool}:
        return isinstance(value, bare)
    if bare is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, dict)  # unknown fields are skipped


def is_leaf(cls: Any) -> bool:
    """Whether a field holds text, a number or a truth value."""
    return _without_none(cls) in {str, int, bool}


def doses(kind: Kind, path: str, cls: Any) -> Iterator[tuple[Any, str | None]]:
    """Poisons for a field, and what must be said of each; None: whatever."""
    for value in _JUNK:
        if not takes(cls, value):
            yield value, REJECTED
        elif not is_leaf(cls) or value is None:
            text = {"[]": "[]", "{}": "{}"}.get(str(value))
            yield value, SPECIAL.get((kind, path, text if value is not None else None))
    if not is_leaf(cls):
        return
    says = SAYS[kind][path]
    texts = TEXTS if _without_none(cls) is str else ()
    for value in (*texts, *says.wrong):
        yield value, SPECIAL.get((kind, path, value), says.reason)
    for value in says.right:
        yield value, SPECIAL.get((kind, path, value), QUIET)


def poisoned(kind: Kind, path: str, value: Any) -> dict[str, Any]:
    """An honest object with a value in one field."""
    found = copy.deepcopy(HONEST[kind])
    inner: Any = found
    steps = [step for part in path.split(".") for step in _steps(part)]
    for step in steps[:-1]:
        inner = _inside(inner, step)
    last = steps[-1]
    inner[next(iter(inner)) if last == "{}" else last] = value
    return found


def _steps(part: str) -> list[str | int]:
    if part.endswith("{}"):
        return [part[:-2], "{}"]
    return [part[:-2], 0] if part.endswith("[]") else [part]


def _inside(value: Any, step: str | int) -> Any:
    return value[next(iter(value)) if step == "{}" else step]
