"""Packages that are pulled: by all, by those who come late, over bad links, and at full size."""

from collections import Counter

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Need, Offer, decode, decode_header, encode
from edgeveil.protocol.proxy_broadcasts import UNSELECTED_BYTES
from edgeveil.protocol.transfer import NEED_LIMIT
from tests.sim.lossy_fleet import LossyFleet, Sizes

PULLED = Sizes(model_bytes=100_000, push_bytes=2_000)


def messages(fleet, kind, to):
    frames = [frame for _, receiver, frame in fleet.net.wire or [] if receiver == to]
    found = (decode(frame, fleet.sizes.packet_bytes) for frame in frames)
    return [message for message in found if isinstance(message, kind)]


def test_a_pulled_package_comes_to_each_device_once_and_within_its_credit():
    fleet = LossyFleet(devices=4, selected=4, rounds=1, sizes=PULLED)
    assert fleet.run() == "completed"
    for device in fleet.devices:
        came = Counter(
            (part.blob, part.index)
            for part in messages(fleet, BlobPart, fx.DeviceAddress(device.id))
        )
        assert len(came) > 4 * NEED_LIMIT and set(came.values()) == {1}
    for need in messages(fleet, Need, fx.ProxyAddress()):
        assert len(need.indices) <= NEED_LIMIT


def test_who_is_not_selected_gets_no_package():
    sizes = Sizes(packet_bytes=65536, model_bytes=500_000)
    fleet = LossyFleet(devices=12, selected=4, rounds=1, sizes=sizes)
    assert fleet.run() == "completed"
    selected = [device for device in fleet.devices if device.opened]
    assert len(selected) == 4
    for device in fleet.devices:
        here = fx.DeviceAddress(device.id)
        offers = [one for one in messages(fleet, Offer, here) if isinstance(one, Offer)]
        parts = [one for one in messages(fleet, BlobPart, here) if isinstance(one, BlobPart)]
        (offer,) = [one for one in offers if getattr(decode_header(one.header), "pieces", ())]
        stanzas, stream = decode_header(offer.header).pieces
        came_bytes = sum(len(part.data) for part in parts if part.blob == stream.digest)
        assert came_bytes == (stream.size_bytes if device in selected else 0)
        seen = [encode(part) for part in parts if part.blob == stanzas.digest]
        assert stanzas.size_bytes < sum(map(len, seen)) + len(encode(offer)) <= UNSELECTED_BYTES
