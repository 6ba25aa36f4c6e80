"""A broker that enforces a managed service's limits: links of that profile stay."""

import asyncio

import pytest
from broker_harness import PASSWORDS, UP, linked

from edgeveil.config.broker_profiles import PROFILES
from edgeveil.transport.link import Topics
from edgeveil_tools.site.brokers import BrokerSpec
from tests.kits.profiled_broker import BEYOND_PROFILE, ProfiledBroker

HANG_S = 60  # only ends a test that hangs


@pytest.fixture
def enforcing(tmp_path):
    """Starts brokers that enforce a profile, and stops them."""
    started = []

    def start(profile):
        plan = BrokerSpec("amqtt", acl="edge", packet_bytes=1 << 20)
        started.append(ProfiledBroker(plan, tmp_path / profile, profile, users=PASSWORDS))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.mark.parametrize(
    ("profile", "count", "size"),
    [
        ("aws_iot", 250, 10),
        ("aws_iot", 20, 60_000),
        ("event_grid", 40, 60_000),
        ("emqx_serverless", 25, 10),
        ("hivemq_cloud", 100, 10),
    ],
)
async def test_who_keeps_to_the_profile_is_heard_in_full(enforcing, profile, count, size):
    """Each of these, published as fast as it goes, is beyond one limit of the service."""
    broker = await asyncio.to_thread(enforcing, profile)
    paced = {"packet_bytes": 1 << 20, "profile": PROFILES[profile]}
    async with (
        asyncio.timeout(HANG_S),
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=1 << 26) as (_, ear),
        linked(broker, "ada", **paced) as (ada, _),
    ):
        for number in range(count):
            await ada.publish(UP.format("ada"), number.to_bytes(4, "big") + bytes(size))
        heard = [int.from_bytes((await ear.message())[1][:4], "big") for _ in range(count)]
    assert heard == list(range(count))
    assert BEYOND_PROFILE not in broker.log


@pytest.mark.parametrize("cell", ["", "a-cell-of-the-longest-name-there-i"[:32]])
def test_topics_of_ours_fit_every_profile(cell):
    device = "0123456789abcdef"
    own = Topics(cell)
    to_device, of_device = own.device_down(device), own.device_up(device)
    topics = [to_device, of_device, own.all_down, own.cloud_in, own.cloud_out]
    for profile in PROFILES.values():
        for topic in topics:
            assert profile.topic_levels is None or topic.count("/") < profile.topic_levels
            assert profile.topic_bytes is None or len(topic) <= profile.topic_bytes
