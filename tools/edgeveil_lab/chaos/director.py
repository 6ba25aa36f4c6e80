"""Brings the faults of a schedule at their times, and takes them back."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from edgeveil_lab.chaos.plan import Fault
from edgeveil_lab.chaos.site import ChaosSite

_ENDED_HERE = ("broker", "disk")


class Director:
    """One thread that keeps to the schedule, and a few for what takes its time."""

    def __init__(
        self, site: ChaosSite, faults: Sequence[Fault], now_s: Callable[[], float]
    ) -> None:
        """`now_s` counts from the moment that the schedule counts from."""
        self._site, self._now_s = site, now_s
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="faults")
        self._under_way: list[Future[None]] = []
        steps = [(f.at_s, False, k, f) for k, f in enumerate(faults)]
        steps += [(f.until_s, True, k, f) for k, f in enumerate(faults) if f.kind in _ENDED_HERE]
        heapq.heapify(steps)
        self._steps = steps
        self._thread = threading.Thread(target=self._run, daemon=True, name="director")
        self.done: list[Fault] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def over(self) -> bool:
        """Whether every fault has come and gone. Raises BrokerError: one did not come back."""
        for work in self._under_way:
            if work.done():
                work.result()
        if self._thread.is_alive() or self._site.waiting():
            return False
        return all(work.done() for work in self._under_way)

    def stop(self) -> None:
        """Bring no more faults; returns when none is being brought."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> None:
        before: dict[str, Future[None]] = {}
        while self._steps and not self._stop.is_set():
            at_s, ends, _, fault = self._steps[0]
            if self._stop.wait(max(0.0, at_s - self._now_s())):
                return
            heapq.heappop(self._steps)
            if fault.kind == "kill":
                self._site.begin(fault)
            else:
                # A broker goes down and comes up in order, and the kills keep their times.
                key = f"{fault.kind} {fault.target}"
                act = self._site.end if ends else self._site.begin
                before[key] = self._pool.submit(_after, before.get(key), act, fault)
                self._under_way.append(before[key])
            if not ends:
                self.done.append(fault)
        left_s = max((fault.until_s for fault in self.done), default=0.0) - self._now_s()
        self._stop.wait(max(0.0, left_s))


def _after(earlier: Future[None] | None, act: Callable[[Fault], None], fault: Fault) -> None:
    if earlier is not None:
        earlier.result()
    act(fault)
