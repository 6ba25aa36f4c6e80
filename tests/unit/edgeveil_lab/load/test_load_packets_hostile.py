"""Packets out of form from a broker to a load test, and a fleet file that is none."""

from __future__ import annotations

import pytest

from edgeveil.errors import ProtocolError, UsageError
from edgeveil_lab.load.fleet import Fleet
from edgeveil_lab.load.mqtt_packets import Framer, read_connack, read_publish


def test_properties_end_inside_their_packet():
    sound = b"\0\0\3\x21\0\x0a"
    assert read_connack(sound, 5) == (0, 10)
    for size in (4, 127):
        with pytest.raises(ProtocolError, match="malformed"):
            read_connack(b"\0\0" + bytes((size,)) + sound[3:], 5)


def test_a_message_ends_inside_its_packet():
    assert read_publish(0x32, b"\0\1t\0\7\0data", 5) == (7, b"data")
    for cut in (b"\0\x09t", b"\0\1t\0\7\x7fdata", b"\xff\xff"):
        with pytest.raises(ProtocolError, match="malformed"):
            read_publish(0x32, cut, 5)


def test_a_length_that_is_too_large_is_refused_by_the_header_alone():
    for claimed in (b"\x30\xff\xff\xff\x7f", b"\x30\x81\x10"):
        with pytest.raises(ProtocolError, match="oversized"):
            Framer(2048).feed(claimed)
    with pytest.raises(ProtocolError, match="malformed"):
        Framer(2048).feed(b"\x30\xff\xff\xff\xff\x01")


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x82\xa6form\xa7t", b"\x82\xa6format\xb0\xff"])
def test_a_fleet_file_that_is_none_is_refused(raw):
    with pytest.raises(UsageError, match="not a fleet file"):
        Fleet.from_bytes(raw + bytes(20), "fleet")
