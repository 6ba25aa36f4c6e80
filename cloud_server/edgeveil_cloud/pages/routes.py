"""The addresses behind the cloud's pages: log-in, files, the stream of changes, what a page asks.

    GET  /                          the page, or the log-in
    POST /login, /logout            a token for a cookie, and its end
    GET  /pages/NAME                files of the pages; with a digest in the name kept for a year
    GET  /v1/page/me                what the asker may do
    GET  /v1/page/stream            server-sent events: rows of jobs and the status, as they change
    GET  /v1/page/jobs/ID           the page of one job, as edgeveil.pages.parts describes pages
    GET  /v1/page/compare?job=…     the page of some jobs beside each other
    GET  /v1/page/fleet             devices by cell, newest rounds, links, disk, what ends when
    GET  /v1/page/example           a job's text to begin with
    GET  /v1/page/jobs/ID/text      the text of a job, to submit it again
    POST /v1/page/check             a job's text: its problems by line, or its price

What changes a job goes to the addresses that the command line uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import parse_qs

from aiohttp import web

from edgeveil.errors import ConfigError
from edgeveil_cloud.http_guard import (
    BODY_S,
    OWN_PAGE,
    SCOPE,
    RequestGuard,
    in_time,
    posted_text,
    refusal,
)
from edgeveil_cloud.http_sessions import FailedTries
from edgeveil_cloud.http_token import Scope
from edgeveil_cloud.pages import files
from edgeveil_cloud.pages.board import Ask, JobBoard
from edgeveil_cloud.pages.comparison import MOST, Compared, comparison
from edgeveil_cloud.pages.fleet import CloudFacts, devices_by_cell, newest_rounds
from edgeveil_cloud.pages.job_rows import encoded, job_text
from edgeveil_cloud.pages.job_views import JobViews
from edgeveil_cloud.store import Store

MOST_WATCHERS = 48  # connections are few: see edgeveil.transport.listener
BEAT_S = 10.0
SLOW_S = 10.0  # a watcher that takes longer to take what it is sent is hung up on
FRESH_S = 5.0  # what is asked of disk, links and rounds is not asked again for so long
_FORM_BYTES = 4096


class PagedControl(Protocol):
    """What the pages ask of the job runner."""

    def quote(self, job_yaml: str) -> Mapping[str, Any]:
        """A job's price; ConfigError with every problem. Not quick; on any thread."""
        ...

    def status(self) -> Mapping[str, Any]:
        """What the process does now; quick, on the cloud's loop."""
        ...


class PageRoutes:
    """The handlers, and what they have in common while the application is served."""

    def __init__(
        self,
        store: Store,
        control: PagedControl,
        guard: RequestGuard,
        ask: Ask,
        facts: CloudFacts | None,
    ) -> None:
        self._store, self._control, self._guard = store, control, guard
        self._ask, self._facts = ask, facts
        self.board = JobBoard(store, control.status, ask)
        self._views = JobViews(store, ask, facts.cells if facts else 1)
        self._tries = FailedTries()
        self._fleet: tuple[float, bytes] = (-FRESH_S, b"")
        self._fleet_lock, self._checking = asyncio.Lock(), asyncio.Lock()
        self.open_to_all = [
            web.get("/", self.page),
            web.post("/login", self.log_in),
            web.post("/logout", self.log_out),
            web.get("/pages/{name}", self.file),
        ]
        self.reading = [
            web.get("/v1/page/me", self.me),
            web.get("/v1/page/stream", self.stream, allow_head=False),
            web.get("/v1/page/jobs/{id}", self.job),
            web.get("/v1/page/compare", self.compare),
            web.get("/v1/page/fleet", self.fleet),
        ]
        self.submitting = [
            web.get("/v1/page/example", self.example),
            web.get("/v1/page/jobs/{id}/text", self.text),
            web.post("/v1/page/check", self.check),
        ]
        self.all = [*self.open_to_all, *self.reading, *self.submitting]

    async def running(self, _app: web.Application) -> AsyncIterator[None]:
        """The board is kept while the application is served."""
        task = asyncio.create_task(self.board.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def close(self, _app: web.Application) -> None:
        """Streams end at once."""
        self.board.close()

    # --- log-in ---

    async def page(self, request: web.Request) -> web.Response:
        """The cloud's page for who has logged in; for others the log-in, which names no job."""
        if self._guard.asker(request) is None:
            return _login_page()
        return _html(files.page("cloud.html"))

    async def log_in(self, request: web.Request) -> web.Response:
        """A form with a token; on to the page with a cookie, or back to the form."""
        address = request.remote or ""
        if not self._guard.same_origin(request):
            return refusal(403, "this came from another site's page", "log in at the cloud's own")
        if request.content_length is None or request.content_length > _FORM_BYTES:
            return refusal(413, f"more than {_FORM_BYTES} bytes", "send the form of the log-in")
        async with in_time(BODY_S):
            form = await request.read()
        token = parse_qs(form.decode("utf-8", "replace")).get("token", [""])[0].strip()
        answer = web.Response(status=303, headers={"Location": "/"})
        if self._guard.log_in(request, answer, token):  # whoever else tried wrong ones from there
            return answer
        if (wait_s := self._tries.wait_s(address)) > 0:
            answer = _login_page(f"Too many wrong tokens. Try again in {wait_s:.0f} s.", 429)
            answer.headers["Retry-After"] = str(int(wait_s) + 1)
            return answer
        self._tries.failed(address)
        return _login_page("This token is none of the cloud's. It is the text of the file.", 401)

    async def log_out(self, request: web.Request) -> web.Response:
        """The cookie stands for nothing any more."""
        if not self._guard.same_origin(request) or request.headers.get(OWN_PAGE) != "1":
            return refusal(403, "this came from another site's page", "log out at the cloud's own")
        answer = web.json_response({})
        self._guard.log_out(request, answer)
        return answer

    async def file(self, request: web.Request) -> web.Response:
        """A file of the pages."""
        found = files.asset_of(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        keep = "public, max-age=31536000, immutable" if found.for_long else "no-cache"
        headers = {"Content-Type": found.content_type, "Cache-Control": keep}
        return web.Response(body=found.content, headers=headers)

    # --- reading ---

    async def me(self, request: web.Request) -> web.Response:
        """What the asker may do."""
        scope = request[SCOPE]
        return _json({"scope": scope.label, "may_submit": scope >= Scope.SUBMIT})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """All rows first, then those that change, until either side hangs up."""
        board = self.board
        if board.watchers >= MOST_WATCHERS:
            return refusal(503, f"{MOST_WATCHERS} pages watch already", "close one, or wait")
        self._views.begin()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with board:
            await board.refresh()
            await answer.prepare(request)
            version = -1
            while not board.closed and self._guard.asker(request) is not None:
                told = b":\n\n"  # so that who is gone is noticed
                if version < board.version:
                    told = b"data: " + board.since(version) + b"\n\n"
                    version = board.version
                try:
                    async with asyncio.timeout(SLOW_S):
                        await answer.write(told)
                except (TimeoutError, ConnectionError):
                    break
                await board.moved(version, BEAT_S)
        return answer

    async def job(self, request: web.Request) -> web.Response:
        """The page of one job."""
        await self.board.refresh()
        return _json_bytes(await self._views.view(request.match_info["id"], self.board.room))

    async def compare(self, request: web.Request) -> web.Response:
        """The page of the jobs that are named, beside each other."""
        jobs = list(dict.fromkeys(request.query.getall("job", [])))
        if not 1 <= len(jobs) <= MOST:
            raise ConfigError([f"job: name 1 to {MOST} jobs, got {len(jobs)}"])
        found = [await self._ask(partial(self._compared, job)) for job in jobs]
        return _json_bytes(await asyncio.to_thread(lambda: encoded(comparison(found))))

    def _compared(self, job: str) -> Compared:
        return self._store.glimpse(job), self._store.exchanges(job)

    async def fleet(self, _request: web.Request) -> web.Response:
        """Made at most every `FRESH_S`, for all who ask."""
        async with self._fleet_lock:
            made_s, content = self._fleet
            if time.monotonic() - made_s >= FRESH_S:
                content = encoded(await self._fleet_now())
                self._fleet = time.monotonic(), content
        return _json_bytes(content)

    async def _fleet_now(self) -> Mapping[str, Any]:
        found = {
            "now": time.time(),
            "cells": await self._ask(lambda: devices_by_cell(self._store)),
            "rounds": await self._ask(lambda: newest_rounds(self._store)),
            "refused": (await self._ask(self._control.status)).get("refused", {}),
        }
        if self._facts is None:
            return found
        return {
            **found,
            "links": await self._ask(self._facts.links),
            "disk": await asyncio.to_thread(self._facts.disk),
            "endings": await asyncio.to_thread(self._facts.endings),
        }

    # --- submitting ---

    async def example(self, _request: web.Request) -> web.Response:
        """A job's text to begin with."""
        return _json({"text": files.text("example.yaml")})

    async def text(self, request: web.Request) -> web.Response:
        """The text that makes the same job again."""
        entry = await self._ask(partial(self._store.job, request.match_info["id"]))
        return _json({"text": await asyncio.to_thread(job_text, entry)})

    async def check(self, request: web.Request) -> web.Response:
        """A job's problems, each with its line, or its price. One is checked at a time."""
        text = await posted_text(request)
        async with self._checking:
            try:
                price = await asyncio.to_thread(self._control.quote, text)
            except ConfigError as error:
                problems = [
                    {"line": one.line, "key": one.key, "text": one.text} for one in error.places
                ]
                return _json({"problems": problems})
        return _json({"problems": [], "price": price})


def _login_page(problem: str = "", status: int = 200) -> web.Response:
    answer = _html(files.page("login.html", problem=problem), status)
    # Else a browser says no origin of the form that this page sends.
    answer.headers["Referrer-Policy"] = "same-origin"
    return answer


def _html(content: str, status: int = 200) -> web.Response:
    return web.Response(text=content, status=status, content_type="text/html")


def _json(value: object) -> web.Response:
    return _json_bytes(encoded(value))


def _json_bytes(content: bytes) -> web.Response:
    return web.Response(body=content, content_type="application/json")
