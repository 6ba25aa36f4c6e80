"""Children that end when their parent has ended, however it ended.

The parent keeps the writing end of a pipe and passes the reading end on. When the parent dies, even
by SIGKILL, the child reads the end of the pipe and stops itself."""

from __future__ import annotations

import os
import signal
import threading
import time

VARIABLE = "EDGEVEIL_LIFELINE_FD"
GRACE_S = 5.0


class Lifeline:
    """The parent's end; use `child_fd` in `pass_fds` and `environment` in `env`."""

    def __init__(self) -> None:
        self.child_fd, self._own_fd = os.pipe()
        self.environment = {VARIABLE: str(self.child_fd)}
        self.closed = False

    def close(self) -> None:
        self.closed = True
        for fd in (self.child_fd, self._own_fd):
            os.close(fd)


def watch() -> None:
    """Watch the parent from a child: SIGTERM to itself at its end, exit 5 s later."""
    text = os.environ.pop(VARIABLE, "")
    if text.isdecimal():
        threading.Thread(target=_wait, args=(int(text),), daemon=True, name="lifeline").start()


def end_with_starter() -> None:
    """Exit this `multiprocessing` child at once when its parent ends."""
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
