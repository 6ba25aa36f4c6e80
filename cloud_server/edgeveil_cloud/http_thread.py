"""HTTP on a thread of its own, so that it answers whatever holds the cloud's work up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from aiohttp import web

from edgeveil.transport.http import HttpServer, serve
from edgeveil_cloud.store_records import StoreAway

T = TypeVar("T")
ANSWER_S = 30.0
_LOOK_S = 0.1
_BROUGHT = "what was asked for may still be done: look before you ask again"


class Desk:
    """Takes questions to the cloud's own event loop, which alone touches store and machine.

    Refuses at once while the database is away (`away()`), and what has no answer in `ANSWER_S`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, away: Callable[[], bool]) -> None:
        self._loop, self._away = loop, away

    async def __call__(self, question: Callable[[], T], /) -> T:
        """What `question` returns or raises, or StoreAway."""
        if self._away():
            raise StoreAway("the database does not answer", fix="try again when it is back")

        asked: Future[T] = Future()
        self._loop.call_soon_threadsafe(_answer, question, asked)
        answer = asyncio.wrap_future(asked)
        end_s = asyncio.get_running_loop().time() + ANSWER_S
        while not (await asyncio.wait([answer], timeout=_LOOK_S))[0]:
            if self._away():
                answer.cancel()
                raise StoreAway("the database does not answer", fix=_BROUGHT)
            if asyncio.get_running_loop().time() > end_s:
                answer.cancel()
                raise StoreAway(f"the cloud did not answer for {ANSWER_S:.0f} s", fix=_BROUGHT)
        return answer.result()


def _answer(question: Callable[[], T], asked: Future[T]) -> None:
    if not asked.set_running_or_notify_cancel():
        return  # nobody waits any more
    try:
        asked.set_result(question())
    except BaseException as error:
        asked.set_exception(error)


class HttpThread:
    """An application that is served on an event loop of its own, from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="edgeveil-http"
        )
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Address for clients on this machine; empty while it is not served."""
        return self._server.url if self._server is not None else ""

    async def start(self, app: web.Application, host: str, port: int) -> None:
        """Serve `app`. Raises UsageError if the port cannot be had."""
        self._thread.start()
        try:
            self._server = await self._there(serve(app, host, port))
        except BaseException:
            self._end()
            raise

    async def stop(self) -> None:
        """Stop listening; open requests get a moment to end."""
        if self._server is not None:
            await self._there(self._server.stop())
            self._server = None
            self._end()

    async def _there(self, what: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, self._loop))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
