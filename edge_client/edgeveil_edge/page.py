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
from edgeveil.transport.http import (
    REQUEST_S,
    EventStream,
    Page,
    PageContent,
    PageRequest,
    PageServer,
    Post,
    files,
)
from edgeveil_edge import conditions
from edgeveil_edge.host import LOG
from edgeveil_edge.inference import TRY_S
from edgeveil_edge.page_sessions import OwnerSessions
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
_PRIVATE = {"Cache-Control": "no-store"}
_NAME_CHARACTERS = 64
_REFUSALS_S = 60.0  # between two lines of the log that tell of refused log-ins
_LOGIN_DIGITS = 4  # of a log-in's length: 999 bytes are more than it ever has


class DevicePage:
    """Serves the page of `device` where its site file says."""

    def __init__(self, at: LoopbackHttp, device: DeviceProcess) -> None:
        self._at, self._device, self._site = at, device, device.site
        self._token_file = device.site.state_dir / TOKEN_FILE
        self._token_mark: tuple[int, ...] = ()
        self._sessions = OwnerSessions("")
        self._refused_s = -_REFUSALS_S
        self._files = files("edgeveil_edge", "device.html", "device.css", "device.js")
        posts = {
            "/login": self._login,
            "/logout": self._logout,
            "/pause": self._order("pause"),
            "/resume": self._order("resume"),
            "/rollback": self._rollback,
            "/try": self._try,
        }
        self._posts = {path: self._told_if_not(post) for path, post in posts.items()}
        pages: dict[str, Page] = {**self._files, "/events": self._events, "/model": self._model}
        pages["/session"] = self._session
        answer_s = TRY_S + REQUEST_S
        self._server = PageServer(pages, self._posts, TRY_BYTES, self._refusal, answer_s)
        self._release: tuple[object, dict[str, Any] | None] = (None, None)

    async def start(self) -> None:
        """Listen. Raises UsageError for a taken address or an unfit token file."""
        tokens.load_or_make_token(self._token_file)
        self._token_mark = file_mark(self._token_file)
        await self._server.listen(self._at.host, self._at.port)
        port = self._server.url.rpartition(":")[2]
        self._sessions = OwnerSessions(f"edgeveil-device-{port}")

    async def stop(self) -> None:
        """Listen no more; everybody is logged out."""
        await self._server.stop()

    def way_in(self) -> str:
        """An address that logs in once, within a minute. What stands behind # is never sent."""
        return f"{self._server.url}/#ticket={self._sessions.ticket()}"

    # --- who may ---

    def _refusal(self, path: str, request: PageRequest) -> PageContent | None:
        """Asked before a page is made and before a body is read."""
        if not request.is_for_this_machine:
            return _refused(
                403,
                "the device does not go by the name in this address",
                "open the address that edgeveil edge page prints",
            )
        if path in self._files or path == "/session":
            return None
        site = request.headers.get("sec-fetch-site", "same-origin")
        asked_by_others = site not in ("same-origin", "none")
        if path in self._posts and (asked_by_others or not _by_own_page(request)):
            return _refused(403, "this was asked for by another page", "reload the device's page")
        if path == "/login":
            length = request.headers.get("content-length", "")
            return None if len(length) < _LOGIN_DIGITS else _refused(413, "this is no log-in")
        if asked_by_others or not self._knows(request):
            return _refused(401, "nobody is logged in", "run edgeveil edge page --config FILE")
        return None

    def _knows(self, request: PageRequest) -> bool:
        """Whether its cookie stands for a session of today's token."""
        mark = file_mark(self._token_file)
        if mark != self._token_mark:
            self._sessions.end_all()
            self._token_mark = mark
        return self._sessions.knows(request.cookie(self._sessions.cookie))

    def _told_if_not(self, post: Post) -> Post:
        """An error in words in place of an exception."""

        async def told(request: PageRequest) -> PageContent:
            try:
                return await post(request)
            except EdgeVeilError as error:
                return _refused(400, error.what, error.fix)

        return told

    # --- logging in and out ---

    async def _login(self, request: PageRequest) -> PageContent:
        try:
            told = json.loads(request.content)
            shown = {key: str(told[key]) for key in ("token", "ticket") if key in told}
        except (ValueError, TypeError, RecursionError):
            return _refused(400, "this is no log-in", "send a token or a ticket")
        if not self._is_owner(**shown):
            if time.monotonic() - self._refused_s > _REFUSALS_S:  # any program here may try
                self._refused_s = time.monotonic()
                LOG.warning("page_login_refused")
            fix = f"take the token from {TOKEN_FILE} in the state folder, or a new address from"
            return _refused(401, "this is not known, or used up", f"{fix} edgeveil edge page")
        self._knows(request)  # another token ends what stood before it
        LOG.info("page_login")
        return PageContent.of_json({}, headers={**_PRIVATE, "Set-Cookie": self._sessions.begin()})

    def _is_owner(self, token: str = "", ticket: str = "") -> bool:
        if ticket:
            return self._sessions.redeem(ticket)
        own = tokens.load_or_make_token(self._token_file).encode()
        return hmac.compare_digest(token.strip().encode("utf-8", "replace"), own)

    async def _logout(self, request: PageRequest) -> PageContent:
        ended = self._sessions.end(request.cookie(self._sessions.cookie))
        return PageContent.of_json({}, headers={**_PRIVATE, "Set-Cookie": ended})

    async def _session(self, request: PageRequest) -> PageContent:
        return PageContent.of_json({"logged_in": self._knows(request)}, headers=_PRIVATE)

    # --- what is shown ---

    async def _events(self, request: PageRequest) -> EventStream:
        async def value() -> dict[str, Any]:
            return await asyncio.to_thread(self.state)

        return EventStream(value, LOOK_S, lambda: self._knows(request))

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

    async def _model(self, _request: PageRequest) -> PageContent:
        return await self._device.inference.told()

    # --- what it takes ---

    def _order(self, command: str) -> Post:
        async def post(_request: PageRequest) -> PageContent:
            self._device.order(command)
            return PageContent.of_json({}, headers=_PRIVATE)

        return post

    async def _rollback(self, _request: PageRequest) -> PageContent:
        release = await self._device.roll_back()
        return PageContent.of_json({"release": release}, headers=_PRIVATE)

    async def _try(self, request: PageRequest) -> PageContent:
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
        return PageContent.of_json(told, headers=_PRIVATE)


def _by_own_page(request: PageRequest) -> bool:
    """Whether it has the header that pages of others cannot set, and no other page's origin."""
    headers = request.headers
    own = f"http://{headers.get('host', '')}"
    return headers.get("x-edgeveil") == "1" and headers.get("origin", own) == own


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


def _refused(status: int, what: str, fix: str = "") -> PageContent:
    return PageContent.of_json({"what": what, "fix": fix}, status, _PRIVATE)
