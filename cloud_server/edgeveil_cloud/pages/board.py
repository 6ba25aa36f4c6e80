"""Data of the cloud's pages, read from the store once for all watchers.

Each row of the list has the number of its last change, and a watcher gets the rows above its own
number: slow ones get fewer, larger updates. Reading uses at most a SHARE of a processor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from edgeveil_cloud.job_history import JobHistory
from edgeveil_cloud.job_view import JobDetails, job_view, row_of, status_reason
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobGlimpse, StoreError

LOG = logging.getLogger("edgeveil.cloud")
MOST_JOBS = 500  # the newest jobs; all jobs not ended are shown as well
TICK_S = 1.0
SHARE = 0.02  # of one processor, at most, for reading changes
_SLOWEST_S = 15.0
_JOBS_AT_ONCE, _EVENTS_AT_ONCE = 20, 500  # read per call, so as not to block the cloud's own work
_VIEWS_KEPT = 8

T = TypeVar("T")


class Ask(Protocol):
    """Runs a call where store and control live; may raise StoreAway."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Return the result of a call."""
        ...


def encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class JobBoard:
    """The list of jobs, on the event loop of HTTP; without watchers nothing is read."""

    def __init__(self, store: Store, status: Callable[[], Mapping[str, Any]], ask: Ask) -> None:
        self._store, self._status, self._ask = store, status, ask
        self.version = 0
        self._rows: dict[str, tuple[int, bytes]] = {}
        self._news: dict[str, int] = {}  # each job's counter when its row was made
        self._shown: tuple[int, bytes] = (0, b"{}")
        self._seen = -1  # the store's counter at the last read
        self._moved = asyncio.Event()
        self._watchers = 0
        self._keeping: asyncio.Future[None] | None = None
        self._refreshing = asyncio.Lock()

    def __enter__(self) -> JobBoard:
        self._watchers += 1
        if self._keeping is None:
            self._keeping = asyncio.ensure_future(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._watchers -= 1
        if not self._watchers and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def moved(self, version: int, wait_s: float) -> bool:
        """Wait up to `wait_s`; return whether there is a newer version than `version`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.version <= version:
                    await self._moved.wait()
        return self.version > version

    def since(self, version: int) -> bytes:
        rows = [content for number, content in self._rows.values() if number > version]
        status = self._shown[1] if self._shown[0] > version else b"null"
        return b'{"rows":[' + b",".join(rows) + b'],"status":' + status + b"}"

    async def _run(self) -> None:
        failed = ""
        while True:
            began_s = time.perf_counter()
            try:
                await self.refresh()
                failed = ""
            except Exception as error:  # such as no free thread: the pages must not stop for good
                if failed != type(error).__name__:
                    failed = type(error).__name__
                    LOG.warning("board_not_refreshed", extra={"error": failed})
            cost_s = time.perf_counter() - began_s
            await asyncio.sleep(min(_SLOWEST_S, max(TICK_S, cost_s / SHARE)))

    async def refresh(self) -> None:
        async with self._refreshing:
            version = self.version + 1
            try:
                if (news := self._store.news_of_all) != self._seen:
                    await self._read(version)
                    self._seen = news
                asked = await self._ask(self._status)
                status = {key: value for key, value in asked.items() if key != "time_s"}
            except StoreError as error:
                status = {"problem": error.what, "fix": error.fix}
            content = encoded(status)
            if content != self._shown[1]:
                self._shown = version, content
            if self._shown[0] == version or any(n == version for n, _ in self._rows.values()):
                self.version = version
                self._moved.set()
                self._moved.clear()

    async def _read(self, version: int) -> None:
        def newer() -> dict[str, int]:
            names = self._store.newest_job_names(MOST_JOBS)
            return {job: self._store.news(job) for job in names}

        def read(part: list[str]) -> list[JobGlimpse]:
            return [self._store.glimpse(job) for job in part]

        def rows(glimpses: list[JobGlimpse]) -> list[bytes]:
            return [encoded(row_of(one)) for one in glimpses]

        counts = await self._ask(newer)
        for gone in self._rows.keys() - counts.keys():
            del self._rows[gone], self._news[gone]
        found = [job for job, count in counts.items() if self._news.get(job) != count]
        for start in range(0, len(found), _JOBS_AT_ONCE):
            part = found[start : start + _JOBS_AT_ONCE]
            glimpses = await self._ask(partial(read, part))
            for job, row in zip(part, await asyncio.to_thread(rows, glimpses), strict=True):
                self._news[job], self._rows[job] = counts[job], (version, row)


@dataclass
class _CachedView:
    history: JobHistory = field(default_factory=JobHistory)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: int = -1
    content: bytes = b""
    again_s: float = 0.0  # earliest time of the next refresh


class JobViews:
    def __init__(self, store: Store, ask: Ask, cells: int) -> None:
        self._store, self._ask, self._cells = store, ask, cells
        self._cached: dict[str, _CachedView] = {}

    async def view(self, job: str) -> bytes:
        """Return a page and the seconds to a newer one (0: none); raises UnknownJob, StoreAway."""
        one = self._cached.pop(job, None) or _CachedView()
        self._cached[job] = one
        while len(self._cached) > _VIEWS_KEPT:
            del self._cached[next(iter(self._cached))]
        async with one.lock:
            wait_s = 0.0
            if self._store.news(job) != one.news:
                began_s = time.monotonic()
                wait_s = one.again_s - began_s
                if not one.content or wait_s <= 0:
                    await self._make(job, one)
                    now_s, wait_s = time.monotonic(), 0.0
                    one.again_s = now_s + min(_SLOWEST_S, (now_s - began_s) / SHARE)
        return b'{"again_s":%.3f,"view":%s}' % (wait_s, one.content)

    async def _make(self, job: str, one: _CachedView) -> None:
        news, history = self._store.news(job), one.history
        read = partial(self._store.events_after, job=job, limit=_EVENTS_AT_ONCE)
        while found := await self._ask(partial(read, history.seq)):
            await asyncio.to_thread(history.take_all, map(vars, found))
        glimpse = await self._ask(partial(self._store.glimpse, job))

        def made() -> bytes:
            facts = JobDetails.of_entry(glimpse.entry, self._cells)
            return encoded(job_view(replace(facts, reason=status_reason(glimpse)), history))

        one.content = await asyncio.to_thread(made)
        one.news = news
