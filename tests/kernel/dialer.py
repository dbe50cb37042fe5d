"""Many connections from one place at once, each reported by name.

As a script it runs inside a namespace, reads what to try as JSON from its standard input and
prints what came back; ``dial`` runs it. An outcome is one word and, if somebody answered, the
source address that the server saw: ``pod-1 192.168.0.1``, ``refused``, ``dropped`` (nothing came
back, or the packet did not even leave), ``reset``, ``unreachable``.
Only the standard library and ``agent.demo.server`` (likewise) are imported: it starts in a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.demo.namespaces import Namespace

#: Seconds without an answer that count as dropped.
PATIENCE = 1.2
#: ``IP_RECVERR`` and ``IPV6_RECVERR`` (linux/in.h, linux/in6.h), which the socket module lacks.
_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}


@dataclasses.dataclass(frozen=True)
class Call:
    """One connection to try."""

    address: str
    port: int
    protocol: str = "tcp"
    source: str = ""


def dial(namespace: Namespace, calls: Mapping[str, Call]) -> dict[str, str]:
    """Try all calls at once; returns the outcome of each."""
    asked = {name: dataclasses.asdict(call) for name, call in calls.items()}
    answered = namespace.run([sys.executable, str(Path(__file__))], stdin=json.dumps(asked))
    return dict(json.loads(answered.stdout))


def dial_all(calls: Sequence[tuple[Namespace, Mapping[str, Call]]]) -> dict[str, str]:
    """Try calls from several places at the same time; names must differ."""
    with ThreadPoolExecutor(len(calls)) as pool:
        found = pool.map(lambda one: dial(*one), calls)
        return {name: outcome for outcomes in found for name, outcome in outcomes.items()}


async def _try(call: Any) -> str:
    kind = socket.SOCK_DGRAM if call["protocol"] == "udp" else socket.SOCK_STREAM
    family = socket.AF_INET6 if ":" in call["address"] else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, kind) as sock:
        sock.settimeout(0)
        if call["protocol"] == "udp":  # tell of every ICMP error, not only of a closed port
            sock.setsockopt(*_RECVERR[family], 1)
        try:
            if call["source"]:
                sock.bind((call["source"], 0))
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(sock, (call["address"], call["port"]))
                # A rule that drops or rejects in OUTPUT tells EPERM at once; why comes by ICMP.
                with contextlib.suppress(PermissionError):
                    await loop.sock_sendall(sock, b"who\n")
                answer = await loop.sock_recv(sock, 4096)
        except OSError as error:  # a TimeoutError is one
            return _outcome(error)
    return " ".join(answer.decode().split()[:2]) or "reset"


def _outcome(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "dropped"
    if error.errno == errno.ECONNREFUSED:
        return "refused"
    if error.errno in {errno.ECONNRESET, errno.EPIPE}:
        return "reset"
    return errno.errorcode.get(error.errno or 0, "unknown")


async def _main() -> None:
    calls = json.load(sys.stdin)
    outcomes = await asyncio.gather(*(_try(call) for call in calls.values()))
    print(json.dumps(dict(zip(calls, outcomes, strict=True))))  # noqa: T201 (a script's output)


if __name__ == "__main__":
    asyncio.run(_main())
