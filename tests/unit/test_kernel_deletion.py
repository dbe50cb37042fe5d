"""What is asked of pyroute2 to delete an entry, and what becomes of the kernel's refusals."""

from __future__ import annotations

import errno
import socket
from typing import Any, Self

import pytest
from pyroute2.netlink.exceptions import NetlinkError as PyrouteError
from pyroute2.netlink.nfnetlink.nfctsocket import nfct_msg

from agent.kernel import deletion
from agent.kernel.conntrack import Flow
from agent.kernel.errors import KernelError, NetlinkError, PrivilegeError, UnsupportedError
from agent.state.values import Family

CLIENT, POD = "192.0.2.7", "10.64.0.3"
FLOW = Flow(Family.V4, CLIENT, 4000, "10.96.0.10", 53, POD, 5353, CLIENT, 4000, id=0x10002)
ZONED = Flow(Family.V6, "", 1, "", 2, "fd00::3", 53, "fd00::7", 4000, zone=5)


class Kernel:
    """Stands in for pyroute2's socket: what the kernel answers is fixed."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.family = 0

    def __call__(self, *, nfgen_family: int) -> Self:
        self.family = nfgen_family
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def entry(self, command: str, **key: Any) -> list[object]:
        assert command == "del"
        assert key
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return []


def test_deleting_goes_on_over_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(None, PyrouteError(errno.ENOENT), None)
    monkeypatch.setattr(deletion, "AsyncNFCTSocket", kernel)

    assert deletion.delete([FLOW] * 3) == 2
    assert kernel.family == socket.AF_INET


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (PyrouteError(errno.EBUSY), NetlinkError, "Device or resource busy"),
        (PyrouteError(errno.EPERM), PrivilegeError, "NET_ADMIN"),
        (PyrouteError(errno.EOPNOTSUPP), UnsupportedError, "this kernel cannot do it"),
        (OSError(errno.ENOBUFS, "No buffer space available"), NetlinkError, "No buffer space"),
        (TimeoutError(), NetlinkError, "the kernel does not answer"),
    ],
    ids=["busy", "not permitted", "unsupported", "no memory", "silence"],
)
def test_another_refusal_says_of_which_entry(
    monkeypatch: pytest.MonkeyPatch, answer: Exception, error: type[KernelError], said: str
) -> None:
    monkeypatch.setattr(deletion, "AsyncNFCTSocket", Kernel(None, answer))
    with pytest.raises(error, match=f"deleting UDP entry {CLIENT} port 4000 .*{said}"):
        deletion.delete([FLOW] * 3)


def test_of_nothing_the_kernel_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "AsyncNFCTSocket", Kernel())

    assert deletion.delete([]) == 0


@pytest.mark.parametrize(
    ("flow", "zone", "number"),
    [
        (FLOW, None, 0x10002),
        (Flow(Family.V6, "", 1, "", 2, "fd00::3", 53, "fd00::7", 9, 5), 5, None),
    ],
    ids=["with a number", "in a zone"],
)
def test_an_entry_is_named_by_its_answer(flow: Flow, zone: int | None, number: int | None) -> None:
    """The reply's addresses and ports; zone and number if there are any, and nothing else."""
    message = nfct_msg.create_from(**deletion.key_of(flow))
    reply = dict(dict(message["attrs"])["CTA_TUPLE_REPLY"]["attrs"])
    version = flow.family.value[-2:].upper()

    assert [name for name, _ in message["attrs"]] == [
        "CTA_TUPLE_REPLY", *["CTA_ZONE"] * (zone is not None), *["CTA_ID"] * (number is not None),
    ]  # fmt: skip
    assert dict(reply["CTA_TUPLE_IP"]["attrs"]) == {
        f"CTA_IP_{version}_SRC": flow.reply_src,
        f"CTA_IP_{version}_DST": flow.reply_dst,
    }
    assert dict(reply["CTA_TUPLE_PROTO"]["attrs"]) == {
        "CTA_PROTO_NUM": 17,
        "CTA_PROTO_SRC_PORT": flow.reply_sport,
        "CTA_PROTO_DST_PORT": flow.reply_dport,
    }
    assert message.get_attr("CTA_ZONE") == zone
    assert message.get_attr("CTA_ID") == number
