"""What a link carries: round trips, large packets, bounds, order, both protocol versions."""

import asyncio
import os
import select

import pytest
from broker_harness import UP, linked, make_link

from edgeveil.errors import ProtocolError
from edgeveil.transport.link import LinkDown, overhead_bytes


async def test_an_oversized_packet_is_refused_and_the_link_lives(broker):
    async with (
        linked(broker, "proxy", [UP.format("+")]) as (_, ear),
        linked(broker, "ada") as (ada, _),
    ):
        topic = UP.format("ada")
        with pytest.raises(ProtocolError) as caught:
            await ada.publish(topic, bytes(65536 - overhead_bytes(topic) + 1))
        assert caught.value.reason == "oversized_packet"
        largest = os.urandom(65536 - overhead_bytes(topic))
        await ada.publish(topic, largest)
        assert (await ear.message())[1] == largest
        assert ada.connected


async def test_nothing_is_published_before_connecting_or_after_closing(broker):
    link = make_link(broker, "ada")
    with pytest.raises(LinkDown):
        await link.publish(UP.format("ada"), b"x")
    await link.connect_or_raise()
    await link.close()
    assert not link.connected
    with pytest.raises(LinkDown):
        await link.publish(UP.format("ada"), b"x")
    with pytest.raises(LinkDown):
        await link.connect_or_raise()


async def test_a_slow_handler_holds_the_broker_back_and_loses_nothing(broker):
    """The inbox takes 1 MiB; 8 MiB wait in the socket and at the broker until it is read."""

    gate, heard = asyncio.Event(), []

    async def handler(topic, payload):
        await gate.wait()
        heard.append(payload)

    async with (
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=1 << 20) as (proxy, _),
        linked(broker, "ada") as (ada, _),
    ):
        proxy.on_message = handler
        for number in range(128):
            await ada.publish(UP.format("ada"), bytes([number]) * 65000)
        while not proxy._inbox.paused:
            await asyncio.sleep(0.01)
        held = proxy.received_bytes
        assert held < 2 << 20
        sock = proxy._session._transport.get_extra_info("socket")
        waits = select.poll()  # for any number of descriptors
        waits.register(sock, select.POLLIN)
        while not waits.poll(0):
            await asyncio.sleep(0.01)
        for _ in range(10):  # turns of the loop, any of which would read what waits there
            await asyncio.sleep(0)
        assert proxy.received_bytes == held
        gate.set()
        while len(heard) < 128:
            await asyncio.sleep(0.01)
        assert [payload[0] for payload in heard] == list(range(128))


async def test_a_failing_handler_neither_ends_the_link_nor_shows_a_traceback(broker, caplog):
    heard = []

    def handler(topic, payload):
        heard.append(payload)
        if payload == b"bad":
            raise RuntimeError("secret sample 17")

    async with (
        linked(broker, "proxy", [UP.format("+")]) as (proxy, _),
        linked(broker, "ada") as (ada, _),
    ):
        proxy.on_message = handler
        for payload in (b"bad", b"bad", b"good"):
            await ada.publish(UP.format("ada"), payload)
        while heard != [b"bad", b"bad", b"good"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert proxy.handler_errors == 2
        assert proxy.connected
    (said,) = [record for record in caplog.records if record.getMessage() == "handler_failed"]
    assert said.error == "RuntimeError"
    assert "secret sample" not in caplog.text + str(said.__dict__)
