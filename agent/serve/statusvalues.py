"""The agent's status as values: what ``/statusz`` serves and ``onenth status`` reads."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import msgspec

from agent import __version__

if TYPE_CHECKING:
    from agent.config.model import Config
    from agent.kernel.iptables import Capabilities


class Facts(msgspec.Struct, frozen=True, rename="camel"):
    """What does not change while the agent runs.

    Attributes:
        version: of the agent.
        node: name of the Node.
        source: where Services come from.
        backend: of iptables.
        iptables: its version.
        reason: why that backend was chosen.
        kernel: release.
        python: version.
        privileges: what the process may still do.
    """

    version: str
    node: str
    source: str
    backend: str
    iptables: str
    reason: str
    kernel: str
    python: str
    privileges: str = ""


def agent_facts(config: Config, capabilities: Capabilities, privileges: str) -> Facts:
    """What does not change, of this process."""
    tool = capabilities.tool
    return Facts(
        version=__version__,
        node=config.hostname_override,
        source="manifests" if config.manifests else "the API server",
        backend=tool.backend.value,
        iptables=".".join(map(str, tool.version)),
        reason=capabilities.reason,
        kernel=os.uname().release,
        python=platform.python_version(),
        privileges=privileges,
    )


class SyncEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One sync; times are RFC 3339, durations seconds."""

    at: str
    family: str
    full: bool
    why: tuple[str, ...]
    accepted: bool
    seconds: float
    services: int = 0
    transactions: int = 0
    lines: int = 0
    deleted_chains: int = 0
    latency: float | None = None
    error: str = ""
    retry_seconds: float | None = None


class AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One comparison of the kernel with what it accepted; ``differences`` None if it failed."""

    at: str
    family: str
    differences: int | None
    first: tuple[str, ...] = ()
    error: str = ""


class AsideService(msgspec.Struct, frozen=True, rename="camel"):
    """A Service that is set aside, and why."""

    service: str
    reason: str
    refusals: int
    retry_seconds: float


class Unusable(msgspec.Struct, frozen=True, rename="camel"):
    """An object that cannot be used, or not as a whole."""

    kind: str
    object: str
    reasons: tuple[str, ...]


class FamilyStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One family.

    Attributes:
        family: IPv4 or IPv6.
        synced: its rules have been written.
        services: Services with rules.
        endpoints: of all Services.
        rules: by table.
        dispatch: flat or tree.
        node_ip: the node's address.
        detect_local: how traffic of pods is told.
        waiting_seconds: for how long the oldest change has waited for the kernel; None for none.
        failures: syncs that failed since the last one that was accepted.
        set_aside: Services that the kernel refused.
        last_sync: when the last one was accepted; empty for never.
        last_audit: when the kernel was compared last; likewise.
        contested: somebody else keeps writing our rules.
    """

    family: str
    synced: bool
    services: int
    endpoints: int
    rules: dict[str, int]
    dispatch: str
    node_ip: str
    detect_local: str
    waiting_seconds: float | None
    failures: int
    set_aside: tuple[AsideService, ...]
    last_sync: str
    last_audit: str
    contested: bool = False


class StatusSnapshot(msgspec.Struct, frozen=True, rename="camel"):
    """All of it at one moment.

    Attributes:
        facts: what does not change.
        at: now.
        started: when the agent did.
        uptime_seconds: since then.
        lists: kinds whose first list is complete.
        queue: changes since the last accepted sync, by kind.
        families: each.
        syncs: the latest, newest first.
        audits: likewise.
        unusable: objects with problems.
        counters: events since the start.
    """

    facts: Facts
    at: str
    started: str
    uptime_seconds: float
    lists: tuple[str, ...]
    queue: dict[str, int]
    families: tuple[FamilyStatus, ...]
    syncs: tuple[SyncEvent, ...]
    audits: tuple[AuditEvent, ...]
    unusable: tuple[Unusable, ...]
    counters: dict[str, int]
