"""What the C library's allocator does with large blocks: give them back.

A table of rules is read as one text of many megabytes. glibc takes the first such block from the
kernel by itself and gives it back, but learns from that: from then on blocks of that size, up to
32 MiB, come from the heap, and of the heap up to twice as much stays resident when it is free
(mallopt(3), M_MMAP_THRESHOLD). So an agent would grow by ten to twenty megabytes on the day when
somebody else's change makes it read everything, and keep them. Fixed limits end that. They cost
a few milliseconds of page faults for each such text, and nothing for what is smaller.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Blocks from this size on are the kernel's again as soon as they are free, in bytes.
_LARGE = 2 * 1024 * 1024
#: So much of the heap's end may stay, free, in bytes.
_SPARE = 4 * 1024 * 1024


def give_back_large_blocks() -> bool:
    """Set the limits for the rest of the process's life; False where the C library has none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE) and mallopt(_M_TRIM_THRESHOLD, _SPARE))
