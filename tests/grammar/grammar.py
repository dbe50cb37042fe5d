"""The restore input that the agent may write, as a grammar of its own.

Written from what the rules are for, and apart from the agent: nothing here imports it. Each chain
has the forms of its rules, and a rule that is in none of them is an error, whatever it would do.
So text from an object can only stand where a form has a hole for it: as a name within a comment,
or as an address, a port or a number that is what it says. Beyond the forms, the holes of a line
must agree (a rule for one protocol matches that protocol), and chains of Services must be named
after the Service and port that the line's comment names: no object gets into another one's chain.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import re
from typing import NamedTuple

#: The kernel's limit for a comment, with the zero behind it (xt_comment.h).
MOST_COMMENT = 256
#: iptables-restore 1.8.9 refuses longer lines than 10 kB; ours are far from it.
MOST_LINE = 1024

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_HOLES = {
    "name": rf"(?P<name>{_LABEL}/{_LABEL}(?::{_LABEL})?)",
    "proto": r"(?:-m tcp -p tcp|-m udp -p udp|-m sctp -p sctp)",
    "ip": r"(?P<ip>[0-9a-f.:]+)",
    "from": r"(?P<from>[0-9a-f.:]+(?:/[0-9]{1,3})?)",
    "net": r"(?P<net>[0-9a-f.:]+/[0-9]{1,3})",
    "port": r"(?P<port>[1-9][0-9]{0,4})",
    "ports": r"(?P<port>[1-9][0-9]{0,4}|(?P<low>0|[1-9][0-9]{0,4}):(?P<high>[1-9][0-9]{0,4}))",
    "address": r"(?P<address>(?:[0-9.]+|\[[0-9a-f:]+\]):[1-9][0-9]{0,4})",
    "to": r"(?P<to>[0-9.]+:[1-9][0-9]{0,4}|\[[0-9a-f:]+\]:[1-9][0-9]{0,4})",
    "svc": r"KUBE-SVC-(?P<svc>[A-Z2-7]{16})",
    "internal": r"KUBE-(?P<inside>SVC|SVL)-(?P<svc>[A-Z2-7]{16})",
    "ext": r"KUBE-EXT-(?P<ext>[A-Z2-7]{16})",
    "fw": r"KUBE-FW-(?P<fw>[A-Z2-7]{16})",
    "sep": r"KUBE-SEP-(?P<sep>[A-Z2-7]{16})",
    "same_sep": r"KUBE-SEP-(?P=sep)",
    "tree": r"KUBE-SVC-TREE-[A-Z2-7]{14}",
    "chance": r"(?P<chance>0\.[0-9]{10})",
    "seconds": r"(?P<seconds>[1-9][0-9]{0,4})",
    "mark": r"(?P<mark>0x[0-9a-f]{6,8})",
    "same_mark": r"(?P=mark)",
    "device": r"(?P<device>[A-Za-z0-9_.:-]{1,15}\+?)",
    "accounted": r"-m nfacct --nfacct-name",
}
_PODS = "(?:-s <net>|-i <device>)"
_OTHERS = "(?:! -s <net>|! -i <device>)"
_PORTAL = "<proto> -d <ip> --dport <port>"
_LOOPBACK = r"127\.0\.0\.0/8"
_LAST = (
    '"kubernetes service nodeports; NOTE: this must be the last rule in this chain"'
    f" (?:-m addrtype --dst-type LOCAL(?: ! -d (?:{_LOOPBACK}|::1/128))?|-d <ip>)"
)
_ENTRY = '-m comment --comment "kubernetes {}" -j KUBE-{}'
_NEW = "-m conntrack --ctstate NEW "


def _refusals(where: str) -> list[str]:
    """What the filter table says of a Service port without endpoints, or without local ones."""
    return [
        f'-m comment --comment "<name> has no endpoints" {where} -j REJECT',
        f'-m comment --comment "<name> has no local endpoints" {where} -j DROP',
    ]


def _branches(rules: list[str]) -> list[str]:
    """What a dispatch chain, or a branch below it, holds: rules, and jumps to branches."""
    return [*rules, "-d (?:<net>|<ip>) -j <tree>", "<proto>(?: -d <ip>)? -j <tree>",
            "<proto>(?: -d <ip>)? --dport <ports> -j <tree>"]  # fmt: skip


def _kept(where: str) -> list[str]:
    """Refusals that outlast a change, in the words of ``iptables-save``."""
    rule = (
        '-p {0} -m comment --comment "<name> has no {1}endpoints" {2}-m {0} --dport <port> -j {3}'
    )
    reject = "REJECT --reject-with icmp6?-port-unreachable"
    to, node = ("-d <from> ", "") if where == "address" else ("", "-m addrtype --dst-type LOCAL ")
    return [
        to + rule.format(protocol, *kind)
        for protocol in ("tcp", "udp", "sctp")
        for kind in (("", node, reject), ("local ", node, "DROP"))
    ]


_NAT_SERVICES = [
    f'-m comment --comment "<name> cluster IP" {_PORTAL} -j <internal>',
    f'-m comment --comment "<name> external IP" {_PORTAL} -j <ext>',
    f'-m comment --comment "<name> loadbalancer IP" {_PORTAL} -j (?:<ext>|<fw>)',
    f"-m comment --comment {_LAST} -j KUBE-NODEPORTS",
]
_NAT_NODEPORTS = [
    "-m comment --comment <name> <proto> --dport <port> -j <ext>",
    (
        f"-m comment --comment <name> <proto> -d {_LOOPBACK} --dport <port>"
        " <accounted> localhost_nps_accepted_pkts -j <ext>"
    ),
]
_FILTER_SERVICES = _refusals(_PORTAL) + _kept("address")
_NODE = "-m addrtype --dst-type LOCAL <proto> --dport <port>"
_EXTERNAL = _FILTER_SERVICES + _refusals(_NODE) + _kept("node")
_FILTER_NODEPORTS = [
    '-m comment --comment "<name> health check node port" -m tcp -p tcp --dport <port> -j ACCEPT'
]
_FIREWALL = [
    f'-m comment --comment "<name> traffic not accepted by <fw>" {_PORTAL} -j DROP',
    *(
        f'-d <from> -p {one} -m comment --comment "<name> traffic not accepted by <fw>"'
        f" -m {one} --dport <port> -j DROP"
        for one in ("tcp", "udp", "sctp")
    ),
]
_BALANCE = [
    f'-m comment --comment "<name> cluster IP" {_PORTAL}(?: {_OTHERS})? -j KUBE-MARK-MASQ',
    (
        '(?:-m comment --comment "<name> -> <address>" )?'
        "-m recent --name <sep> --rcheck --seconds <seconds> --reap -j <same_sep>"
    ),
    (
        '(?:-m comment --comment "<name> -> <address>" )?'
        "(?:-m statistic --mode random --probability <chance> )?-j <sep>"
    ),
]
_EXT = [
    '-m comment --comment "masquerade traffic for <name> external destinations" -j KUBE-MARK-MASQ',
    f'-m comment --comment "pod traffic for <name> external destinations" {_PODS} -j <svc>',
    (
        '-m comment --comment "masquerade LOCAL traffic for <name> external destinations"'
        " -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"
    ),
    (
        '-m comment --comment "route LOCAL traffic for <name> external destinations"'
        " -m addrtype --src-type LOCAL -j <svc>"
    ),
    "-j <internal>",
]
_FW = [
    '-m comment --comment "<name> loadbalancer IP" -s <from> -j <ext>',
    '-m comment --comment "other traffic to <name> will be dropped by KUBE-PROXY-FIREWALL"',
]
_SEP = [
    "(?:-m comment --comment <name> )?-s <ip> -j KUBE-MARK-MASQ",
    (
        "(?:-m comment --comment <name> )?(?:-m recent --name <sep> --set )?<proto>"
        " -j DNAT --to-destination <to>"
    ),
]
_FORWARD = [
    "-m conntrack --ctstate INVALID(?: <accounted> ct_state_invalid_dropped_pkts)? -j DROP",
    (
        '-m comment --comment "kubernetes forwarding rules" -m mark --mark <mark>/<same_mark>'
        " -j ACCEPT"
    ),
    (
        '-m comment --comment "kubernetes forwarding conntrack rule"'
        " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    ),
]
_POSTROUTING = [
    "-m mark ! --mark <mark>/<same_mark> -j RETURN",
    "-j MARK --xor-mark <mark>",
    (
        '-m comment --comment "kubernetes service traffic requiring SNAT"'
        " -j MASQUERADE(?: --random-fully)?"
    ),
]
_KUBELET = [
    (
        '-m comment --comment "block incoming localnet connections"'
        f" -d {_LOOPBACK} ! -s {_LOOPBACK} -m conntrack"
        " ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
    )
]
_OUTSIDE = _NEW + _ENTRY.format("externally-visible service portals", "EXTERNAL-SERVICES")
_SHUT = _NEW + _ENTRY.format("load balancer firewall", "PROXY-FIREWALL")
_PORTALS = _ENTRY.format("service portals", "SERVICES")
#: Rules of each chain that is written, by table; a chain of Services by its prefix.
WRITTEN: dict[str, dict[str, list[str]]] = {
    "nat": {
        "KUBE-SERVICES": _branches(_NAT_SERVICES),
        "KUBE-NODEPORTS": _branches(_NAT_NODEPORTS),
        "KUBE-SVC-TREE-": _branches(_NAT_SERVICES[:3] + _NAT_NODEPORTS),
        "KUBE-POSTROUTING": _POSTROUTING,
        "KUBE-MARK-MASQ": ["-j MARK --or-mark <mark>"],
        "KUBE-SVC-": _BALANCE,
        "KUBE-SVL-": _BALANCE,
        "KUBE-EXT-": _EXT,
        "KUBE-FW-": _FW,
        "KUBE-SEP-": _SEP,
        "KUBE-PROXY-CANARY": [],
        "KUBE-PROXY-PROBE": _branches(_NAT_SERVICES[:3] + _NAT_NODEPORTS),
    },
    "filter": {
        "KUBE-SERVICES": _branches(_FILTER_SERVICES),
        "KUBE-EXTERNAL-SERVICES": _branches(_EXTERNAL),
        "KUBE-NODEPORTS": _branches(_FILTER_NODEPORTS),
        "KUBE-PROXY-FIREWALL": _branches(_FIREWALL),
        "KUBE-SVC-TREE-": _branches(_EXTERNAL + _FILTER_NODEPORTS + _FIREWALL),
        "KUBE-FORWARD": _FORWARD,
        "KUBE-FIREWALL": _KUBELET,
        "KUBE-PROXY-CANARY": [],
        "KUBE-PROXY-PROBE": _branches(_EXTERNAL + _FILTER_NODEPORTS + _FIREWALL),
    },
    "mangle": {"KUBE-PROXY-CANARY": []},
}
#: Rules that are put in front of those of built-in chains.
JUMPS: dict[str, dict[str, list[str]]] = {
    "nat": {
        "PREROUTING": [_PORTALS],
        "OUTPUT": [_PORTALS],
        "POSTROUTING": [_ENTRY.format("postrouting rules", "POSTROUTING")],
    },
    "filter": {
        "INPUT": [
            _OUTSIDE, _SHUT, _ENTRY.format("health check service ports", "NODEPORTS"),
            "-j KUBE-FIREWALL",
        ],
        "FORWARD": [
            _OUTSIDE, _SHUT, _NEW + _PORTALS, _ENTRY.format("forwarding rules", "FORWARD"),
        ],
        "OUTPUT": [_NEW + _PORTALS, _SHUT, "-j KUBE-FIREWALL"],
    },
    "mangle": {},
}  # fmt: skip
_HASH = re.compile(r"(KUBE-(?:SVC|SVL|EXT|FW|SEP)-)([A-Z2-7]{16})")
_TREE = re.compile(r"(KUBE-SVC-TREE-)[A-Z2-7]{14}")
_PLAIN = re.compile(r"[\x20-\x7e\n]*")


class GrammarError(AssertionError):
    """A line that the agent may not write."""

    def __init__(self, number: int, line: str, reason: str) -> None:
        super().__init__(f"line {number}, {line[:300]!r}: {reason}")
        self.number = number
        self.reason = reason


class _Line(NamedTuple):
    """Where a rule stands."""

    family: int
    table: str
    chain: str


def check(text: str, family: int = 4) -> int:
    """Check a whole restore input; returns its number of lines.

    Args:
        text: the input.
        family: 4 or 6.

    Raises:
        GrammarError: a line is none that the agent may write.
    """
    if not _PLAIN.fullmatch(text):
        raise GrammarError(0, text, "a character that is neither printable ASCII nor a line end")
    if not text.endswith("COMMIT\n"):
        raise GrammarError(0, text[-80:], "it does not end with a COMMIT")
    lines = text[:-1].split("\n")
    table, declared, ruled = "", set[str](), False
    for number, line in enumerate(lines, 1):
        try:
            if not table:
                table, declared, ruled = _table(line), set(), False
            elif line == "COMMIT":
                table = ""
            elif line.startswith(":"):
                declared.add(_declared(line, table, behind=ruled))
            else:
                ruled = True
                _ruled(line, _Line(family, table, ""), declared)
        except ValueError as error:
            raise GrammarError(number, line, str(error)) from error
    return len(lines)


def _table(line: str) -> str:
    if line not in {"*filter", "*nat", "*mangle"}:
        raise ValueError("no table begins here")
    return line[1:]


def _declared(line: str, table: str, *, behind: bool) -> str:
    if behind:
        raise ValueError("a chain behind rules")
    chain = line[1:].removesuffix(" - [0:0]")
    if line != f":{chain} - [0:0]" or kind_of(chain) not in WRITTEN[table]:
        raise ValueError(f"no chain of table {table} that is ours")
    return chain


def kind_of(chain: str) -> str:
    """A chain's name, without what is hashed in it."""
    for pattern in (_TREE, _HASH):
        if found := pattern.fullmatch(chain):
            return found[1]
    return chain


def _ruled(line: str, place: _Line, declared: set[str]) -> None:
    if len(line) > MOST_LINE:
        raise ValueError(f"it has {len(line)} characters")
    verb, _, rest = line.partition(" ")
    chain, _, rule = rest.partition(" ")
    place = place._replace(chain=chain)
    kind = kind_of(chain)
    if verb in {"-I", "-D"} and chain in JUMPS[place.table]:
        _match(rule, place, JUMPS[place.table][chain])
    elif kind not in WRITTEN[place.table]:
        raise ValueError(f"no chain of table {place.table} that is ours")
    elif verb not in {"-A", "-I", "-D", "-X"} or (verb == "-X") is not (not rule):
        raise ValueError("no command that is ours")
    elif verb == "-A" and chain not in declared:
        raise ValueError("rules are appended to a chain that has not been emptied")
    elif verb != "-X":
        _written(rule, place)


@functools.lru_cache(maxsize=4096)
def _written(rule: str, place: _Line) -> None:
    _match(rule, place, WRITTEN[place.table][kind_of(place.chain)])


def _match(rule: str, place: _Line, forms: list[str]) -> None:
    found = [match for form in forms if (match := _compiled(form).fullmatch(rule))]
    if not found:
        raise ValueError(f"no form of a rule of {place.table} {kind_of(place.chain)}")
    holes = {name: text for name, text in found[0].groupdict().items() if text is not None}
    _sound(holes, place)
    _named(holes, rule, place)


def _sound(holes: dict[str, str], place: _Line) -> None:
    """Each hole holds what it says."""
    for name in holes.keys() & {"ip", "from", "net"}:
        _address(holes[name], place.family)
    for name in holes.keys() & {"to", "address"}:
        ip, _, port = holes[name].rpartition(":")
        _address(ip.strip("[]"), place.family)
        _number(port, 65535)
    for name, most in (("port", 65535), ("high", 65535), ("seconds", 86400)):
        if name in holes and ":" not in holes[name]:
            _number(holes[name], most)
    if "low" in holes and int(holes["low"]) >= int(holes["high"]):
        raise ValueError("a range of ports that ends before it begins")
    if "chance" in holes:
        _chance(holes["chance"])
    if "mark" in holes and int(holes["mark"], 16).bit_count() != 1:
        raise ValueError("a mark of more than one bit")


def _chance(text: str) -> None:
    share = round(1 / float(text)) if float(text) else 0
    if share < 2 or f"{1 / share:.10f}" != text:
        raise ValueError("a probability that is not one in so many")


def _address(text: str, family: int) -> None:
    address = ipaddress.ip_network(text) if "/" in text else ipaddress.ip_address(text)
    if address.version != family:
        raise ValueError(f"{text} is of the other family")
    if str(address) != text:
        raise ValueError(f"{text} is not how {address} is written")


def _number(text: str, most: int) -> None:
    if not 0 < int(text) <= most:
        raise ValueError(f"{text} is not from 1 to {most}")


def _named(holes: dict[str, str], rule: str, place: _Line) -> None:
    """Chains are named after the Service, port and protocol of the line."""
    comment = re.search(r'--comment (?:"([^"]*)"|(\S+))', rule)
    if comment is not None and len(comment[1] or comment[2]) >= MOST_COMMENT:
        raise ValueError("a comment that the kernel does not take")
    ports = {holes[hole] for hole in ("svc", "ext", "fw") if hole in holes}
    ends = {holes["sep"]} if "sep" in holes else set[str]()
    if owner := _HASH.fullmatch(place.chain):
        (ends if owner[1] == "KUBE-SEP-" else ports).add(owner[2])
    if len(ports) > 1:
        raise ValueError("a jump to another Service's chain")
    name, end = holes.get("name"), holes.get("address") or holes.get("to")
    if name is None:
        return
    found = re.search(r" -p (\S+)", rule)
    protocols = [found[1]] if found else ["tcp", "udp", "sctp"]
    if not ports <= {digest(name + one) for one in protocols}:
        raise ValueError(f"a chain that is not of {name}")
    if end and not ends <= {digest(name + one + end) for one in protocols}:
        raise ValueError(f"a chain that is not of {name} at {end}")


@functools.lru_cache(maxsize=4096)
def digest(text: str) -> str:
    """What a chain of a Service is named after."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]


@functools.cache
def _compiled(form: str) -> re.Pattern[str]:
    """A form as an expression; a hole stands once in each."""
    return re.compile(re.sub(r"<(\w+)>", lambda match: _HOLES[match[1]], form))
