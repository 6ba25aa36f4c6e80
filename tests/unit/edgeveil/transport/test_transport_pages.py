"""Pages of a process's state: what is answered to whom, and what hostile clients are worth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgeveil.errors import UsageError
from edgeveil.transport import http
from edgeveil.transport.http import (
    EventStream,
    Page,
    PageContent,
    PageRequest,
    PageServer,
    files,
    serve_pages,
)
from edgeveil.transport.listener import ListenAt


async def counts(_request: PageRequest) -> PageContent:
    return PageContent.of_json({"devices": 3})


async def broken(_request: PageRequest) -> PageContent:
    raise ValueError("a path of this machine")


Body = Callable[[int], Awaitable[None]]


def served(body: Body, pages: Mapping[str, Page] | None = None) -> None:
    async def run() -> None:
        found = pages or {"/status": counts, "/broken": broken}
        server = await serve_pages(found, "127.0.0.1", 0)
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


# --- streams ---


def stream_of(values: list[object], stands: Callable[[], bool] = lambda: True) -> Page:
    """Tells the values in turn, and the last one for ever."""

    async def value() -> object:
        return values.pop(0) if len(values) > 1 else values[0]

    async def page(_request: PageRequest) -> EventStream:
        return EventStream(value, 0.01, stands)

    return page


@asynccontextmanager
async def watching(
    port: int, path: str = "/events", host: str = "127.0.0.1"
) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    try:
        yield reader
    finally:
        writer.close()


async def next_value(reader: asyncio.StreamReader) -> object:
    line = await asyncio.wait_for(reader.readuntil(b"\n\n"), 20)
    return json.loads(line.removeprefix(b"data: "))


def test_a_stream_tells_what_changed_and_each_value_is_one_event() -> None:
    async def body(port: int) -> None:
        async with watching(port) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Content-Type: text/event-stream" in head and b"Content-Length" not in head
            said = [await next_value(reader) for _ in range(3)]
            assert said == [{"n": 1}, {"n": "a\nb: c\n\ndata: x"}, {"n": 2}]

    values: list[object] = [{"n": 1}, {"n": 1}, {"n": "a\nb: c\n\ndata: x"}, {"n": 2}]
    served(body, {"/events": stream_of(values)})


async def is_open(reader: asyncio.StreamReader) -> bool:
    """Whether a stream goes on: it sends something again within a moment, or nothing at all."""
    try:
        return bool(await asyncio.wait_for(reader.read(65536), 0.2))
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def test_the_oldest_stream_gives_way_to_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAMS", 2)

    async def body(port: int) -> None:
        async with watching(port) as first, watching(port) as second, watching(port) as third:
            for reader in (first, second, third):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                await next_value(reader)
            assert [await is_open(one) for one in (first, second, third)] == [False, True, True]
            assert (await said(port, b"GET /status HTTP/1.1\r\n\r\n"))[0] == 200

    served(body, {"/events": stream_of([1]), "/status": counts})


def own_address() -> str:
    """An address of this machine that others reach it by; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


def test_watchers_from_elsewhere_leave_streams_to_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "STREAMS", 3)
    monkeypatch.setattr(http, "NEAR_STREAMS", 1)
    far = own_address()

    async def run() -> None:
        server = await serve_pages({"/events": stream_of([1])}, "0.0.0.0")
        port = int(server.url.rpartition(":")[2])
        hosts = ["127.0.0.1", far, "127.0.0.1", far, far, "127.0.0.1", "127.0.0.1"]
        try:
            async with contextlib.AsyncExitStack() as stack:
                found = []
                for host in hosts:
                    reader = await stack.enter_async_context(watching(port, host=host))
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                    await next_value(reader)
                    found.append(reader)
                # The second from elsewhere took a near one's place, the third one of its own kind.
                stand = [await is_open(one) for one in found]
                assert stand == [False, False, False, True, True, False, True]
        finally:
            await server.stop()

    asyncio.run(run())


def test_streams_that_come_in_one_moment_take_no_more_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "STREAMS", 3)
    monkeypatch.setattr(http, "NEAR_STREAMS", 1)
    far, crowd = own_address(), 20

    async def run() -> None:
        server = await serve_pages({"/events": stream_of([1])}, "0.0.0.0")
        port = int(server.url.rpartition(":")[2])
        try:
            async with contextlib.AsyncExitStack() as stack:
                lines = [await asyncio.open_connection(far, port) for _ in range(crowd)]
                for _, writer in lines:
                    stack.callback(writer.close)
                    writer.write(b"GET /events HTTP/1.1\r\n\r")
                await asyncio.sleep(0.1)
                for _, writer in lines:
                    writer.write(b"\n")
                await asyncio.sleep(0.3)
                near = await stack.enter_async_context(watching(port))
                assert (await near.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(0.3)
                for reader, _ in lines:
                    with contextlib.suppress(ConnectionError):
                        await reader.read(65536)  # head and first value, where they came
                stand = [await is_open(reader) for reader, _ in lines]
                assert stand.count(True) == 2 and await is_open(near)
        finally:
            await server.stop()

    asyncio.run(run())


def test_watchers_over_a_socket_of_this_machine_are_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "STREAMS", 1)
    monkeypatch.setattr(http, "NEAR_STREAMS", 1)

    async def run() -> None:
        place = tmp_path / "page.sock"
        server = await serve_pages({"/events": stream_of([1])}, ListenAt(socket=place))
        try:
            reader, writer = await asyncio.open_unix_connection(str(place))
            writer.write(b"GET /events HTTP/1.1\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_stream_ends_by_its_time_by_its_page_and_where_its_value_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing() -> object:
        raise ValueError("a path of this machine")

    async def broken_stream(_request: PageRequest) -> EventStream:
        return EventStream(failing, 0.01)

    async def body(port: int) -> None:
        for path, text in (("/broken", b""), ("/over", b"")):
            async with watching(port, path) as reader:
                raw = await asyncio.wait_for(reader.read(), 20)
                assert raw.partition(b"\r\n\r\n")[2] == text
        monkeypatch.setattr(http, "STREAM_S", 0.05)
        async with watching(port) as reader:
            assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"data: 1\n\n")

    over = stream_of([1], lambda: False)
    served(body, {"/events": stream_of([1]), "/broken": broken_stream, "/over": over})


def test_who_takes_nothing_of_a_stream_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    asked = 0

    async def page(_request: PageRequest) -> EventStream:
        async def value() -> object:
            nonlocal asked
            asked += 1
            return [asked, "x" * (1 << 20)]

        return EventStream(value, 0.0)

    async def body(port: int) -> None:
        async with watching(port) as reader:
            await reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != asked:  # the stream stands still, and then is gone
                before = asked
                await asyncio.sleep(1.0)
            status, _, _ = await said(port, b"GET /status HTTP/1.1\r\n\r\n")
            assert status == 200
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                while True:
                    await reader.readexactly(1 << 16)

    served(body, {"/events": page, "/status": counts})


def test_a_stop_does_not_wait_for_streams() -> None:
    async def body(port: int) -> None:
        reader, _writer = await asyncio.open_connection("127.0.0.1", port)
        _writer.write(b"GET /events HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")

    served(body, {"/events": stream_of([1])})


def test_a_quiet_stream_shows_that_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "QUIET_S", 0.02)

    async def body(port: int) -> None:
        async with watching(port) as reader:
            await reader.readuntil(b"data: 1\n\n")
            assert await asyncio.wait_for(reader.readexactly(6), 20) == b":\n\n:\n\n"

    served(body, {"/events": stream_of([1])})


# --- files ---


def test_files_come_with_the_policy_that_closes_what_a_page_may_do() -> None:
    async def body(port: int) -> None:
        for path, kind in (("/", "text/css"), ("/base.js", "text/javascript")):
            status, headers, text = await said(port, f"GET {path} HTTP/1.1\r\n\r\n".encode())
            assert status == 200 and text and headers["Content-Type"].startswith(kind)
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/assets.py", "/static/base.js", "/../assets.py", "//base.js"):
            assert (await said(port, f"GET {path} HTTP/1.1\r\n\r\n".encode()))[0] == 404

    served(body, files("edgeveil.pages", "base.css"))


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8702", True),
        ("[::1]:8702", True),
        ("localhost", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("", False),
    ],
)
def test_a_request_tells_by_which_name_it_came(host: str, own: bool) -> None:
    assert PageRequest({"host": host}).is_for_this_machine is own


def test_a_cookie_is_found_by_its_whole_name() -> None:
    request = PageRequest({"cookie": "a=1; page_2=two=2;page=three"})
    found = [request.cookie(name) for name in ("a", "page", "page_2", "ge", "")]
    assert found == ["1", "three", "two=2", "", ""]
