"""Brokers that misbehave or limit: a few bytes of MQTT spoken by hand from the other side."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
from broker_harness import WAIT_S, Ear, listener_tls

from edgeveil.config.broker_profiles import PROFILES
from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil.transport.mqtt_packets import PINGREQ

ACCEPTED_4 = bytes([0x20, 2, 0, 0])
ACCEPTED_5 = bytes([0x20, 3, 0, 0, 0])


@asynccontextmanager
async def peer(answer, *, tls=None, stays=True, **changes):
    """A link, and its ear, to a server that answers each CONNECT by `answer(version)`.

    `answer` gives the bytes to send; None hangs up, as `stays` false does after them. `tls` is the
    server's context.
    """
    versions = []

    async def serve(reader, writer):
        head = await reader.read(4096)
        versions.append(head[head.index(b"MQTT") + 4])
        said = answer(versions[-1])
        if said is not None:
            writer.write(said)
            await writer.drain()
            while stays and (data := await reader.read(4096)):  # until the link goes
                ear.after += data
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    ear = Ear()
    ear.versions, ear.after = versions, bytearray()
    scheme = "mqtt" if tls is None else "mqtts"
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    link = MqttLink(
        LinkSettings(url, "x", **changes), on_message=ear.on_message, on_state=ear.on_state
    )
    try:
        yield link, ear
    finally:
        await link.close()
        server.close()


@pytest.mark.parametrize(
    "refusal",
    [None, bytes([0x20, 3, 0, 0x84, 0]), bytes([0x20, 2, 0, 1])],
    ids=["hangs up", "refuses in MQTT 5", "refuses in 3.1.1"],
)
async def test_a_broker_without_mqtt_5_is_spoken_to_in_3_1_1(refusal):
    async with peer(lambda version: refusal if version == 5 else ACCEPTED_4) as (link, ear):
        await link.connect_or_raise()
        assert link.protocol == 4
        assert "does not speak MQTT 5" in (await ear.state())[1]
    assert ear.versions == [5, 4]


async def test_a_broker_that_leaves_mqtt_5_unanswered_is_spoken_to_in_3_1_1():
    answers = {5: b"", 4: ACCEPTED_4}
    async with peer(answers.get) as (link, ear):
        await link.connect_or_raise(2.0)
        assert link.protocol == 4
    assert ear.versions == [5, 4]


async def test_a_broker_s_keep_alive_is_kept():
    async with peer(lambda _: bytes([0x20, 6, 0, 0, 3, 0x13, 0, 1])) as (link, ear):
        await link.connect_or_raise()
        async with asyncio.timeout(WAIT_S):
            while not ear.after.endswith(PINGREQ):
                await asyncio.sleep(0.05)


async def test_a_broker_that_speaks_neither_is_told():
    answers = {5: bytes([0x20, 3, 0, 0x84, 0]), 4: bytes([0x20, 2, 0, 1])}
    async with peer(answers.get) as (link, ear):
        with pytest.raises(BrokerError, match="neither MQTT 5 nor"):
            await link.connect_or_raise()
    assert ear.versions == [5, 4]


async def test_a_broker_that_takes_no_connections_yet_is_told_as_such_and_tried_again():
    """As NATS does while its cluster elects: MQTT 5 is refused, 3.1.1 hung up on, then taken."""
    refused, attempts = bytes([0x20, 2, 0, 1]), []

    def answer(version):
        attempts.append(version)
        if version == 5:
            return refused
        return ACCEPTED_4 if attempts.count(4) == 3 else None

    soon = {"backoff_base_s": 0.01, "backoff_cap_s": 0.01}
    async with peer(answer, **soon) as (link, ear):
        forever = asyncio.create_task(link.run_forever())
        connected, reason = await ear.state()
        assert not connected
        assert "takes no connections yet" in reason
        assert "neither" not in reason
        assert (await ear.state())[0]
        assert ear.states.empty()  # one report, however many attempts
        await link.close()
        await forever
    assert ear.versions == [5, 4, 4, 4]


async def test_a_broker_that_took_us_before_is_not_told_as_something_else():
    answers = [ACCEPTED_4, None, bytes([0x20, 2, 0, 1])]
    turns = iter(answers)
    async with peer(lambda _: next(turns), protocol=4) as (link, ear):
        await link.connect_or_raise()
        for _ in answers[1:]:
            link.renew("again")
            with pytest.raises(BrokerError, match="took connections before and takes none now"):
                await link.connect_or_raise()
    assert ear.versions == [4, 4, 4]


def test_a_client_whose_topics_end_the_connection_comes_under_another_id():
    """As RabbitMQ 3.10 does while the node is away that holds the queue of the client before."""
    ids = []

    async def serve(reader, writer):
        head = await reader.read(4096)
        ids.append(head[14 : 14 + int.from_bytes(head[12:14], "big")].decode())
        writer.write(ACCEPTED_4)
        if len(ids) == 2:
            subscribe = await reader.read(4096)
            writer.write(bytes([0x90, 3]) + subscribe[2:4] + b"\x01")
            await reader.read()
        else:
            await reader.read(1)
        writer.close()

    async def play(suffix):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        link = MqttLink(LinkSettings(url, "x", client_suffix=suffix, protocol=4))
        link.subscribe(["t"])
        with pytest.raises(BrokerError, match="ended it when asked for our topics"):
            await link.connect_or_raise()
        await link.connect_or_raise()
        await link.close()
        server.close()

    asyncio.run(asyncio.wait_for(play("-1"), 60))
    first, second = ids
    assert first == "x-1"
    assert second.startswith("x-")
    assert second != first
    ids.clear()
    asyncio.run(asyncio.wait_for(play(""), 60))
    assert ids == ["x", "x"]  # a service that knows clients by their id sees the same


async def test_the_brokers_limits_are_kept():
    """Receive Maximum 2 and Maximum Packet Size 100, as MQTT 5 announces them."""
    limits = bytes([0x21, 0, 2]) + bytes([0x27, 0, 0, 0, 100])
    connack = bytes([0x20, 3 + len(limits), 0, 0, len(limits)]) + limits
    async with peer(lambda _: connack) as (link, _ear):
        await link.connect_or_raise()
        with pytest.raises(ProtocolError, match="exceeds 100"):
            await link.publish("t", bytes(90))
        for _ in range(2):
            await asyncio.wait_for(link.publish("t", b"x"), WAIT_S)
        third = asyncio.create_task(link.publish("t", b"x"))
        await asyncio.sleep(0.1)
        assert not third.done()
        third.cancel()


@pytest.mark.parametrize(
    ("profile", "payload_bytes", "most"),
    [("hivemq_cloud", 1, 10), ("event_grid", 30_000, 2), ("aws_iot", 1, 64)],
)
async def test_a_profile_bounds_what_is_unacknowledged(profile, payload_bytes, most):
    """The broker never acknowledges; the link's own window is of 64 messages."""

    async with peer(lambda _: ACCEPTED_5, profile=PROFILES[profile]) as (link, _ear):
        await link.connect_or_raise()
        for _ in range(most):
            await asyncio.wait_for(link.publish("t", bytes(payload_bytes)), WAIT_S)
        one_more = asyncio.create_task(link.publish("t", bytes(payload_bytes)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not one_more.done()
        assert link.unacknowledged == most
        one_more.cancel()


@pytest.mark.parametrize(
    "junk",
    [
        bytes([0x30, 1, 0]),  # PUBLISH without a topic
        bytes([0x32, 4, 0, 9, 65, 65]),  # topic longer than the packet
        bytes([0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),  # a length of five bytes
        bytes([0x90, 2, 0, 1]),  # SUBACK for nothing, without codes
        bytes([0x40, 1, 0]),  # PUBACK cut short
        bytes([0xF0, 0]),
        bytes([0x00, 0]),
    ],
)
async def test_junk_ends_the_connection_never_the_process(junk):
    async with peer(lambda version: ACCEPTED_5 + junk) as (link, ear):
        await link.connect_or_raise()
        assert (await ear.state())[0]
        forever = asyncio.create_task(link.run_forever())
        connected, _ = await ear.state()
        assert not connected
        assert not forever.done()
        await link.close()
        await asyncio.wait_for(forever, WAIT_S)


@pytest.mark.parametrize("over_tls", [False, True])
async def test_what_came_before_the_end_is_heard_and_why_it_ended(pki, over_tls):
    tls = None
    if over_tls:
        files = listener_tls(pki)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(files.cert_file, files.key_file)
    said = ACCEPTED_5 + (bytes([0x30, 6, 0, 1]) + b"t\0ok") * 200 + bytes([0xE0, 1, 0x8E])
    ca_file = str(pki / "ca.crt") if over_tls else None
    async with peer(lambda _: said, tls=tls, stays=False, ca_file=ca_file) as (link, ear):
        await link.connect_or_raise()
        forever = asyncio.create_task(link.run_forever())
        assert [await ear.message() for _ in range(200)] == [("t", b"ok")] * 200
        assert (await ear.state())[0]
        assert "session taken over" in (await ear.state())[1]
        await link.close()
        await asyncio.wait_for(forever, WAIT_S)


@pytest.mark.parametrize("limit", [b"\x21\0\0", b"\x27\0\0\0\0"])
async def test_a_broker_that_takes_nothing_is_refused(limit):
    body = bytes([0, 0, len(limit)]) + limit
    async with peer({5: bytes([0x20, len(body)]) + body}.get) as (link, _ear):
        with pytest.raises(BrokerError):
            await link.connect_or_raise()


async def test_a_topic_that_is_no_text_is_passed_over():
    odd = bytes([0x30, 4, 0, 2, 0xFF, 0xFE])
    good = bytes([0x30, 5, 0, 1]) + b"tok"
    async with peer(lambda _: ACCEPTED_4 + odd + good, protocol=4) as (link, ear):
        await link.connect_or_raise()
        assert await ear.message() == ("t", b"ok")


async def test_a_broker_that_never_answers_a_subscription_is_told():
    async with peer(lambda _: ACCEPTED_5) as (link, _ear):
        link.subscribe(["t"])
        with pytest.raises(BrokerError, match="left our topics without an answer"):
            await link.connect_or_raise(1.0)
        assert not link.connected
