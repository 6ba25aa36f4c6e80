"""Serving a small local HTTP application next to a process's other work."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web

from edgeveil.errors import UsageError

SHUTDOWN_S = 2.0


class HttpServer:
    """A served application; `port` is the one it got when 0 was asked for."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner, self.host, self.port = runner, host, port

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def stop(self) -> None:
        """Stop listening; open requests get SHUTDOWN_S seconds to end."""
        await self._runner.cleanup()


async def serve(app: web.Application, host: str, port: int) -> HttpServer:
    """Serve `app` on the running loop. Raises UsageError if the port cannot be had."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        if error.errno == errno.EADDRINUSE:
            what, fix = f"port {port} is taken", "stop what uses it, or set another http.port"
        elif error.errno == errno.EACCES:
            what, fix = f"port {port} needs more rights", "set an http.port from 1024"
        else:
            what, fix = f"cannot listen ({error.strerror})", "check http.host and http.port"
        raise UsageError(what, where=f"{host}:{port}", fix=fix) from error
    return HttpServer(runner, host, runner.addresses[0][1])


# --- health ---------------------------------------------------------------------------------


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


class Probe:
    """A check that may hang: looked at in a thread, with a time limit, anew every few seconds."""

    def __init__(
        self, look: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._looked_s, self._holds = -PROBE_EVERY_S, True
        self._looking: asyncio.Task[bool] | None = None

    async def __call__(self) -> bool:
        looking = self._looking
        if looking is None and self._clock() - self._looked_s >= PROBE_EVERY_S:
            looking = self._looking = asyncio.create_task(asyncio.to_thread(self._look))
        if looking is not None:
            done, _ = await asyncio.wait([looking], timeout=PROBE_TIMEOUT_S)
            if not done:
                return False
            self._holds, self._looked_s, self._looking = await looking, self._clock(), None
        return self._holds


def writable(folder: Path) -> bool:
    """Whether the folder takes a small file to its disk."""
    path = folder / "health.probe"
    try:
        with path.open("wb", buffering=0) as file:
            written = file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
        path.unlink()
    except OSError:
        return False
    return written == _PROBE_BYTES
