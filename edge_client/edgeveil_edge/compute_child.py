"""Child process that loads libraries, jobs and records for a device, and forks its workers.

    python -m edgeveil_edge.compute_child PIPE

The child starts no threads, which a fork would lose: torch is imported but not used, and sessions
are opened in workers only.

A process cannot unload a library. So from its first job on, a fork, the *branch*, serves in place
of the child, and exits after IDLE_S without a job: the memory of torch is freed, while earlier
devices and records are still loaded. Its exit depends on when jobs start and end, never on records.

Subnormal numbers are flushed before anything else is loaded; forks inherit that mode.
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

NICE = 2  # keeps the device's own process responsive; more would starve this one on a busy box
IDLE_S = 60.0  # a new job within this time finds all libraries loaded
_IDLE_EXIT = 3
_PR_SET_PDEATHSIG = 1


def serve(control: Connection) -> None:
    declare_own()
    flush_subnormals()
    keep_heap()
    keep_memory_private()
    os.nice(NICE)
    # Read when torch is loaded: spinning threads are slow on a busy box.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from edgeveil_edge.compute_worker import ComputeServer

    with control, suppress(OSError, EOFError):  # the parent may end at any moment
        _WorkerNursery(control, ComputeServer()).serve()


class Forked:
    """Forked child that shares its parent's memory; requires a single thread."""

    def __init__(self, ours: Connection, theirs: Connection) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # garbage collection on either side would copy shared pages
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                os.setsid()
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                serve(theirs)
            except Exception as error:
                _print_type(error)
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


class _WorkerNursery:
    def __init__(self, control: Connection, server: ComputeServer) -> None:
        self._control, self._server, self._worker = control, server, 0

    def serve(self, *, branch: bool = False) -> int:
        """Serve until a `branch` is idle; return the exit code. Raises EOFError with the pipe."""
        from edgeveil_edge.compute_worker import receive

        try:
            while True:
                if branch and not self._server.jobs and not self._control.poll(IDLE_S):
                    return _IDLE_EXIT
                raw = receive(self._control)
                if not raw:  # a worker's pipe follows
                    self._fork(recv_handle(self._control))
                elif branch or "torch" in sys.modules or not self._server.loads_job(raw):
                    self._control.send_bytes(self._server.change_state(raw))
                elif not self._branch_idled(raw):
                    return 0
        finally:
            self._end()

    def _branch_idled(self, raw: bytes) -> bool:
        """Serve in a branch, which first loads a job; return False unless it ended as idle."""
        self._end()
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _IDLE_EXIT
        code = 1
        try:
            self._control.send_bytes(self._server.change_state(raw))
            code = self.serve(branch=True)
        except (OSError, EOFError):  # the parent may end at any moment
            pass
        except Exception as error:
            _print_type(error)
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
            if sys.platform == "linux":  # elsewhere it ends with its next message
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == starter:  # the parent may have ended before prctl
                self._control.close()
                self._server.work(Connection(pipe))
        except Exception as error:
            _print_type(error)
        finally:
            os._exit(0)

    def _end(self) -> None:
        if self._worker:
            os.kill(self._worker, signal.SIGKILL)
            os.waitpid(self._worker, 0)
            self._worker = 0


def _print_type(error: Exception) -> None:
    # Not its text, which could quote a record.
    what = f"edgeveil: the computing process fails with {type(error).__name__}"
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
