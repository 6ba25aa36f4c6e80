"""`python -m edgeveil_cloud.compute.worker DESCRIPTOR`: opens slices until its starter ends."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from edgeveil.heap import keep_memory_private
from edgeveil.storage import FileData
from edgeveil_cloud.compute.processes import SliceFailure, receive_file, receive_value, send_value
from edgeveil_cloud.open_segments import RoundOpening

IDLE_S = 300.0  # idle timeout; a new worker starts in half a second


def serve(starter: socket.socket) -> None:
    """Open one slice after another; raises EOFError or OSError when the starter ends."""
    send_value(starter, None)  # ready
    while True:
        starter.settimeout(IDLE_S)
        number, fields, of = receive_value(starter)
        starter.settimeout(None)
        data = FileData(receive_file(starter))
        try:
            result = of.opened(RoundOpening.from_fields(fields), data)
        except Exception as error:  # its text could quote what was opened
            result = SliceFailure(type(error).__name__)
        data.close()
        send_value(starter, (number, result))
        del result


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the starter handles signals
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # killed first when memory runs out
    keep_memory_private()  # it holds a round's key
    with suppress(EOFError, OSError), socket.socket(fileno=int(sys.argv[1])) as own:
        serve(own)
