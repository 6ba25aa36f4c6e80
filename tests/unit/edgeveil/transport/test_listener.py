"""Where HTTP is taken in: how many at once, who is hung up on, Unix sockets, TLS."""

from __future__ import annotations

import asyncio
import grp
import gzip
import os
import resource
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.transport import http, listener
from edgeveil.transport.http import (
    EventStream,
    HttpServer,
    PageContent,
    PageRequest,
    PageServer,
    serve,
    serve_pages,
)
from edgeveil.transport.listener import ListenAt, most_connections, peer_of
from tests.kits.certificates import Authority

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HANG_S = 60  # only ends a test that hangs


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario, HANG_S))


def app_of(answer: str = "here") -> web.Application:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=answer)

    app = web.Application()
    app.router.add_get("/", page)
    return app


async def answered(
    at: ListenAt, server: HttpServer, context: ssl.SSLContext | None = None
) -> bytes:
    if at.socket is not None:
        reader, writer = await asyncio.open_unix_connection(str(at.socket))
    else:
        reader, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
    writer.write(GET)
    try:
        return await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nX-Half: "], ids=["silent", "half"])
@pytest.mark.parametrize("after", [0, 1], ids=["at-first", "after-an-answer"])
def test_who_sends_no_whole_head_is_hung_up_on_and_a_slow_answer_is_not(
    monkeypatch, head: bytes, after: int
) -> None:
    monkeypatch.setattr(http, "SILENT_S", 0.2)

    async def play() -> None:
        cut = asyncio.Event()

        async def slow(_request: web.Request) -> web.Response:
            await cut.wait()
            return web.Response(text="done")

        app = app_of()
        app.router.add_get("/slow", slow)
        server = await serve(app, "127.0.0.1", 0)
        waiting, to_waiting = await asyncio.open_connection("127.0.0.1", server.port)
        to_waiting.write(GET.replace(b"/ ", b"/slow "))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(after):
            writer.write(GET)
            assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
        writer.write(head)
        assert await reader.read() == b""
        writer.close()
        cut.set()
        assert (await waiting.readline()).startswith(b"HTTP/1.1 200")
        to_waiting.close()
        await server.stop()

    run(play())


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * (http.HEAD_LINE_BYTES + 1) + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * (http.HEAD_LINE_BYTES + 1) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (http.HEAD_LINES + 1) + b"\r\n",
    ],
    ids=["target", "line", "lines"],
)
def test_a_head_beyond_its_bytes_is_refused(head: bytes) -> None:
    async def play() -> None:
        server = await serve(app_of(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.0 400")
        writer.close()
        await server.stop()

    run(play())


def test_those_beyond_the_bound_are_closed_at_once_and_a_place_is_given_again(monkeypatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 3)

    async def play() -> None:
        at = ListenAt("127.0.0.1")
        server = await serve(app_of(), at)
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        for reader, writer in held:  # each is served, so each takes one of the places
            writer.write(GET)
            await reader.readuntil(b"here")
        beyond, _ = await asyncio.open_connection("127.0.0.1", server.port)
        assert await beyond.read() == b""
        first, to_first = held.pop()
        to_first.write(GET.replace(b"Host", b"Connection: close\r\nHost"))
        await first.read()  # until the server has closed it
        to_first.close()
        while not (await answered(at, server)).startswith(b"HTTP/1.1 200"):
            await asyncio.sleep(0)
        for _, writer in held:
            writer.close()
        await server.stop()

    run(play())


LIMITS = """
import resource
from edgeveil.transport.listener import most_connections, raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    print(raise_file_limit(), most_connections())
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "said"),
    [
        (64, 1024, "1024 256"),
        (300, 400, "400 100"),
        (64, 128, "the process may open 128 files, it needs 256"),
    ],
)
def test_the_file_limit_is_raised_and_the_bound_follows(soft: int, hard: int, said: str) -> None:
    script = LIMITS.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said in done.stdout, done.stderr
    assert "64" not in done.stdout.split()
    assert most_connections() * 4 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_unix_socket_is_for_its_user_or_a_group(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name

    async def play(socket_group: str | None, mode: int) -> None:
        at = ListenAt(socket=tmp_path / "state" / "http.sock", socket_group=socket_group)
        left = socket.socket(socket.AF_UNIX)  # as of a process that was killed
        at.socket.parent.mkdir(exist_ok=True)
        left.bind(str(at.socket))
        left.close()
        server = await serve(app_of(), at)
        found = at.socket.stat()
        assert stat.S_IMODE(found.st_mode) == mode and found.st_gid == os.getgid()
        assert server.url == f"unix:{at.socket}"
        assert (await answered(at, server)).startswith(b"HTTP/1.1 200")
        with pytest.raises(UsageError, match="another process listens on it"):
            await serve(app_of(), at)
        assert (await answered(at, server)).startswith(b"HTTP/1.1 200")  # it is there still
        await server.stop()
        assert not at.socket.exists()

    run(play(None, 0o600))
    run(play(group, 0o660))


@pytest.mark.parametrize(
    ("name", "group", "what"),
    [
        ("kept.txt", None, "another file has this name"),
        ("x" * 120, None, "too long"),
        ("a.sock", "no-such-group", "no group 'no-such-group'"),
    ],
)
def test_a_unix_socket_that_cannot_be_had_is_told(tmp_path: Path, name, group, what) -> None:
    (tmp_path / "kept.txt").write_text("kept")

    async def play() -> None:
        with pytest.raises(UsageError, match=what) as caught:
            await serve(app_of(), ListenAt(socket=tmp_path / name, socket_group=group))
        assert caught.value.where == str(tmp_path / name) and caught.value.fix

    run(play())
    assert (tmp_path / "kept.txt").read_text() == "kept"


def test_tls_answers_those_alone_whose_certificate_is_vouched_for(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    cert, key = ours.issue("localhost")
    context = listener.server_context(cert, key, ours.cert_file)

    async def play() -> None:
        at = ListenAt("127.0.0.1", tls=context)
        server = await serve(app_of(), at)
        assert server.url == f"https://127.0.0.1:{server.port}"

        def client(signer: Authority | None) -> ssl.SSLContext:
            made = ssl.create_default_context(cafile=ours.cert_file)
            if signer is not None:
                made.load_cert_chain(*signer.issue("desk"))
            return made

        assert (await answered(at, server, client(ours))).startswith(b"HTTP/1.1 200")
        for signer in (None, others):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                found = await answered(at, server, client(signer))
                assert found == b""
                raise ConnectionError("closed without a word")
        silent, _ = await asyncio.open_connection("127.0.0.1", server.port)
        monkeypatched = await silent.read()  # no handshake comes
        assert monkeypatched == b""
        await server.stop()

    before, listener.HANDSHAKE_S = listener.HANDSHAKE_S, 0.2
    try:
        run(play())
    finally:
        listener.HANDSHAKE_S = before


@pytest.mark.parametrize("broken", ["absent", "open", "mixed", "encrypted", "authority"])
def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    ca = authority.cert_file
    match broken:
        case "absent":
            cert.unlink()
        case "open":
            key.chmod(0o644)
        case "mixed":
            _, key = authority.issue("other")
        case "encrypted":
            authority.encrypt(key, b"word")
        case "authority":
            ca = tmp_path / "empty.crt"
            ca.write_text("")
    with pytest.raises(EdgeVeilError) as caught:
        listener.server_context(cert, key, ca)
    assert Path(caught.value.where) in (cert, key, ca) and caught.value.fix


def test_pages_are_served_over_a_unix_socket_too(tmp_path: Path) -> None:
    async def page(_request: PageRequest) -> PageContent:
        return PageContent.of_json({})

    async def play() -> None:
        at = ListenAt(socket=tmp_path / "pages.sock")
        server = await serve_pages({"/": page}, at)
        assert (await answered(at, server)).startswith(b"HTTP/1.1 200")
        await server.stop()

    run(play())


def test_four_hundred_slow_clients_keep_no_other_from_a_page_and_end_no_stream() -> None:
    async def page(_request: PageRequest) -> PageContent:
        return PageContent.of_json({})

    async def news(_request: PageRequest) -> EventStream:
        async def value() -> int:
            return 1

        return EventStream(value)

    async def play() -> None:
        server = PageServer({"/": page, "/events": news})
        await server.listen("127.0.0.1")
        port = int(server.url.rpartition(":")[2])
        follows = await asyncio.open_connection("127.0.0.1", port)
        follows[1].write(b"GET /events HTTP/1.1\r\n\r\n")
        await follows[0].readuntil(b"data: 1")
        slow = []
        for _ in range(400):
            slow.append(await asyncio.open_connection("127.0.0.1", port))
            slow[-1][1].write(b"GET / HTTP/1.1\r\n")  # and never its end
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")
            writer.close()
        assert not follows[0].at_eof()
        for one in (follows, *slow):
            one[1].close()
        await server.stop()

    run(play())


@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(b"whole"), gzip.compress(b"cut")[:-9]],
    ids=["no gzip", "whole", "cut short"],
)
def test_a_packed_body_is_refused_by_every_application_and_no_handler_sees_it(
    packed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        seen = []

        async def read(request: web.Request) -> web.Response:
            seen.append(await request.read())
            return web.Response()

        app = web.Application()
        app.add_routes([web.post("/", read), web.put("/", read)])
        server = await serve(app, "127.0.0.1")
        for method in ("POST", "PUT"):
            for coding, status in (("gzip", 400), ("deflate, gzip", 400), ("identity", 200)):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                head = [f"{method} / HTTP/1.1", "Host: x", f"Content-Encoding: {coding}"]
                head += [f"Content-Length: {len(packed)}", "Connection: close", "", ""]
                writer.write("\r\n".join(head).encode() + packed)
                assert int((await reader.readline()).split()[1]) == status
                await reader.read()
                writer.close()
        assert seen == [packed, packed]
        await server.stop()
        assert caplog.records == []

    run(scenario())


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::"),
        ("2001:db8:0:1::2", "2001:db8:0:1::"),
        ("2001:db8:0:2::2", "2001:db8:0:2::"),
        ("fe80::1%lo", "fe80::"),
        ("", ""),
    ],
)
def test_a_peer_is_an_ipv4_address_or_an_ipv6_64(host: str, peer: str) -> None:
    assert peer_of(host) == peer


def test_a_log_has_the_faults_of_handlers_and_not_those_of_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        reading, ended = asyncio.Event(), asyncio.Event()

        async def read(request: web.Request) -> web.Response:
            reading.set()
            try:
                return web.Response(body=await request.read())
            finally:
                ended.set()

        async def lost(_request: web.Request) -> web.Response:
            raise ConnectionResetError("of something that the handler asked")

        app = web.Application()
        app.add_routes([web.get("/", lost), web.post("/", read)])
        server = await serve(app, "127.0.0.1")

        async def said(head: bytes, body: bytes = b"") -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head + b" / HTTP/1.1\r\nHost: x\r\n" + body)
            return (b"" if body.endswith(b"half") else await reader.readline()), writer

        chunked = b"Transfer-Encoding: chunked\r\n"
        for bad in (b"Content-Length: -5\r\n\r\n", b"Content-Length: 1\r\n" + chunked + b"\r\n"):
            assert b" 400 " in (await said(b"POST", bad))[0]
        await said(b"POST", chunked + b"\r\nno length\r\n")
        reading.clear()
        ended.clear()
        _, writer = await said(b"POST", b"Content-Length: 9\r\n\r\nhalf")
        await reading.wait()
        writer.transport.abort()
        await ended.wait()
        assert b" 500 " in (await said(b"GET", b"\r\n"))[0]
        await server.stop()
        faults = [record.exc_info[1] for record in caplog.records if record.exc_info]
        assert len(caplog.records) == 1 and "the handler asked" in str(faults[0])

    run(play())
