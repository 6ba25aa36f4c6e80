"""How the C library's allocator deals with packets: it keeps their memory for the next one.

By default glibc gives blocks of a packet's size back to the system and takes them anew each time;
the page faults cost more than all else that is done with a packet of 256 KiB.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
KEPT_BYTES = 32 << 20
LARGE_BYTES = 32 << 20


def keep_heap() -> None:
    """Keep blocks below 32 MiB on the heap, and up to 32 MiB of it free; only where glibc is."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
