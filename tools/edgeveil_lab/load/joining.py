"""`edgeveil loadtest --join`: a generator process asks its leader for a share and plays it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from edgeveil.errors import UsageError
from edgeveil.transport.process import keep_heap
from edgeveil_lab.load.generator import Generator
from edgeveil_lab.load.limits import raise_files_limit
from edgeveil_lab.load.options import LoadOptions
from edgeveil_lab.load.wire import Answer, Joining, Report, Share

REPORT_S = 1.0
_ASK_S = 0.2
_PATIENCE_S = 10.0
_SAID = (400, 401, 409)  # with the leader's own words
_SAID_CHARACTERS = 100


def run_generator(url: str, token: str, *, local: bool) -> int:
    """Join the leader at `url` and do as it says; 0 when it says stop. Raises EdgeVeilError."""
    return on_fast_loop(_Member(url, token, local).run())


def on_fast_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run it on uvloop where that is installed."""
    keep_heap()
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(main)
    import uvloop

    return int(uvloop.run(main))


class _Member:
    def __init__(self, url: str, token: str, local: bool) -> None:
        self._url, self._local = url.rstrip("/"), local
        self._headers = {"Authorization": f"Bearer {token}"}

    async def run(self) -> int:
        files = raise_files_limit()
        async with aiohttp.ClientSession(headers=self._headers) as http:
            self._http = http
            asked_s = time.time()
            request = Joining(asked_s, os.getpid(), self._local, files)
            share = await self._post("join", request, Share)
            offset_s = 0.0 if self._local else share.time_s - (asked_s + time.time()) / 2
            options = LoadOptions.model_validate_json(share.options)
            generator = Generator(share, options, offset_s)
            await generator.dialler.resolve()
            keeping = asyncio.create_task(generator.run())
            try:
                await self._follow(share.number, generator)
            finally:
                keeping.cancel()
        return 0

    async def _follow(self, number: int, generator: Generator) -> None:
        bringing: asyncio.Task[None] | None = None
        while True:
            tally = generator.shared.tally
            connecting = tally.connected < len(generator.devices)
            state = "ready" if bringing is None else "connecting" if connecting else "connected"
            answer = await self._report(number, state, generator)
            if answer.command == "connect" and bringing is None:
                bringing = asyncio.create_task(generator.dialler.bring(generator.devices))
            if answer.command == "stop":
                break
            await asyncio.sleep(_ASK_S if bringing is None else REPORT_S)
        if bringing is not None:
            bringing.cancel()
        await generator.leave()
        with suppress(UsageError):
            await self._report(number, "done", generator)

    async def _report(self, number: int, state: Any, generator: Generator) -> Answer:
        tally = generator.shared.tally.to_plain()
        report = Report(number, state, tally, generator.meter.strain)
        answer: Answer = await self._post("report", report, Answer)
        return answer

    async def _post(self, path: str, content: object, kind: type[Any]) -> Any:
        """One request; a leader that does not answer is asked again for a few seconds."""
        end_s = time.monotonic() + _PATIENCE_S
        body = msgspec.msgpack.encode(content)
        while True:
            try:
                async with self._http.post(f"{self._url}/{path}", data=body) as answer:
                    raw = await answer.read()
                if answer.status in _SAID:
                    text = " ".join(raw.decode("utf-8", "replace")[:_SAID_CHARACTERS].split())
                    fix = "check the token, and that the test still takes generators"
                    raise UsageError(text or "refused", where=self._url, fix=fix)
                try:
                    return msgspec.msgpack.decode(raw if answer.status == 200 else b"", type=kind)
                except ValueError:
                    raise UsageError(
                        "something else than a load test answers there",
                        where=self._url,
                        fix="use the address that the leader's --listen names",
                    ) from None
            except (aiohttp.ClientError, TimeoutError) as error:
                if time.monotonic() >= end_s:
                    raise UsageError(
                        f"no load test answers ({type(error).__name__})",
                        where=self._url,
                        fix="start it with edgeveil loadtest --listen HOST:PORT",
                    ) from None
                await asyncio.sleep(_ASK_S)
