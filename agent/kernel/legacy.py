"""Chains of iptables-legacy, read in process by python-iptables (the extra ``legacy``).

Quicker than a program where many tables are asked in a row, but only for short-lived commands:
the library calls into libxtables, which ends the *process* with ``exit()`` on some errors, so
the daemon does not import this module. It never writes; it knows the legacy backend alone.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from agent.state.values import Family

_MODULES = {Family.V4: "ip", Family.V6: "ip6"}


def read_chain_names(family: Family, table: str) -> set[str] | None:
    """Names of the chains of a table.

    Returns:
        The names; an empty set if the table does not exist (it is not created by asking); None if
        they cannot be read here: the library is not installed, does not find libiptc, or this
        process has no privilege.
    """
    listed = Path(f"/proc/thread-self/net/{_MODULES[family]}_tables_names")
    try:
        if table not in listed.read_text(encoding="ascii").split():
            return set()
    except OSError:
        return None  # the kernel has no legacy tables, or this process may not look
    iptc = _library()
    if iptc is None:
        return None
    kind = iptc.Table if family is Family.V4 else iptc.Table6
    try:
        opened = kind(table)
        with contextlib.closing(opened):
            opened.refresh()
            return {chain.name for chain in opened.chains}
    except iptc.IPTCError:
        return None


def _library() -> Any:
    """The library, None if it is not installed or finds no libiptc."""
    try:
        return importlib.import_module("iptc")
    except (ImportError, OSError, AttributeError):
        return None
