"""Two cells at one broker: each proxy hears and speaks to its own, and a device in its own name."""

import contextlib

import pytest
from broker_harness import linked

from edgeveil.errors import BrokerError
from edgeveil.transport.link import Topics
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec

NORTH, SOUTH = Topics("north"), Topics("south")
USERS = {name: f"{name}-word" for name in ("proxy-north", "proxy-south", "cloud", "ada", "bob")}


@pytest.fixture(params=["edge", "cloud"])
def side(request):
    return request.param


@pytest.fixture
def shared(engine, side, tmp_path):
    """A broker of that side for both cells."""
    plan = BrokerSpec(engine=engine, acl=side, cells=("north", "south"))
    process = BrokerProcess(plan, tmp_path / "broker", users=USERS)
    process.start()
    yield process
    process.stop()


def entered(broker, user, *topics):
    return linked(broker, user, topics, password=USERS[user])


async def tries(link, *topics):
    """To listen where it may not: refused, or never heard."""
    for topic in topics:
        with contextlib.suppress(BrokerError):
            await link._session.subscribe([topic])


@pytest.mark.parametrize("side", ["edge"], indirect=True)
async def test_a_proxy_is_of_one_cell(shared):
    async with (
        entered(shared, "proxy-north", NORTH.devices_up) as (north, north_ear),
        entered(shared, "proxy-south", SOUTH.devices_up) as (south, south_ear),
        entered(shared, "ada", NORTH.all_down, NORTH.device_down("ada")) as (ada, ada_ear),
        entered(shared, "bob", SOUTH.all_down, SOUTH.device_down("bob")) as (bob, bob_ear),
    ):
        await tries(north, SOUTH.devices_up, SOUTH.any_claim, SOUTH.device_down("bob"))
        await north.publish(SOUTH.all_down, b"another's")
        await north.publish(SOUTH.device_down("bob"), b"another's")
        await bob.publish(SOUTH.device_up("bob"), b"to south")
        await ada.publish(NORTH.device_up("ada"), b"to north")
        await south.publish(SOUTH.all_down, b"of south")
        await north.publish(NORTH.all_down, b"of north")
        assert await south_ear.message() == (SOUTH.device_up("bob"), b"to south")
        assert await north_ear.message() == (NORTH.device_up("ada"), b"to north")
        assert await bob_ear.message() == (SOUTH.all_down, b"of south")
        assert await ada_ear.message() == (NORTH.all_down, b"of north")
        ears = (north_ear, south_ear, ada_ear, bob_ear)
        assert [ear.messages.get_nowait() for ear in ears if not ear.messages.empty()] == []


@pytest.mark.parametrize("side", ["edge"], indirect=True)
async def test_a_device_in_a_foreign_cell_has_its_own_name_and_no_other(shared):
    """It speaks there as itself alone, to a proxy that does not know it (docs/brokers.md)."""

    async with (
        entered(shared, "proxy-south", SOUTH.devices_up) as (south, south_ear),
        entered(shared, "bob", SOUTH.device_down("bob")) as (_, bob_ear),
        entered(shared, "ada") as (ada, ada_ear),
    ):
        await tries(ada, SOUTH.device_down("bob"), SOUTH.devices_up, "edgeveil/v1/c/#")
        for topic in (SOUTH.device_up("bob"), SOUTH.all_down, SOUTH.device_down("bob")):
            await ada.publish(topic, b"as another")
        await ada.publish("edgeveil/v1/c/east/d/ada/up", b"in no cell")
        await ada.publish(SOUTH.device_up("ada"), b"as itself")
        assert await south_ear.message() == (SOUTH.device_up("ada"), b"as itself")
        await south.publish(SOUTH.device_down("bob"), b"to bob")
        assert await bob_ear.message() == (SOUTH.device_down("bob"), b"to bob")
        assert all(ear.messages.empty() for ear in (south_ear, bob_ear, ada_ear))


@pytest.mark.parametrize("side", ["cloud"], indirect=True)
async def test_the_cloud_hears_who_speaks_for_which_cell(shared):
    async with (
        entered(shared, "cloud", NORTH.cloud_in, SOUTH.cloud_in) as (cloud, cloud_ear),
        entered(shared, "proxy-north", NORTH.cloud_out) as (north, north_ear),
        entered(shared, "proxy-south", SOUTH.cloud_out) as (_, south_ear),
    ):
        await tries(north, SOUTH.cloud_out, "edgeveil/v1/c/+/cloud/out")
        await north.publish(SOUTH.cloud_in, b"as south")
        await north.publish(NORTH.cloud_in, b"as north")
        await cloud.publish(SOUTH.cloud_out, b"to south")
        assert await cloud_ear.message() == (NORTH.cloud_in, b"as north")
        assert await south_ear.message() == (SOUTH.cloud_out, b"to south")
        assert all(ear.messages.empty() for ear in (cloud_ear, north_ear, south_ear))
