"""A run's page while it runs: served to its owner's browser on this machine, and to nobody else.

The address that is printed holds a secret, which the first visit turns into a cookie: another user
of the machine, who sees the port, reads nothing. Only requests to a loopback name are answered, so
that no page of another's reaches it by a name of its own (DNS rebinding). Nothing can be asked of
the run here but to look.

The run does nothing for it: a thread of the server looks at what the run has kept some times a
second, and only while somebody watches.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import tempfile
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.pages.assets import asset, content_type
from edgeveil.transport.http import (
    EventStream,
    HttpError,
    Request,
    Response,
    Route,
    cookie_header,
    refusal,
)
from edgeveil.transport.http_server import HttpServer
from edgeveil_cloud.http import HttpThread

if TYPE_CHECKING:
    from edgeveil.pages.parts import Json
    from edgeveil_tools.local.fleet import LocalFleet
    from edgeveil_tools.result import Result

LOOK_S = 0.5
QUIET_S = 15.0  # a line without anything, so that a browser knows that it is still there
LEAVE_S = 2.0  # at the end, until the last view has been taken
MOST_WATCHERS = 8
LASTS_S = 30 * 86400.0  # of the cookie: longer than a run
_HTML = "run.html"


class RunPage:
    """`start`, then `show` the fleet, then `end`; `stop` in any case."""

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(18)
        self._thread = HttpThread()
        self._fleet: LocalFleet | None = None
        self._result: Result | None = None  # once it has ended
        self._live: LiveView | None = None
        self._making = threading.Lock()  # one of those who watch makes the view for all
        self._watchers, self._served = 0, False

    def start(self, port: int = 0) -> str:
        """Serve; returns the address to open. Raises UsageError if the port cannot be had."""
        self._server = HttpServer(
            [
                Route("GET", "/", _file),
                Route("GET", "/static/{name}", _file),
                Route("GET", "/events", self._events),
                Route("GET", "/{secret}", self._enter),
            ],
            self._refuse,
            streams=MOST_WATCHERS,
        )
        asyncio.run(self._thread.start(self._server, "127.0.0.1", port))
        self._served = True
        return f"{self._thread.url}/{self._secret}"

    def show(self, fleet: LocalFleet) -> None:
        """The run that is watched; called once it is made, before it starts."""
        if fleet.settings.simulate:  # its workers may be forked: no thread may import anything then
            import edgeveil_tools.report.page  # noqa: F401
        self._fleet = fleet

    def end(self, result: Result) -> None:
        """It has ended, and its files are there."""
        self._result = result

    def stop(self) -> None:
        """End it, once those who watch have the last view, or LEAVE_S later."""
        if self._served:
            asyncio.run(self._left())

    async def _left(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while self._result is not None and self._watchers:
                    await asyncio.sleep(LOOK_S / 10)
        self._served = False
        await self._thread.stop()

    # --- who may look ---

    def _refuse(self, request: Request) -> Response | None:
        given = request.parameters.get("secret") or request.cookie(self._cookie)
        if not request.is_for_this_machine:
            return refusal(403, "not by this name")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._secret.encode()):
            return refusal(403, "open the address that the run printed")
        return None

    @property
    def _cookie(self) -> str:
        """Cookies are one machine's, whatever the port."""
        return f"edgeveil-run-{self._server.port}"

    async def _enter(self, _request: Request) -> Response:
        cookie = cookie_header(self._cookie, self._secret, LASTS_S, same_site="Lax")
        return Response(status=303, headers={"Location": "/", "Set-Cookie": cookie})

    # --- what they see ---

    async def _events(self, _request: Request) -> EventStream:
        return EventStream(self._told())

    async def _told(self) -> AsyncGenerator[bytes, None]:
        self._watchers += 1
        try:
            told, quiet_s = "", 0.0
            while self._served:
                ended = self._result is not None
                said = await asyncio.to_thread(self._said)
                if said and said != told:
                    yield f"data: {said}\n\n".encode()
                    told, quiet_s = said, 0.0
                elif quiet_s >= QUIET_S:
                    yield b":\n\n"
                    quiet_s = 0.0
                if ended:
                    return
                await asyncio.sleep(LOOK_S)
                quiet_s += LOOK_S
        finally:
            self._watchers -= 1

    def _said(self) -> str:
        """The view now, as JSON; "" while the run is not there yet. The same for all watchers."""
        if self._result is not None:
            return _plain(ended_view(self._result))
        if self._fleet is None:
            return ""
        with self._making:
            if self._live is None:
                self._live = LiveView(self._fleet)
            return self._live.said()


@contextmanager
def way_in(address: str) -> Iterator[Path]:
    """A file for this user alone that leads a browser there: what a browser is started with can be
    seen by all users of a machine."""
    with tempfile.TemporaryDirectory(prefix="edgeveil-") as folder:
        path = Path(folder) / "run.html"
        path.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        yield path


def _plain(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def ended_view(result: Result) -> Json:
    """What is shown last: the report, where one was drawn."""
    from edgeveil.pages.frozen import thawed
    from edgeveil_tools.report.page import report_view

    drawn = result.report.exists()
    view = thawed(result.report.read_text("utf-8")) if drawn else None
    words = f"ended; this page is kept in {result.report}" if drawn else "ended"
    return {"view": view or report_view(result.content, result.events), "ended": words}


class LiveView:
    """How a run stands, made anew only where something happened."""

    def __init__(self, fleet: LocalFleet) -> None:
        # Not above: who does not watch needs none of what makes a page.
        from edgeveil_cloud.job_history import JobHistory
        from edgeveil_cloud.job_view import RunPart, facts_of_plan
        from edgeveil_tools.local.data import is_published
        from edgeveil_tools.result import MEASURED_ON

        settings, self._fleet = fleet.settings, fleet
        self._run = RunPart(
            devices=settings.devices,
            infer_only=settings.infer_only,
            simulated=settings.simulate,
            measured_on="" if is_published(fleet.job, settings) else MEASURED_ON[False],
        )
        self._facts = facts_of_plan(fleet.log.plan, settings.cells)
        self._course, self._taken = JobHistory(), 0
        self._made: tuple[tuple[int, int, str], str] | None = None

    def said(self) -> str:
        """The view as JSON."""
        record, reference = self._fleet.log.record, self._fleet.reference
        rounds = list(reference.rounds) if reference is not None else []
        stand = (len(record.events), len(rounds), record.ended)
        if self._made is None or self._made[0] != stand:
            self._course.take_all(record.events[self._taken : stand[0]])
            self._taken = stand[0]
            self._made = stand, _plain({"view": self._view(record.ended or "running", rounds)})
        return self._made[1]

    def _view(self, status: str, reference: list[float]) -> Json:
        from edgeveil_cloud.job_view import job_view

        memory = self._fleet.memory.peak_bytes or None
        run = replace(self._run, reference=reference, memory_bytes=memory)
        return job_view(replace(self._facts, status=status, run=run), self._course)


async def _file(request: Request) -> Response:
    name = request.parameters.get("name", _HTML)
    try:
        return Response(asset(name), content_type(name))
    except (FileNotFoundError, KeyError):
        raise HttpError(404, "there is no such file") from None
