"""What sync needs of a kernel, and an error that says what was refused."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection


class Refusal(enum.Enum):
    """Why a restore did not happen, as far as it decides what to do next."""

    #: The input has a line that the tool or the kernel does not take; the same input fails again.
    INPUT = "input"
    #: The xtables lock is held by another process.
    LOCKED = "locked"
    #: Another change came in between, or a resource was short; the same input may go in later.
    BUSY = "busy"
    #: The tool is missing, was killed or did not end in time.
    BROKEN = "broken"


class RestoreError(Exception):
    """Restore input was not accepted.

    Each table is a transaction of its own: tables in front of the one at fault were accepted,
    that one and those behind it hold what they held before.

    Attributes:
        refusal: the kind.
        line: 1-based line of the input that the tool complained about, if it named one. A
            complaint about a COMMIT line concerns the whole table.
        stderr: what the tool said, bounded.
    """

    def __init__(self, message: str, refusal: Refusal, *, line: int | None, stderr: str) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.line = line
        self.stderr = stderr


class ReadError(Exception):
    """The kernel's rules could not be read."""


class Kernel(Protocol):
    """The tables of one family, through the chosen backend."""

    def restore(self, text: str) -> None:
        """Apply restore input, each table atomically, keeping chains that it does not name.

        Raises:
            RestoreError: it was not accepted.
        """

    def save(self, table: str) -> str:
        """Return the table's chains and rules as ``iptables-save -t TABLE`` prints them.

        Raises:
            ReadError: they could not be read.
        """

    def chains(self, table: str) -> set[str]:
        """Return the names of the table's chains.

        Raises:
            ReadError: they could not be read.
        """

    def chain(self, table: str, chain: str) -> list[str] | None:
        """Return the chain's rules as ``-A CHAIN ...`` lines, or None if there is no such chain.

        Raises:
            ReadError: it could not be read.
        """

    def confirm(self) -> None:
        """From here on, watch whether anybody else changes the rules of this machine.

        Raises:
            ReadError: the kernel could not be asked.
        """

    def untouched(self) -> bool:
        """Whether, for certain, nobody else has changed any rule since ``confirm``.

        False where that cannot be told.
        """

    def digests(self, table: str, chains: Collection[str]) -> dict[str, bytes] | None:
        """Return a digest of the rules of each chain that has any.

        None where chains can only be read as text. A chain that was written again may have
        another digest for the same rules.

        Raises:
            ReadError: they could not be read.
        """


class Wrapped:
    """A kernel around another one; subclasses change what they are for."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def restore(self, text: str) -> None:
        """Pass on."""
        self._kernel.restore(text)

    def save(self, table: str) -> str:
        """Pass on."""
        return self._kernel.save(table)

    def chains(self, table: str) -> set[str]:
        """Pass on."""
        return self._kernel.chains(table)

    def chain(self, table: str, chain: str) -> list[str] | None:
        """Pass on."""
        return self._kernel.chain(table, chain)

    def confirm(self) -> None:
        """Pass on."""
        self._kernel.confirm()

    def untouched(self) -> bool:
        """Pass on."""
        return self._kernel.untouched()

    def digests(self, table: str, chains: Collection[str]) -> dict[str, bytes] | None:
        """Pass on."""
        return self._kernel.digests(table, chains)
