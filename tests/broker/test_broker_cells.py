"""Two cells at one broker: each proxy hears and speaks to its own, and a device in its own name."""

import pytest
from broker_harness import linked, tries

from edgeveil.transport.link import Topics

NORTH, SOUTH = Topics("north"), Topics("south")
USERS = {name: f"{name}-word" for name in ("proxy-north", "proxy-south", "cloud", "ada", "bob")}


@pytest.fixture
def shared(engine, side, start):
    """A broker of that side for both cells."""
    return start(USERS, engine=engine, acl=side, cells=("north", "south"))


def entered(broker, user, *topics):
    return linked(broker, user, topics, password=USERS[user])


@pytest.mark.parametrize("side", ["edge"])
async def test_a_proxy_is_of_one_cell_and_a_device_in_a_foreign_one_in_its_own_name(shared):
    """It speaks there as itself alone, to a proxy that does not know it (docs/brokers.md)."""
    async with (
        entered(shared, "proxy-north", NORTH.devices_up) as (north, north_ear),
        entered(shared, "proxy-south", SOUTH.devices_up) as (south, south_ear),
        entered(shared, "ada", NORTH.all_down, NORTH.device_down("ada")) as (ada, ada_ear),
        entered(shared, "bob", SOUTH.all_down, SOUTH.device_down("bob")) as (bob, bob_ear),
    ):
        await tries(north, SOUTH.devices_up, SOUTH.any_claim, SOUTH.device_down("bob"))
        await tries(ada, SOUTH.device_down("bob"), SOUTH.devices_up, "edgeveil/v1/c/#")
        for topic in (SOUTH.all_down, SOUTH.device_down("bob")):
            await north.publish(topic, b"another's")
            await ada.publish(topic, b"another's")
        await ada.publish(SOUTH.device_up("bob"), b"as another")
        await ada.publish("edgeveil/v1/c/east/d/ada/up", b"in no cell")
        await ada.publish(SOUTH.device_up("ada"), b"as itself")
        assert await south_ear.message() == (SOUTH.device_up("ada"), b"as itself")
        for speaker, topic, ear in (
            (bob, SOUTH.device_up("bob"), south_ear),
            (ada, NORTH.device_up("ada"), north_ear),
            (south, SOUTH.device_down("bob"), bob_ear),
            (north, NORTH.all_down, ada_ear),
            (south, SOUTH.all_down, bob_ear),  # which every device may hear
        ):
            await speaker.publish(topic, b"true")
            assert await ear.message() == (topic, b"true")
        assert all(ear.messages.empty() for ear in (north_ear, south_ear, bob_ear))
        left = []
        while not ada_ear.messages.empty():  # its own, repeated by overlapping filters
            left.append(await ada_ear.message())
        assert set(left) <= {(topics.all_down, b"true") for topics in (NORTH, SOUTH)}


@pytest.mark.parametrize("side", ["cloud"])
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
