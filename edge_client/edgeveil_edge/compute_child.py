"""The child that loads libraries, jobs and records for a device, and forks workers that compute.

    python -m edgeveil_edge.compute_child PIPE

Nothing here starts threads that a fork would lose: torch is imported and never used, a session is
opened in workers alone.

Libraries never leave a process that loaded them. So from its first job on a fork serves in its
place, the *branch*, and ends when it has known no job for IDLE_S: the memory of torch goes back,
and devices and records of before are still there for the next job. Its end follows from when jobs
begin and end, and from no record.

Subnormal numbers are flushed before anything else is loaded, so that all that follows inherits it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING

from edgeveil.heap import keep_heap, keep_memory_private
from edgeveil.own_process import declare_own
from edgeveil.subnormals import flush_subnormals

if TYPE_CHECKING:
    from edgeveil_edge.compute_worker import ComputeServer

NICE = 2  # the device's own process stays quick to answer; more would starve it on a busy box
IDLE_S = 60.0  # a further job within so long finds all libraries loaded
_IDLE_EXIT = 3
_PR_SET_PDEATHSIG = 1


def serve(control: Connection) -> None:
    """Serve until the pipe is closed, which is also when the starter ends."""
    declare_own()
    flush_subnormals()
    keep_heap()
    keep_memory_private()
    os.nice(NICE)
    # Read as torch is loaded: threads that spin for each other crawl on a busy box.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from edgeveil_edge.compute_worker import ComputeServer

    with control, suppress(OSError, EOFError):  # the starter may end at any moment
        WorkerNursery(control, ComputeServer()).serve()


class Forked:
    """A child that shares its starter's memory, with a `Popen`'s methods; before any thread."""

    def __init__(self, ours: Connection, theirs: Connection) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # a collection on either side would copy what they share
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                os.setsid()
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                serve(theirs)
            except Exception as error:
                _tell_of(error)
            finally:
                os._exit(0)
        self._ended = False

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> None:
        self._reap(0)

    def _reap(self, how: int) -> int | None:
        if not self._ended:
            with suppress(ChildProcessError):
                if os.waitpid(self.pid, how)[0] == 0:
                    return None
            self._ended = True
        return 0


class WorkerNursery:
    """Keeps what workers know, and one worker at a time."""

    def __init__(self, control: Connection, server: ComputeServer) -> None:
        self._control, self._server, self._worker = control, server, 0

    def serve(self, *, branch: bool = False) -> int:
        """One request after the other; the exit code, where a `branch` has nothing to do."""
        code = 0
        while True:
            if branch and not self._server.jobs and not self._asked_within(IDLE_S):
                code = _IDLE_EXIT
                break
            try:
                raw = self._control.recv_bytes()
            except EOFError:
                break
            if not raw:  # a worker's pipe follows
                self._fork(recv_handle(self._control))
            elif branch or not self._server.teaches_job(raw):
                self._learn(raw)
            elif not self._branch_idled(raw):
                break
        self._end()
        return code

    def _asked_within(self, seconds: float) -> bool:
        return self._control.poll(seconds)

    def _learn(self, raw: bytes) -> None:
        self._control.send_bytes(self._server.learn(raw))

    def _branch_idled(self, raw: bytes) -> bool:
        """Let a branch serve, which begins by learning a job; False where it ended otherwise."""
        self._end()
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _IDLE_EXIT
        code = 1
        try:
            self._learn(raw)
            code = self.serve(branch=True)
        except (OSError, EOFError):  # the starter may end at any moment
            pass
        except Exception as error:
            _tell_of(error)
        finally:
            os._exit(code)

    def _fork(self, pipe: int) -> None:
        self._end()
        starter = os.getpid()
        self._worker = os.fork()
        if self._worker:
            os.close(pipe)
            return
        try:
            if sys.platform == "linux":  # elsewhere it ends with its next word to its starter
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == starter:  # it may have ended before it could be noticed
                self._control.close()
                self._server.work(Connection(pipe))
        except Exception as error:
            _tell_of(error)
        finally:
            os._exit(0)

    def _end(self) -> None:
        if self._worker:
            os.kill(self._worker, signal.SIGKILL)
            os.waitpid(self._worker, 0)
            self._worker = 0


def _tell_of(error: Exception) -> None:
    # Its type alone: its text could quote a record.
    sys.stderr.write(f"edgeveil: the computing process fails with {type(error).__name__}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
