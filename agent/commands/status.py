"""``onenth status``: one screen from a running agent."""

from __future__ import annotations

import http.client
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from agent.commands.probe import in_words
from agent.inspect.wrap import counted, indented
from agent.serve.statuspage import sync_result
from agent.serve.statusvalues import StatusSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.model import Config

_PATH = "/statusz"
_SHOWN = 5
_LARGEST = 16 * 1024 * 1024


class StatusError(Exception):
    """There is no status to show; says what was asked."""


def default_url(config: Config) -> str:
    """Where the agent with this configuration serves its status.

    Raises:
        StatusError: nowhere.
    """
    if not config.metrics_bind_address:
        raise StatusError("metricsBindAddress is empty: this agent serves no status; give --url")
    host, _, port = config.metrics_bind_address.rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "[::1]"
    return f"http://{host}:{port}"


def fetch(url: str, timeout: float) -> bytes:
    """The status of the agent at a URL, as JSON.

    Args:
        url: like ``http://127.0.0.1:10249``, with or without the path.
        timeout: seconds for the connection, and again for the answer.

    Raises:
        StatusError: nothing answers, or not with a status.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise StatusError(f"{url!r} is not a URL like http://127.0.0.1:10249")
    path = parts.path.rstrip("/") or _PATH
    try:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    except (ValueError, http.client.HTTPException) as error:
        raise StatusError(f"{url!r} is not a URL: {error}") from error
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        body = response.read(_LARGEST)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise StatusError(
            f"nothing answers {path} at {url}: {in_words(error)}; is the agent running,"
            " with this metricsBindAddress?"
        ) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        said = body.decode(errors="replace").strip()[:200]
        raise StatusError(f"{path} at {url} answered {response.status}: {said}")
    return body


def decode(body: bytes) -> StatusSnapshot:
    """Read an agent's answer.

    Raises:
        StatusError: it is not an agent's.
    """
    try:
        return msgspec.json.decode(body, type=StatusSnapshot)
    except (msgspec.DecodeError, ValueError) as error:
        raise StatusError(f"the answer is not an agent's status: {error}") from error


def as_text(status: StatusSnapshot) -> Iterator[str]:
    """One screen, at most 80 columns wide."""
    facts = status.facts
    yield from _field("node", facts.node)
    yield from _field("agent", f"onenth {facts.version}, up since {status.started}")
    yield from _field("runs on", f"Python {facts.python}, Linux {facts.kernel}")
    yield from _field("iptables", f"{facts.backend} {facts.iptables}: {facts.reason}")
    yield from _field("Services from", facts.source)
    yield from _field("privileges", facts.privileges)
    waiting = ", ".join(counted(number, kind) for kind, number in status.queue.items())
    yield from _field("waiting", waiting)
    for family in status.families:
        rules = ", ".join(f"{number:,} {table}" for table, number in family.rules.items())
        yield ""
        yield (
            f"{family.family}: {counted(family.services, 'Service')},"
            f" {counted(family.endpoints, 'endpoint')}, {family.dispatch}"
        )
        yield from _field("  rules", rules or "none")
        yield from _field(
            "  node",
            f"{family.node_ip or 'no address'}; pods by {family.detect_local or 'nothing'}",
        )
        yield from _field("  last sync", family.last_sync or "never")
        yield from _field("  last audit", family.last_audit or "never")
        if family.waiting_seconds is not None:
            yield from _field("  waiting", f"{family.waiting_seconds:g} s")
        if family.failures:
            yield from _field("  failing", f"{counted(family.failures, 'sync')} in a row")
        if family.contested:
            yield from _field("  contested", "another program keeps writing these rules")
        for one in family.set_aside:
            yield from _field("  set aside", f"{one.service}: {one.reason}")
    yield from _lists(status)


def _lists(status: StatusSnapshot) -> Iterator[str]:
    yield ""
    yield "latest syncs" if status.syncs else "no sync yet"
    for sync in status.syncs[:_SHOWN]:
        size = f"{counted(sync.services, 'Service')}, {counted(sync.lines, 'line')}"
        text = f"{sync.at} {sync.family} {sync_result(sync)}: {', '.join(sync.why)}; {size}"
        text += f", {sync.seconds:g} s"
        yield from indented(text, 2, 4)
    if status.unusable:
        yield ""
        yield "objects with problems"
    for one in status.unusable[:_SHOWN]:
        yield from indented(f"{one.kind} {one.object}: {'; '.join(one.reasons)}", 2, 4)
    if len(status.unusable) > _SHOWN:
        yield f"  ... and {len(status.unusable) - _SHOWN} more"
    yield ""
    counters = ", ".join(f"{name} {number:,}" for name, number in status.counters.items())
    yield from indented(f"since the start: {counters or 'nothing'}", 0, 2)


def _field(name: str, value: str) -> Iterator[str]:
    yield from indented(f"{name:<15}{value}", len(name) - len(name.lstrip()), 15)
