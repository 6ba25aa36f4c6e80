"""Who may ask what of the cloud's HTTP control: by token, by certificate, or by a browser's cookie.

A browser shows cookies and certificates by itself, whoever's page asked it to. So what changes
anything counts, shown by a browser, only where the browser says that the cloud's own page asked
(`Origin`, `Sec-Fetch-Site`); with a cookie only with the header `X-EdgeVeil: 1` too, which no other
site's page can set. And where the cloud listens on this machine alone, its pages answer under the
machine's own names alone: another site's name that leads here (DNS rebinding) shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from edgeveil.errors import ConfigError
from edgeveil.pages.assets import SECURITY_HEADERS
from edgeveil.transport.listener import ListenAt, is_loopback, peer_names
from edgeveil_cloud.http_sessions import KEEP_S, BrowserSessions
from edgeveil_cloud.http_token import TOKEN_FILES, Scope, Tokens, scope_of

BY = web.RequestKey("by", str)
SCOPE = web.RequestKey("scope", Scope)
OWN_PAGE = "X-EdgeVeil"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Asker:
    """Who asks, in words for the audit log, and what they may."""

    by: str
    scope: Scope


class RequestGuard:
    """Lets through to each handler whom it is for. `clients` are known by their certificates."""

    def __init__(
        self, tokens: Tokens, clients: Mapping[str, Scope], sessions: BrowserSessions, at: ListenAt
    ) -> None:
        self._tokens, self._clients, self._sessions, self._at = tokens, clients, sessions, at
        self._own_names_alone = at.socket is None and is_loopback(at.host)
        self.keep: Callable[[asyncio.BaseTransport | None], None] = lambda _transport: None
        self.wanted: dict[Handler, Scope | None] = {}
        self.pages: set[Handler] = set()  # for browsers: under the machine's own names alone

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Asked before anything else, so that a stranger cannot learn which jobs exist."""
        asked = request.match_info.handler
        if asked in self.pages and not self.own_name(request):
            return _other_name()
        least = self.wanted.get(asked, Scope.READ)
        if least is None:
            return await handler(request)
        asker = self.asker(request)
        if asker is None:
            return refusal(401, "the token is missing or wrong", f"pass {files_of(least)}")
        if asker.scope < least:
            what = (
                f"this wants a token of scope '{least.label}', the one given has"
                f" '{asker.scope.label}'"
            )
            return refusal(403, what, f"pass {files_of(least)}")
        if (why := self._foreign(request)) is not None:
            return refusal(403, why, "ask from the cloud's own page, or with a token")
        self.keep(request.transport)  # strangers' connections give way to others, this one not
        request[BY], request[SCOPE] = asker.by, asker.scope
        return await handler(request)

    def asker(self, request: web.Request) -> Asker | None:
        """Who asks, by what reaches furthest of all that was shown; None: a stranger."""
        names = [one for one in peer_names(request.transport) if one in self._clients]
        found = [Asker(f"certificate {one}", self._clients[one]) for one in names]
        given = scope_of(request.headers.get("Authorization", ""), self._tokens())
        if given is not None:
            found.append(Asker(f"token {given.label}", given))
        cookie = request.cookies.get(self.cookie_name(request), "")
        logged_in = self._sessions.scope(cookie) if cookie and self.own_name(request) else None
        if logged_in is not None:
            found.append(Asker(f"page {logged_in.label}", logged_in))
        return max(found, key=lambda one: one.scope, default=None)

    def _foreign(self, request: web.Request) -> str | None:
        """Why this may be another site's wish, carried out by a browser; None where it is not."""
        if request.method in ("GET", "HEAD"):
            return None
        if scope_of(request.headers.get("Authorization", ""), self._tokens()) is not None:
            return None  # no browser shows it by itself
        if not self.same_origin(request):
            return "this came from another site's page"
        by_cookie = self.cookie_name(request) in request.cookies
        if by_cookie and request.headers.get(OWN_PAGE) != "1":
            return f"the header {OWN_PAGE} is missing"
        return None

    @staticmethod
    def same_origin(request: web.Request) -> bool:
        """Whether nothing says that a page of another origin asks."""
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("Origin")
        return origin is None or _host_of(origin) == request.host

    def own_name(self, request: web.Request) -> bool:
        """Whether the cloud goes by the name that was asked for."""
        return not self._own_names_alone or is_loopback(_host_name(request.host))

    # --- cookies ---

    def cookie_name(self, request: web.Request) -> str:
        """One for each port: browsers keep cookies by host alone."""
        _, _, port = request.host.rpartition(":")
        named = f"edgeveil-cloud-{port}" if port.isdecimal() else "edgeveil-cloud"
        return f"__Host-{named}" if self._at.tls is not None else named

    def log_in(self, request: web.Request, answer: web.StreamResponse, token: str) -> bool:
        """Have the answer set a cookie for a token; False where it is not good."""
        begun = self._sessions.begin(token)
        if begun is None:
            return False
        self._sessions.end(request.cookies.get(self.cookie_name(request), ""))
        self._set(request, answer, begun[0], int(KEEP_S))
        return True

    def log_out(self, request: web.Request, answer: web.StreamResponse) -> None:
        """End the session, and have the answer take the cookie away."""
        self._sessions.end(request.cookies.get(self.cookie_name(request), ""))
        self._set(request, answer, "", 0)

    def _set(
        self, request: web.Request, answer: web.StreamResponse, value: str, age_s: int
    ) -> None:
        answer.set_cookie(
            self.cookie_name(request),
            value,
            max_age=age_s,
            path="/",
            secure=self._at.tls is not None,
            httponly=True,
            samesite="Strict",
        )


GUARD = web.AppKey("guard", RequestGuard)


def files_of(least: Scope) -> str:
    """The token files that reach so far."""
    names = " or ".join(name for scope, name in TOKEN_FILES.items() if scope >= least)
    return f"the file {names} of the cloud's state_dir"


def refusal(status: int, what: str, fix: str) -> web.Response:
    """An error as JSON."""
    return web.json_response({"what": what, "fix": fix}, status=status)


@asynccontextmanager
async def in_time(limit_s: float) -> AsyncIterator[None]:
    """Answers 408 to who sends a request's body for longer."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body took over {limit_s:g} s") from None


BODY_S = 30.0  # for the body of a request, but a backbone's


async def posted_text(request: web.Request) -> str:
    """The body, UTF-8. Raises ConfigError, and HTTPRequestTimeout for one that takes BODY_S."""
    async with in_time(BODY_S):
        body = await request.read()
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([f"(posted):1 : not UTF-8 text at byte {error.start}"]) from error


async def with_security_headers(_request: web.Request, answer: web.StreamResponse) -> None:
    """Said with every answer before it goes out; what an answer says itself stands. A browser keeps
    nothing on its disk but the pages' files."""
    answer.headers.setdefault("Cache-Control", "no-store")
    for name, value in SECURITY_HEADERS.items():
        answer.headers.setdefault(name, value)


def _other_name() -> web.Response:
    return refusal(
        403,
        "the cloud listens on this machine alone and does not go by the name in this address",
        "open http://127.0.0.1 with its port; for others' machines set http.host and http.tls",
    )


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
