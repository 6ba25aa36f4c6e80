"""How much memory a piece of work takes at most: arrays and bytes of Python's own, counted."""

import gc
import tracemalloc


def peak_bytes(work):
    """The most that was held at once beside what was there before; what `work` returns counts."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
