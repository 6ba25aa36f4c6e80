"""Whether a process is able to do its work, part by part, for `/healthz`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web

STUCK_S = 30.0
PROBE_EVERY_S = 5.0
PROBE_TIMEOUT_S = 2.0
_PROBE_BYTES = 4096

Check = Callable[[], bool | Awaitable[bool]]


class Health:
    """Named checks; a process is well while all of them hold."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks

    async def failing(self) -> list[str]:
        """Names of the parts that do not work now."""
        found = []
        for name, check in self._checks.items():
            holds = check()
            if not (holds if isinstance(holds, bool) else await holds):
                found.append(name)
        return found

    async def page(self, _request: web.Request) -> web.Response:
        """200 `ok`, or 503 `degraded` and which part: nothing that is worth hiding."""
        parts = await self.failing()
        if parts:
            return web.json_response({"status": "degraded", "parts": parts}, status=503)
        return web.json_response({"status": "ok"})


class WritableFolder:
    """Whether a folder takes and keeps a small file; looked at anew every few seconds.

    In a thread and with a time limit, so that a disk that hangs is reported and stops nothing.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = folder / "health.probe", clock
        self._looked_s, self._holds = -PROBE_EVERY_S, True
        self._looking: asyncio.Task[bool] | None = None

    async def __call__(self) -> bool:
        if self._looking is None and self._clock() - self._looked_s >= PROBE_EVERY_S:
            self._looking = asyncio.create_task(asyncio.to_thread(self._probe))
        if self._looking is not None:
            done, _ = await asyncio.wait([self._looking], timeout=PROBE_TIMEOUT_S)
            if not done:
                return False
            self._holds, self._looked_s, self._looking = await self._looking, self._clock(), None
        return self._holds

    def _probe(self) -> bool:
        try:
            with self._path.open("wb", buffering=0) as file:
                written = file.write(bytes(_PROBE_BYTES))
                os.fsync(file.fileno())
            self._path.unlink()
        except OSError:
            return False
        return written == _PROBE_BYTES
