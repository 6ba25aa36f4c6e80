"""What a link's filter turns down is neither parsed nor queued; all else arrives as it was sent."""

import asyncio
import itertools
import random

import pytest
from test_link_odd_brokers import ACCEPTED_4, ACCEPTED_5, peer

from edgeveil.transport.mqtt import _PACKETS_PER_TURN
from edgeveil.transport.mqtt_packets import encoded_topic, packet, publish_head

MESSAGES = 400
SIZES = (0, 1, 2, 130, 300_000)  # the last one is more than the link reads at once


def stream(protocol, cuts):
    """Messages of QoS 0 and 1 on two topics, and what each topic was sent, in order."""
    data, sent = b"", {"quiet": [], "loud": []}
    for number in range(MESSAGES):
        topic = cuts.choice(["quiet", "loud", "loud"])
        payload = number.to_bytes(2, "big") + bytes(cuts.choice(SIZES) if number % 9 == 0 else 3)
        sent[topic].append(payload)
        qos_1 = number + 1 if cuts.random() < 0.3 else 0
        data += publish_head(encoded_topic(topic), len(payload), qos_1, protocol) + payload
        if number % 50 == 0:
            data += packet(0xD0, b"")  # an answer to a ping stands between them
    return data, sent


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("protocol", [4, 5])
async def test_only_what_is_taken_arrives_and_each_is_asked_about_once(protocol, seed):
    data, sent = stream(protocol, random.Random(seed))
    asked = []
    answer = {4: ACCEPTED_4, 5: ACCEPTED_5}[protocol] + data
    async with peer(lambda _version: answer, protocol=protocol) as (link, ear):

        def takes(topic, payload):
            asked.append((topic, payload))
            return topic == "quiet"

        link.takes = takes
        await link.connect_or_raise()
        heard = [await ear.message() for _ in sent["quiet"]]
        assert heard == [("quiet", payload) for payload in sent["quiet"]]
        while len(asked) < MESSAGES:
            await asyncio.sleep(0.01)
        assert link.connected
        for name, payloads in sent.items():
            assert [payload for topic, payload in asked if topic == name] == payloads
        assert link.received_bytes == sum(len(p) for one in sent.values() for p in one)


async def test_a_filter_that_fails_takes_nothing_and_ends_no_link():
    data, sent = stream(4, random.Random(1))
    async with peer(lambda _version: ACCEPTED_4 + data, protocol=4) as (link, ear):

        def takes(topic, payload):
            if topic == "loud":
                raise RuntimeError("a fault of the filter's own")
            return True

        link.takes = takes
        await link.connect_or_raise()
        assert [(await ear.message())[1] for _ in sent["quiet"]] == sent["quiet"]
        assert link.connected and link.handler_errors > 0


@pytest.mark.parametrize("taken", [True, False])
async def test_a_flood_leaves_the_loop_its_turns(taken):
    """However long it lasts, taken or turned down; what is turned down never fills the inbox."""
    message, seen = publish_head(encoded_topic("quiet"), 2, 0, 4) + b"xx", []
    async with peer(lambda _version: ACCEPTED_4 + message * 60_000, protocol=4) as (link, _ear):
        link.takes = lambda _topic, _payload: taken
        link.on_message = lambda _topic, _payload: None
        await link.connect_or_raise()
        while link.received_bytes < 60_000 * 2:
            seen.append(link.received_bytes)
            await asyncio.sleep(0)
        longest = max(after - before for before, after in itertools.pairwise(seen))
        assert longest <= 2 * 2 * _PACKETS_PER_TURN
        assert taken or (link.overflows, link._inbox._queued_bytes) == (0, 0)
