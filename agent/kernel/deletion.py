"""Deletes UDP connection entries, by pyroute2.

All of pyroute2 takes about ten megabytes once it is imported, so the daemon imports this module
when the first entry is to go. Most nodes restart, and many live, without ever deleting one.

Between the decision and the deletion an entry may go, and the sender's next packet may make a new
one, which leads where it should. That one must stay. So the entry to delete is looked up by its
*reply* direction, which names the endpoint, and has to have the number that the kernel made of
its original direction (``nf_ct_get_id``). A lookup by the original direction is not enough: the new
entry has the same, and often the same number too.

The table belongs to a network namespace: everything here speaks of that of the calling thread.
Attributes: ``linux/netfilter/nfnetlink_conntrack.h``.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

from pyroute2.netlink.exceptions import NetlinkError as PyrouteError
from pyroute2.netlink.nfnetlink.nfctsocket import AsyncNFCTSocket, NFCTAttrTuple

from agent.kernel.conntrack import describe
from agent.kernel.errors import NetlinkError
from agent.kernel.netlink import FAMILIES, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kernel.conntrack import Flow

#: Seconds for the kernel to answer one request.
_PATIENCE = 10.0


def delete(flows: Sequence[Flow]) -> int:
    """Delete exactly these entries, all of one family; returns how many there still were.

    Raises:
        PrivilegeError: this process may not.
        UnsupportedError: the kernel has no connection tracking over netlink.
        NetlinkError: the kernel refused one, or does not answer; those before it are deleted.
    """
    return asyncio.run(_delete(flows)) if flows else 0


async def _delete(flows: Sequence[Flow]) -> int:
    deleted = 0
    async with AsyncNFCTSocket(nfgen_family=FAMILIES[flows[0].family]) as kernel:
        for flow in flows:
            deleted += await _delete_one(kernel, flow)
    return deleted


async def _delete_one(kernel: AsyncNFCTSocket, flow: Flow) -> bool:
    """Delete an entry; whether it was there."""
    action = f"deleting {describe(flow)}"
    try:
        async with asyncio.timeout(_PATIENCE):
            await kernel.entry("del", **key_of(flow))
    except PyrouteError as error:
        if error.code == errno.ENOENT:
            return False
        raise refusal(action, error.code) from error
    except TimeoutError as error:
        raise NetlinkError(f"{action}: the kernel does not answer", errno.ETIMEDOUT) from error
    except OSError as error:
        raise NetlinkError(f"{action}: {error}", error.errno or errno.EIO) from error
    return True


def key_of(flow: Flow) -> dict[str, Any]:
    """What names one entry to delete, as pyroute2 takes it."""
    reply = NFCTAttrTuple(
        family=FAMILIES[flow.family],
        saddr=flow.reply_src,
        daddr=flow.reply_dst,
        proto=socket.IPPROTO_UDP,
        sport=flow.reply_sport,
        dport=flow.reply_dport,
    )
    # What is None is left out; zone 0 and number 0 are those that an entry need not have.
    return {"tuple_reply": reply, "zone": flow.zone or None, "id": flow.id or None}
