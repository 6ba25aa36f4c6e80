"""Where the C library keeps a process's memory, and that it stays in there; apart, for the process
that computes and loads no transport.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_PR_SET_DUMPABLE = 4  # prctl(2)
_LARGE_BYTES, _KEPT_BYTES = 2 << 20, 32 << 20


def keep_heap() -> None:
    """Keep blocks below 2 MiB on the heap, and 32 MiB of it free; only with glibc, which otherwise
    gives blocks of a packet's size back each time. A model stays off it, where it leaves holes."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def keep_memory_private() -> None:
    """Let no core be written, nor others of this user read this process's memory (Linux)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
