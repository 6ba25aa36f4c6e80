"""What the bare relay is given to carry, and how the two are compared."""

import pytest

from edgeveil.errors import ConfigError
from edgeveil.protocol.messages import BlobPart, Offer, decode
from edgeveil_lab.load.raw_relay import RawSite, ratio, upload_frames

PACKET_BYTES = 65536


def test_a_small_upload_is_one_packet():
    (frame,) = upload_frames(4096, PACKET_BYTES)
    message = decode(frame, PACKET_BYTES)
    assert isinstance(message, Offer)
    assert len(message.data) > 4096


def test_a_large_one_is_an_offer_and_parts_that_fit():
    frames = upload_frames(200_000, PACKET_BYTES)
    first, *rest = (decode(frame, PACKET_BYTES) for frame in frames)
    assert isinstance(first, Offer) and not first.data
    assert all(isinstance(part, BlobPart) for part in rest)
    assert 200_000 <= sum(len(part.data) for part in rest) < 200_300
    assert len(rest) == 4


def test_the_ratio_is_of_uploads_a_second_over_all_rounds():
    rounds = [
        {"uploads": 100, "uploads_per_s": 50.0},  # 2 s
        {"uploads": 100, "uploads_per_s": 100.0},  # 1 s
        {"uploads": 0, "uploads_per_s": None},
    ]
    assert ratio({"rounds": rounds}, {"uploads_per_s": 200.0}) == pytest.approx(1 / 3)
    assert ratio({"rounds": []}, {"uploads_per_s": 200.0}) is None


def test_a_site_without_its_files_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        RawSite.load(tmp_path)
