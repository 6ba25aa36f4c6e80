"""Children that end when their starter is gone, however it ended.

The starter keeps the writing end of a pipe and passes the reading end on. When the starter dies,
even by SIGKILL, the child reads the end of the pipe and stops itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time

VARIABLE = "EDGEVEIL_LIFELINE_FD"
GRACE_S = 5.0


class Lifeline:
    """The starter's end. Pass `child_fd` with `pass_fds` and `environment` with `env`."""

    def __init__(self) -> None:
        self.child_fd, self._own_fd = os.pipe()
        self.environment = {VARIABLE: str(self.child_fd)}
        self.closed = False

    def close(self) -> None:
        """Let go: children that still run end."""
        self.closed = True
        for fd in (self.child_fd, self._own_fd):
            os.close(fd)


def watch() -> None:
    """In a child: SIGTERM to oneself when the starter is gone, and after 5 s an end without it."""
    text = os.environ.pop(VARIABLE, "")
    if text.isdecimal():
        threading.Thread(target=_wait, args=(int(text),), daemon=True, name="lifeline").start()


def end_with_starter() -> None:
    """The same in a process of `multiprocessing`, which knows its starter: it ends at once."""
    from multiprocessing import parent_process

    def outlive() -> None:
        if (starter := parent_process()) is not None:
            starter.join()
            os._exit(1)

    threading.Thread(target=outlive, daemon=True).start()


def _wait(fd: int) -> None:
    try:
        while os.read(fd, 1):
            pass
    except OSError:
        return  # no such pipe: started by hand with a stale variable
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)
