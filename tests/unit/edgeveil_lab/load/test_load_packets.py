"""MQTT framing of the load test's devices: any cut of the stream gives the same packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil_lab.load import mqtt_packets as packets
from edgeveil_lab.load.mqtt_packets import Framer, Login

LOGIN = Login("ada-load", "ada", "secret", ("t/up", b"bye"), 60, 65536)


def message(payload: bytes, packet_id: int, protocol: int) -> bytes:
    topic = packets.encoded_topic("a/b")
    return packets.publish_head(topic, len(payload), packet_id, protocol) + payload


@given(
    payloads=st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    protocol=st.sampled_from([4, 5]),
)
def test_a_stream_in_any_pieces_gives_its_packets(payloads, cuts, protocol):
    stream = b"".join(message(p, i + 1, protocol) for i, p in enumerate(payloads))
    framer, found, at = Framer(65536), [], 0
    for size in [*cuts, len(stream)]:
        for first, body in framer.feed(stream[at : at + size]):
            found.append(packets.read_publish(first, body, protocol))
        at += size
    assert found == [(i + 1, p) for i, p in enumerate(payloads)]


@pytest.mark.parametrize("size", [0, 127, 128, 16383, 16384, 65000])
def test_lengths_of_each_width(size):
    [(first, body)] = Framer(70000).feed(message(b"x" * size, 0, 4))
    assert packets.read_publish(first, body, 4) == (0, b"x" * size)


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_login_holds_will_user_and_password_in_their_order(protocol):
    [(first, body)] = Framer(1000).feed(packets.connect(LOGIN, protocol))
    assert first == 0x10
    assert body[:6] == b"\0\4MQTT"
    assert body[6] == protocol
    assert body[7] == 0x02 | 0x04 | 0x08 | 0x40 | 0x80
    order = [body.index(word) for word in (b"ada-load", b"t/up", b"bye", b"\0\3ada", b"secret")]
    assert order == sorted(order)


def test_how_much_the_broker_takes_unacknowledged():
    assert packets.read_connack(b"\0\0", 4) == (0, 65535)
    assert packets.read_connack(b"\0\0\0", 5) == (0, 65535)
    assert packets.read_connack(b"\0\0\x06\x21\0\x14\x22\0\x0a", 5) == (0, 20)
    assert packets.read_connack(b"\0\x87\x03\x1f\0\0", 5)[0] == 0x87
