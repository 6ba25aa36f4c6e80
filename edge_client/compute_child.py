"""The process in which a device computes with its records, and which its device may end.

    python -m edge_client.compute_child PIPE LIFELINE

It serves one request after the other and ends with its starter. Subnormal numbers are flushed
before anything else is loaded, so that every thread of the process inherits it.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection

from fl_core.subnormals import flush_subnormals

NICE = 10  # the device's own process stays quick to answer while this one computes


def main() -> None:
    """Serve until the pipe is closed."""
    flush_subnormals()
    pipe, lifeline = (int(text) for text in sys.argv[1:3])
    threading.Thread(target=_end_with_the_starter, args=(lifeline,), daemon=True).start()
    os.nice(NICE)
    from edge_client.compute_server import Server

    with Connection(pipe) as connection:
        Server(connection).serve()


def _end_with_the_starter(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: it ends when the starter does
    os._exit(0)


if __name__ == "__main__":
    main()
