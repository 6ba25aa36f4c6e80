"""HTTP messages and routes for handlers; `http_server.py` serves them.

Loads no parser, which a process without HTTP does not need.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from edgeveil.pages.assets import SHARED, asset, content_type
from edgeveil.transport.listener import is_loopback, peer_names

if TYPE_CHECKING:
    from edgeveil.transport.http_server import Connection

QUIET_S = 15.0  # interval of empty comments on a stream without changes


class HttpError(Exception):
    """Ends a request with this response; raised by handlers and the server."""

    def __init__(self, status: int, what: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.response = refusal(status, what, fix)


@dataclass(frozen=True)
class Response:
    """An HTTP response; `length` is that of a streamed body, if known beforehand."""

    body: bytes | AsyncGenerator[bytes, None] = b""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None

    @classmethod
    def of_json(
        cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        return cls(json.dumps(value).encode(), "application/json", status, headers or {})


@dataclass(frozen=True)
class LiveUpdates:
    """Server-sent events with their framing; the connection stays open."""

    events: AsyncGenerator[bytes, None]


@dataclass(eq=False)
class Request:
    """A request; `content` is its body once allowed. Header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    connection: Connection | None = None
    route: Route | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    by: str = ""  # the requester for the audit log; set by the server's `refuse`

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @cached_property
    def query(self) -> Mapping[str, Sequence[str]]:
        return parse_qs(self.target.partition("?")[2], keep_blank_values=True)

    @property
    def host(self) -> str:
        return self.headers.get("host", "localhost")

    @property
    def content_type(self) -> str:
        """In lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        announced = self.headers.get("content-length")
        return None if announced is None else int(announced)

    @property
    def is_for_this_machine(self) -> bool:
        """Whether the request names a loopback host (DNS rebinding uses other names)."""
        try:
            return is_loopback(urlsplit(f"//{self.host}").hostname or "")
        except ValueError:
            return False

    @property
    def is_same_origin(self) -> bool:
        """Whether no header indicates that a page of another origin sent this."""
        if self.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        try:
            origin = self.headers.get("origin")
            return origin is None or urlsplit(origin).netloc == self.host
        except ValueError:
            return False

    def cookie(self, name: str) -> str:
        pairs = (one.partition("=") for one in self.headers.get("cookie", "").split(";"))
        return next((value.strip() for key, _, value in pairs if key.strip() == name), "")

    @property
    def peer(self) -> str:
        """Address of the client; "" over a Unix socket."""
        return self.connection.peer if self.connection is not None else ""

    @property
    def certificate_names(self) -> Sequence[str]:
        return peer_names(self.connection.transport) if self.connection is not None else ()

    @property
    def server_stops(self) -> bool:
        """Whether the server is shutting down, so that a long poll must answer now."""
        return self.connection is not None and self.connection.server.stopping

    def keep(self) -> None:
        """Protect the connection from being closed for another until the answer is sent."""
        if self.connection is not None:
            self.connection.server.keep(self.connection, True)

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body of a route without `body_bytes`. Raises HttpError 400, 408."""
        if self.connection is None:
            raise RuntimeError("a request without a connection has no body to read")
        return self.connection.chunks()


Answer = Response | LiveUpdates
Handler = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True)
class Route:
    """A handler for one method and path; GET routes answer HEAD too.

    `{name}` matches one segment of the path, `{name:path}` any number. Bodies of up to `body_bytes`
    are read before the handler is called; with None the handler reads the body (`Request.chunks`).
    """

    method: str
    path: str
    handler: Handler
    body_bytes: int | None = 0


class RouteTable:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Route]] = {}
        for route in routes:
            methods = self._exact.setdefault(route.path, {})
            if "{" in route.path:
                pattern = re.sub(r"\{(\w+):path\}", r"(?P<\1>.*)", route.path)
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
                methods = self._patterns.setdefault(re.compile(pattern), {})
            methods[route.method] = route
            if route.method == "GET":
                methods["HEAD"] = route

    def find(self, request: Request) -> bool:
        """Set the request's route and parameters; return whether the path is known."""
        methods, path = self._exact.get(request.path), request.path
        if methods is None:
            for pattern, found in self._patterns.items():
                if match := pattern.fullmatch(path):
                    methods = found
                    parts = match.groupdict().items()
                    request.parameters = {name: unquote(value) for name, value in parts}
                    break
        request.route = (methods or {}).get(request.method)
        return methods is not None


def refusal(status: int, what: str = "", fix: str = "") -> Response:
    """Return an error as JSON: `{"what": …, "fix": …}`."""
    return Response.of_json({"what": what or HTTPStatus(status).phrase, "fix": fix}, status)


def cookie_header(
    name: str, value: str, lasts_s: float, *, secure: bool = False, same_site: str = "Strict"
) -> str:
    """Return a `Set-Cookie` header that hides the cookie from scripts."""
    parts = [f"{name}={value}", f"Max-Age={lasts_s:.0f}", "Path=/", "HttpOnly"]
    return "; ".join([*parts, f"SameSite={same_site}", *(["Secure"] if secure else [])])


async def changes(
    value: Callable[[], Awaitable[Any]], every_s: float, is_open: Callable[[], bool] = lambda: True
) -> AsyncGenerator[bytes, None]:
    """Yield a value as JSON events when it changes, until `is_open` fails or reading fails."""
    clock = asyncio.get_running_loop().time
    sent, sent_s = "", clock()
    while is_open():
        try:
            now = json.dumps(await value())
        except Exception:  # do not show the viewer which part failed
            return
        if now != sent or clock() - sent_s >= QUIET_S:
            yield f"data: {now}\n\n".encode() if now != sent else b":\n\n"
            sent, sent_s = now, clock()
        await asyncio.sleep(every_s)


def file_routes(package: str, index: str, *names: str) -> list[Route]:
    """Return routes for a package's files, shared assets, and `index` under `/`."""

    def route(path: str, name: str, package: str) -> Route:
        async def answer(_request: Request) -> Response:
            return Response(asset(name, package), content_type(name))

        return Route("GET", path, answer)

    shared = [route(f"/{name}", name, "edgeveil.pages") for name in SHARED]
    own = [route(f"/{name}", name, package) for name in names]
    return [route("/", index, package), *shared, *own]
