"""What all who watch the list of jobs are shown: read from the store once, however many they are.

Each row has the number of the change that made it. Who watches is sent the rows with higher numbers
than it has: a slow one is sent fewer, larger changes, and nothing waits for it in memory.
While nobody watches nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from edgeveil_cloud.pages.job_rows import encoded, row_of
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobGlimpse, StoreError

LOG = logging.getLogger("edgeveil.cloud")
MOST_JOBS = 500  # the newest; beside them all that have not ended
TICK_S = 1.0
SHARE = 0.02  # of one processor at most goes into reading what changed
_SLOWEST_S = 15.0
_AT_ONCE = 20  # jobs that are read before the cloud's own work has its turn again


T = TypeVar("T")


class Ask(Protocol):
    """Where the store and the control are asked; it may refuse with StoreAway."""

    def __call__(self, question: Callable[[], T], /) -> Awaitable[T]:
        """What `question` returns or raises."""
        ...


class JobBoard:
    """Lives on the loop that serves HTTP. `status` and `store` are asked through `ask`."""

    def __init__(self, store: Store, status: Callable[[], Mapping[str, Any]], ask: Ask) -> None:
        self._store, self._status, self._ask = store, status, ask
        self.version = 0
        self._rows: dict[str, tuple[int, bytes]] = {}
        self._news: dict[str, int] = {}  # of each job, when its row was made
        self._queued: set[str] = set()
        self.room = (0, 1)  # jobs that run, and how many may
        self._told: tuple[int, bytes] = (0, b"{}")
        self._seen = -1  # the store's news when it was read last
        self._messages: dict[int, bytes] = {}  # to who has that version
        self._moved = asyncio.Event()
        self._watchers = 0
        self._keeping: asyncio.Future[None] | None = None
        self._refreshing = asyncio.Lock()

    # --- watching ---

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
        """Whether there is more than `version` shows, waiting for it as long as that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.version <= version:
                    await self._moved.wait()
        return self.version > version

    def since(self, version: int) -> bytes:
        """What to send to who has `version`, as JSON: the rows that are newer, and the status."""
        if version not in self._messages:
            rows = [content for number, content in self._rows.values() if number > version]
            status = self._told[1] if self._told[0] > version else b"null"
            self._messages[version] = (
                b'{"rows":[' + b",".join(rows) + b'],"status":' + status + b"}"
            )
        return self._messages[version]

    # --- reading ---

    async def _run(self) -> None:
        """Keep what is watched up to date, until cancelled; what fails is tried again."""
        failed = ""
        while True:
            began_s = time.perf_counter()
            try:
                await self.refresh()
                failed = ""
            except Exception as error:  # no thread to be had, say: the pages must not stop for good
                if failed != type(error).__name__:
                    failed = type(error).__name__
                    LOG.warning("board_not_refreshed", extra={"error": failed})
            cost_s = time.perf_counter() - began_s
            await asyncio.sleep(min(_SLOWEST_S, max(TICK_S, cost_s / SHARE)))

    async def refresh(self) -> None:
        """Read what changed."""
        async with self._refreshing:
            version = self.version + 1
            try:
                status = await self._look(version)
            except StoreError as error:
                status = {"problem": error.what, "fix": error.fix}
            content = encoded(status)
            if content != self._told[1]:
                self._told = version, content
            if self._told[0] == version or any(n == version for n, _ in self._rows.values()):
                self.version = version
                self._messages.clear()
                self._moved.set()
                self._moved.clear()

    async def _look(self, version: int) -> Mapping[str, Any]:
        news = self._store.news_of_all
        status = {k: v for k, v in (await self._ask(self._status)).items() if k != "time_s"}
        room = len(status.get("jobs", ())), int(status.get("most_running", 1))
        if news != self._seen or room != self.room:
            await self._read(version, self._queued if room != self.room else set(), room)
            self._seen, self.room = news, room
        return status

    async def _read(self, version: int, again: set[str], room: tuple[int, int]) -> None:
        def newer() -> dict[str, int]:
            names = self._store.newest_job_names(MOST_JOBS)
            return {job: self._store.news(job) for job in names}

        counts = await self._ask(newer)
        for gone in self._rows.keys() - counts.keys():
            del self._rows[gone], self._news[gone]
        found = [(k, n) for k, n in counts.items() if self._news.get(k) != n or k in again]
        for start in range(0, len(found), _AT_ONCE):
            part = dict(found[start : start + _AT_ONCE])

            def read(part: dict[str, int] = part) -> list[JobGlimpse]:
                return [self._store.glimpse(job) for job in part]

            glimpses = await self._ask(read)
            rows = await asyncio.to_thread(_encoded_rows, glimpses, room)
            for glimpse, row in zip(glimpses, rows, strict=True):
                job = glimpse.entry.id
                self._news[job] = part[job]
                self._rows[job] = version, row
                (self._queued.add if glimpse.entry.status == "queued" else self._queued.discard)(
                    job
                )


def _encoded_rows(glimpses: list[JobGlimpse], room: tuple[int, int]) -> list[bytes]:
    return [encoded(row_of(one, *room)) for one in glimpses]
