"""Peak memory of a piece of work, in arrays and Python objects."""

import gc
import tracemalloc


def peak_bytes(work):
    """Return the peak memory above the start, including the result of `work`."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
