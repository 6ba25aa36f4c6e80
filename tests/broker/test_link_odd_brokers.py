"""Brokers that misbehave, limit or flood: a few bytes of MQTT by hand from the other side."""

import asyncio
import itertools
import ssl
from contextlib import asynccontextmanager

import pytest
from broker_harness import ALL, UP, WAIT_S, Ear, linked, listener_tls

from edgeveil.errors import BrokerError, ProtocolError
from edgeveil.transport.link import LinkDown, LinkSettings
from edgeveil.transport.mqtt import _PACKETS_PER_TURN
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil.transport.mqtt_packets import PINGREQ, encoded_topic, publish_head

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
    [None, b"", bytes([0x20, 3, 0, 0x84, 0]), bytes([0x20, 2, 0, 1])],
    ids=["hangs up", "leaves it unanswered", "refuses in MQTT 5", "refuses in 3.1.1"],
)
async def test_a_broker_without_mqtt_5_is_spoken_to_in_3_1_1(refusal):
    async with peer({5: refusal, 4: ACCEPTED_4}.get) as (link, ear):
        await link.connect_or_raise(2.0)
    assert ear.versions == [5, 4]


async def test_a_broker_s_keep_alive_is_kept():
    async with peer(lambda _: bytes([0x20, 6, 0, 0, 3, 0x13, 0, 1])) as (link, ear):
        await link.connect_or_raise()
        async with asyncio.timeout(WAIT_S):
            while not ear.after.endswith(PINGREQ):
                await asyncio.sleep(0.05)


async def test_a_broker_that_takes_no_connections_yet_is_tried_again():
    """As NATS does while its cluster elects: MQTT 5 is refused, 3.1.1 hung up on, then taken."""
    answers = iter([bytes([0x20, 2, 0, 1]), None, None, ACCEPTED_4])
    soon = {"backoff_base_s": 0.01, "backoff_cap_s": 0.01}
    async with peer(lambda _version: next(answers), **soon) as (link, ear):
        forever = asyncio.create_task(link.run_forever())
        assert [(await ear.state())[0] for _ in range(2)] == [False, True]
        assert ear.states.empty()  # one report, however many attempts
        await link.close()
        await forever
    assert ear.versions == [5, 4, 4, 4]


@pytest.mark.parametrize("suffix", ["-1", ""])
async def test_a_client_whose_topics_end_the_connection_comes_under_another_id(suffix):
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

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    link = MqttLink(LinkSettings(url, "x", client_suffix=suffix, protocol=4))
    link.subscribe(["t"])
    async with asyncio.timeout(60):
        with pytest.raises(BrokerError, match="at the subscription to our topics"):
            await link.connect_or_raise()
        await link.connect_or_raise()
        await link.close()
    server.close()
    first, second = ids
    assert first == f"x{suffix}" and second.startswith("x")
    assert (second == first) is (not suffix)  # a service that knows clients by their id


async def test_the_brokers_limits_are_kept():
    """Receive Maximum 2 and Maximum Packet Size 100, as MQTT 5 announces them."""
    limits = bytes([0x21, 0, 2]) + bytes([0x27, 0, 0, 0, 100])
    connack = bytes([0x20, 3 + len(limits), 0, 0, len(limits)]) + limits
    async with peer(lambda _: connack) as (link, _ear):
        await link.connect_or_raise()
        with pytest.raises(ProtocolError, match="exceeds 100"):
            await link.publish("t", bytes(90))
        for _ in range(2):  # which nobody acknowledges
            await asyncio.wait_for(link.publish("t", b"x"), WAIT_S)
        third = asyncio.create_task(link.publish("t", b"x"))
        await asyncio.sleep(0.05)
        assert not third.done()
        third.cancel()


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
    ids=range(7),
)
async def test_junk_ends_the_connection_never_the_process(junk):
    """A topic that is no text is passed over."""
    no_text, text = (bytes([0x30, 6, 0, 2]) + topic + b"\0x" for topic in (b"\xff\xfe", b"ok"))
    async with peer(lambda version: ACCEPTED_5 + no_text + text + junk) as (link, ear):
        await link.connect_or_raise()
        assert (await ear.state())[0]
        assert await ear.message() == ("ok", b"x")
        forever = asyncio.create_task(link.run_forever())
        assert not (await ear.state())[0]
        assert not forever.done()
        await link.close()
        await asyncio.wait_for(forever, WAIT_S)


@pytest.mark.parametrize("over_tls", [False, True])
async def test_what_came_before_the_end_is_heard_and_why_it_ended(pki, over_tls):
    secure = {}
    if over_tls:
        files = listener_tls(pki)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(files.cert_file, files.key_file)
        secure = {"tls": tls, "ca_file": str(pki / "ca.crt")}
    said = ACCEPTED_5 + (bytes([0x30, 6, 0, 1]) + b"t\0ok") * 200 + bytes([0xE0, 1, 0x8E])
    async with peer(lambda _: said, stays=False, **secure) as (link, ear):
        await link.connect_or_raise()
        forever = asyncio.create_task(link.run_forever())
        assert [await ear.message() for _ in range(200)] == [("t", b"ok")] * 200
        assert (await ear.state())[0]
        assert "session taken over" in (await ear.state())[1]
        await link.close()
        await asyncio.wait_for(forever, WAIT_S)


async def test_a_broker_that_takes_nothing_or_answers_no_subscription_is_refused():
    def limited(limit):
        return bytes([0x20, 3 + len(limit), 0, 0, len(limit)]) + limit

    for answer in (*map(limited, (b"\x21\0\0", b"\x27\0\0\0\0")), ACCEPTED_5):
        async with peer({5: answer}.get) as (link, _ear):
            link.subscribe(["t"])
            with pytest.raises(BrokerError):
                await link.connect_or_raise(0.5)
            assert not link.connected


LIMIT = 128 * 1024


async def test_a_handler_that_answers_goes_on_when_inbox_and_window_are_full(broker):
    """The acknowledgements that it waits for come behind what its inbox has no room for."""
    gate, handled, narrow = asyncio.Event(), [], {"inbox_bytes": 32 << 10, "window_messages": 2}
    async with (
        linked(broker, "proxy", [UP.format("+")], **narrow) as (proxy, _),
        linked(broker, "ada", [ALL]) as (ada, ear),
    ):

        async def handler(topic, payload):
            await gate.wait()
            for part in range(4):
                await proxy.publish(ALL, payload + bytes([part]))
            handled.append(payload)

        proxy.on_message = handler
        sent = [number.to_bytes(2, "big") for number in range(300)]
        for payload in sent:
            await ada.publish(UP.format("ada"), payload)
        while not proxy._inbox.paused:
            await asyncio.sleep(0.01)
        gate.set()
        heard = [(await ear.message())[1] for _ in range(4 * len(sent))]
        while len(handled) < len(sent):
            await asyncio.sleep(0.01)
        assert handled == sent
        assert heard == [one + bytes([part]) for one in sent for part in range(4)]
        assert (proxy.overflows, proxy.connections) == (0, 1)


async def test_reading_for_an_acknowledgement_that_never_comes_has_an_end():
    """A broker that sends much and acknowledges nothing costs four inboxes and the session."""
    flood = (publish_head(encoded_topic("t"), 4000, 0, 4) + bytes(4000)) * 200
    answers, gate = iter([ACCEPTED_4 + flood, ACCEPTED_4]), asyncio.Event()
    changes = {"protocol": 4, "inbox_bytes": LIMIT, "window_messages": 1}
    async with peer(lambda _: next(answers), **changes) as (link, ear):

        async def handler(topic, payload):
            await gate.wait()

        link.on_message = handler
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


@pytest.mark.parametrize("taken", [True, False])
async def test_a_flood_leaves_the_loop_its_turns(taken):
    """However long it lasts, taken or refused; what is refused never fills the inbox."""
    message, seen, handled = publish_head(encoded_topic("quiet"), 2, 0, 4) + b"xx", [], []
    async with peer(lambda _version: ACCEPTED_4 + message * 60_000, protocol=4) as (link, _ear):
        link.takes = lambda _topic, _payload: taken
        link.on_message = lambda _topic, payload: handled.append(payload)
        await link.connect_or_raise()
        while link.received_bytes < 60_000 * 2 or (taken and len(handled) < 60_000):
            seen.append(link.received_bytes)
            await asyncio.sleep(0)
        longest = max(after - before for before, after in itertools.pairwise(seen))
        assert longest <= 2 * 2 * _PACKETS_PER_TURN
        assert taken or (link.overflows, link._inbox._queued_bytes, handled) == (0, 0, [])
