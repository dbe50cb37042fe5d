from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, Any, Self

import pytest
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, nfct_msg

from agent.kernel import conntrack, nfacct
from agent.kernel.conntrack import Flow
from agent.kernel.errors import (
    DumpInterruptedError,
    NetlinkError,
    PrivilegeError,
    UnsupportedError,
)
from agent.kernel.netlink import Channel
from agent.state.values import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DONE, ERROR, OVERRUN, ENTRY = 3, 2, 4, 0x100
INTERRUPTED = 0x10


def message(kind: int, payload: bytes = b"", flags: int = 0, sequence: int = 1) -> bytes:
    padding = -len(payload) % 4
    header = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0)
    return header + payload + bytes(padding)


def status(number: int) -> bytes:
    return struct.pack("=i", -number)


class Wire:
    """Stands in for the socket: what the kernel says is fixed."""

    def __init__(self, *datagrams: bytes | OSError) -> None:
        self.datagrams = list(datagrams)
        self.closed = False

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, size: int) -> bytes:
        assert size >= 1 << 16
        found = self.datagrams.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def close(self) -> None:
        self.closed = True


def channel(*datagrams: bytes | OSError) -> Channel:
    made = Channel()
    made.close()
    made._socket = Wire(*datagrams)  # type: ignore[assignment]
    return made


def dump(*datagrams: bytes | OSError) -> list[bytes]:
    found = channel(*datagrams).dump("reading", 0, ENTRY)
    return [answer[16:] for answer in found]


def request(*datagrams: bytes | OSError) -> list[bytes]:
    found = channel(*datagrams).request("asking", 0, ENTRY)
    return [answer[16:] for answer in found]


def test_a_dump_goes_on_until_it_is_done() -> None:
    """Messages of several datagrams come in order, padding is skipped, DONE ends it."""
    found = dump(
        message(ENTRY, b"one.") + message(ENTRY, b"2"),
        message(ENTRY, b"three...") + message(DONE, status(0)),
    )

    assert found == [b"one.", b"2", b"three..."]


def test_a_dump_is_read_only_as_far_as_it_is_used() -> None:
    """The second datagram is not asked for before the first has been used up."""
    made = channel(message(ENTRY, b"1...") + message(ENTRY, b"2..."), message(DONE, status(0)))
    entries = made.dump("reading", 0, ENTRY)
    next(entries)
    next(entries)

    assert len(made._socket.datagrams) == 1  # type: ignore[attr-defined]


def test_an_interrupted_dump_says_so_at_its_end() -> None:
    """All that came is handed out first, then the error tells to read again."""
    entries = channel(
        message(ENTRY, b"1...", INTERRUPTED) + message(ENTRY, b"2..."), message(DONE, status(0))
    ).dump("reading", 0, ENTRY)

    assert [next(entries)[16:], next(entries)[16:]] == [b"1...", b"2..."]
    with pytest.raises(DumpInterruptedError, match="reading: the table changed"):
        next(entries)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EPERM, PrivilegeError),
        (errno.EOPNOTSUPP, UnsupportedError),
        (errno.ENOENT, NetlinkError),
    ],
)
@pytest.mark.parametrize("ask", [dump, request])
def test_what_the_kernel_refuses_is_typed(
    ask: Callable[..., list[bytes]], number: int, kind: type[Exception]
) -> None:
    """An error in place of an answer is raised as what it means, with its number."""
    with pytest.raises(kind) as caught:
        ask(message(ERROR, status(number)))

    assert getattr(caught.value, "number", number) == number


def test_a_dump_may_end_with_an_error() -> None:
    """DONE can carry an error; the entries before it are no complete table."""
    with pytest.raises(NetlinkError) as caught:
        dump(message(ENTRY, b"1..."), message(DONE, status(errno.EIO)))

    assert caught.value.number == errno.EIO


def test_answers_to_an_earlier_request_are_skipped() -> None:
    """What is left over from a request that was broken off is not taken for this one's."""
    assert request(
        message(ENTRY, b"old.", sequence=0),
        message(ENTRY, b"new.") + message(ERROR, status(0)),
    ) == [b"new."]


@pytest.mark.parametrize(
    "datagram",
    [
        pytest.param(message(ENTRY, b"1...")[:-2], id="cut short"),
        pytest.param(struct.pack("=IHHII", 4, ENTRY, 0, 1, 0), id="shorter than a header"),
        pytest.param(message(OVERRUN), id="overrun"),
        pytest.param(BlockingIOError(errno.EAGAIN, "Try again"), id="silent"),
        pytest.param(OSError(errno.ENOBUFS, "No buffer space"), id="no buffers"),
    ],
)
def test_a_broken_answer_is_an_error(datagram: bytes | OSError) -> None:
    """Whatever is wrong with an answer, it is a NetlinkError with a number."""
    with pytest.raises(NetlinkError, match="reading: ") as caught:
        dump(datagram)

    assert caught.value.number > 0


# Connection entries


def whole(*datagrams: bytes | OSError) -> bytes:
    return channel(*datagrams).dump_whole("reading", 0, ENTRY)


END = message(DONE, status(0), flags=2)
A, B = message(ENTRY, b"a"), message(ENTRY, b"b")


@pytest.mark.parametrize(
    "datagrams",
    [
        (A + B, END),
        (A, B, END),
        (A, B + END),
        (A + B + END,),  # a kernel might
        (message(ENTRY, b"old", sequence=0), A, B, END),
        (message(DONE, status(0), flags=2, sequence=0), A + B, END),
    ],
)
def test_a_whole_dump_is_its_messages_on_end(datagrams: tuple[bytes, ...]) -> None:
    """However the kernel hands them out, without what ends them, or belongs to another one."""
    assert whole(*datagrams) == A + B
    assert whole(END) == b""


@pytest.mark.parametrize(
    ("datagrams", "error", "number"),
    [
        ((A, message(DONE, status(0), flags=2 | INTERRUPTED)), DumpInterruptedError, errno.EINTR),
        ((A, message(DONE, status(errno.ENOENT), flags=2)), NetlinkError, errno.ENOENT),
        ((message(ERROR, status(errno.ENOENT) + bytes(16)),), NetlinkError, errno.ENOENT),
        ((message(OVERRUN, status(0)),), NetlinkError, errno.ENOBUFS),
        ((b"short",), NetlinkError, errno.EMSGSIZE),
        ((BlockingIOError(),), NetlinkError, errno.ETIMEDOUT),
    ],
)
def test_a_whole_dump_that_cannot_be_had(
    datagrams: tuple[bytes | OSError, ...], error: type[NetlinkError], number: int
) -> None:
    """As with one that is streamed."""
    with pytest.raises(error, match="reading") as caught:
        whole(*datagrams)
    assert caught.value.number == number


def attribute(kind: int, payload: bytes, *, nested: bool = False) -> bytes:
    head = struct.pack("=HH", 4 + len(payload), kind | (0x8000 if nested else 0))
    return head + payload + bytes(-len(payload) % 4)


def side(source: bytes, destination: bytes, ports: tuple[int, int], protocol: int = 17) -> bytes:
    first = 1 if len(source) == 4 else 3
    addresses = attribute(first, source) + attribute(first + 1, destination)
    what = attribute(1, bytes([protocol]))
    what += attribute(2, struct.pack("!H", ports[0])) + attribute(3, struct.pack("!H", ports[1]))
    return attribute(1, addresses, nested=True) + attribute(2, what, nested=True)


def entry(orig: bytes, reply: bytes, *more: bytes) -> bytes:
    attributes = attribute(1, orig, nested=True) + attribute(2, reply, nested=True)
    return message(ENTRY, bytes(4) + attributes + b"".join(more))


CLIENT, SERVICE, POD = bytes([192, 0, 2, 7]), bytes([10, 96, 0, 10]), bytes([10, 64, 0, 3])
ORIG = side(CLIENT, SERVICE, (4000, 53))
REPLY = side(POD, CLIENT, (5353, 4000))


def test_an_entry_is_taken_apart() -> None:
    """Addresses, ports, zone and number of a translated flow, in whatever order they come."""
    unknown = attribute(99, b"whatever")
    raw = entry(ORIG, REPLY, unknown, attribute(18, b"\0\5"), attribute(12, b"\0\1\0\2"))

    assert conntrack.parse(Family.V4, raw) == Flow(
        family=Family.V4,
        orig_src="192.0.2.7",
        orig_sport=4000,
        orig_dst="10.96.0.10",
        orig_dport=53,
        reply_src="10.64.0.3",
        reply_sport=5353,
        reply_dst="192.0.2.7",
        reply_dport=4000,
        zone=5,
        id=0x10002,
    )


def test_an_ipv6_entry_is_taken_apart() -> None:
    """Addresses of sixteen bytes become canonical text."""
    one, two = bytes.fromhex("20010db8" + "0" * 23 + "1"), bytes.fromhex("fd" + "0" * 29 + "2")
    raw = entry(side(one, two, (1, 2)), side(two, one, (2, 1)))
    flow = conntrack.parse(Family.V6, raw)

    assert flow is not None
    assert (flow.orig_src, flow.orig_dst, flow.zone, flow.id) == ("2001:db8::1", "fd00::2", 0, 0)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(entry(side(CLIENT, SERVICE, (1, 2), protocol=6), REPLY), id="TCP"),
        pytest.param(entry(ORIG, attribute(1, b"")), id="no addresses in the reply"),
        pytest.param(message(ENTRY, bytes(4) + attribute(1, ORIG)), id="no reply"),
        pytest.param(entry(side(bytes(16), bytes(16), (1, 2)), REPLY), id="another family"),
        pytest.param(entry(ORIG + attribute(3, b"\0\5"), REPLY), id="zone of one direction"),
        pytest.param(message(ENTRY, bytes(4) + struct.pack("=HH", 2, 1)), id="impossible length"),
        pytest.param(message(ENTRY, bytes(4)), id="empty"),
        pytest.param(message(ENTRY), id="nothing"),
    ],
)
def test_what_is_no_usable_entry_is_none(raw: bytes) -> None:
    """Entries of others and malformed ones are passed over."""
    assert conntrack.parse(Family.V4, raw) is None


class Table:
    """Stands in for ``Channel``: each opening replays the next script."""

    def __init__(self, *scripts: list[bytes | Exception]) -> None:
        self.scripts = list(scripts)
        self.filtered: list[bool] = []

    def __call__(self) -> Table:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def dump(self, _: str, __: int, ___: int, body: bytes = b"") -> Iterator[bytes]:
        self.filtered.append(bool(body))
        for answer in self.scripts.pop(0):
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def request(
        self, action: str, _: int, __: int, body: bytes = b"", flags: int = 0
    ) -> list[bytes]:
        assert action
        assert body
        assert flags >= 0
        answer = self.scripts.pop(0)[0]
        if isinstance(answer, Exception):
            raise answer
        return [answer]


@pytest.fixture(name="use")
def _use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    def use(*scripts: list[bytes | Exception]) -> Table:
        table = Table(*scripts)
        monkeypatch.setattr(conntrack, "Channel", table)
        monkeypatch.setattr(nfacct, "Channel", table)
        return table

    return use


def ports(family: Family = Family.V4) -> list[int]:
    return [flow.orig_sport for flow in conntrack.udp_flows(family)]


def numbered(number: int) -> bytes:
    return entry(side(CLIENT, SERVICE, (number, 53)), REPLY)


def test_an_interrupted_reading_is_repeated(use: Callable[..., Table]) -> None:
    """What was missed the first time comes the second time; three times in vain is an error."""
    interrupted = DumpInterruptedError("again", errno.EINTR)
    use([numbered(1), interrupted], [numbered(1), numbered(2)])
    repeated = ports()
    use(*[[numbered(1), interrupted]] * 3)

    assert repeated == [1, 1, 2]
    with pytest.raises(DumpInterruptedError):
        ports()


def test_a_kernel_without_the_filter_is_asked_for_everything(use: Callable[..., Table]) -> None:
    """A refusal of the filter leads to a dump without it."""
    table = use([NetlinkError("no filter", errno.EINVAL)], [numbered(1)])

    assert ports() == [1]
    assert table.filtered == [True, False]


def test_a_kernel_without_tracking_is_unsupported(use: Callable[..., Table]) -> None:
    """If the plain dump is refused as well, the kernel has no such table."""
    use(*[[NetlinkError("no table", errno.EINVAL)]] * 2)
    with pytest.raises(UnsupportedError, match="CONFIG_NF_CT_NETLINK"):
        ports()


def test_a_flow_is_described() -> None:
    """Both ends are named in words that a log line can take."""
    flow = conntrack.parse(Family.V4, entry(ORIG, REPLY))
    assert flow is not None

    assert conntrack.describe(flow) == (
        "UDP entry 192.0.2.7 port 4000 to 10.96.0.10 port 53, answered by 10.64.0.3 port 5353"
    )


def encoded(family: int, *attributes: tuple[str, Any]) -> bytes:
    """A message as pyroute2 encodes it, without its headers."""
    message = nfct_msg()
    message["nfgen_family"] = family
    message["attrs"] = list(attributes)
    message.encode()
    return bytes(message.data[20:])


def test_the_filter_is_encoded_as_pyroute2_does() -> None:
    """UDP, and the flag that says that the protocol counts."""
    wanted = NFCTAttrTuple(family=socket.AF_INET, proto=17)
    attrs = wanted.attrs()  # computes the flags

    assert conntrack._only_udp() == encoded(
        socket.AF_INET,
        ("CTA_TUPLE_ORIG", {"attrs": attrs}),
        ("CTA_FILTER", {"attrs": [("CTA_FILTER_ORIG_FLAGS", wanted.flags)]}),
    )


# Counters


def test_a_kernel_without_counters_is_unsupported(use: Callable[..., Table]) -> None:
    """The kernel calls an unknown subsystem an invalid argument."""
    use(*[[NetlinkError("what?", errno.EINVAL)]] * 2)
    with pytest.raises(UnsupportedError, match="CONFIG_NETFILTER_NETLINK_ACCT"):
        nfacct.ensure("name")
    with pytest.raises(UnsupportedError, match="CONFIG_NETFILTER_NETLINK_ACCT"):
        nfacct.read_all()


def test_other_refusals_of_a_counter_are_raised(use: Callable[..., Table]) -> None:
    """Only "exists" is fine for making, and only "no such" for reading and deleting."""
    for ask in (nfacct.ensure, nfacct.read, nfacct.delete):
        use([NetlinkError("broken", errno.EIO)])
        with pytest.raises(NetlinkError, match="broken"):
            ask("name")


@pytest.mark.parametrize("name", ["", "x" * 32])
def test_names_that_the_kernel_would_cut_are_refused(name: str) -> None:
    """A counter's name has 1 to 31 bytes."""
    with pytest.raises(ValueError, match="1 to 31 bytes"):
        nfacct.ensure(name)
