"""A list of addresses: tried in turn, the one that works is kept, the fault of all names all."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from broker_harness import ALL, PASSWORDS, Ear, linked, make_link

from edgeveil.errors import BrokerError
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec, free_port

SOON = {"backoff_base_s": 0.01, "backoff_cap_s": 0.01}


async def test_where_none_works_each_is_named_with_its_reason(broker):
    dead = f"mqtt://127.0.0.1:{free_port()}"
    link = make_link(broker, "ada", password="no", url=(dead, broker.url), **SOON)
    with pytest.raises(BrokerError) as caught:
        await link.connect_or_raise()
    await link.close()
    text = str(caught.value)
    assert f"{dead.removeprefix('mqtt://')}: nothing listens on this port" in text
    assert f"127.0.0.1:{broker.port}: wrong user name or password" in text
    assert "none of the 2 addresses" in text
    assert "no-word" not in text


@pytest.fixture
def two(engine, tmp_path):
    """Two brokers alike."""
    plan = BrokerSpec(engine=engine, acl="edge")
    brokers = [BrokerProcess(plan, tmp_path / str(number), users=PASSWORDS) for number in range(2)]
    for process in brokers:
        process.start()
    yield brokers
    for process in brokers:
        process.stop()


@asynccontextmanager
async def running(brokers, *topics):
    ear = Ear()
    urls = tuple(process.url for process in brokers)
    link = make_link(brokers[0], "ada", ear=ear, url=urls, **SOON)
    link.subscribe(topics)
    link.renew("not up yet")  # nothing to end
    life = asyncio.ensure_future(link.run_forever())
    yield link, ear
    await link.close()
    await life


async def test_a_link_that_is_made_anew_goes_to_the_next_address(two):
    async with running(two) as (link, ear):
        for broker in two:
            assert f":{broker.port} " in (await ear.state())[1]
            link.renew("nothing comes")
            assert await ear.state() == (False, f"127.0.0.1:{broker.port}: nothing comes")
        assert f":{two[0].port} " in (await ear.state())[1]


async def test_a_link_moves_on_when_its_broker_ends_and_keeps_its_subscriptions(two):
    async with running(two, ALL) as (_, ear):
        assert f":{two[0].port} " in (await ear.state())[1]
        await asyncio.to_thread(two[0].stop)
        while not (said := await ear.state())[0]:
            pass
        assert f":{two[1].port} " in said[1]
        async with linked(two[1], "proxy") as (proxy, _):
            await proxy.publish(ALL, b"again")
            assert await ear.message() == (ALL, b"again")
