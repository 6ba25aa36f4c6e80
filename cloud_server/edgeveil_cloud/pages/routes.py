"""The HTTP paths of the cloud's pages; changes of jobs use the command line's paths.

GET  /                    the page, or the log-in
POST /login, /logout      exchange a token for a cookie; end the session
GET  /pages/NAME          static files
GET  /v1/page/me          the client's scope
GET  /v1/page/stream      server-sent events: changed rows of jobs, and the status
GET  /v1/page/jobs/ID     the page of one job, in the form of edgeveil.pages.parts
GET  /v1/page/fleet       the page of the fleet, in the same form
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from edgeveil.pages.assets import asset, content_type
from edgeveil.pages.parts import Json
from edgeveil.transport.http import HttpError, LiveUpdates, Request, Response, Route, refusal
from edgeveil_cloud.http_guard import OWN_PAGE, FailedTries, RequestGuard, Scope
from edgeveil_cloud.pages.board import Ask, JobBoard, JobViews, encoded
from edgeveil_cloud.pages.fleet import CloudFacts, devices
from edgeveil_cloud.store import Store

if TYPE_CHECKING:
    from edgeveil_cloud.control import Control

MOST_WATCHERS = 48  # connections are limited: see edgeveil.transport.listener
BEAT_S = 10.0
FRESH_S = 5.0  # lifetime of cached data on disk, links and rounds
_FORM_BYTES = 4096
_JSON, _HTML = "application/json", "text/html; charset=utf-8"
_OWN, _SHARED = "edgeveil_cloud.pages", "edgeveil.pages"
FILES: Mapping[str, str] = {  # of `/pages/NAME`, with their packages
    **dict.fromkeys(("cloud.css", "cloud.js", "jobs.js", "fleet.js", "start.js"), _OWN),
    **dict.fromkeys(("base.css", "charts.css", "uPlot.min.css", "base.js", "charts.js"), _SHARED),
    **dict.fromkeys(("job_view.js", "uPlot.iife.min.js"), _SHARED),
}


class PageRoutes:
    def __init__(
        self,
        store: Store,
        control: Control,
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
        self._fleet_lock = asyncio.Lock()
        self.open_to_all = [
            Route("GET", "/", self.page),
            Route("POST", "/login", self.log_in, body_bytes=_FORM_BYTES),
            Route("POST", "/logout", self.log_out),
            Route("GET", "/pages/{name}", self.file),
        ]
        self.reading = [
            Route("GET", "/v1/page/me", self.me),
            Route("GET", "/v1/page/stream", self.stream),
            Route("GET", "/v1/page/jobs/{id}", self.job),
            Route("GET", "/v1/page/fleet", self.fleet),
        ]

    async def page(self, request: Request) -> Response:
        """Return the page, or for strangers the log-in, which names no job."""
        if self._guard.caller(request) is None:
            return _login_page()
        return Response(asset("cloud.html", _OWN), _HTML)

    async def log_in(self, request: Request) -> Response:
        if not request.is_same_origin:
            what = "the request came from another site's page"
            return refusal(403, what, "log in on the cloud's page")
        form = parse_qs(request.content.decode("utf-8", "replace"))
        token = form.get("token", [""])[0].strip()
        # A valid token is accepted even after failures from the same address.
        if (cookie := self._guard.log_in(request, token)) is not None:
            return Response(status=303, headers={"Location": "/", "Set-Cookie": cookie})
        if (wait_s := self._tries.wait_s(request.peer)) > 0:
            problem = f"Too many wrong tokens. Try again in {wait_s:.0f} s."
            return _login_page(problem, 429, {"Retry-After": str(int(wait_s) + 1)})
        self._tries.failed(request.peer)
        return _login_page("Wrong token. Enter the whole text of the token's file.", 401)

    async def log_out(self, request: Request) -> Response:
        if not request.is_same_origin or request.headers.get(OWN_PAGE) != "1":
            what = "the request came from another site's page"
            return refusal(403, what, "log out on the cloud's page")
        return Response.of_json({}, headers={"Set-Cookie": self._guard.log_out(request)})

    async def file(self, request: Request) -> Response:
        name = request.parameters["name"]
        if name not in FILES:
            raise HttpError(404)
        return Response(asset(name, FILES[name]), content_type(name))

    async def me(self, request: Request) -> Response:
        caller = self._guard.caller(request)
        scope = caller.scope if caller is not None else Scope.READ
        return Response.of_json({"scope": scope.label, "may_submit": scope >= Scope.SUBMIT})

    async def stream(self, request: Request) -> LiveUpdates:
        return LiveUpdates(self._rows(request))

    async def _rows(self, request: Request) -> AsyncGenerator[bytes, None]:
        with self.board as board:
            await board.refresh()
            version = -1
            while self._guard.caller(request) is not None:
                if version < board.version:
                    event = b"data: " + board.since(version) + b"\n\n"
                    version = board.version
                else:
                    event = b":\n\n"  # detects a disconnected client
                yield event
                await board.moved(version, BEAT_S)

    async def job(self, request: Request) -> Response:
        return Response(await self._views.view(request.parameters["id"]), _JSON)

    async def fleet(self, _request: Request) -> Response:
        """Return the fleet page, refreshed at most every `FRESH_S`."""
        async with self._fleet_lock:
            made_s, content = self._fleet
            if time.monotonic() - made_s >= FRESH_S:
                content = encoded(await self._fleet_now())
                self._fleet = time.monotonic(), content
        return Response(content, _JSON)

    async def _fleet_now(self) -> Json:
        sections, facts = [await self._ask(lambda: devices(self._store))], self._facts
        if facts is not None:
            refused = (await self._ask(self._control.status)).get("refused", {})
            sections.append(await self._ask(lambda: facts.links(refused)))
            sections += [await asyncio.to_thread(one) for one in (facts.disk, facts.endings)]
        empty: Json = {"title": "", "badge": None, "lines": [], "progress": None, "cards": []}
        return {**empty, "sections": sections, "footer": ""}


def _login_page(
    problem: str = "", status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    content = asset("login.html", _OWN).replace(b"{{problem}}", html.escape(problem).encode())
    # Otherwise browsers omit the origin of the submitted form.
    return Response(content, _HTML, status, {"Referrer-Policy": "same-origin", **(headers or {})})
