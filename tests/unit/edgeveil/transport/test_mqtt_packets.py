"""MQTT packets as bytes: any cut of a stream gives the same ones, and what is out of form ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.errors import ProtocolError
from edgeveil.transport import mqtt_packets as packets
from edgeveil.transport.mqtt_packets import Login, PacketCutter, read_connack, read_publish

LOGIN = Login("ada-load", "ada", "secret", ("t/up", b"bye"), 60, 65536)


def message(payload, packet_id, protocol):
    topic = packets.encoded_topic("a/b")
    return packets.publish_head(topic, len(payload), packet_id, protocol) + payload


@given(
    payloads=st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    protocol=st.sampled_from([4, 5]),
)
def test_a_stream_in_any_pieces_gives_its_packets(payloads, cuts, protocol):
    stream = b"".join(message(p, i + 1, protocol) for i, p in enumerate(payloads))
    cutter, found, at = PacketCutter(65536), [], 0
    for size in [*cuts, len(stream)]:
        for first, body in cutter.feed(stream[at : at + size]):
            packet_id, start = read_publish(first, body, protocol)
            found.append((packet_id, body[start:]))
        at += size
    assert found == [(i + 1, p) for i, p in enumerate(payloads)]


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_login_holds_will_user_and_password_in_their_order(protocol):
    [(first, body)] = PacketCutter(1000).feed(packets.connect(LOGIN, protocol))
    assert first == 0x10
    assert body[:6] == b"\0\4MQTT"
    assert body[6] == protocol
    assert body[7] == 0x02 | 0x04 | 0x08 | 0x40 | 0x80
    order = [body.index(word) for word in (b"ada-load", b"t/up", b"bye", b"\0\3ada", b"secret")]
    assert order == sorted(order)


def test_how_much_the_broker_takes_unacknowledged():
    assert read_connack(b"\0\0", 4)[:2] == (0, 65535)
    assert read_connack(b"\0\0\0", 5)[:2] == (0, 65535)
    assert read_connack(b"\0\0\x06\x21\0\x14\x22\0\x0a", 5)[:2] == (0, 20)
    assert read_connack(b"\0\0\x05\x27\0\0\1\0", 5) == (0, 65535, 256, 0)
    assert read_connack(b"\0\x87\x03\x1f\0\0", 5)[0] == 0x87


def test_properties_end_inside_their_packet():
    sound = b"\0\0\3\x21\0\x0a"
    assert read_connack(sound, 5)[1] == 10
    for size in (4, 127):
        with pytest.raises(ProtocolError, match="malformed"):
            read_connack(b"\0\0" + bytes((size,)) + sound[3:], 5)


def test_a_length_that_is_too_large_is_refused_by_the_header_alone():
    for claimed in (b"\x30\xff\xff\xff\x7f", b"\x30\x81\x10"):
        with pytest.raises(ProtocolError, match="oversized"):
            PacketCutter(2048).feed(claimed)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x80\x00", b"\xff\x80\x00"])
def test_a_length_that_is_none_is_refused(length):
    """Never-ending, or with bytes that it does not need: such a packet could not be passed on."""
    with pytest.raises(ProtocolError) as caught:
        PacketCutter().feed(b"\x30" + length + bytes(200))
    assert caught.value.reason == "malformed"
