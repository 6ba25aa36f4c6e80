"""Window, inbox, addresses and settings: bounds without a socket."""

import asyncio
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.config.addresses import place, split_place
from edgeveil.errors import UsageError
from edgeveil.transport.link import BrokerAddress, LinkDown, LinkSettings, SendWindow
from edgeveil.transport.mqtt import MqttConnection
from edgeveil.transport.mqtt_packets import encoded_topic, publish_head


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    messages=st.integers(1, 5),
    size_bytes=st.integers(1, 40),
    drops=st.sets(st.integers(0, 29)),
)
@settings(max_examples=60, deadline=None)
def test_a_window_keeps_its_bounds_and_order_whoever_gives_up(sizes, messages, size_bytes, drops):
    async def play():
        window, held, served = SendWindow(messages, size_bytes), [], []

        async def sender(number):
            await window.acquire(sizes[number])
            held.append(number)
            served.append(number)

        tasks = [asyncio.create_task(sender(number)) for number in range(len(sizes))]
        await settle()
        cancelled = {n for n in drops if n < len(sizes) and not tasks[n].done()}
        for number in cancelled:
            tasks[number].cancel()
        await settle()
        while held:
            total = sum(sizes[number] for number in held)
            assert len(held) <= messages
            assert total <= size_bytes or len(held) == 1
            assert window.messages == len(held)
            window.release(sizes[held.pop(0)])
            await settle()
        assert served == [number for number in range(len(sizes)) if number not in cancelled]
        await asyncio.wait_for(window.idle(), 5)

    asyncio.run(play())


async def test_a_failed_window_ends_every_wait():
    window = SendWindow(1, 10)
    await window.acquire(1)
    waiting = [asyncio.create_task(window.acquire(1)) for _ in range(3)]
    await settle()
    window.fail(LinkDown("gone"))
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [str(outcome) for outcome in outcomes] == ["gone"] * 3
    await asyncio.wait_for(window.idle(), 5)


async def test_a_cancel_after_the_turn_came_gives_the_room_back():
    window = SendWindow(1, 10)
    await window.acquire(1)
    waiting = asyncio.create_task(window.acquire(1))
    await settle()
    window.release(1)  # its turn comes, and in the same step it is cancelled
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert window.messages == 0


async def test_who_is_held_back_reads_for_answers_and_acknowledges_later():
    heard, wire, settings = [], Mock(), LinkSettings("mqtt://box", "x")
    wire.get_write_buffer_size.return_value = 0
    one = MqttConnection(
        settings, *settings.addresses, 4, lambda *said: heard.append(said), lambda *_: True
    )
    one.connection_made(wire)

    def comes(number):
        one.data_received(publish_head(encoded_topic("t"), 1, number, 4) + b"x")
        return len(heard), [call.args[0][0][-1] for call in wire.writelines.call_args_list]

    assert comes(1) == (1, [1])
    one.hold_back(True)
    assert comes(2) == (1, [1]) and wire.pause_reading.called
    with one._awaiting():
        await settle()
        assert comes(3) == (3, [1])
    assert comes(4) == (3, [1])
    one.hold_back(False)
    await settle()
    assert comes(5) == (5, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("mqtt://box", "box", 1883, False),
        ("mqtts://box", "box", 8883, True),
        ("mqtt://10.0.0.1:2000/", "10.0.0.1", 2000, False),
        ("mqtts://[::1]:9000", "::1", 9000, True),
        ("ws://box", "box", 80, False),
        ("wss://box/", "box", 443, True),
        ("wss://[::1]:9000/a/b?c=d", "::1", 9000, True),
    ],
)
def test_addresses(url, host, port, tls):
    address = BrokerAddress.parse(url)
    assert (address.host, address.port, address.tls) == (host, port, tls)
    assert f":{port}" in str(address)
    assert BrokerAddress.parse(address.url) == address
    assert (address.path is None) == url.startswith("mqtt")
    assert address.path in (None, "/mqtt", "/a/b?c=d")
    assert "?" not in str(address)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "box:1883",
        "http://box",
        "mqtt://",
        "mqtt://:1883",
        "mqtt://box:0",
        "mqtt://box:65536",
        "mqtt://box:x",
        "mqtt://box/path",
        "mqtt://box?x=1",
        "mqtt://[::1",
        "ws://",
        "ws://box/a#b",
        "ws://box/a b",
        "wss://box/caf\xe9",
    ],
)
def test_what_is_no_address_is_told_with_the_form(url):
    with pytest.raises(UsageError) as caught:
        BrokerAddress.parse(url)
    assert "mqtt://host:1883" in caught.value.fix


def test_a_password_is_never_shown():
    with pytest.raises(UsageError, match="credentials") as caught:
        BrokerAddress.parse("mqtt://ada:hush@box")
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(LinkSettings("mqtt://box", "x", username="ada", password="hush"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("broker.example:8883", ("broker.example", 8883)),
        ("[2001:db8::1]:1", ("2001:db8::1", 1)),
        ("127.0.0.1:65535", ("127.0.0.1", 65535)),
        *((bad, None) for bad in ("2001:db8::1:1", "[::1]", "[broker]:1", "a:", ":1", "a:0", "1")),
        *((bad, None) for bad in ("a:65536", "a:1²", "[[::1]]:1", "a]:1", "")),
    ],
)
def test_an_ipv6_address_is_told_from_its_port_by_brackets(text, found):
    assert split_place(text) == found
    assert found is None or place(*found) == text
