"""WebSockets with hostile peers, and brokers behind an HTTP proxy that opens tunnels."""

import asyncio
import base64
import hashlib
import logging
import re
import struct
from contextlib import asynccontextmanager, suppress

import pytest

from edgeveil.config.addresses import HttpProxy
from edgeveil.errors import BrokerError
from edgeveil.transport.dialling import WebSocketFraming, WebSocketRefused
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec

LIMIT_BYTES = 1 << 20
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


def upgrade(request, *, protocol=b"mqtt"):
    """A server's answer to this handshake request."""
    lines = dict(line.lower().split(b": ", 1) for line in request.split(b"\r\n") if b": " in line)
    key = request[request.lower().index(lines[b"sec-websocket-key"]) :].split(b"\r\n")[0]
    accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    named = b"Sec-WebSocket-Protocol: " + protocol + b"\r\n" if protocol else b""
    return head + b"Sec-WebSocket-Accept: " + accept + b"\r\n" + named + b"\r\n"


def frame(payload, *, first=0x82):
    """A server's frame: unmasked, whole (FIN) and binary unless `first` says otherwise."""
    size = len(payload)
    code, form = (size, "!") if size < 126 else (126, "!H") if size < 65536 else (127, "!Q")
    return bytes([first, code]) + struct.pack(form, *[size] * (code > 125)) + payload


def framing(*, answer=upgrade):
    """A framing whose handshake was answered; with it all that came behind the answer."""
    made = WebSocketFraming("ws://box/mqtt", LIMIT_BYTES)
    return made, made.received(answer(made.to_send()))


def test_a_frame_above_the_limit_ends_the_connection_by_its_length_alone():
    framed, _ = framing()
    assert framed.received(bytes([0x82, 127]) + struct.pack("!Q", LIMIT_BYTES + 1)) == b""
    assert not framed.is_open


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        lambda _: b"220 mail.example ESMTP\r\n\r\n",
        lambda request: upgrade(request, protocol=None),
        lambda request: upgrade(request, protocol=b"chat"),
        lambda request: upgrade(request.replace(b"Key: ", b"Key: x")),
    ],
    ids=range(5),
)
def test_who_is_no_mqtt_server_is_refused(answer):
    with pytest.raises(WebSocketRefused):
        framing(answer=answer)


@pytest.mark.parametrize("before", ["the handshake's answer", "", "the flood"])
async def test_a_peer_that_hangs_up_or_pings_and_never_reads_is_cut_off(before):
    """Of one that asks for ever more answers no more is held than the window and 1 MiB."""
    flood, ended = frame(bytes(125), first=0x89) * 500, asyncio.Event()

    async def serve(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            if before:
                writer.write(upgrade(request))
                await reader.read(100)  # the login
                writer.write(frame(bytes([0x20, 2, 0, 0])))
            while before == "the flood":
                writer.write(flood)
                await writer.drain()
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/mqtt"
    states = asyncio.Queue()
    settings = LinkSettings(url, "x", protocol=4)
    link = MqttLink(settings, on_state=lambda *state: states.put_nowait(state))
    async with asyncio.timeout(HANG_S):
        if before:
            await link.connect_or_raise()
            assert [(await states.get())[0] for _ in range(2)] == [True, False]
        else:
            with pytest.raises(BrokerError, match="hung up during the WebSocket handshake"):
                await link.connect_or_raise()
        await ended.wait()
    await link.close()
    server.close()


HANG_S = 60  # only ends a test that hangs
USER, PASSWORD = "box", "tunnel-word"


@asynccontextmanager
async def connect_proxy(answer=None):
    """The port of one that opens tunnels for one user, and where these lead."""
    tunnels, pair = [], base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    async def pump(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader, writer):
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            if answer is not None:
                writer.write(answer)
            elif method != "CONNECT" or f"Proxy-Authorization: Basic {pair}" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            else:
                tunnels.append(target)
                away, onwards = await asyncio.open_connection(*target.split(":"))
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
                await asyncio.gather(pump(reader, onwards), pump(away, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], tunnels
    server.close()


def proxy_at(port, password=PASSWORD):
    return HttpProxy("127.0.0.1", port, USER, password)


@pytest.mark.parametrize("websockets", [False, True], ids=["mqtt", "ws"])
async def test_a_link_works_through_the_tunnel_alone(tmp_path, websockets):
    broker = BrokerProcess(BrokerSpec(websockets_port=0), tmp_path / "broker")
    broker.start()
    try:
        received = asyncio.Queue()
        url = broker.websockets_url if websockets else broker.url
        async with connect_proxy() as (port, tunnels):
            settings = LinkSettings(url, "x", http_proxy=proxy_at(port))
            link = MqttLink(settings, on_message=lambda *message: received.put_nowait(message))
            link.subscribe(["there"])
            await link.connect_or_raise()
            await link.publish("there", bytes(60000))
            assert await received.get() == ("there", bytes(60000))
            await link.close()
        port = broker.websockets_port if websockets else broker.port
        assert set(tunnels) == {f"127.0.0.1:{port}"}
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("answer", "password", "what"),
    [
        (None, "other-word", "refuses the user name or password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", PASSWORD, "refuses the tunnel (HTTP 403)"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", PASSWORD, "is no HTTP proxy"),
        (b"", PASSWORD, "is no HTTP proxy"),
    ],
)
async def test_each_refusal_names_the_proxy_and_no_password(answer, password, what, caplog):
    caplog.set_level(logging.DEBUG)
    async with connect_proxy(answer) as (port, _), asyncio.timeout(HANG_S):
        settings = LinkSettings("mqtt://127.0.0.1:7", "x", http_proxy=proxy_at(port, password))
        with pytest.raises(BrokerError, match=re.escape(what)) as caught:
            await MqttLink(settings).connect_or_raise()
    assert caught.value.where == f"127.0.0.1:{port}"
    assert password not in str(caught.value) + caplog.text
