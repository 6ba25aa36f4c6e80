"""Links to real brokers: what they carry, bound and keep in order, who hears it, and how they come
back.
"""

import asyncio
import contextlib
import os
from unittest.mock import Mock

import pytest
from broker_harness import ALL, DOWN, PASSWORDS, UP, WAIT_S, Ear, linked, make_link, tries

from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.transport.link import LinkDown, LinkSettings, Topics, overhead_bytes
from edgeveil.transport.mqtt_link import MqttLink, RuntimeLink
from edgeveil_tools.site.brokers import free_port


async def test_waiting_times_double_up_to_the_cap_and_are_drawn_from_zero():
    drawn, done, ear = [], asyncio.Event(), Ear()

    def uniform(low, high):
        drawn.append((low, high))
        if len(drawn) == 6:
            done.set()
        return 0.0

    waits = {"backoff_base_s": 1.0, "backoff_cap_s": 20.0}
    settings = LinkSettings(f"mqtt://127.0.0.1:{free_port()}", "x", **waits)
    link = MqttLink(settings, on_state=ear.on_state, uniform=uniform)
    forever = asyncio.create_task(link.run_forever())
    await asyncio.wait_for(done.wait(), WAIT_S)
    await link.close()
    await asyncio.wait_for(forever, WAIT_S)
    assert drawn[:6] == [(0, 2), (0, 4), (0, 8), (0, 16), (0, 20), (0, 20)]
    connected, reason = ear.states.get_nowait()
    assert not connected
    assert "nothing listens on this port" in reason
    assert ear.states.empty()  # one report, however many attempts


async def test_the_last_will_is_published_for_the_dead_not_for_those_who_close(broker):
    topic = UP.format("ada")
    async with linked(broker, "proxy", [UP.format("+")]) as (_, ear):
        for died in (False, True):
            link = make_link(broker, "ada", will=(topic, b"gone"))
            await link.connect_or_raise()
            await link.publish(topic, b"here")
            assert await ear.message() == (topic, b"here")
            if died:
                link._session.end("unplugged")
                assert await ear.message() == (topic, b"gone")
            await link.close()
        assert ear.messages.empty()


async def test_a_device_hears_and_speaks_in_its_own_name_alone(broker, protocol):
    bob_down, ada_down, bob_up, ada_up = (w.format(n) for w in (DOWN, UP) for n in ("bob", "ada"))
    bucket = Topics().bucket(16, 3)
    optional = {"optional_topics": frozenset([bob_down]), "protocol": protocol}
    async with (
        linked(broker, "proxy", [UP.format("+")], protocol=protocol) as (proxy, proxy_ear),
        linked(broker, "bob", [bob_down, ALL], protocol=protocol) as (bob, bob_ear),
        # One that is refused and may be missing ends no session.
        linked(broker, "ada", [bob_down, ada_down, bucket], **optional) as (ada, ada_ear),
    ):
        await tries(ada, bob_down, "edgeveil/v1/d/+/down", "#", UP.format("+"))
        for topic in (bob_up, bob_down, ALL, bucket):
            with contextlib.suppress(BrokerError, ProtocolError):
                await ada.publish(topic, b"forged")
        await ada.publish(ada_up, b"mine")
        assert await proxy_ear.message() == (ada_up, b"mine")
        await bob.publish(bob_up, b"from bob")
        assert await proxy_ear.message() == (bob_up, b"from bob")
        for topic in (bob_down, bucket, ada_down):
            await proxy.publish(topic, b"true")
        assert await bob_ear.message() == (bob_down, b"true")
        await asyncio.sleep(0.1)
        heard = [await ada_ear.message()]
        while not ada_ear.messages.empty():  # its own, repeated by overlapping filters
            heard.append(await ada_ear.message())
        assert set(heard) == {(bucket, b"true"), (ada_down, b"true")}
        assert proxy_ear.messages.empty() and bob_ear.messages.empty()


async def test_an_oversized_packet_is_refused_and_the_link_lives_until_its_end(broker):
    topic = UP.format("ada")
    ada = make_link(broker, "ada")
    with pytest.raises(LinkDown):
        await ada.publish(topic, b"x")
    async with linked(broker, "proxy", [UP.format("+")]) as (_, ear):
        await ada.connect_or_raise()
        with pytest.raises(ProtocolError) as caught:
            await ada.publish(topic, bytes(65536 - overhead_bytes(topic) + 1))
        assert caught.value.reason == "oversized_packet"
        largest = os.urandom(65536 - overhead_bytes(topic))
        await ada.publish(topic, largest)
        assert (await ear.message())[1] == largest
        assert ada.connected
        await ada.close()
    assert not ada.connected
    for late in (ada.publish(topic, b"x"), ada.connect_or_raise()):
        with pytest.raises(LinkDown):
            await late


async def test_a_failing_handler_neither_ends_the_link_nor_shows_a_traceback(broker, caplog):
    heard, sent = [], [b"bad", b"bad", b"good"]

    def handler(topic, payload):
        heard.append(payload)
        if payload == b"bad":
            raise RuntimeError("secret sample 17")

    async with (
        linked(broker, "proxy", [UP.format("+")]) as (proxy, _),
        linked(broker, "ada") as (ada, _),
    ):
        proxy.on_message = handler
        for payload in sent:
            await ada.publish(UP.format("ada"), payload)
        while heard != sent:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert (proxy.handler_errors, proxy.connected) == (2, True)
    (record,) = [one for one in caplog.records if one.getMessage() == "handler_failed"]
    assert record.error == "RuntimeError"
    assert "secret sample" not in caplog.text + str(record.__dict__)


SOON = {"backoff_base_s": 0.01, "backoff_cap_s": 0.01}


async def test_a_link_goes_on_at_the_next_address_and_keeps_its_subscriptions(engine, start):
    two = [start(engine=engine, acl="edge") for _ in range(2)]
    ear, urls = Ear(), tuple(broker.url for broker in two)
    link = make_link(two[0], "ada", ear=ear, url=urls, **SOON)
    link.subscribe([ALL])
    link.renew("not up yet")  # nothing to end
    running = asyncio.ensure_future(link.run_forever())
    for broker in two:
        assert f":{broker.port} " in (await ear.state())[1]
        link.renew("nothing arrives")
        assert await ear.state() == (False, f"127.0.0.1:{broker.port}: nothing arrives")
    assert f":{two[0].port} " in (await ear.state())[1]
    await asyncio.to_thread(two[0].stop)
    while not (state := await ear.state())[0]:
        pass
    assert f":{two[1].port} " in state[1]
    async with linked(two[1], "proxy") as (proxy, _):
        await proxy.publish(ALL, b"again")
        assert await ear.message() == (ALL, b"again")
    await link.close()
    await running


async def test_each_topic_keeps_its_order_also_once_the_link_is_up_again(broker):
    """It is up again only when all of its connections are."""
    user, ear = {"username": "proxy", "password": PASSWORDS["proxy"]}, Ear()
    roles = fx.AllDevices(), Topics().of_proxy, Topics().sender_of
    link = RuntimeLink(
        LinkSettings(broker.url, "proxy-wide", **user, **SOON), [UP.format("+")], *roles, 4
    )
    await link.attach(Mock(), ear.on_state)
    link.links[0].takes, link.links[0].on_message = lambda *_: True, ear.on_message
    running = asyncio.ensure_future(link.run())
    payloads = [number.to_bytes(2, "big") for number in range(200)]
    for connections in (1, 2):
        while not link.connected:
            await ear.state()
        assert link.connections >= connections
        async with (
            linked(broker, "ada", [DOWN.format("ada")]) as (ada, to_ada),
            linked(broker, "bob", [DOWN.format("bob")]) as (_, to_bob),
        ):
            for payload in payloads:
                await asyncio.gather(
                    *(link.publish(fx.DeviceAddress(name), payload) for name in ("ada", "bob"))
                )
            for heard in (to_ada, to_bob):
                assert [(await heard.message())[1] for _ in payloads] == payloads
            for payload in payloads:
                await ada.publish(UP.format("ada"), payload)
            assert [(await ear.message())[1] for _ in payloads] == payloads
            assert ear.messages.empty()
        if connections == 1:
            await asyncio.to_thread(broker.stop)
            while link.connected:
                await ear.state()
            await asyncio.to_thread(broker.start)
    await link.close()
    await running
