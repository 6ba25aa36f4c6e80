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


def keep_heap(large_bytes: int = _LARGE_BYTES, kept_bytes: int = _KEPT_BYTES) -> None:
    """Keep blocks below `large_bytes` on the heap, and `kept_bytes` of it free; only with glibc,
    which otherwise gives blocks of a packet's size back each time. A model stays off the heap,
    where it would leave holes."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, kept_bytes)
        library.mallopt(_MMAP_THRESHOLD, large_bytes)


def keep_memory_private() -> None:
    """Let no core of this process be written, nor another process of its user read its memory
    (Linux)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
