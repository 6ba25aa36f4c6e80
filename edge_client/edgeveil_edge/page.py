"""The owner's page of one device, on this machine only: budget, jobs, conditions, release.

The page is private to the owner and controls the device, so other users of the box are kept out. A
log-in needs a ticket from the control socket, which only the owner may open; the ticket is posted,
never part of a logged address. A session cookie follows (HttpOnly, SameSite=Strict). Requests must
name this machine (against DNS rebinding) and come from the page itself; a request that changes
something needs a header that no other page can set.

    GET  /               the page, without data
    POST /login          {"ticket": …}
    GET  /session        whether the browser is logged in
    GET  /events         the state, sent on change
    POST /pause /resume /rollback /logout
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from edgeveil.config.edge import LoopbackHttp
from edgeveil.errors import EdgeVeilError
from edgeveil.tokens import ExpiringSecrets
from edgeveil.transport.http import (
    Handler,
    LiveUpdates,
    Request,
    Response,
    Route,
    changes,
    cookie_header,
    file_routes,
    refusal,
)
from edgeveil.transport.http_server import HttpServer
from edgeveil_edge import conditions
from edgeveil_edge.host import LOG

if TYPE_CHECKING:
    from edgeveil_edge.main import DeviceProcess

LOOK_S = 2.0
_WAY_IN = "run edgeveil edge status --page --config FILE at the box"
_NAME_CHARACTERS = 64
_REFUSALS_S = 60.0  # between two log lines about refused log-ins
_LOGIN_BYTES = 999  # upper bound of a log-in's body
SESSION_S = 12 * 3600.0  # in memory only: a restart ends all sessions
TICKET_S = 60.0
_MOST_SESSIONS = 32  # and tickets; the oldest is dropped


class DevicePage:
    def __init__(self, at: LoopbackHttp, device: DeviceProcess) -> None:
        self._at, self._device, self._site = at, device, device.site
        self._sessions = ExpiringSecrets[bool](SESSION_S, _MOST_SESSIONS)
        self._tickets = ExpiringSecrets[bool](TICKET_S, _MOST_SESSIONS)
        self._refused_s = -_REFUSALS_S
        self._open = [
            *file_routes("edgeveil_edge", "device.html", "device.css", "device.js"),
            Route("GET", "/session", self._session),
        ]
        self._login_route = Route("POST", "/login", self._login, _LOGIN_BYTES)
        routes = [
            *self._open,
            self._login_route,
            Route("GET", "/events", self._events),
            Route("POST", "/logout", self._logout),
            Route("POST", "/pause", self._order("pause")),
            Route("POST", "/resume", self._order("resume")),
            Route("POST", "/rollback", self._rollback),
        ]
        self._server = HttpServer(routes, self._refuse)
        self._release: tuple[object, dict[str, Any] | None] = (None, None)

    async def start(self) -> None:
        await self._server.start(self._at.host, self._at.port)

    async def stop(self) -> None:
        await self._server.stop()

    def way_in(self) -> str:
        """Return an address for one log-in within a minute; browsers do not send the # part."""
        return f"{self._server.url}/#ticket={self._tickets.add(True)}"

    def _refuse(self, request: Request) -> Response | None:
        if not request.is_for_this_machine:
            what = "the device does not have the name in this address"
            return refusal(403, what, "open the address that edgeveil edge status --page prints")
        if request.route is None or request.route in self._open:
            return None
        own = request.is_same_origin
        if request.method == "POST" and not (own and request.headers.get("x-edgeveil") == "1"):
            why = "the request came from another site's page"
            return refusal(403, why, "reload the device's page")
        if request.route is not self._login_route and not (own and self._is_logged_in(request)):
            return refusal(401, "not logged in", _WAY_IN)
        return None

    @property
    def _cookie(self) -> str:
        """Cookie name, one for each port: browsers keep cookies by host alone."""
        return f"edgeveil-device-{self._server.port}"

    def _is_logged_in(self, request: Request) -> bool:
        return self._sessions.get(request.cookie(self._cookie)) is not None

    async def _login(self, request: Request) -> Response:
        try:
            ticket = str(json.loads(request.content)["ticket"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return refusal(400, "this is no log-in", "send a ticket")
        known = self._tickets.get(ticket) is not None
        self._tickets.drop(ticket)
        if not known:
            if time.monotonic() - self._refused_s > _REFUSALS_S:  # any program here may try
                self._refused_s = time.monotonic()
                LOG.warning("page_login_refused")
            return refusal(401, "this address is unknown or was already used", _WAY_IN)
        LOG.info("page_login")
        cookie = cookie_header(self._cookie, self._sessions.add(True), SESSION_S)
        return Response.of_json({}, headers={"Set-Cookie": cookie})

    async def _logout(self, request: Request) -> Response:
        self._sessions.drop(request.cookie(self._cookie))
        return Response.of_json({}, headers={"Set-Cookie": cookie_header(self._cookie, "", 0)})

    async def _session(self, request: Request) -> Response:
        return Response.of_json({"logged_in": self._is_logged_in(request)})

    async def _events(self, request: Request) -> LiveUpdates:
        async def value() -> dict[str, Any]:
            return await asyncio.to_thread(self.state)

        return LiveUpdates(changes(value, LOOK_S, lambda: self._is_logged_in(request)))

    def state(self) -> dict[str, Any]:
        """Return all that the page shows. Reads files: not for the event loop's thread."""
        site, device, policy = self._site, self._device, self._site.policy
        own: dict[str, Any] = {}
        try:
            own = device.spending.own()
            ledger = {"intact": True, "links": device.spending.plain()["links"]}
        except EdgeVeilError as error:
            ledger = {"intact": False, "what": error.what, "where": error.where, "fix": error.fix}
        names, release = self._job_names(own.get("jobs", ())), self._release_state()
        if release and "job" in release:
            names.setdefault(release["job_id"], release["job"])
        same = "max_epsilon_per_job", "lifetime_epsilon", "lifetime_delta", "max_inference_epsilon"
        limits = {key: getattr(policy, key) for key in same}
        limits["lifetime_collusion_epsilon"] = policy.collusion_epsilon_in_all
        limits["statistics_epsilon"] = policy.statistics_epsilon
        return {
            **device.summary(own),
            "role": site.role,
            "cell": site.cell,
            "data": site.data.name,
            "names": names,
            "wanted": conditions.wanted(site.conditions),
            "interval_s": conditions.PRESENCE_INTERVAL_S,
            "ledger": ledger,
            "spent": own,
            "policy": limits,
            "release": release,
            "next_refusal": own.get("next_refusal"),
        }

    def _job_names(self, jobs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        found = {}
        for job in (one["job"] for one in jobs):
            with suppress(ValueError, KeyError, TypeError):
                if name := self._device.device.store.job_name(bytes.fromhex(job)):
                    found[job] = name[:_NAME_CHARACTERS]
        return found

    def _release_state(self) -> dict[str, Any] | None:
        releases = self._device.device.host.releases
        mark = releases.mark()
        if mark != self._release[0]:
            shown: dict[str, Any] | None = None
            try:
                if (now := releases.current()) is not None:
                    same = ("version", "job", "digest", "expires_s")
                    shown = {key: getattr(now, key) for key in same}
                    shown |= {"job_id": str(now.meta.get("job_id", ""))}
                    shown |= {"installed_s": now.path.stat().st_mtime}
                    shown |= {"earlier": releases.history()[:-1]}
            except EdgeVeilError as error:
                shown = {"problem": f"{error.what}; {error.fix}"}
            self._release = mark, shown
        shown = self._release[1]
        if shown is None or "problem" in shown:
            return shown
        return {**shown, "stale": 0 < shown["expires_s"] <= time.time()}

    def _order(self, command: str) -> Handler:
        async def post(_request: Request) -> Response:
            self._device.order(command)
            return Response.of_json({})

        return post

    async def _rollback(self, _request: Request) -> Response:
        release = await self._device.roll_back()
        return Response.of_json({"release": release})
