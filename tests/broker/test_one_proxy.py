"""Two processes with one proxy's key at one broker: one ends and says why; another cell's stays."""

import asyncio

import pytest
from broker_harness import WAIT_S, linked, tries

from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import SigningKey, sign
from edgeveil.crypto.labels import PROXY_RUNS
from edgeveil.errors import UsageError
from edgeveil.transport.link import Topics
from edgeveil_proxy.main import AloneInCell

NORTH, SOUTH, THIEF = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
USERS = {"proxy-north": "north-word", "proxy-south": "south-word", "ada": "ada-word"}


@pytest.fixture
def shared(engine, tmp_path, start):
    for user, word in USERS.items():
        (tmp_path / user).write_text(word)
        (tmp_path / user).chmod(0o600)
    return start(USERS, engine=engine, acl="edge", cells=("north", "south"))


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


async def test_a_proxy_ends_for_another_with_its_key_and_no_forged_word(shared, tmp_path):
    cells = ("north", NORTH), ("south", SOUTH)
    north, south = watches = [watching(shared, tmp_path, *cell) for cell in cells]
    both = [await up(north), await up(south)]
    topic, nonce = Topics("north").proxies, bytes(16)
    forged, right = (nonce + sign(key, PROXY_RUNS, nonce) for key in (THIEF, NORTH))
    async with (
        linked(shared, "ada", password=USERS["ada"]) as (ada, ear),
        linked(shared, "proxy-north", password=USERS["proxy-north"]) as (mine, _),
    ):
        await tries(ada, topic)
        await ada.publish(topic, right)  # nobody but the proxy may speak there
        for junk in (b"", nonce, forged, right + b"x"):
            await mine.publish(topic, junk)
        await mine.publish(Topics("south").proxies, right)
        assert await asyncio.wait(both, timeout=1.0) == (set(), set(both))
        assert ear.messages.empty()
    watches.append(watching(shared, tmp_path, "north", NORTH))
    both.append(await up(watches[-1]))
    with pytest.raises(UsageError, match="another process runs as the proxy of cell 'north'"):
        await asyncio.wait_for(both[0], WAIT_S)
    for running, watch in zip(both, watches, strict=True):
        assert running is both[0] or not running.done()
        running.cancel()
        await watch.close()
