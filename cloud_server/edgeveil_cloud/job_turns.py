"""Fair shares of one worker's time for all jobs that run.

Whenever the worker is free, the job goes first that has had the least of its time for its weight
(start-time fair queueing: Goyal, Vin, Cheng 1996), so that a job whose rounds take minutes
delays another by at most the task under way. An idle job gains no claim on the time that passed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from edgeveil.jobs.job import Priority
from edgeveil.protocol.cloud import job_of

WEIGHTS: Mapping[Priority, float] = {"low": 1.0, "normal": 2.0, "high": 4.0}


class JobTurns:
    """Gives the tasks of jobs to `worker`, which does one at a time, in their turns.

    `weight_of` a job by its id on the wire; work that is about no job counts as one of its own.
    """

    def __init__(
        self,
        worker: Executor,
        weight_of: Callable[[bytes], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._weight_of, self._clock = worker, weight_of, clock
        self._lock = threading.Lock()
        self._waiting: dict[bytes, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._had: dict[bytes, float] = {}  # seconds by weight
        self._now = 0.0  # what the job had whose turn it was last
        self._busy = False

    def of(self, task: object) -> Executor:
        return _Queue(self, job_of(task) or b"")

    def add(self, job: bytes, call: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        with self._lock:
            if job not in self._waiting:
                self._waiting[job] = deque()
                self._had[job] = max(self._had.get(job, 0.0), self._now)
            self._waiting[job].append((done, call))
            self._next()
        return done

    def _next(self) -> None:
        """Begin what is next, if the worker is free; the lock is held."""
        if self._busy or not self._waiting:
            return
        job = min(self._waiting, key=lambda one: self._had[one])
        done, call = self._waiting[job].popleft()
        self._now, self._busy = self._had[job], True
        if not self._waiting[job]:
            del self._waiting[job]
        self._had = {
            one: had for one, had in self._had.items() if one in self._waiting or had >= self._now
        }
        self._worker.submit(self._do, job, done, call)

    def _do(self, job: bytes, done: Future[Any], call: Callable[[], Any]) -> None:
        started_s = self._clock()
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)
        cost = (self._clock() - started_s) / self._weight_of(job)
        with self._lock:
            self._had[job] = self._had.get(job, self._now) + cost
            self._busy = False
            self._next()


class _Queue(Executor):
    def __init__(self, turns: JobTurns, job: bytes) -> None:
        self._turns, self._job = turns, job

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._turns.add(self._job, lambda: fn(*args, **kwargs))
