"""The devices of one generator at work, one after the other on its loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from edgeveil.protocol.device_tasks import ComputeAnswer

_SLICE_S = 0.01  # at a time, so that the sockets are served meanwhile
_QUIET_S = 0.1  # without new work: then all are taken to have sealed


class Worker(Protocol):
    """A device: it does a task, and hears the outcome when what it returned is called."""

    def perform(self, task: object) -> Callable[[], None]: ...


class Turns:
    """Tasks in the order they came.

    Answers of a round leave when no device has anything to do any more: the devices of a fleet
    seal side by side, each on a processor of its own, so that here none is heard before all are
    through. Otherwise uploads/s would be those of one generator's sealing.
    """

    def __init__(self) -> None:
        self._tasks: deque[tuple[Worker, object]] = deque()
        self._sealed: deque[Callable[[], None]] = deque()
        self._quiet: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a device has something to do or to say."""
        return bool(self._tasks or self._sealed)

    def add(self, device: Worker, task: object) -> None:
        """At the end of the line."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if not self._tasks:
            asyncio.get_running_loop().call_soon(self._work)
        self._tasks.append((device, task))

    def _work(self) -> None:
        end_s = time.perf_counter() + _SLICE_S
        while self._tasks and time.perf_counter() < end_s:
            device, task = self._tasks[0]
            told = device.perform(task)
            if isinstance(task, ComputeAnswer):
                self._sealed.append(told)
            else:
                told()
            self._tasks.popleft()
        loop = asyncio.get_running_loop()
        if self._tasks:
            loop.call_soon(self._work)
        elif self._sealed:
            self._quiet = loop.call_later(_QUIET_S, self._answer)

    def _answer(self) -> None:
        self._quiet = None
        end_s = time.perf_counter() + _SLICE_S
        while self._sealed and time.perf_counter() < end_s:
            self._sealed.popleft()()
        if self._sealed:
            asyncio.get_running_loop().call_soon(self._answer)
