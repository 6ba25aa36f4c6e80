"""Links come back by themselves, at random times, with their subscriptions; nothing overflows."""

import asyncio
import contextlib
import os
import signal

import pytest
from broker_harness import DOWN, UP, WAIT_S, Ear, linked, make_link

from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.transport.link import LinkDown, LinkSettings, Topics
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.brokers import free_port


async def up(ear):
    """Wait until the link says that it is connected."""
    while True:
        connected, reason = await ear.state()
        if connected:
            return reason


async def test_a_link_survives_a_restart_of_the_broker(broker):
    ear = Ear()
    link = make_link(broker, "proxy", ear=ear, backoff_cap_s=0.1)
    link.subscribe([UP.format("+")])
    forever = asyncio.create_task(link.run_forever())
    await up(ear)
    await asyncio.to_thread(broker.stop)
    assert not (await ear.state())[0]
    with pytest.raises(LinkDown):
        await link.publish(DOWN.format("ada"), b"lost")
    await asyncio.to_thread(broker.start)
    await up(ear)
    async with linked(broker, "ada") as (ada, _):
        await ada.publish(UP.format("ada"), b"again")
        assert await ear.message() == (UP.format("ada"), b"again")
    assert link.connections == 2
    await link.close()
    await asyncio.wait_for(forever, WAIT_S)


async def test_waiting_times_double_up_to_the_cap_and_are_drawn_from_zero():
    drawn, done = [], asyncio.Event()

    def uniform(low, high):
        drawn.append((low, high))
        if len(drawn) == 6:
            done.set()
        return 0.0

    ear = Ear()
    settings = LinkSettings(
        f"mqtt://127.0.0.1:{free_port()}", "x", backoff_base_s=1.0, backoff_cap_s=20.0
    )
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


async def test_a_stopped_broker_makes_publishers_wait_not_grow(broker):
    async with (
        linked(broker, "proxy", [UP.format("+")]) as (_, ear),
        linked(broker, "ada", window_messages=4) as (ada, _),
    ):
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for number in range(4):
                await asyncio.wait_for(ada.publish(UP.format("ada"), bytes([number])), WAIT_S)
            fifth = asyncio.create_task(ada.publish(UP.format("ada"), b"\4"))
            while not (ada._session._window._waiting or fifth.done()):
                await asyncio.sleep(0)
            assert not fifth.done()  # nor can it be: a stopped broker acknowledges nothing
            assert ada.unacknowledged == 4
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await asyncio.wait_for(fifth, WAIT_S)
        assert [(await ear.message())[1][0] for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_a_waiting_publisher_learns_that_the_link_went_down(broker):
    link = make_link(broker, "ada", window_messages=1)
    await link.connect_or_raise()
    os.kill(broker.pid, signal.SIGSTOP)
    await link.publish(UP.format("ada"), b"1")
    second = asyncio.create_task(link.publish(UP.format("ada"), b"2"))
    await asyncio.sleep(0)
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(LinkDown):
        await asyncio.wait_for(second, WAIT_S)
    assert not link.connected
    await link.close()


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


@pytest.mark.parametrize(
    "foreign", [DOWN.format("bob"), "edgeveil/v1/d/+/down", "#", UP.format("+")]
)
async def test_a_foreign_subscription_gets_nothing(broker, protocol, foreign):
    async with (
        linked(broker, "proxy", [UP.format("+")], protocol=protocol) as (proxy, _),
        linked(broker, "bob", [DOWN.format("bob")], protocol=protocol) as (bob, bob_ear),
        linked(broker, "ada", [DOWN.format("ada")], protocol=protocol) as (ada, ada_ear),
    ):
        with contextlib.suppress(BrokerError):  # mosquitto grants and delivers nothing
            await ada._session.subscribe([foreign])
        await proxy.publish(DOWN.format("bob"), b"for bob")
        assert (await bob_ear.message())[1] == b"for bob"
        await bob.publish(UP.format("bob"), b"from bob")
        await proxy.publish(DOWN.format("ada"), b"for ada")
        assert await ada_ear.message() == (DOWN.format("ada"), b"for ada")
        await asyncio.sleep(0.1)
        heard = [ada_ear.messages.get_nowait()[0] for _ in range(ada_ear.messages.qsize())]
        assert set(heard) <= {DOWN.format("ada")}  # its own, repeated by overlapping filters


async def test_a_refused_subscription_that_may_be_missing_ends_no_session(broker, protocol):
    topics, optional = [DOWN.format("bob"), DOWN.format("ada")], {DOWN.format("bob")}
    async with (
        linked(broker, "proxy", protocol=protocol) as (proxy, _),
        linked(broker, "ada", topics, protocol=protocol, optional_topics=frozenset(optional)) as (
            _,
            ear,
        ),
    ):
        await proxy.publish(DOWN.format("ada"), b"for ada")
        assert await ear.message() == (DOWN.format("ada"), b"for ada")


async def test_a_device_hears_its_bucket_and_speaks_in_none(broker, protocol):
    bucket, other = Topics().bucket(16, 3), Topics().bucket(16, 4)
    async with (
        linked(broker, "proxy", protocol=protocol) as (proxy, _),
        linked(broker, "ada", [bucket], protocol=protocol) as (_, ear),
        linked(broker, "bob", protocol=protocol) as (bob, _),
    ):
        with contextlib.suppress(BrokerError, ProtocolError):
            await bob.publish(bucket, b"forged")
        await proxy.publish(other, b"of others")
        await proxy.publish(bucket, b"its own")
        assert await ear.message() == (bucket, b"its own")


@pytest.mark.parametrize("topic", [UP.format("bob"), DOWN.format("bob"), "edgeveil/v1/all/down"])
async def test_nobody_speaks_in_anothers_name(broker, topic):
    everything = [DOWN.format("bob"), "edgeveil/v1/all/down"]
    async with (
        linked(broker, "proxy", [UP.format("+")]) as (proxy, proxy_ear),
        linked(broker, "bob", everything) as (_, bob_ear),
        linked(broker, "ada") as (ada, _),
    ):
        await ada.publish(topic, b"forged")
        await ada.publish(UP.format("ada"), b"mine")
        assert await proxy_ear.message() == (UP.format("ada"), b"mine")
        await proxy.publish(DOWN.format("bob"), b"true")
        assert await bob_ear.message() == (DOWN.format("bob"), b"true")
        assert proxy_ear.messages.empty()
