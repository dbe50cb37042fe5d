"""``onenth probe``: ask the agent on this machine how it is, for health checks without curl."""

from __future__ import annotations

import http.client
import ipaddress
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from agent.config.model import Config


class ProbeError(Exception):
    """There is no answer; the message says what was asked."""


class Answered(msgspec.Struct, frozen=True):
    """An answer: HTTP status and body."""

    status: int
    body: str


def probe(config: Config, which: str, timeout: float) -> Answered:
    """Ask for ``/healthz``, ``/livez`` or ``/readyz``.

    Args:
        config: of the agent that is asked; only ``healthzBindAddress`` matters.
        which: the probe, without the slash.
        timeout: seconds for the connection, and again for the answer.

    Raises:
        ProbeError: probes are switched off, or nothing answers.
    """
    if not config.healthz_bind_address:
        raise ProbeError("healthzBindAddress is empty: this agent serves no probes")
    host, port = _reachable(config.healthz_bind_address)
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", f"/{which}")
        response = connection.getresponse()
        return Answered(response.status, response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise ProbeError(
            f"nothing answers /{which} on {host} port {port}: {in_words(error)};"
            " is the agent running, with this healthzBindAddress?"
        ) from error
    finally:
        connection.close()


def _reachable(bound: str) -> tuple[str, int]:
    """Where a server answers that is bound to an address: the loopback for "every address"."""
    host, _, port = bound.rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    if address.is_unspecified:
        return ("127.0.0.1" if address.version == 4 else "::1"), int(port)
    return str(address), int(port)


def in_words(error: Exception) -> str:
    """An error in words, without its number."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or repr(error)
