"""Blobs over HTTP: our client and our store, and stores that break, lie or stall."""

import asyncio
import http.server
import os
import socket
import threading
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.transfer import (
    BlobStored,
    FetchedOutOfBand,
    FetchOutOfBand,
    GrantPut,
    PutOutOfBand,
    ShowBlob,
    describe,
)
from edgeveil.storage import FileData
from edgeveil.transport.blob_client import TRIES, BlobClient
from edgeveil.transport.blob_store import ServedStore, taken
from edgeveil.transport.listener import ListenAt, server_context
from tests.kits.certificates import issue

DATA = os.urandom((1 << 20) + 4321)
BLOB = describe(DATA, 65024)
TO = fx.ProxyAddress()


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@contextmanager
def serving(folder, tls=None, clock=None):
    """A store on a loop of its own."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    scheme = "https" if tls else "http"
    at = ListenAt("127.0.0.1", port, tls=tls)
    store = ServedStore(folder, f"{scheme}://127.0.0.1:{port}/b/", at, 60.0, clock or Clock())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(store.start(), loop).result(10)
        yield store
    finally:
        asyncio.run_coroutine_threadsafe(store.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def fetch(client, url, blob=BLOB):
    return client.carry(FetchOutOfBand(blob, url, 20.0))


def put(client, url, data=DATA):
    return client.carry(PutOutOfBand(describe(data, 65024), url, 20.0, data))


def test_what_is_shown_may_be_had_until_its_url_ends(tmp_path, client):
    (tmp_path / "kept").write_bytes(b"before" + DATA)
    clock = Clock()
    with serving(tmp_path / "b", clock=clock) as store:
        url = store.show(ShowBlob(BLOB, FileData(tmp_path / "kept", 6))).url
        assert fetch(client, url) == FetchedOutOfBand(DATA)
        assert url != store.show(ShowBlob(BLOB, DATA)).url
        assert put(client, url) == fx.WorkFailed("expired")  # it is for the other method
        grant = store.grant(GrantPut(BLOB, TO, b"J" * 16))
        assert put(client, grant.url) == BlobStored()
        clock.now_s = 60.0
        assert fetch(client, url) == fx.WorkFailed("expired")
        store.sweep()
        assert list((tmp_path / "b").iterdir()) == []


def test_the_blob_alone_is_put_and_taken_once(tmp_path, client):
    with serving(tmp_path / "b") as store:

        def grant():
            return store.grant(GrantPut(BLOB, TO, b"J" * 16))

        with pytest.raises(ProtocolError, match="not_there"):
            list(taken(store, grant().name, BLOB))
        for data in (DATA[:-1], DATA + b"x"):
            assert put(client, grant().url, data) == fx.WorkFailed("wrong_size")
        odd = grant()
        assert put(client, odd.url, DATA[:-1] + b"x") == BlobStored()
        with pytest.raises(ProtocolError, match="wrong_bytes"):
            list(taken(store, odd.name, BLOB))
        right = grant()
        assert put(client, right.url) == BlobStored()
        assert fetch(client, right.url) == fx.WorkFailed("expired")
        assert b"".join(taken(store, right.name, BLOB)) == DATA
        assert list((tmp_path / "b").iterdir()) == []
        assert put(client, right.url) == fx.WorkFailed("expired")


PLACES = 16
LARGE = bytes(16 << 20)  # more than sockets hold


@pytest.mark.parametrize("peers", [1, PLACES])
def test_a_crowd_of_slow_readers_keeps_nobody_out(tmp_path, monkeypatch, peers):
    """A few of a peer and half of all are kept, and have it whole; the others give way."""
    monkeypatch.setattr("edgeveil.transport.http_server.most_connections", lambda: PLACES)
    with serving(tmp_path / "b") as store, ExitStack() as opened:
        shown = ShowBlob(describe(LARGE, 65024), LARGE)
        paths = [urlsplit(store.show(shown).url).path for _ in range(peers)]
        hosts = [*(f"127.0.1.{1 + k % peers}" for k in range(PLACES)), *["127.0.9.9"] * PLACES]
        crowd = []
        for k, host in enumerate(hosts):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(20)
            one.bind((host, 0))
            one.connect(("127.0.0.1", store.port))
            one.sendall(f"GET {paths[k % peers]} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert one.recv(12) == b"HTTP/1.1 200"
            crowd.append(one)
        kept = crowd[0].makefile("rb")
        while kept.readline().strip():
            pass
        assert kept.read(len(LARGE)) == LARGE


def test_tls_is_verified(tmp_path):
    ca = issue(tmp_path, "ca")
    issue(tmp_path, "store", issuer=ca, hosts=("127.0.0.1",))
    issue(tmp_path, "other")
    tls = server_context(tmp_path / "store.crt", tmp_path / "store.key", None)
    with serving(tmp_path / "b", tls) as store:
        url = store.show(ShowBlob(BLOB, DATA)).url
        for authority, found in (("ca", FetchedOutOfBand(DATA)), ("other", None)):
            client = BlobClient(tmp_path / f"{authority}.crt", first_pause_s=0.01)
            assert fetch(client, url) == (found or fx.WorkFailed("untrusted_store"))
            client.close()


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers the n-th request as the n-th of `answers` does, the last one for good."""

    answers: list
    seen: list

    def do_GET(self):
        self.seen.append(self.headers.get("Range", ""))
        turn = min(len(self.seen), len(self.answers)) - 1
        self.answers[turn](self)

    def do_PUT(self):
        self.do_GET()

    def log_message(self, *_args):
        pass

    def say(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def odd(*answers):
    seen = []
    kind = type("It", (Odd,), {"answers": list(answers), "seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/b/x", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def rest(handler, share=1):
    """What is asked for from where it begins, or half of that and then no more."""
    start = int((handler.headers.get("Range") or "bytes=0-")[6:-1])
    size, kept = len(DATA) - start, f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
    body = DATA[start : start + int(size * share)]
    handler.say(206 if start else 200, body, Content_Length=str(size), Content_Range=kept)
    handler.close_connection = True


def cut(handler):
    rest(handler, 0.5)


def test_a_fetch_that_was_cut_goes_on_where_it_ended_or_anew_and_a_busy_store_is_asked_again(
    client,
):
    with odd(cut, cut, rest) as (url, seen):
        assert fetch(client, url) == FetchedOutOfBand(DATA)
        half = len(DATA) // 2
        assert seen == ["", f"bytes={half}-", f"bytes={half + (len(DATA) - half) // 2}-"]
    busy, whole = (lambda handler: handler.say(503)), (lambda handler: handler.say(200, DATA))
    for answers in ((cut, whole), (busy, rest)):  # whole: of a store that knows no ranges
        with odd(*answers) as (url, _):
            assert fetch(client, url) == FetchedOutOfBand(DATA)
    with odd(busy, lambda handler: handler.say(200)) as (url, _):
        assert put(client, url, b"small") == BlobStored()


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda h: h.say(200, DATA[:-1] + b"x"), "wrong_bytes"),
        (lambda h: h.say(200, b"", Content_Length=str(1 << 50)), "wrong_size"),
        (endless, "wrong_size"),
        (lambda h: h.say(403), "expired"),
        (lambda h: h.say(404), "expired"),
        (lambda h: h.say(302, Location="http://127.0.0.1/"), "redirected"),
        (lambda h: h.say(400), "refused"),
        (lambda h: h.say(500), "unreachable"),
        (lambda h: h.wfile.write(b"nonsense\r\n\r\n"), "unreachable"),
        (lambda h: h.say(206, DATA, Content_Range="bytes 7-8/9"), "wrong_range"),
    ],
)
def test_what_is_wrong_is_named(client, answer, why):
    with odd(answer) as (url, seen):
        assert fetch(client, url) == fx.WorkFailed(why)
        assert len(seen) == (TRIES if why == "unreachable" else 1)


def test_a_client_that_is_closed_ends_what_is_under_way():
    client = BlobClient(silent_s=60.0)
    held = threading.Event()

    def hold(handler):
        handler.say(200, DATA[:1000], Content_Length=str(len(DATA)))
        handler.wfile.flush()
        held.set()
        threading.Event().wait(1.0)

    with odd(hold) as (url, _):
        under_way = client.executor.submit(fetch, client, url)
        held.wait(10)
        client.close()
        assert under_way.result(10) == fx.WorkFailed("ended")
