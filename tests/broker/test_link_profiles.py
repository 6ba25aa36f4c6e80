"""A broker that enforces a managed service's limits: links of that profile stay, others are cut."""

import asyncio
from contextlib import suppress

import pytest
from broker_harness import PASSWORDS, UP, linked

from edgeveil.config.broker_profiles import PROFILES
from edgeveil.transport.link import LinkDown
from edgeveil_tools.site.brokers import BrokerPlan
from tests.kits.profiled_broker import BEYOND_PROFILE, ProfiledBroker

HANG_S = 60  # only ends a test that hangs


@pytest.fixture
def enforcing(tmp_path):
    """Starts brokers that enforce a profile, and stops them."""
    started = []

    def start(profile):
        plan = BrokerPlan("amqtt", acl="edge", packet_bytes=1 << 20)
        started.append(ProfiledBroker(plan, tmp_path / profile, profile, users=PASSWORDS))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.stop()


def burst(broker, count, size, **changes):
    """Publish so many messages of a size as fast as the link lets; the messages that arrived.

    Raises LinkDown where the broker cut the sender off.
    """

    async def play():
        listens = {"inbox_bytes": 1 << 26}
        async with (
            linked(broker, "proxy", [UP.format("+")], **listens) as (_, ear),
            linked(broker, "ada", packet_bytes=1 << 20, **changes) as (ada, _),
        ):

            async def say():
                for number in range(count):
                    await ada.publish(UP.format("ada"), number.to_bytes(4, "big") + bytes(size))
                while ada.unacknowledged:
                    if not ada.connected:
                        break
                    await asyncio.sleep(0.01)
                if not ada.connected:
                    raise LinkDown("cut off")

            said = asyncio.ensure_future(say())
            with suppress(asyncio.CancelledError):
                await said
            return [int.from_bytes((await ear.message())[1][:4], "big") for _ in range(count)]

    return asyncio.run(asyncio.wait_for(play(), HANG_S))


TOO_MUCH = [
    ("aws_iot", 250, 10, "publishes in a second"),
    ("aws_iot", 20, 60_000, "bytes in a second"),
    ("event_grid", 40, 60_000, "unacknowledged bytes"),
    ("emqx_serverless", 25, 10, "publishes in a second"),
    ("hivemq_cloud", 100, 10, "unacknowledged messages"),
]


@pytest.mark.parametrize(("profile", "count", "size", "limit"), TOO_MUCH)
def test_who_keeps_to_the_profile_is_heard_in_full(enforcing, profile, count, size, limit):
    broker = enforcing(profile)
    heard = burst(broker, count, size, profile=PROFILES[profile])
    assert heard == list(range(count))
    assert BEYOND_PROFILE not in broker.log


@pytest.mark.parametrize(("profile", "count", "size", "limit"), TOO_MUCH)
def test_who_does_not_pace_is_cut_off(enforcing, profile, count, size, limit):
    broker = enforcing(profile)
    with pytest.raises(LinkDown):
        burst(broker, count, size)
    assert BEYOND_PROFILE in broker.log
    assert limit in broker.log


@pytest.mark.parametrize("cell", ["", "a-cell-of-the-longest-name-there-i"[:32]])
def test_topics_of_ours_fit_every_profile(cell):
    from edgeveil.transport.link import Topics

    device = "0123456789abcdef"
    own = Topics(cell)
    to_device, of_device = own.device_down(device), own.device_up(device)
    topics = [to_device, of_device, own.all_down, own.cloud_in, own.cloud_out]
    for profile in PROFILES.values():
        for topic in topics:
            assert profile.topic_levels is None or topic.count("/") < profile.topic_levels
            assert profile.topic_bytes is None or len(topic) <= profile.topic_bytes
