"""A link whose handler publishes, under more than it can handle: it neither stands nor grows."""

import asyncio

import pytest
from broker_harness import ALL, UP, WAIT_S, Ear, linked

from edgeveil.transport.link import LinkDown, LinkSettings
from edgeveil.transport.mqtt_link import MqttLink

ACCEPTED = bytes([0x20, 2, 0, 0])
LIMIT = 128 * 1024


async def test_a_handler_that_answers_goes_on_when_inbox_and_window_are_full(broker):
    """The acknowledgements that it waits for come behind what its inbox has no room for."""

    gate, handled, messages = asyncio.Event(), [], 300
    async with (
        linked(broker, "proxy", [UP.format("+")], inbox_bytes=32 << 10, window_messages=2) as (
            proxy,
            _,
        ),
        linked(broker, "ada", [ALL]) as (ada, ear),
    ):

        async def handler(topic, payload):
            await gate.wait()
            for part in range(4):
                await proxy.publish(ALL, payload + bytes([part]))
            handled.append(payload)

        proxy.on_message = handler
        for number in range(messages):
            await ada.publish(UP.format("ada"), number.to_bytes(2, "big"))
        while not proxy._inbox.paused:
            await asyncio.sleep(0.01)
        gate.set()
        heard = [(await ear.message())[1] for _ in range(4 * messages)]
        expected = [number.to_bytes(2, "big") for number in range(messages)]
        while len(handled) < messages:
            await asyncio.sleep(0.01)
        assert handled == expected
        assert heard == [one + bytes([part]) for one in expected for part in range(4)]
        assert (proxy.overflows, proxy.connections) == (0, 1)


def publication(payload):
    body = b"\0\1t" + payload
    return bytes([0x30, 0x80 | len(body) % 128, len(body) // 128]) + body


@pytest.fixture
def flood():
    return b"".join(publication(bytes(4000)) for _ in range(200))


async def test_reading_for_an_acknowledgement_that_never_comes_has_an_end(flood):
    """A broker that sends much and acknowledges nothing costs four inboxes and the session."""
    answers = [ACCEPTED + flood, ACCEPTED]

    async def serve(reader, writer):
        await reader.read(4096)
        writer.write(answers.pop(0))
        await reader.read()
        writer.close()

    gate, ear = asyncio.Event(), Ear()

    async def handler(topic, payload):
        await gate.wait()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = LinkSettings(url, "x", protocol=4, inbox_bytes=LIMIT, window_messages=1)
    link = MqttLink(settings, on_message=handler, on_state=ear.on_state)
    await link.connect_or_raise()
    while not link._inbox.paused:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert link.received_bytes < 3 * LIMIT  # nobody waits: nothing is read
    await link.publish("t", b"first")
    with pytest.raises(LinkDown, match="inbox overflow"):
        await asyncio.wait_for(link.publish("t", b"second"), WAIT_S)
    assert 3 * LIMIT < link.received_bytes < 4.5 * LIMIT
    assert link.overflows == 1
    assert [(await ear.state())[0] for _ in range(2)] == [True, False]
    await link.connect_or_raise()  # with the inbox as full as it was
    assert link.connected
    gate.set()
    await link.close()
    server.close()
