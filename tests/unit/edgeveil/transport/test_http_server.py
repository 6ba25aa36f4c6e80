"""The HTTP server: what is answered and refused, and what hostile or slow clients are worth."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from contextlib import asynccontextmanager
from itertools import product

import pytest

from edgeveil.pages.assets import CONTENT_POLICY
from edgeveil.transport import health, http, http_server, listener
from edgeveil.transport.http import LiveUpdates, Request, Response, Route, changes
from edgeveil.transport.http_server import HttpServer
from edgeveil.transport.listener import ListenAt
from tests.kits.certificates import Authority

HANG_S = 60  # only ends a test that hangs


async def counts(_request):
    return Response.of_json({"devices": 3})


async def broken(_request):
    raise ValueError("a path of this machine")


async def echo(request):
    return Response(request.content)


async def counted(request):
    return Response.of_json({"bytes": sum([len(part) async for part in request.chunks()])})


async def named(request):
    return Response.of_json([dict(request.parameters), dict(request.query)])


async def split(_request):
    return Response(headers={"X": "a\r\nSet-Cookie: b"})


ROUTES = [
    Route("GET", "/status", counts),
    Route("GET", "/broken", broken),
    Route("GET", "/split", split),
    Route("POST", "/echo", echo, body_bytes=10),
    Route("PUT", "/any", counted, body_bytes=None),
    Route("GET", "/jobs/{id}/events", named),
    Route("GET", "/b/{path:path}", named),
]


@asynccontextmanager
async def served(*routes, at="127.0.0.1", refuse=lambda _request: None):
    server = await HttpServer(routes or ROUTES, refuse).start(at)
    try:
        yield server
    finally:
        await server.stop()


async def answer_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("ascii").strip().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines)


async def ask(server, line, headers="", body=b""):
    """One request on a connection of its own, closed after it: status, headers and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n"
    writer.write(head.encode() + body)
    try:
        return *await answer_of(reader), await reader.read()
    finally:
        writer.close()


async def raw(server, sent):
    """All that is answered to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_request_is_answered_by_the_handler_of_its_method_and_path():
    async with served() as server:
        status, headers, text = await ask(server, "GET /status?x=1")
        assert (status, json.loads(text)) == (200, {"devices": 3})
        expected = {
            "Content-Length": str(len(text)),
            "Content-Type": "application/json",
            "Content-Security-Policy": CONTENT_POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        assert headers.items() >= expected.items()
        assert await ask(server, "HEAD /status") == (200, headers, b"")
        for line, found in (
            ("GET /jobs/a%2Fb/events?n=1&n=2&e=", [{"id": "a/b"}, {"n": ["1", "2"], "e": [""]}]),
            ("GET /b/x/y", [{"path": "x/y"}, {}]),
        ):
            assert json.loads((await ask(server, line))[2]) == found
        for line in ("GET /", "GET /status/", "GET /jobs//events"):
            assert (await ask(server, line))[0] == 404
        assert (await ask(server, "POST /status"))[0] == 405


GET, POST = b"GET /status HTTP/1.1\r\nHost: x\r\n", b"POST /echo HTTP/1.1\r\nHost: x\r\n"
LENGTH, CHUNKED = b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET http://x/status HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (GET + b"X : y\r\n\r\n", 400),
        (GET + b"X: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (GET + b"X: y\r\n" * 65 + b"\r\n", 431),
        (POST + LENGTH + b"Content-Length: 2\r\n\r\na", 400),
        (POST + LENGTH + CHUNKED + b"\r\n0\r\n\r\n", 400),
        (POST + CHUNKED + b"\r\nno size\r\n", 400),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    ],
    ids=range(10),
)
async def test_a_malformed_request_is_refused_and_nothing_after_it_is_read(sent, status, caplog):
    async with served() as server:
        found = await raw(server, sent + GET + b"\r\n")
        assert found.startswith(f"HTTP/1.1 {status} ".encode()), found
        assert found.count(b"HTTP/1.1 ") == 1 and b"devices" not in found
    assert caplog.records == []


async def test_a_body_has_a_limit_before_it_is_read():
    """A refused one is discarded, so that the answer arrives."""
    large = 4 << 20
    async with served() as server:
        for line, headers, body, expected in (
            ("POST /echo", "Content-Length: 10\r\n", b"x" * 10, b"x" * 10),
            ("POST /echo", "", b"", b""),
            ("POST /echo", CHUNKED.decode(), b"5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n", b"helloyou"),
            ("POST /echo", f"Content-Length: {10**18}\r\n", b"", 413),
            ("POST /echo", CHUNKED.decode(), b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n", 413),
            ("POST /echo", f"Content-Length: {large}\r\n", bytes(large), 413),
            ("PUT /any", "Content-Length: 0\r\n", b"", b'{"bytes": 0}'),
            ("PUT /any", "Content-Encoding: gzip\r\n" + LENGTH.decode(), b"x", 400),
        ):
            status, _, text = await ask(server, line, headers, body)
            assert expected == (text if isinstance(expected, bytes) else status)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "PUT /any HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3000000\r\n"
        writer.write(head.encode() + b"\r\n")
        assert (await answer_of(reader))[0] == 100
        writer.write(bytes(3_000_000))
        assert (await answer_of(reader))[0] == 200
        assert await reader.readexactly(18) == b'{"bytes": 3000000}'
        writer.close()


async def test_a_log_has_the_faults_of_handlers_and_not_those_of_clients(caplog):
    async with served() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /any HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        await asyncio.sleep(0.1)
        writer.transport.abort()
        status, _, text = await ask(server, "GET /broken")
        assert status == 500 and b"machine" not in text
        assert len(caplog.records) == 1
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await ask(server, "GET /split")  # a header with a line break is not sent


async def test_a_handler_ends_with_its_client():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_request):
        begun.set()
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.set()

    async with served(Route("GET", "/wait", wait)) as server, asyncio.timeout(20):
        asking = asyncio.create_task(ask(server, "GET /wait"))
        await begun.wait()
        asking.cancel()
        await ended.wait()


async def test_who_sends_no_whole_head_is_hung_up_on_and_a_slow_answer_is_not(monkeypatch):
    monkeypatch.setattr(http_server, "SILENT_S", 0.2)
    cut = asyncio.Event()

    async def slow(_request):
        await cut.wait()
        return Response()

    async with served(Route("GET", "/slow", slow), *ROUTES) as server:
        waiting = asyncio.create_task(ask(server, "GET /slow"))
        for answers, head in product((0, 1), (b"", b"GET / HTTP/1.1\r\nX-Half: ")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(answers):
                writer.write(GET + b"\r\n")
                assert (await reader.readuntil(b"3}")).startswith(b"HTTP/1.1 200")
            writer.write(head)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        cut.set()
        assert (await waiting)[0] == 200


async def test_a_body_that_comes_too_slowly_is_answered_408(monkeypatch):
    monkeypatch.setattr(http_server, "BODY_S", 0.1)
    async with served() as server:
        for line in ("POST /echo", "PUT /any"):
            assert (await ask(server, line, "Content-Length: 9\r\n", b"half"))[0] == 408
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /any HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n")
        answer = asyncio.create_task(answer_of(reader))
        while not answer.done():  # never silent for long, and too slow all the same
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert answer.result()[0] == 408
        writer.close()


async def test_who_takes_nothing_of_an_answer_is_hung_up_on(monkeypatch, caplog):
    monkeypatch.setattr(http_server, "WRITE_S", 0.2)

    async def events():
        while True:
            yield bytes(1 << 20)

    async def page(request):
        large = Response(bytes(64 << 20))  # more than sockets hold
        return large if request.path == "/page" else LiveUpdates(events())

    async with served(*[Route("GET", path, page) for path in ("/page", "/news")]) as server:
        for path in ("/page", "/news"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readexactly(12)
            while server._connections:
                await asyncio.sleep(0.05)
            writer.close()
    assert caplog.records == []


async def test_a_stop_does_not_wait_for_who_is_silent_or_watches_and_ends_streams_whole():
    async with served(Route("GET", "/events", stream_of([1])), *ROUTES) as server:
        for sent in (b"", b"GET /status HTTP/1.1\r\nX"):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
        watched = asyncio.create_task(ask(server, "GET /events"))
        await asyncio.sleep(0.2)
    assert (await watched)[2].endswith(b"\r\n0\r\n\r\n")


def stream_of(values, stands=lambda: True):
    """Events of the values in turn, and of the last one for ever."""

    async def value():
        return values.pop(0) if len(values) > 1 else values[0]

    async def handler(_request):
        return LiveUpdates(changes(value, 0.01, stands))

    return handler


@asynccontextmanager
async def watching(server, host="127.0.0.1", path="/events"):
    reader, writer = await asyncio.open_connection(host, server.port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())  # without chunks: it ends by its close
    try:
        status, headers = await answer_of(reader)
        assert (status, headers["Content-Type"]) == (200, "text/event-stream")
        yield reader
    finally:
        writer.close()


async def test_a_stream_tells_what_changed_once_and_else_that_it_stands(monkeypatch):
    monkeypatch.setattr(http, "QUIET_S", 0.02)
    values = [{"n": 1}, {"n": 1}, {"n": "a\nb: c\n\ndata: x"}, {"n": 2}]
    routes = Route("GET", "/events", stream_of(list(values)))
    async with served(routes) as server, watching(server) as reader:
        found = []
        while len(found) < 3:
            event = await asyncio.wait_for(reader.readuntil(b"\n\n"), 20)
            if event != b":\n\n":  # nothing changed
                found.append(json.loads(event.removeprefix(b"data: ")))
        assert found == values[1:]
        assert await asyncio.wait_for(reader.readexactly(6), 20) == b":\n\n:\n\n"


def own_address():
    """An address of this machine that others reach it by; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("192.0.2.1", 9)):
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


async def test_the_oldest_stream_gives_way_and_remote_ones_leave_some_to_this_machine(monkeypatch):
    monkeypatch.setattr(http_server, "STREAMS", 3)
    monkeypatch.setattr(http_server, "NEAR_STREAMS", 1)
    remote = own_address()
    async with (
        served(Route("GET", "/events", stream_of([1])), at="0.0.0.0") as server,
        contextlib.AsyncExitStack() as stack,
    ):
        readers = []
        for host in ("127.0.0.1", remote, "127.0.0.1", remote, remote, "127.0.0.1", "127.0.0.1"):
            readers.append(await stack.enter_async_context(watching(server, host)))
            await readers[-1].readuntil(b"data: 1\n\n")
        await asyncio.sleep(0.2)
        # The second remote one took a local one's place, the third one of its own kind.
        ended = [one.at_eof() or one.exception() is not None for one in readers]
        assert ended == [True, True, True, False, False, True, False]


async def test_a_stream_ends_by_its_time_by_its_page_and_where_its_value_fails(monkeypatch):
    async def broken_stream(_request):
        return LiveUpdates(changes(lambda: broken(None), 0.01))

    over = stream_of([1], lambda: False)
    handlers = {"/events": stream_of([1]), "/broken": broken_stream, "/over": over}
    async with served(*[Route("GET", path, one) for path, one in handlers.items()]) as server:
        for path in ("/broken", "/over"):
            async with watching(server, path=path) as reader:
                assert await asyncio.wait_for(reader.read(), 20) == b""
        monkeypatch.setattr(http_server, "STREAM_S", 0.05)
        assert (await ask(server, "GET /events"))[2].endswith(b"data: 1\n\n\r\n0\r\n\r\n")


async def test_tls_answers_those_alone_whose_certificate_is_vouched_for(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 0.5)
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    cert, key = ours.issue("localhost")

    async def names(request):
        return Response.of_json(list(request.certificate_names))

    at = ListenAt("127.0.0.1", tls=listener.server_context(cert, key, ours.cert_file))
    async with served(Route("GET", "/", names), at=at) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        for signer in (ours, None, others):
            context = ssl.create_default_context(cafile=ours.cert_file)
            if signer is not None:
                context.load_cert_chain(*signer.issue("desk"))
            found = b""
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                lines = await asyncio.open_connection("localhost", server.port, ssl=context)
                lines[1].write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                found = await lines[0].read()
                lines[1].close()
            assert (b'"desk"' in found) is (signer is ours)
        assert await raw(server, b"") == b""  # no handshake comes
        assert b"HTTP" not in await raw(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("host", "warned"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("box", True)]
)
def test_plain_http_beyond_this_machine_is_warned_of(host, warned, caplog):
    health.warn_of_plain_http(ListenAt(host), logging.getLogger("edgeveil.test"))
    assert bool(caplog.records) is warned
    assert bool(health.warnings_of(ListenAt(host))) is warned


def test_a_cookie_is_found_by_its_whole_name():
    request = Request("GET", "/", {"cookie": "a=1; page_2=two=2;page=three"})
    found = [request.cookie(name) for name in ("a", "page", "page_2", "ge", "")]
    assert found == ["1", "three", "two=2", "", ""]


async def test_who_sends_a_thousand_requests_at_once_does_not_hold_others_up():
    answered = []

    async def noted(request):
        answered.append(request.path)
        return Response()

    async with served(*[Route("GET", path, noted) for path in ("/many", "/other")]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /many HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        await answer_of(reader)
        assert (await ask(server, "GET /other"))[0] == 200
        writer.close()
    assert answered.index("/other") < 900
