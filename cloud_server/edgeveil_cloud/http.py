"""The cloud's local HTTP control: jobs and releases, what they do, and the models they made.

Served on a thread of its own, so that it answers whatever holds the cloud's work up.

Bound to 127.0.0.1 by default. Everything but `/healthz` and `/v1/hello`, `/metrics` too, wants
`Authorization: Bearer <token>` with the token of a file that only the cloud's owner can read, whose
scope reaches: `read` for jobs, status and metrics, `submit` for what changes a job or takes its
model away; or, over TLS, the certificate of a client that the site file names with its scope; or,
in a browser, the cookie that a token was given for (`http_guard`, `pages`).
Answers are JSON; an error is `{"what": …, "fix": …}`, a refused job `{"problems": [...]}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import (
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from aiohttp import web

from edgeveil.errors import ConfigError, EdgeVeilError
from edgeveil.parts.features.onnx import check_size
from edgeveil.transport.http import Health, HttpServer, serve
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.metrics import Metrics
from edgeveil_cloud.http_guard import (
    BY,
    GUARD,
    Handler,
    RequestGuard,
    in_time,
    posted_text,
    refusal,
    with_security_headers,
)
from edgeveil_cloud.http_sessions import BrowserSessions
from edgeveil_cloud.http_token import NONCE, PROOF_PATH, Scope, Tokens, proof
from edgeveil_cloud.pages.board import Ask
from edgeveil_cloud.pages.fleet import CloudFacts
from edgeveil_cloud.pages.job_rows import figure_text
from edgeveil_cloud.pages.routes import PageRoutes
from edgeveil_cloud.round_report import planned_of_shared
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobEntry, StoreAway, StoredEvent, StoreError, UnknownJob

MAX_BODY_BYTES = 1 << 20
BACKBONE_S = 120.0
MAX_WAIT_S = 30.0
_POLL_S = 0.1
_PAGE = 1000
_CHUNK_BYTES = 1 << 16
ANSWER_S = 30.0
_LOOK_S = 0.1
_BROUGHT = "what was asked for may still be done: look before you ask again"

T = TypeVar("T")
Audit = Callable[[str, Mapping[str, str]], None]


async def ask_here(question: Callable[[], T]) -> T:
    """On the loop that serves HTTP."""
    return question()


def unaudited(_action: str, _what: Mapping[str, str]) -> None:
    """Where nothing is written down: tests and simulations."""


class JobControl(Protocol):
    """What the job runner offers. The methods are quick and run on the cloud's event loop, but for
    `check`."""

    def check(self, job_yaml: str) -> None:
        """Raise what `submit` would of the job itself. Not quick; runs on any thread."""
        ...

    def quote(self, job_yaml: str) -> Mapping[str, Any]:
        """As `check`; what the job would cost, both guarantees together, and what it moves."""
        ...

    def submit(self, job_yaml: str) -> str:
        """Validate and queue; returns the job's id. ConfigError holds every problem."""
        ...

    def cancel(self, job: str) -> None:
        """Cancel a job that has not ended. UnknownJob, or StoreError if it has."""
        ...

    def resume(self, job: str) -> None:
        """Let a paused job go on. UnknownJob, or StoreError if it is not paused."""
        ...

    def releases(self, job: str | None = None) -> list[dict[str, Any]]:
        """All releases, or that of one job, JSON-able: counts, and no device's name."""
        ...

    def withdraw(self, job: str) -> None:
        """Have devices leave a release. UnknownJob, or StoreError where there is none."""
        ...

    def promote(self, job: str) -> None:
        """Bring a release to all devices. As `withdraw`, and StoreError for a withdrawn one."""
        ...

    def status(self) -> Mapping[str, Any]:
        """What the process does now, JSON-able; without secrets and device names."""
        ...


def make_app(
    store: Store,
    control: JobControl,
    tokens: Tokens,
    health: Health | None = None,
    metrics: Metrics | None = None,
    ask: Ask = ask_here,
    clients: Mapping[str, Scope] | None = None,
    audit: Audit = unaudited,
    at: ListenAt | None = None,
    facts: CloudFacts | None = None,
) -> web.Application:
    """The application; pass it to `edgeveil.transport.http.serve`, which listens `at`.

    `clients` need no token: what those may do who show a certificate of such a name. `audit` is
    told what changes a job, and by whom, before it is done, in a thread of its own. `facts` are
    what the pages show of the process itself.
    """
    routes = _Routes(store, control, metrics or Metrics(), ask, audit)
    guard = RequestGuard(tokens, clients or {}, BrowserSessions(tokens), at or ListenAt())
    pages = PageRoutes(store, control, guard, ask, facts)
    open_to_all = [
        web.get("/healthz", (health or Health({})).page),
        web.get(PROOF_PATH, _hello(tokens)),
        *pages.open_to_all,
    ]
    reading = [
        web.get("/metrics", routes.metrics),
        web.get("/status", routes.status),
        web.get("/jobs", routes.jobs),
        web.get("/jobs/{id}", routes.job),
        web.get("/jobs/{id}/job.json", routes.content),
        web.get("/jobs/{id}/events", routes.events),
        web.get("/releases", routes.releases),
        web.get("/releases/{id}", routes.release),
        *pages.reading,
    ]
    submitting = [
        web.put("/backbones", routes.backbone),
        web.post("/jobs", routes.submit),
        web.post("/jobs/{id}/cancel", routes.cancel),
        web.post("/jobs/{id}/resume", routes.resume),
        web.post("/releases/{id}/withdraw", routes.withdraw),
        web.post("/releases/{id}/promote", routes.promote),
        web.get("/jobs/{id}/model.onnx", routes.model),
        web.get("/jobs/{id}/model.safetensors", routes.model),
        *pages.submitting,
    ]
    guard.wanted = {
        **{route.handler: None for route in open_to_all},
        **{route.handler: Scope.READ for route in reading},
        **{route.handler: Scope.SUBMIT for route in submitting},
    }
    guard.pages = {route.handler for route in pages.all}
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors, guard.middleware])
    app[GUARD] = guard
    app.on_response_prepare.append(with_security_headers)
    app.cleanup_ctx.append(pages.running)
    app.on_shutdown.extend([routes.close, pages.close])
    app.add_routes([*open_to_all, *reading, *submitting])
    return app


class _Routes:
    def __init__(
        self, store: Store, control: JobControl, metrics: Metrics, ask: Ask, audit: Audit
    ) -> None:
        self._store, self._control, self._metrics = store, control, metrics
        self._ask, self._audit, self._closing = ask, audit, asyncio.Event()

    async def close(self, _app: web.Application) -> None:
        self._closing.set()

    async def metrics(self, _request: web.Request) -> web.Response:
        return await self._ask(self._metrics.shown)

    async def status(self, _request: web.Request) -> web.Response:
        return web.json_response(dict(await self._ask(self._control.status)))

    async def submit(self, request: web.Request) -> web.Response:
        text = await posted_text(request)
        await asyncio.to_thread(self._control.check, text)
        await self._note(request, "submit", sha256=hashlib.sha256(text.encode()).hexdigest())
        job = await self._ask(lambda: self._control.submit(text))
        return web.json_response({"id": job}, status=201)

    async def backbone(self, request: web.Request) -> web.Response:
        """Before the job that names it: a feature extractor (ONNX) or a model's first weights
        (safetensors), kept under its digest."""
        graph = bytearray()
        async with in_time(BACKBONE_S):
            async for chunk in request.content.iter_chunked(_CHUNK_BYTES):
                graph += chunk
                check_size(graph)
        digest = await self._ask(lambda: self._store.put_backbone(bytes(graph)))
        return web.json_response({"sha256": digest}, status=201)

    async def jobs(self, _request: web.Request) -> web.Response:
        found = await self._ask(lambda: [_summary(entry) for entry in self._store.jobs()])
        return web.json_response({"jobs": found})

    async def job(self, request: web.Request) -> web.Response:
        entry = await self._entry(request)
        records = await self._ask(lambda: self._store.exchanges(entry.id))
        rounds = [{**asdict(one), "figure": figure_text(entry.canonical, one)} for one in records]
        found = await self._ask(lambda: self._control.releases(entry.id))
        release = found[0] if found else None
        return web.json_response({**_summary(entry), "exchanges": rounds, "release": release})

    async def content(self, request: web.Request) -> web.Response:
        """The job itself, its canonical bytes: its digest is over these."""
        entry = await self._entry(request)
        return web.Response(body=entry.canonical, content_type="application/json")

    async def releases(self, _request: web.Request) -> web.Response:
        return web.json_response({"releases": await self._ask(self._control.releases)})

    async def release(self, request: web.Request) -> web.Response:
        entry = await self._entry(request)
        found = await self._ask(lambda: self._control.releases(entry.id))
        if not found:
            raise UnknownModel(entry)
        return web.json_response(found[0])

    async def withdraw(self, request: web.Request) -> web.Response:
        await self._ask(lambda: self._control.withdraw(request.match_info["id"]))
        return await self.release(request)

    async def promote(self, request: web.Request) -> web.Response:
        await self._ask(lambda: self._control.promote(request.match_info["id"]))
        return await self.release(request)

    async def events(self, request: web.Request) -> web.Response:
        job = (await self._entry(request)).id
        after = int(_number(request, "after", 0.0, 2.0**53))
        wait_s = _number(request, "wait_s", 0.0, MAX_WAIT_S)

        def read() -> Sequence[StoredEvent]:
            return self._store.events_after(after, job, _PAGE)

        deadline = asyncio.get_running_loop().time() + wait_s
        news, found = self._store.news(job), await self._ask(read)
        while not found and asyncio.get_running_loop().time() < deadline:
            if self._closing.is_set():
                break
            await asyncio.sleep(_POLL_S)
            if news != (now := self._store.news(job)):
                news, found = now, await self._ask(read)
        return web.json_response({"events": [asdict(event) for event in found]})

    async def cancel(self, request: web.Request) -> web.Response:
        entry = await self._entry(request)
        await self._note(request, "cancel", job=entry.id)
        await self._ask(lambda: self._control.cancel(entry.id))
        return web.json_response(_summary(await self._entry(request)))

    async def resume(self, request: web.Request) -> web.Response:
        entry = await self._entry(request)
        await self._note(request, "resume", job=entry.id)
        await self._ask(lambda: self._control.resume(entry.id))
        return web.json_response(_summary(await self._entry(request)))

    async def model(self, request: web.Request) -> web.Response:
        entry = await self._entry(request)
        release = await self._ask(lambda: self._store.release(entry.id))
        if release is None:
            raise UnknownModel(entry)
        onnx = request.path.endswith(".onnx")
        name = f"{entry.id}.{'onnx' if onnx else 'safetensors'}"
        return web.Response(
            body=release.onnx if onnx else release.safetensors,
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    async def _note(self, request: web.Request, action: str, **what: str) -> None:
        """Have written down who is about to do what. Raises AuditLogError."""
        await asyncio.to_thread(self._audit, action, {**what, "by": request[BY]})

    async def _entry(self, request: web.Request) -> JobEntry:
        """The job that the address names."""
        return await self._ask(lambda: self._store.job(request.match_info["id"]))


class UnknownModel(UnknownJob):
    """The job has no final model (yet)."""

    def __init__(self, entry: JobEntry) -> None:
        StoreError.__init__(
            self,
            f"job '{entry.id}' has no model: it is {entry.status}",
            fix="" if entry.ended else "wait until it is completed",
        )


def _summary(entry: JobEntry) -> dict[str, Any]:
    """A job for JSON. Its digest as hex; its text is what the owner submitted.

    With shared noise also its `privacy`, whose two ε no single figure tells.
    """
    shown = {**entry.__dict__, "digest": entry.digest.hex()}
    shown |= planned_of_shared(entry.canonical)
    del shown["canonical"]
    return shown


def _number(request: web.Request, name: str, low: float, high: float) -> float:
    text = request.query.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise ConfigError([f"{name}: must be a number in {low:g}..{high:g}, got {text[:40]!r}"])
    return value


def _hello(tokens: Tokens) -> Handler:
    """Proves to a client, before it shows its token, that this process knows the token."""

    async def hello(request: web.Request) -> web.Response:
        nonce = request.query.get("nonce", "")
        if not NONCE.fullmatch(nonce):
            raise ConfigError(["nonce: must be 32 random bytes in hex"])
        return web.json_response({"proofs": [proof(one, nonce) for one in tokens().values()]})

    return hello


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConfigError as error:
        return web.json_response({"problems": error.problems}, status=422)
    except UnknownJob as error:
        return refusal(404, error.what, error.fix)
    except StoreAway as error:
        return refusal(503, error.what, error.fix)
    except EdgeVeilError as error:
        return refusal(409, error.what, error.fix)
    except web.HTTPRequestEntityTooLarge:
        return refusal(413, f"more than {MAX_BODY_BYTES} bytes", "send the job's YAML alone")
    except web.HTTPException as error:
        return refusal(error.status, error.reason, "see the list of addresses in docs")


# --- on a thread of its own ---


class ControlDesk:
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

    async def start(self, app: web.Application, host: str | ListenAt, port: int = 0) -> None:
        """Serve `app`. Raises UsageError if the port cannot be had."""
        self._thread.start()
        try:
            self._server = await self._there(serve(app, host, port))
            if GUARD in app:
                app[GUARD].keep = self._server.keep
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
