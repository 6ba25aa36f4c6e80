"""The cloud's HTTP control of jobs, releases and models, on its own thread.

Binds to 127.0.0.1 by default. All paths but `/healthz` and `/v1/hello` require a scope: `read` for
jobs, status and metrics, `submit` for changes and models. It is proved by `Authorization: Bearer
<token>`, a client certificate named in the site file, or a browser's cookie (`http_guard`). Answers
are JSON; errors are `{"what": …, "fix": …}`, refused jobs `{"problems": [...]}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from edgeveil.errors import ConfigError, EdgeVeilError
from edgeveil.parts.features.onnx import check_size
from edgeveil.transport.health import Health
from edgeveil.transport.http import Request, Response, Route, refusal
from edgeveil.transport.http_server import HttpServer
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.metrics import Metrics
from edgeveil_cloud.http_guard import NONCE, PROOF_PATH, RequestGuard, Scope, Tokens, proof
from edgeveil_cloud.job_view import planned_of_shared, record_figure
from edgeveil_cloud.pages.board import Ask
from edgeveil_cloud.pages.fleet import CloudFacts
from edgeveil_cloud.pages.routes import MOST_WATCHERS, PageRoutes
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import JobEntry, JobEvent, StoreAway, UnknownJob

if TYPE_CHECKING:
    from edgeveil_cloud.control import Control

MAX_BODY_BYTES = 1 << 20
MAX_WAIT_S = 30.0
_POLL_S = 0.1
_PAGE = 1000
ANSWER_S = 30.0
_LOOK_S = 0.1
_MAYBE_DONE = "the request may still be carried out: check before you try again"

T = TypeVar("T")
Audit = Callable[[str, Mapping[str, str]], None]


async def run_here(call: Callable[[], T]) -> T:
    return call()


def make_app(
    store: Store,
    control: Control,
    tokens: Tokens,
    health: Health | None = None,
    metrics: Metrics | None = None,
    ask: Ask = run_here,
    clients: Mapping[str, Scope] | None = None,
    audit: Audit = lambda _action, _details: None,
    at: ListenAt | None = None,
    facts: CloudFacts | None = None,
) -> HttpServer:
    """Return an unstarted server; `control`, except `check`, runs on the cloud's event loop.

    `clients` maps certificate names to scopes; `audit` runs in a thread before changes."""
    own = _Routes(store, control, tokens, metrics or Metrics(), ask, audit)
    guard = RequestGuard(tokens, clients or {}, at or ListenAt())
    pages = PageRoutes(store, control, guard, ask, facts)
    open_to_all = [
        Route("GET", "/healthz", (health or Health({})).page),
        Route("GET", PROOF_PATH, own.hello),
    ]
    reading = [
        Route("GET", "/metrics", own.metrics),
        Route("GET", "/status", own.status),
        Route("GET", "/jobs", own.jobs),
        Route("GET", "/jobs/{id}", own.job),
        Route("GET", "/jobs/{id}/job.json", own.content),
        Route("GET", "/jobs/{id}/events", own.events),
        Route("GET", "/releases", own.releases),
        Route("GET", "/releases/{id}", own.release),
    ]
    submitting = [
        Route("PUT", "/backbones", own.backbone, body_bytes=None),
        Route("POST", "/jobs", own.submit, body_bytes=MAX_BODY_BYTES),
        Route("POST", "/jobs/{id}/cancel", partial(own.changed, "cancel")),
        Route("POST", "/jobs/{id}/resume", partial(own.changed, "resume")),
        Route("POST", "/releases/{id}/withdraw", partial(own.move, "withdraw")),
        Route("POST", "/releases/{id}/promote", partial(own.move, "promote")),
        Route("GET", "/jobs/{id}/model.onnx", own.model),
        Route("GET", "/jobs/{id}/model.safetensors", own.model),
    ]
    guard.wanted = {
        **dict.fromkeys([*open_to_all, *pages.open_to_all]),
        **dict.fromkeys([*reading, *pages.reading], Scope.READ),
        **dict.fromkeys(submitting, Scope.SUBMIT),
    }
    guard.pages = {*pages.open_to_all, *pages.reading}
    return HttpServer([*guard.wanted], guard.refuse, explain, streams=MOST_WATCHERS)


def explain(error: EdgeVeilError) -> Response:
    if isinstance(error, ConfigError):
        return Response.of_json({"problems": error.problems}, 422)
    status = 503 if isinstance(error, StoreAway) else 404 if isinstance(error, UnknownJob) else 409
    return refusal(status, error.what, error.fix)


@dataclass
class _Routes:
    store: Store
    control: Control
    tokens: Tokens
    numbers: Metrics
    ask: Ask
    audit: Audit

    async def hello(self, request: Request) -> Response:
        """Prove knowledge of the tokens to a client before it sends one."""
        nonce = request.query.get("nonce", [""])[0]
        if not NONCE.fullmatch(nonce):
            raise ConfigError(["nonce: must be 32 random bytes in hex"])
        return Response.of_json({"proofs": [proof(one, nonce) for one in self.tokens().values()]})

    async def metrics(self, _request: Request) -> Response:
        return await self.ask(self.numbers.shown)

    async def status(self, _request: Request) -> Response:
        return Response.of_json(dict(await self.ask(self.control.status)))

    async def submit(self, request: Request) -> Response:
        try:
            text = request.content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError([f"(posted):1 : not UTF-8 text at byte {error.start}"]) from error
        await asyncio.to_thread(self.control.check, text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        job = await self._change(
            request, "submit", lambda: self.control.submit(text), sha256=digest
        )
        return Response.of_json({"id": job}, 201)

    async def backbone(self, request: Request) -> Response:
        """Store a feature extractor (ONNX) or first weights (safetensors)."""
        graph = bytearray()
        async for chunk in request.chunks():
            graph += chunk
            check_size(graph)
        digest = await self.ask(lambda: self.store.put_backbone(bytes(graph)))
        return Response.of_json({"sha256": digest}, 201)

    async def jobs(self, _request: Request) -> Response:
        found = await self.ask(lambda: [_summary(entry) for entry in self.store.jobs()])
        return Response.of_json({"jobs": found})

    async def job(self, request: Request) -> Response:
        entry = await self._entry(request)
        records = await self.ask(lambda: self.store.rounds(entry.id))
        rounds = [{**asdict(one), "figure": record_figure(entry.canonical, one)} for one in records]
        found = await self.ask(lambda: self.control.releases(entry.id))
        release = found[0] if found else None
        return Response.of_json({**_summary(entry), "exchanges": rounds, "release": release})

    async def content(self, request: Request) -> Response:
        return Response((await self._entry(request)).canonical, "application/json")

    async def events(self, request: Request) -> Response:
        job = (await self._entry(request)).id
        after = int(_number(request, "after", 0.0, 2.0**53))
        wait_s = _number(request, "wait_s", 0.0, MAX_WAIT_S)

        def read() -> Sequence[JobEvent]:
            return self.store.events_after(after, job, _PAGE)

        clock = asyncio.get_running_loop().time
        end_s = clock() + wait_s
        news, found = self.store.news(job), await self.ask(read)
        while not found and clock() < end_s and not request.server_stops:
            await asyncio.sleep(_POLL_S)
            if news != (now := self.store.news(job)):
                news, found = now, await self.ask(read)
        return Response.of_json({"events": [asdict(event) for event in found]})

    async def changed(self, action: str, request: Request) -> Response:
        job = (await self._entry(request)).id
        await self._change(request, action, lambda: getattr(self.control, action)(job), job=job)
        return Response.of_json(_summary(await self._entry(request)))

    async def model(self, request: Request) -> Response:
        entry = await self._entry(request)
        release = await self.ask(lambda: self.store.release(entry.id))
        if release is None:
            raise _unknown_model(entry)
        onnx = request.path.endswith(".onnx")
        name = f"{entry.id}.{'onnx' if onnx else 'safetensors'}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        content = release.onnx if onnx else release.safetensors
        return Response(content, "application/octet-stream", headers=headers)

    async def releases(self, _request: Request) -> Response:
        return Response.of_json({"releases": await self.ask(self.control.releases)})

    async def release(self, request: Request) -> Response:
        entry = await self._entry(request)
        found = await self.ask(lambda: self.control.releases(entry.id))
        if not found:
            raise _unknown_model(entry)
        return Response.of_json(found[0])

    async def move(self, how: str, request: Request) -> Response:
        await self.ask(lambda: getattr(self.control, how)(request.parameters["id"]))
        return await self.release(request)

    async def _entry(self, request: Request) -> JobEntry:
        return await self.ask(lambda: self.store.job(request.parameters["id"]))

    async def _change(
        self, request: Request, action: str, change: Callable[[], T], **details: str
    ) -> T:
        """Audit a change, then make it, even if the client disconnects."""

        async def both() -> T:
            await asyncio.to_thread(self.audit, action, {**details, "by": request.by})
            return await self.ask(change)

        return await asyncio.shield(both())


def _unknown_model(entry: JobEntry) -> EdgeVeilError:
    error = UnknownJob(entry.id)
    error.what = f"job '{entry.id}' has no model: it is {entry.status}"
    error.fix = "" if entry.ended else "wait until it is completed"
    return error


def _summary(entry: JobEntry) -> dict[str, Any]:
    """Return a job as JSON, with planned `privacy` if it has shared noise."""
    shown = {**entry.__dict__, "digest": entry.digest.hex()}
    shown |= planned_of_shared(entry.canonical)
    del shown["canonical"]
    return shown


def _number(request: Request, name: str, low: float, high: float) -> float:
    text = request.query.get(name, ["0"])[0]
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise ConfigError([f"{name}: must be a number in {low:g}..{high:g}, got {text[:40]!r}"])
    return value


class ControlDesk:
    """Runs calls on the cloud's event loop; raises StoreAway after `ANSWER_S` or while `away()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, away: Callable[[], bool]) -> None:
        self._loop, self._away = loop, away

    async def __call__(self, call: Callable[[], T], /) -> T:
        if self._away():
            raise StoreAway("the database does not answer", fix="try again when it is back")
        there = asyncio.run_coroutine_threadsafe(run_here(call), self._loop)
        answer = asyncio.wrap_future(there)
        end_s = asyncio.get_running_loop().time() + ANSWER_S
        while not (await asyncio.wait([answer], timeout=_LOOK_S))[0]:
            if self._away():
                answer.cancel()
                raise StoreAway("the database does not answer", fix=_MAYBE_DONE)
            if asyncio.get_running_loop().time() > end_s:
                answer.cancel()
                raise StoreAway(f"the cloud did not answer for {ANSWER_S:.0f} s", fix=_MAYBE_DONE)
        return answer.result()


class HttpThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True, name="edgeveil-http"
        )
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Address for clients on this machine; "" while not serving."""
        return self._server.url if self._server is not None else ""

    async def start(self, server: HttpServer, host: str | ListenAt, port: int = 0) -> None:
        self._thread.start()
        try:
            self._server = await self._there(server.start(host, port))
        except BaseException:
            self._end()
            raise

    async def stop(self) -> None:
        if self._server is not None:
            await self._there(self._server.stop())
            self._server = None
            self._end()

    async def _there(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
