"""Memory settings of the C library, for processes that load no transport too."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_PR_SET_DUMPABLE = 4  # prctl(2)
_LARGE_BYTES, _KEPT_BYTES = 2 << 20, 32 << 20


def keep_heap() -> None:
    """Keep blocks below 2 MiB on the heap, and 32 MiB of it free, with glibc."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def keep_memory_private() -> None:
    """Disable core dumps, and memory access by the user's other processes (Linux)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
