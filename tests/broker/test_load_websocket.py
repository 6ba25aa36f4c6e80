"""The load generator's bare client over WebSockets, with and without TLS, at brokers of ours."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from broker_harness import DOWN, PASSWORDS, UP, linked, listener_tls

from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport.dialling import WebSocketRefused
from edgeveil.transport.mqtt_packets import Login, encoded_topic
from edgeveil_lab.load.mqtt import BareClient, Manner
from edgeveil_lab.load.websocket import dial
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess

HANG_S = 60  # only ends a test that hangs


class Owner:
    """What a device would hear."""

    def __init__(self):
        self.is_up, self.frames, self.ended = asyncio.Event(), asyncio.Queue(), asyncio.Queue()

    def on_up(self):
        self.is_up.set()

    def on_frame(self, payload):
        self.frames.put_nowait(payload)

    def on_down(self, reason):
        self.ended.put_nowait(reason)


@pytest.fixture(params=["ws-mosquitto", "ws-amqtt", "wss-amqtt"])
def broker(request, pki):
    scheme, engine = request.param.split("-")
    tls = listener_tls(pki) if scheme == "wss" else None
    plan = BrokerPlan(engine=engine, acl="edge", tls=tls, websockets_port=0)
    process = BrokerProcess(plan, pki / "broker", users=PASSWORDS)
    process.start()
    yield process
    process.stop()


def context_of(address, pki):
    return ssl.create_default_context(cafile=pki / "ca.crt") if address.tls else None


def bare(owner, slow_bytes_per_s=0):
    login = Login("ada", "ada", PASSWORDS["ada"], None, 60, 65536)
    up = encoded_topic(UP.format("ada"))
    return BareClient(owner, login, 4, (DOWN.format("ada"),), up, Manner(slow_bytes_per_s))


def played(scenario):
    asyncio.run(asyncio.wait_for(scenario, HANG_S))


@pytest.mark.parametrize("slow_bytes_per_s", [0, 1_000_000])
def test_packets_cross_whole_both_ways_and_a_goodbye_ends_it(broker, pki, slow_bytes_per_s):
    address = BrokerAddress.parse(broker.websockets_url)
    assert address.path == "/mqtt"

    async def play():
        owner, ca = Owner(), {"ca_file": str(pki / "ca.crt")} if address.tls else {}
        client = bare(owner, slow_bytes_per_s)
        await dial(lambda: client, address, context_of(address, pki))
        await owner.is_up.wait()
        topics = [UP.format("+")]
        async with linked(broker, "proxy", topics, **ca) as (proxy, ear):
            sent = [bytes([number]) * (60_000 - number) for number in range(4)]
            for payload in sent:
                assert client.publish(payload, 1)
            assert [(await ear.message())[1] for _ in sent] == sent
            for payload in sent:
                await proxy.publish(DOWN.format("ada"), payload)
            assert [await owner.frames.get() for _ in sent] == sent
        client.finish()
        assert await owner.ended.get()

    played(play())


def test_a_broker_that_ends_is_told_once(broker, pki):
    address = BrokerAddress.parse(broker.websockets_url)

    async def play():
        owner = Owner()
        client = bare(owner)
        await dial(lambda: client, address, context_of(address, pki))
        await owner.is_up.wait()
        await asyncio.to_thread(broker.stop)
        assert await owner.ended.get()
        assert owner.ended.empty() and not client.publish(b"late", 1)

    played(play())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered HTTP 404"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no valid answer"),
        (b"", "hung up"),
    ],
)
def test_who_speaks_no_websockets_is_a_fault_of_dialling(answer, why):
    async def play():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        owner = Owner()
        address = BrokerAddress.parse(f"ws://127.0.0.1:{port}/mqtt")
        with pytest.raises(WebSocketRefused, match=why):
            await dial(lambda: bare(owner), address, None)
        assert owner.ended.empty() and not owner.is_up.is_set()
        server.close()

    played(play())
