"""A broker behind an HTTP proxy that opens tunnels: a real proxy, a real link, and each refusal."""

import asyncio
import base64
import logging

import pytest

from edgeveil.errors import BrokerError
from edgeveil.sites.addresses import HttpProxy
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, free_port

HANG_S = 60  # only ends a test that hangs
USER, PASSWORD = "box", "tunnel-word"


class ConnectProxy:
    """Opens tunnels for one user, to the hosts and ports it is asked for; notes which."""

    def __init__(self, *, answer: bytes | None = None) -> None:
        self.tunnels: list[str] = []
        self._answer = answer

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            await self._tunnel(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _tunnel(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self._answer is not None:
            writer.write(self._answer)
            return
        if method != "CONNECT" or f"Proxy-Authorization: Basic {pair}" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        self.tunnels.append(target)
        host, _, port = target.rpartition(":")
        away_reader, away_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, away_writer), pump(away_reader, writer))
        finally:
            away_writer.close()


async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def proxy_at(port, password=PASSWORD):
    return HttpProxy("127.0.0.1", port, USER, password)


@pytest.mark.parametrize("websockets", [False, True], ids=["mqtt", "ws"])
def test_a_link_works_through_the_tunnel_alone(tmp_path, websockets):
    broker = BrokerProcess(BrokerPlan(websockets_port=0), tmp_path / "broker")
    broker.start()

    async def play():
        heard = asyncio.Queue()
        url = broker.websockets_url if websockets else broker.url
        async with ConnectProxy() as proxy:
            settings = LinkSettings(url, "x", http_proxy=proxy_at(proxy.port))
            link = MqttLink(settings, on_message=lambda *said: heard.put_nowait(said))
            await link.subscribe(["there"])
            await link.connect_or_raise()
            await link.publish("there", bytes(60000))
            assert await heard.get() == ("there", bytes(60000))
            await link.close()
        port = broker.websockets_port if websockets else broker.port
        assert set(proxy.tunnels) == {f"127.0.0.1:{port}"}

    try:
        asyncio.run(asyncio.wait_for(play(), HANG_S))
    finally:
        broker.stop()


def fault(proxy_port, password=PASSWORD, port=None):
    async def play():
        url = f"mqtt://127.0.0.1:{port or free_port()}"
        link = MqttLink(LinkSettings(url, "x", http_proxy=proxy_at(proxy_port, password)))
        try:
            await link.connect_or_raise()
        finally:
            await link.close()

    return play()


@pytest.mark.parametrize(
    ("answer", "password", "what"),
    [
        (None, "other-word", "wants another user name or password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", PASSWORD, "refuses the tunnel (HTTP 403)"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", PASSWORD, "is no HTTP proxy"),
        (b"", PASSWORD, "is no HTTP proxy"),
    ],
)
def test_each_refusal_names_the_proxy_and_the_broker_and_no_password(
    answer, password, what, caplog
):
    async def play():
        async with ConnectProxy(answer=answer) as proxy:
            with pytest.raises(BrokerError) as caught:
                await fault(proxy.port, password, port=7)
            assert caught.value.where == f"127.0.0.1:{proxy.port}"
            return str(caught.value)

    with caplog.at_level(logging.DEBUG):
        text = asyncio.run(asyncio.wait_for(play(), HANG_S))
    assert what in text
    assert "127.0.0.1:7" in text
    assert password not in text + caplog.text


def test_a_proxy_that_is_not_there_is_named():
    port = free_port()
    with pytest.raises(BrokerError, match="no HTTP proxy listens on this port") as caught:
        asyncio.run(asyncio.wait_for(fault(port), HANG_S))
    assert caught.value.where == f"127.0.0.1:{port}"
