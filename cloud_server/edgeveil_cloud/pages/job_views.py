"""The page of each job that is looked at: its events are read once, and then those that came since.

What they amount to is kept for the jobs looked at last; however many look at one, its page is made
once for each change, and so seldom that it takes a small share of a processor.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

from edgeveil_cloud.job_history import JobHistory
from edgeveil_cloud.job_view import JobDetails, job_view
from edgeveil_cloud.pages.board import SHARE, Ask
from edgeveil_cloud.pages.job_rows import encoded, why_it_stands
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobGlimpse, StoredEvent

KEPT = 8  # jobs
_AT_ONCE = 500  # events that are read before the cloud's own work has its turn again
_SLOWEST_S = 10.0
_LOOKED_S = 15.0


@dataclass
class _Looked:
    """A job that is looked at."""

    course: JobHistory = field(default_factory=JobHistory)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: int = -1
    content: bytes = b""
    asked_s: float = 0.0  # when last
    again_s: float = 0.0  # not made anew before


class JobViews:
    """Lives on the loop that serves HTTP; the fleet has so many `cells`."""

    def __init__(self, store: Store, ask: Ask, cells: int) -> None:
        self._store, self._ask, self._cells = store, ask, cells
        self._looked: dict[str, _Looked] = {}
        self._loaded: asyncio.Task[object] | None = None

    def begin(self) -> None:
        """Somebody has opened the page: load what the first job's page would wait a second for."""
        if self._loaded is None:
            load = asyncio.to_thread(import_module, "scipy.special")
            self._loaded = asyncio.create_task(load)

    async def view(self, job: str, room: tuple[int, int]) -> bytes:
        """`{"view": …, "again_s": …}`: a job's page, and after how long to ask for a newer one; 0
        where this is the newest. `room` as for `why_it_stands`. Raises UnknownJob, StoreAway.
        """
        one = self._looked.pop(job, None) or _Looked()
        self._looked[job] = one
        while len(self._looked) > KEPT:
            del self._looked[next(iter(self._looked))]
        one.asked_s = time.monotonic()
        async with one.lock:
            wait_s = 0.0
            if self._store.news(job) != one.news:
                began_s = time.monotonic()
                wait_s = one.again_s - began_s
                if not one.content or wait_s <= 0:
                    await self._make(job, one, room)
                    now_s, wait_s = time.monotonic(), 0.0
                    pause_s = (now_s - began_s) / SHARE * self._in_turn(now_s)
                    one.again_s = now_s + min(_SLOWEST_S, pause_s)
        return b'{"again_s":%.3f,"view":%s}' % (wait_s, one.content)

    def _in_turn(self, now_s: float) -> int:
        """Jobs that share what time there is: those asked for a moment ago."""
        return sum(now_s - one.asked_s < _LOOKED_S for one in self._looked.values())

    async def _make(self, job: str, one: _Looked, room: tuple[int, int]) -> None:
        news, course = self._store.news(job), one.course
        if not one.content:
            records = await self._ask(partial(self._store.exchanges, job))
            await asyncio.to_thread(course.take_records, records)
        while found := await self._ask(partial(self._events, course.seq, job)):
            await asyncio.to_thread(course.take_all, map(vars, found))
        glimpse = await self._ask(partial(self._store.glimpse, job))
        one.content = await asyncio.to_thread(_made, glimpse, course, self._cells, room)
        one.news = news

    def _events(self, after: int, job: str) -> tuple[StoredEvent, ...]:
        return self._store.events_after(after, job, _AT_ONCE)


def _made(glimpse: JobGlimpse, course: JobHistory, cells: int, room: tuple[int, int]) -> bytes:
    reason, advice = why_it_stands(glimpse, *room)
    told = f"{reason}. What to do: {advice}" if advice else reason
    return encoded(
        job_view(replace(JobDetails.of_entry(glimpse.entry, cells), reason=told), course)
    )
