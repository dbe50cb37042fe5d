"""Which rights the daemon keeps after its start, and saying so."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent import logs
from agent.config.values import split_host_port
from agent.kernel import privileges
from agent.kernel.detect import Backend
from agent.kernel.privileges import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.load import Loaded
    from agent.config.model import Config

_FIRST_FREE_PORT = 1024


def give_up(loaded: Loaded, backend: Backend) -> str:
    """Give up what is not needed from here on, unless told not to; returns what is left, as text.

    Call it in the main thread before any other is started.
    """
    log = logs.get()
    config = loaded.config
    refused: list[str] = []
    if config.drop_capabilities:
        keep = _needed(config, backend)
        if out_of_reach := privileges.unreadable(_files(loaded), keep):
            keep |= {Capability.DAC_READ_SEARCH}
            log.warning(
                "files that only CAP_DAC_READ_SEARCH lets this process read: it is kept",
                files=[str(path) for path in out_of_reach],
                remedy="let the agent's user own them, and the folders that they are in",
            )
        left, refused = privileges.reduce(keep)
    else:
        left = privileges.read()
    log.info(
        "privileges",
        capabilities=left.names(),
        no_new_privs=left.no_new_privs,
        bounding=len(left.bounding),
        given_up=config.drop_capabilities,
    )
    if refused:
        log.warning("privileges could not be given up", refused=refused)
    names = ", ".join(left.names()) or "no capability"
    return names + (", no new privileges" if left.no_new_privs else "")


def _needed(config: Config, backend: Backend) -> set[int]:
    keep: set[int] = {Capability.NET_ADMIN}
    if backend is Backend.LEGACY:
        keep.add(Capability.NET_RAW)
    addresses = (config.healthz_bind_address, config.metrics_bind_address)
    if any(split_host_port(one)[1] < _FIRST_FREE_PORT for one in addresses if one):
        keep.add(Capability.NET_BIND_SERVICE)
    return keep


def _files(loaded: Loaded) -> list[Path]:
    """What the agent was told to read, and reads again while it runs; and its own code."""
    config = loaded.config
    told = (loaded.file, config.client_connection.kubeconfig, *config.manifests)
    files = [path for name in told if name for path in _with_entries(Path(name))]
    return [*files, Path(__file__), *(Path(entry) for entry in sys.path if entry)]


def _with_entries(path: Path) -> Iterator[Path]:
    yield path
    with contextlib.suppress(OSError):
        if path.is_dir():
            yield from path.iterdir()
