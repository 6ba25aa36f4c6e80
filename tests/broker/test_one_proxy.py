"""Two processes with one proxy's key at one broker: one ends and says why; another cell's stays."""

import asyncio
from contextlib import suppress

import pytest
from broker_harness import WAIT_S, linked

from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import SigningKey, sign
from edgeveil.crypto.labels import PROXY_RUNS
from edgeveil.errors import BrokerError, UsageError
from edgeveil.transport.link import Topics
from edgeveil_proxy.main import AloneInCell
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec

NORTH, SOUTH, THIEF = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
USERS = {"proxy-north": "north-word", "proxy-south": "south-word", "ada": "ada-word"}


@pytest.fixture
def shared(engine, tmp_path):
    plan = BrokerSpec(engine=engine, acl="edge", cells=("north", "south"))
    process = BrokerProcess(plan, tmp_path / "broker", users=USERS)
    process.start()
    for user, word in USERS.items():
        (tmp_path / user).write_text(word)
        (tmp_path / user).chmod(0o600)
    yield process
    process.stop()


def watching(broker, folder, cell, key):
    user = f"proxy-{cell}"
    link = {"url": broker.url, "username": user, "password_file": folder / user}
    files = {"cloud_key_file": folder / "cloud.pub", "state_dir": folder / "state"}
    site = ProxySite(edge_broker=link, cloud_broker=link, cell=cell, **files)
    return AloneInCell(site, lambda: key)


async def up(watch):
    """Running, and heard by the broker."""
    running = asyncio.ensure_future(watch.run())
    async with asyncio.timeout(WAIT_S):
        while not watch._link.connected:
            await asyncio.sleep(0.01)
    return running


async def ended(*watches):
    for watch in watches:
        await watch.close()


async def test_the_one_that_hears_another_ends_and_says_why(shared, tmp_path):
    first = watching(shared, tmp_path, "north", NORTH)
    running = await up(first)
    second = watching(shared, tmp_path, "north", NORTH)
    other = await up(second)
    with pytest.raises(UsageError, match="another process runs as the proxy of cell 'north'"):
        await asyncio.wait_for(running, WAIT_S)
    assert not other.done()
    other.cancel()
    await ended(first, second)


async def test_neither_another_cell_nor_a_forged_word_ends_it(shared, tmp_path):
    north, south = (
        watching(shared, tmp_path, "north", NORTH),
        watching(shared, tmp_path, "south", SOUTH),
    )
    both = [await up(north), await up(south)]
    topic, nonce = Topics("north").proxies, bytes(16)
    forged, right = (nonce + sign(key, PROXY_RUNS, nonce) for key in (THIEF, NORTH))
    async with (
        linked(shared, "ada", password=USERS["ada"]) as (ada, ear),
        linked(shared, "proxy-north", password=USERS["proxy-north"]) as (mine, _),
    ):
        with suppress(BrokerError):
            await ada._session.subscribe([topic])
        await ada.publish(topic, right)  # nobody but the proxy may speak there
        for junk in (b"", nonce, forged, right + b"x"):
            await mine.publish(topic, junk)
        await mine.publish(Topics("south").proxies, right)
        assert await asyncio.wait(both, timeout=1.0) == (set(), set(both))
        assert ear.messages.empty()
        await mine.publish(topic, right)
        done, _ = await asyncio.wait(both, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert done == {both[0]} and both[0].exception() is not None
    both[1].cancel()
    await ended(north, south)
