"""Health of a process: named checks, their page and Unix socket, and slow checks."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from edgeveil.transport.http import Request, Response
from edgeveil.transport.listener import AnswerSocket, ListenAt

PROBE_EVERY_S = 5.0
PROBE_TIMEOUT_S = 2.0
_PROBE_BYTES = 4096

Holds = bool | str
"""Result of a check: True, False, or a one-word reason of the failure."""
Check = Callable[[], Holds | Awaitable[Holds]]
HEALTH_SOCKET = "health.sock"
LINK_DOWN, STUCK, OTHER_KEY, UNHEARD = "link_down", "stuck", "other_key", "unheard"  # reasons
LIVE = "machine"  # the part that a restart of the process repairs


class Health:
    """Named checks; a process is healthy while all pass. `warnings` are shown with them."""

    def __init__(
        self, checks: Mapping[str, Check], warnings: Sequence[Callable[[], Sequence[str]]] = ()
    ) -> None:
        self._checks, self._warnings = checks, warnings

    async def failing(self) -> dict[str, str]:
        """Return the failing parts, each with a one-word reason."""
        found = {}
        for name, check in self._checks.items():
            holds = check()
            if not isinstance(holds, bool | str):
                holds = await holds
            if holds is not True:
                found[name] = holds or f"{name.partition('/')[0]}_fails"
        return found

    def warnings(self) -> list[str]:
        return [one for warn in self._warnings for one in warn()]

    async def state(self) -> dict[str, Any]:
        """Return `status` `ok`, or `degraded` with `parts`, `reasons` and `live`."""
        parts = await self.failing()
        found: dict[str, Any] = {"status": "degraded" if parts else "ok"}
        if parts:
            found |= {"parts": list(parts), "reasons": parts, "live": LIVE not in parts}
        if warnings := self.warnings():
            found["warnings"] = warnings
        return found

    async def page(self, _request: Request) -> Response:
        found = await self.state()
        return Response.of_json(found, 200 if found["status"] == "ok" else 503)


class HealthSocket(AnswerSocket):
    """Unix socket `health.sock` that answers with the state; read by `edgeveil_tools/probe.py`."""

    def __init__(self, state_dir: Path, health: Health) -> None:
        super().__init__(state_dir / HEALTH_SOCKET, lambda _reader: health.state())


class Probe:
    """A check that may hang: runs in a thread with a time limit; event loops share one run."""

    def __init__(
        self, look: Callable[[], Holds], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._looked_s = -PROBE_EVERY_S
        self._holds: Holds = True
        self._looking: Future[Holds] | None = None
        self._lock = threading.Lock()

    async def __call__(self) -> Holds:
        looking = self._begun()
        if looking is not None:
            here = asyncio.wrap_future(looking)
            try:
                done, _ = await asyncio.wait([here], timeout=PROBE_TIMEOUT_S)
            finally:
                here.cancel()  # the thread itself continues
            if not done:
                return "hangs"
            with self._lock:
                if self._looking is looking:
                    self._holds, self._looking = looking.result(), None
                    self._looked_s = self._clock()
        return self._holds

    def _begun(self) -> Future[Holds] | None:
        """Return the run in progress, started if due; None while the last result is valid."""
        with self._lock:
            if self._looking is None and self._clock() - self._looked_s >= PROBE_EVERY_S:
                self._looking = Future()
                self._looking.set_running_or_notify_cancel()
                try:
                    threading.Thread(target=self._run, args=[self._looking], daemon=True).start()
                except RuntimeError:
                    self._looking.set_result("no_thread")
            return self._looking

    def _run(self, looking: Future[Holds]) -> None:
        try:
            looking.set_result(self._look())
        except Exception:
            looking.set_result("no_thread")


def writable(folder: Path, room_bytes: int = 0) -> Holds:
    """Return True if the folder is writable with `room_bytes` free; else the errno's name."""
    path = folder / "health.probe"
    try:
        with path.open("wb", buffering=0) as file:
            written = file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
        path.unlink()
        fits = written == _PROBE_BYTES and shutil.disk_usage(folder).free >= room_bytes
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "oserror").lower()
    return fits or "enospc"


def warnings_of(at: ListenAt) -> Sequence[str]:
    """Return the health page's warnings about this address."""
    return ("plain_http",) if at.is_readable_on_the_way else ()


def warn_of_plain_http(at: ListenAt, log: logging.Logger) -> None:
    """Log a warning if other machines reach this address without encryption."""
    if at.is_readable_on_the_way:
        log.warning(
            "plain_http",
            extra={"host": at.host, "fix": "set http.tls or http.socket, or listen on 127.0.0.1"},
        )
