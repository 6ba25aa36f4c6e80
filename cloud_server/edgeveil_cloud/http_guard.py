"""Authorization of the cloud's HTTP control: by token, client certificate, or browser cookie.

Each scope has a token in a file readable only by the cloud's owner. A browser exchanges a token for
a cookie: a random number known to this process only. The cookie ends with the process, after
`KEEP_S`, at log-out, and when its token is rotated; scripts and other sites' requests cannot use it
(HttpOnly, SameSite=Strict).

Browsers send cookies and certificates also for other sites' pages. So a browser's changing request
needs proof of the cloud's own page (`Origin`, `Sec-Fetch-Site`), and with a cookie also the header
`X-EdgeVeil: 1`, which other sites cannot set. If the cloud listens on this machine only, pages are
served only under the machine's own names, against DNS rebinding.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from edgeveil import tokens
from edgeveil.errors import UsageError
from edgeveil.tokens import ExpiringSecrets, secret_digest
from edgeveil.transport.http import Request, Response, Route, cookie_header, refusal
from edgeveil.transport.listener import ListenAt, is_loopback

PROOF_PATH = "/v1/hello"
NONCE = re.compile(r"[0-9a-f]{64}")
OWN_PAGE = "x-edgeveil"
KEEP_S = 12 * 3600.0
MOST_SESSIONS = 256  # beyond, the oldest ends
TRIES, TRIES_S = 10, 60.0  # wrong tokens per address and period
_ADDRESSES = 1024  # counted separately; all others count as one
_PROOF_LABEL = b"edgeveil/http-control-proof/1\0"


class Scope(IntEnum):
    """Permission of a token; each scope includes those below."""

    READ = 1
    SUBMIT = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


TOKEN_FILES: Mapping[Scope, str] = {
    Scope.READ: "http-read.token",
    Scope.SUBMIT: "http-submit.token",
    Scope.ADMIN: "http.token",
}
Tokens = Callable[[], Mapping[Scope, str]]
"""Returns the currently valid tokens."""


class TokenFolder:
    """The current tokens; raises UsageError if a file is readable by others or empty at start."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        for scope in Scope:
            load_or_make_token(state_dir, scope)

    def __call__(self) -> Mapping[Scope, str]:
        found = dict[Scope, str]()
        for scope in Scope:
            with suppress(UsageError, OSError):
                found[scope] = tokens.read_token(self._state_dir / TOKEN_FILES[scope])
        return found


def load_or_make_token(state_dir: Path, scope: Scope = Scope.ADMIN) -> str:
    return tokens.load_or_make_token(state_dir / TOKEN_FILES[scope])


def rotate_token(state_dir: Path, scope: Scope) -> Path:
    """Replace a scope's token and return its file; takes effect at once."""
    path = state_dir / TOKEN_FILES[scope]
    tokens.rotate_token(path)
    return path


def proof(token: str, nonce: str) -> str:
    """Return proof (hex) that the server which answers `nonce` knows `token`."""
    return hmac.new(token.encode(), _PROOF_LABEL + nonce.encode(), hashlib.sha256).hexdigest()


def _scope_of(token: str, known: Mapping[Scope, str]) -> Scope | None:
    """Return a token's highest scope, by constant-time comparison with each."""
    given = token.encode("utf-8", "surrogateescape")
    found = [s for s, one in known.items() if hmac.compare_digest(given, one.encode())]
    return max(found, default=None)


class BrowserSessions:
    def __init__(self, tokens: Tokens, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        # Scope of a cookie, and digest of the token it was exchanged for.
        self._held = ExpiringSecrets[tuple[Scope, bytes]](KEEP_S, MOST_SESSIONS, now_s)

    def begin(self, token: str) -> tuple[str, Scope] | None:
        scope = _scope_of(token, self._tokens())
        return None if scope is None else (self._held.add((scope, secret_digest(token))), scope)

    def scope(self, cookie: str) -> Scope | None:
        found = self._held.get(cookie)
        if found is None:
            return None
        scope, shown = found
        if hmac.compare_digest(secret_digest(self._tokens().get(scope, "")), shown):
            return scope
        self.end(cookie)
        return None

    def end(self, cookie: str) -> None:
        self._held.drop(cookie)


class FailedTries:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._tries: dict[str, deque[float]] = {}

    def wait_s(self, address: str) -> float:
        """Return the seconds until this address may try again; 0 is now."""
        old_s = self._now_s() - TRIES_S
        for one, tries in list(self._tries.items()):
            while tries and tries[0] <= old_s:
                tries.popleft()
            if not tries:
                del self._tries[one]
        tries = self._tries.get(self._known(address), deque())
        return tries[0] - old_s if len(tries) >= TRIES else 0.0

    def failed(self, address: str) -> None:
        self._tries.setdefault(self._known(address), deque(maxlen=TRIES)).append(self._now_s())

    def _known(self, address: str) -> str:
        return address if address in self._tries or len(self._tries) < _ADDRESSES else ""


@dataclass(frozen=True)
class _Caller:
    by: str
    scope: Scope


class RequestGuard:
    """Authorizes requests by scope; `clients` maps names in certificates to scopes."""

    def __init__(self, tokens: Tokens, clients: Mapping[str, Scope], at: ListenAt) -> None:
        self._tokens, self._clients, self._at = tokens, clients, at
        self._sessions = BrowserSessions(tokens)
        self._own_names_only = at.socket is None and is_loopback(at.host)
        self.wanted: dict[Route, Scope | None] = {}
        self.pages: set[Route] = set()  # served only under the machine's own names

    def refuse(self, request: Request) -> Response | None:
        """Return a refusal or None; called first, so that strangers do not learn the jobs' ids."""
        if request.route in self.pages and not self._has_own_name(request):
            return refusal(
                403,
                "the cloud listens on this machine only, and this address has another name",
                "open http://127.0.0.1 with its port; else set http.host and http.tls",
            )
        least = self.wanted[request.route] if request.route is not None else Scope.READ
        if least is None:
            return None
        caller = self.caller(request)
        if caller is None:
            return refusal(401, "the token is missing or wrong", f"pass {_files_of(least)}")
        if caller.scope < least:
            wants, has = f"needs a token of scope '{least.label}'", f"has '{caller.scope.label}'"
            what = f"this {wants}, the one given {has}"
            return refusal(403, what, f"pass {_files_of(least)}")
        if (why := self._foreign(request)) is not None:
            return refusal(403, why, "use the cloud's page, or a token")
        request.keep()  # only unauthorized connections are dropped when all are in use
        request.by = caller.by
        return None

    def caller(self, request: Request) -> _Caller | None:
        """Return the client with the highest scope it proved, or None for a stranger."""
        names = [one for one in request.certificate_names if one in self._clients]
        found = [_Caller(f"certificate {one}", self._clients[one]) for one in names]
        if (given := self._bearer(request)) is not None:
            found.append(_Caller(f"token {given.label}", given))
        cookie = request.cookie(self._cookie_name(request))
        logged_in = self._sessions.scope(cookie) if cookie and self._has_own_name(request) else None
        if logged_in is not None:
            found.append(_Caller(f"page {logged_in.label}", logged_in))
        return max(found, key=lambda one: one.scope, default=None)

    def _bearer(self, request: Request) -> Scope | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return _scope_of(token, self._tokens()) if kind == "Bearer" else None

    def _foreign(self, request: Request) -> str | None:
        if request.method in ("GET", "HEAD") or self._bearer(request) is not None:
            return None  # browsers never add a token by themselves
        if not request.is_same_origin:
            return "the request came from another site's page"
        if request.cookie(self._cookie_name(request)) and request.headers.get(OWN_PAGE) != "1":
            return "the header X-EdgeVeil is missing"
        return None

    def _has_own_name(self, request: Request) -> bool:
        return not self._own_names_only or request.is_for_this_machine

    def _cookie_name(self, request: Request) -> str:
        """Return a name per port, since browsers scope cookies by host only."""
        port = request.host.rpartition(":")[2]
        named = f"edgeveil-cloud-{port}" if port.isdecimal() else "edgeveil-cloud"
        return f"__Host-{named}" if self._at.tls is not None else named

    def log_in(self, request: Request, token: str) -> str | None:
        """Return a `Set-Cookie` header, or None for an invalid token."""
        begun = self._sessions.begin(token)
        if begun is None:
            return None
        self._sessions.end(request.cookie(self._cookie_name(request)))
        return self._header(request, begun[0], KEEP_S)

    def log_out(self, request: Request) -> str:
        self._sessions.end(request.cookie(self._cookie_name(request)))
        return self._header(request, "", 0)

    def _header(self, request: Request, value: str, lasts_s: float) -> str:
        secure = self._at.tls is not None
        return cookie_header(self._cookie_name(request), value, lasts_s, secure=secure)


def _files_of(least: Scope) -> str:
    names = " or ".join(name for scope, name in TOKEN_FILES.items() if scope >= least)
    return f"the file {names} of the cloud's state_dir"
