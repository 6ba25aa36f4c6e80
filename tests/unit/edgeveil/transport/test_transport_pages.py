"""Pages of a process's state: what is answered to whom, and what hostile clients are worth."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest

from edgeveil.errors import UsageError
from edgeveil.transport import http
from edgeveil.transport.http import PageContent, PageServer, serve_pages
from edgeveil.transport.listener import ListenAt


async def counts() -> PageContent:
    return PageContent.of_json({"devices": 3})


async def broken() -> PageContent:
    raise ValueError("a path of this machine")


def served(body: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await serve_pages({"/status": counts, "/broken": broken}, "127.0.0.1", 0)
        try:
            await body(int(server.url.rpartition(":")[2]))
        finally:
            await server.stop()

    asyncio.run(run())


async def said(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    raw = await reader.read()
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body


def test_a_page_is_json_with_its_length_and_ends_the_connection() -> None:
    async def body(port: int) -> None:
        request = b"GET /status?x=1 HTTP/1.1\r\nHost: here\r\nX: y\r\n\r\n"
        status, headers, text = await said(port, request)
        assert (status, json.loads(text)) == (200, {"devices": 3})
        assert headers["Content-Length"] == str(len(text)) and headers["Connection"] == "close"
        assert headers["Content-Type"].startswith("application/json")
        head = await said(port, b"HEAD /status HTTP/1.0\r\n\r\n")
        assert head == (200, headers, b"")

    served(body)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /status/ HTTP/1.1\r\n\r\n", 404),
        (b"POST /status HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /status\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /status FTP/1\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_question_for_a_page_is_refused(request_: bytes, status: int) -> None:
    async def body(port: int) -> None:
        assert (await said(port, request_))[0] == status

    served(body)


def test_a_page_that_fails_says_nothing_of_why() -> None:
    async def body(port: int) -> None:
        status, _, text = await said(port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert status == 500 and b"machine" not in text
        assert (await said(port, b"GET /status HTTP/1.1\r\n\r\n"))[0] == 200

    served(body)


def test_who_asks_slowly_or_hangs_up_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.05)
    monkeypatch.setattr(http, "CONNECTIONS", 2)

    async def body(port: int) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, _ in slow:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert (await said(port, b"GET /status HTTP/1.1\r\n\r\n"))[0] == 200
        for _, writer in slow:
            writer.close()

    served(body)


def test_a_stop_does_not_wait_for_who_is_silent() -> None:
    async def body(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /status")

    served(body)


def test_a_port_that_is_taken_is_named() -> None:
    async def body(port: int) -> None:
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            await PageServer({}).listen("127.0.0.1", port)

    served(body)


@pytest.mark.parametrize(
    ("host", "told"),
    [("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 1), ("::", 1), ("box", 1)],
)
def test_plain_http_for_others_is_told(
    caplog: pytest.LogCaptureFixture, host: str, told: int
) -> None:
    http.warn_of_plain_http(ListenAt(host), logging.getLogger("edgeveil.test"))
    assert [record.message for record in caplog.records] == told * ["plain_http"]
    health = asyncio.run(http.Health({}, [lambda: http.warnings_of(ListenAt(host))]).told())
    assert json.loads(health.body).get("warnings", []) == told * ["plain_http"]
