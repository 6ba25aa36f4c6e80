"""Several connections as one link: who listens, who speaks, the order of each topic, the states."""

import asyncio
from unittest.mock import Mock

from broker_harness import DOWN, PASSWORDS, UP, Ear, linked

from edgeveil.protocol import effects as fx
from edgeveil.transport.link import LinkSettings, Topics
from edgeveil.transport.mqtt_link import RuntimeLink


def spread(broker, connections):
    settings = LinkSettings(
        broker.url,
        "proxy-wide",
        username="proxy",
        password=PASSWORDS["proxy"],
        backoff_base_s=0.01,
        backoff_cap_s=0.01,
    )
    topics = [UP.format("+")]
    return RuntimeLink(
        settings, topics, fx.AllDevices(), Topics().of_proxy, Topics().sender_of, connections
    )


async def attached(link, ear):
    """What comes and goes is heard by `ear`, in place of a machine."""
    await link.attach(Mock(), ear.on_state)
    link.links[0].takes, link.links[0].on_message = lambda *_: True, ear.on_message


async def test_each_topic_keeps_its_order_and_what_comes_up_arrives_once(broker):
    link, ear = spread(broker, 4), Ear()
    await attached(link, ear)
    await link.connect_or_raise()
    assert (link.connected, link.connections) == (True, 1)
    assert await ear.state()
    async with (
        linked(broker, "ada", [DOWN.format("ada")]) as (ada, to_ada),
        linked(broker, "bob", [DOWN.format("bob")]) as (_, to_bob),
    ):
        said = [number.to_bytes(2, "big") for number in range(200)]
        for payload in said:
            await asyncio.gather(
                link.publish(fx.DeviceAddress("ada"), payload),
                link.publish(fx.DeviceAddress("bob"), payload),
            )
        for heard in (to_ada, to_bob):
            assert [(await heard.message())[1] for _ in said] == said
        for payload in said:
            await ada.publish(UP.format("ada"), payload)
        assert [(await ear.message())[1] for _ in said] == said
        assert ear.messages.empty()
    await link.close()


async def test_the_link_is_up_again_only_when_all_of_it_is(engine, tmp_path):
    from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec

    broker = BrokerProcess(BrokerSpec(engine=engine, acl="edge"), tmp_path / "b", users=PASSWORDS)
    broker.start()
    try:
        link, ear = spread(broker, 3), Ear()
        await attached(link, ear)
        running = asyncio.ensure_future(link.run())
        while not (await ear.state())[0]:
            pass
        assert link.connections == 1
        await asyncio.to_thread(broker.stop)
        assert not (await ear.state())[0]
        await asyncio.to_thread(broker.start)
        while not (await ear.state())[0]:
            pass
        assert (link.connected, link.connections) == (True, 2)
        async with linked(broker, "ada") as (ada, _):
            await ada.publish(UP.format("ada"), b"back")
            assert await ear.message() == (UP.format("ada"), b"back")
        await link.close()
        await running
    finally:
        broker.stop()
