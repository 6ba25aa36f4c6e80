"""The owner's page of one device, on this machine alone: what it spent, does, waits for and uses.

What it shows is private to the owner, and what it takes moves the device, so others of the same box
are kept out: the way in is the token in the state folder (mode 0600), or a ticket that the control
socket gave to whoever may open it. Both are posted, never part of an address that is logged. A
cookie stands for them from then on; scripts and other sites' pages do not get it (HttpOnly,
SameSite=Strict). A request counts only by a name of this machine (DNS rebinding), and only where
the browser does not say that another page asked for it, as one of another port may; what changes
something needs a header too that no other page can set.

    GET  /               the page, which holds nothing yet
    POST /login          {"token": …} or {"ticket": …}
    GET  /session        whether one is logged in
    GET  /events         the state, told when it changes
    GET  /model          what the release in use takes
    POST /pause /resume /rollback /logout
    POST /try            one file of records: what the release in use says of them
"""

from __future__ import annotations

import asyncio
import hmac
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil import tokens
from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.sites.edge import LoopbackHttp
from edgeveil.storage import file_mark
from edgeveil.tokens import ExpiringSecrets
from edgeveil.transport.http import (
    EventStream,
    Handler,
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
from edgeveil_edge.personal_model import kept_personal
from edgeveil_edge.presence import PRESENCE_INTERVAL_S

if TYPE_CHECKING:
    from edgeveil_edge.main import DeviceProcess

TOKEN_FILE = "page.token"  # noqa: S105 - a file's name
LOOK_S = 2.0
TRY_BYTES = 1 << 24
SHOWN = 20  # records of a file that is tried
KINDS: Mapping[str, str] = {
    "text/csv": ".csv",
    "application/x-npy": ".npy",
    "application/x-npz": ".npz",
    "application/vnd.apache.parquet": ".parquet",
    "image/png": ".png",
    "image/jpeg": ".jpg",
}
_NAME_CHARACTERS = 64
_REFUSALS_S = 60.0  # between two lines of the log that tell of refused log-ins
_LOGIN_BYTES = 999  # more than a log-in ever has
SESSION_S = 12 * 3600.0  # in this process's memory alone: a restart logs everybody out
TICKET_S = 60.0
_MOST_SESSIONS = 32  # and tickets; the oldest makes room


class DevicePage:
    """Serves the page of `device` where its site file says."""

    def __init__(self, at: LoopbackHttp, device: DeviceProcess) -> None:
        self._at, self._device, self._site = at, device, device.site
        self._token_file = device.site.state_dir / TOKEN_FILE
        self._token_mark: tuple[int, ...] = ()
        self._log_out_all()
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
            Route("GET", "/model", device.inference.model_page),
            Route("POST", "/logout", self._logout),
            Route("POST", "/pause", self._order("pause")),
            Route("POST", "/resume", self._order("resume")),
            Route("POST", "/rollback", self._rollback),
            Route("POST", "/try", self._try, TRY_BYTES),
        ]
        self._server = HttpServer(routes, self._refuse)
        self._release: tuple[object, dict[str, Any] | None] = (None, None)

    async def start(self) -> None:
        """Listen. Raises UsageError for a taken address or an unfit token file."""
        tokens.load_or_make_token(self._token_file)
        self._token_mark = file_mark(self._token_file)
        await self._server.start(self._at.host, self._at.port)

    async def stop(self) -> None:
        """Listen no more; everybody is logged out."""
        await self._server.stop()

    def way_in(self) -> str:
        """An address that logs in once, within a minute. What stands behind # is never sent."""
        return f"{self._server.url}/#ticket={self._tickets.add(True)}"

    # --- who may ---

    def _refuse(self, request: Request) -> Response | None:
        """Asked before a route is called and before a body is read."""
        if not request.is_for_this_machine:
            return refusal(
                403,
                "the device does not go by the name in this address",
                "open the address that edgeveil edge status --page prints",
            )
        if request.route is None or request.route in self._open:
            return None
        own = request.is_same_origin
        if request.method == "POST" and not (own and request.headers.get("x-edgeveil") == "1"):
            return refusal(403, "this was asked for by another page", "reload the device's page")
        if request.route is not self._login_route and not (own and self._knows(request)):
            fix = "run edgeveil edge status --page --config FILE"
            return refusal(401, "nobody is logged in", fix)
        return None

    @property
    def _cookie(self) -> str:
        """One for each port: browsers keep cookies by host alone."""
        return f"edgeveil-device-{self._server.port}"

    def _log_out_all(self) -> None:
        self._sessions = ExpiringSecrets[bool](SESSION_S, _MOST_SESSIONS)

    def _knows(self, request: Request) -> bool:
        """Whether its cookie stands for a session of today's token."""
        mark = file_mark(self._token_file)
        if mark != self._token_mark:
            self._log_out_all()
            self._token_mark = mark
        return self._sessions.get(request.cookie(self._cookie)) is not None

    # --- logging in and out ---

    async def _login(self, request: Request) -> Response:
        try:
            told = json.loads(request.content)
            shown = {key: str(told[key]) for key in ("token", "ticket") if key in told}
        except (ValueError, TypeError, RecursionError):
            return refusal(400, "this is no log-in", "send a token or a ticket")
        if not self._is_owner(**shown):
            if time.monotonic() - self._refused_s > _REFUSALS_S:  # any program here may try
                self._refused_s = time.monotonic()
                LOG.warning("page_login_refused")
            fix = f"take the token from {TOKEN_FILE} in the state folder, or a new address from"
            fix += " edgeveil edge status --page"
            return refusal(401, "this is not known, or used up", fix)
        self._knows(request)  # another token ends what stood before it
        LOG.info("page_login")
        cookie = cookie_header(self._cookie, self._sessions.add(True), SESSION_S)
        return Response.of_json({}, headers={"Set-Cookie": cookie})

    def _is_owner(self, token: str = "", ticket: str = "") -> bool:
        if ticket:
            known = self._tickets.get(ticket) is not None
            self._tickets.drop(ticket)
            return known
        own = tokens.load_or_make_token(self._token_file).encode()
        return hmac.compare_digest(token.strip().encode("utf-8", "replace"), own)

    async def _logout(self, request: Request) -> Response:
        self._sessions.drop(request.cookie(self._cookie))
        return Response.of_json({}, headers={"Set-Cookie": cookie_header(self._cookie, "", 0)})

    async def _session(self, request: Request) -> Response:
        return Response.of_json({"logged_in": self._knows(request)})

    # --- what is shown ---

    async def _events(self, request: Request) -> EventStream:
        async def value() -> dict[str, Any]:
            return await asyncio.to_thread(self.state)

        return EventStream(changes(value, LOOK_S, lambda: self._knows(request)))

    def state(self) -> dict[str, Any]:
        """All that the page shows. Reads files: not for the loop's thread."""
        site, device = self._site, self._device
        spent: dict[str, Any] = {}
        try:
            spent = device.spending.told()
            ledger = {"intact": True, "links": spent["links"]}
        except EdgeVeilError as error:
            ledger = {"intact": False, "what": error.what, "where": error.where, "fix": error.fix}
        books: list[dict[str, Any]] = spent.get("data_sets", [])
        own = next((one for one in books if one["name"] == site.data.name), {})
        jobs = own.get("jobs", [])
        names, release = self._job_names([one["job"] for one in jobs]), self._release_told()
        if release and "job" in release:
            names.setdefault(release["job_id"], release["job"])
        policy = site.policy
        return {
            **device.standing([one["job"] for one in jobs if one["open"]]),
            "role": site.role,
            "cell": site.cell,
            "data": site.data.name,
            "wanted": conditions.wanted(site.conditions),
            "interval_s": PRESENCE_INTERVAL_S,
            "names": names,
            "ledger": ledger,
            "spent": {**own, "course": spent.get("course", [])},
            "policy": {
                "max_epsilon_per_job": policy.max_epsilon_per_job,
                "lifetime_epsilon": policy.lifetime_epsilon,
                "lifetime_collusion_epsilon": policy.collusion_epsilon_in_all,
                "lifetime_delta": policy.lifetime_delta,
                "max_inference_epsilon": policy.max_inference_epsilon,
            },
            "next_refusal": own.get("next_refusal"),
            "release": release,
            "personal": self._personal_told(release),
        }

    def _job_names(self, jobs: list[str]) -> dict[str, str]:
        """What open jobs are called; the ledger itself keeps ids alone."""
        found = {}
        for job in jobs:
            kept = self._device.device.store.job(bytes.fromhex(job)) if _is_id(job) else None
            if kept is not None:
                try:
                    found[job] = str(json.loads(kept[0])["job"])[:_NAME_CHARACTERS]
                except (ValueError, KeyError, TypeError):
                    continue
        return found

    def _release_told(self) -> dict[str, Any] | None:
        """The release in use; its file is read when it, or what is in use, changes."""
        releases = self._device.device.host.releases
        pointer = releases.folder / "current.json"
        before = self._release[1]
        path = Path(before["path"]) if before and "path" in before else pointer
        mark = (file_mark(pointer), file_mark(path))
        if mark != self._release[0]:
            try:
                told = _of_release(releases.current(), releases.history())
            except EdgeVeilError as error:
                told = {"problem": f"{error.what}; {error.fix}"}
            path = Path(told["path"]) if told and "path" in told else pointer
            self._release = (file_mark(pointer), file_mark(path)), told
        told = self._release[1]
        if told is None or "path" not in told:
            return told
        shown = {key: value for key, value in told.items() if key != "path"}
        return {**shown, "stale": 0 < told["expires_s"] <= time.time()}

    def _personal_told(self, release: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The box's own model, and whether it was made of the release in use."""
        found = kept_personal(self._site.state_dir)
        if found is None:
            return None
        texts = {"shared_text": found.shared_text, "personal_text": found.personal_text}
        of_release = found.digest == (release or {}).get("digest")
        return {**asdict(found), **texts, "of_release": of_release}

    # --- what it takes ---

    def _order(self, command: str) -> Handler:
        async def post(_request: Request) -> Response:
            self._device.order(command)
            return Response.of_json({})

        return post

    async def _rollback(self, _request: Request) -> Response:
        release = await self._device.roll_back()
        return Response.of_json({"release": release})

    async def _try(self, request: Request) -> Response:
        ending = KINDS.get(request.content_type)
        if ending is None:
            what = "this kind of file is not taken"
            raise UsageError(what, fix=f"choose one of {', '.join(KINDS.values())}")

        @contextmanager
        def written() -> Iterator[Path]:  # of this user alone, and gone with the answer
            with tempfile.NamedTemporaryFile(dir=self._site.state_dir, suffix=ending) as file:
                file.write(request.content)
                file.flush()
                yield Path(file.name)

        told = await self._device.inference.predict_file(written, SHOWN)
        return Response.of_json(told)


def _is_id(job: str) -> bool:
    try:
        return bool(bytes.fromhex(job))
    except ValueError:
        return False


def _of_release(release: Any, history: list[str]) -> dict[str, Any] | None:
    if release is None:
        return None
    return {
        "version": release.version,
        "job": release.job,
        "job_id": str(release.meta.get("job_id", "")),
        "digest": release.digest,
        "installed_s": release.path.stat().st_mtime,
        "expires_s": release.expires_s,
        "earlier": history[:-1],
        "path": str(release.path),
    }
