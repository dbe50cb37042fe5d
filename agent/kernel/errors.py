"""What can go wrong between the agent and the kernel, besides a refused transaction."""

from __future__ import annotations

#: What to do about a lack of privilege.
REMEDY = (
    "run as root, or in a container with the capability NET_ADMIN (and NET_RAW for the legacy"
    " backend)"
)


class KernelError(Exception):
    """Base of this room's errors; the message says what was tried and what to do."""


class HostError(KernelError):
    """The machine lacks something that the agent cannot do without (exit status 3)."""


class ToolMissingError(HostError):
    """A program is not installed, or cannot be executed."""


class PrivilegeError(HostError):
    """The kernel says that this process may not do it."""


class OtherBackendError(KernelError):
    """The backend that was not chosen already holds Service rules."""


class ToolTimeoutError(KernelError):
    """A program did not end in time and was killed."""


class NetlinkError(KernelError):
    """The kernel refused a netlink request.

    Attributes:
        number: errno of the refusal, 0 if there is none.
    """

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


class UnsupportedError(NetlinkError):
    """This kernel does not have what was asked for; asking again does not help."""


class DumpInterruptedError(NetlinkError):
    """A table changed so often while it was read that some of it may have been missed."""
