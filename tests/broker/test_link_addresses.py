"""A list of addresses: tried in turn, the one that works is kept, the fault of all names all."""

import asyncio

import pytest
from broker_harness import ALL, PASSWORDS, Ear, linked, make_link

from edgeveil.errors import BrokerError
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, free_port

HANG_S = 60  # only ends a test that hangs
SOON = {"backoff_base_s": 0.01, "backoff_cap_s": 0.01}


def test_the_first_that_works_is_taken(broker):
    dead = f"mqtt://127.0.0.1:{free_port()}"

    async def play():
        urls = (dead, broker.url)
        async with linked(broker, "ada", url=urls, **SOON) as (link, ear):
            assert link.connected
            said = (await ear.state())[1]
            assert said.startswith(f"connected to 127.0.0.1:{broker.port} ")

    asyncio.run(asyncio.wait_for(play(), HANG_S))


def test_where_none_works_each_is_named_with_its_reason(broker):
    dead = f"mqtt://127.0.0.1:{free_port()}"

    async def play():
        link = make_link(broker, "ada", password="no", url=(dead, broker.url), **SOON)
        try:
            await link.connect_or_raise()
        finally:
            await link.close()

    with pytest.raises(BrokerError) as caught:
        asyncio.run(asyncio.wait_for(play(), HANG_S))
    text = str(caught.value)
    assert f"{dead.removeprefix('mqtt://')}: nothing listens on this port" in text
    assert f"127.0.0.1:{broker.port}: wrong user name or password" in text
    assert "none of the 2 addresses" in text
    assert "no-word" not in text


def test_a_link_that_is_made_anew_goes_to_the_next_address(engine, tmp_path):
    brokers = [
        BrokerProcess(
            BrokerPlan(engine=engine, acl="edge"), tmp_path / str(number), users=PASSWORDS
        )
        for number in range(2)
    ]
    for process in brokers:
        process.start()

    async def play():
        ear = Ear()
        urls = tuple(process.url for process in brokers)
        link = make_link(brokers[0], "ada", ear=ear, url=urls, **SOON)
        link.renew("not up yet")  # nothing to end
        running = asyncio.ensure_future(link.run_forever())
        for broker in brokers:
            assert f":{broker.port} " in (await ear.state())[1]
            link.renew("nothing comes")
            assert await ear.state() == (False, f"127.0.0.1:{broker.port}: nothing comes")
        assert f":{brokers[0].port} " in (await ear.state())[1]
        await link.close()
        await running

    try:
        asyncio.run(asyncio.wait_for(play(), HANG_S))
    finally:
        for process in brokers:
            process.stop()


def test_a_link_moves_on_when_its_broker_ends_and_keeps_its_subscriptions(engine, tmp_path):
    brokers = [
        BrokerProcess(
            BrokerPlan(engine=engine, acl="edge"), tmp_path / str(number), users=PASSWORDS
        )
        for number in range(2)
    ]
    for process in brokers:
        process.start()

    async def play():
        ear = Ear()
        urls = tuple(process.url for process in brokers)
        link = make_link(brokers[0], "ada", ear=ear, url=urls, **SOON)
        await link.subscribe([ALL])
        running = asyncio.ensure_future(link.run_forever())
        assert f":{brokers[0].port} " in (await ear.state())[1]
        await asyncio.to_thread(brokers[0].stop)
        while not (said := await ear.state())[0]:
            pass
        assert f":{brokers[1].port} " in said[1]
        async with linked(brokers[1], "proxy") as (proxy, _):
            await proxy.publish(ALL, b"again")
            assert await ear.message() == (ALL, b"again")
        await link.close()
        await running

    try:
        asyncio.run(asyncio.wait_for(play(), HANG_S))
    finally:
        for process in brokers:
            process.stop()
