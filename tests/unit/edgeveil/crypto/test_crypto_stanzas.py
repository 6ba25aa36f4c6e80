"""Stanzas: each recipient finds its own by its tag, and the area tells nobody anything else."""

from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.crypto import sealing
from edgeveil.crypto.keys import ContentKey, OpeningKey, SealingKey
from edgeveil.crypto.sealing import (
    STANZA_BYTES,
    open_sealed,
    open_stanzas,
    seal_stanzas,
    stanza_area_bytes,
)
from edgeveil.errors import CryptoError

OPENER = OpeningKey.from_bytes(bytes(range(32)))
OTHER = OpeningKey.from_bytes(bytes(range(1, 33)))
INFO = b"edgeveil/v1/content-key\0context"
HEAD_BYTES = 32  # the area's ephemeral key
TAG_BYTES = 8


def area_of(*keys, info=INFO):
    return seal_stanzas(ContentKey.generate(), [key.public() for key in keys], info)


def split(area):
    starts = range(HEAD_BYTES, len(area), STANZA_BYTES)
    return [area[at : at + STANZA_BYTES] for at in starts]


def place(key, area):
    """Which stanza's sealed half opens for `key`, found by trying all."""
    opened = [open_sealed(key, INFO, s[TAG_BYTES:]) is not None for s in split(area)]
    assert sum(opened) == 1
    return opened.index(True)


def test_the_area_tells_only_the_bucket():
    counts = ((0, 16), (16, 16), (17, 32), (32, 32), (33, 64), (1000, 1024))
    for recipients, count in counts:
        assert stanza_area_bytes(recipients) == HEAD_BYTES + count * 88


@given(recipients=st.integers(0, 20))
@settings(max_examples=15, deadline=None)
def test_selected_keys_open_and_no_other(recipients):
    keys = [OpeningKey.generate() for _ in range(recipients)]
    content = ContentKey.generate()
    area = seal_stanzas(content, [key.public() for key in keys], INFO)
    assert len(area) == stanza_area_bytes(recipients)
    assert all(open_stanzas(key, INFO, memoryview(area)) == content for key in keys)
    assert open_stanzas(OTHER, INFO, area) is None
    assert all(open_stanzas(key, INFO + b"!", area) is None for key in keys)


def test_stanzas_stand_in_the_order_of_their_tags_and_not_of_the_recipients():
    keys = [OpeningKey.generate() for _ in range(12)]
    area = area_of(*keys)
    tags = [stanza[:TAG_BYTES] for stanza in split(area)]
    assert tags == sorted(tags)
    assert len(set(tags)) == 16
    assert [place(key, area) for key in keys] != sorted(place(key, area) for key in keys)
    assert len({place(OPENER, area_of(OPENER)) for _ in range(40)}) > 3


def test_one_key_has_another_tag_in_every_broadcast():
    """Nor do two contexts under one ephemeral key share a tag: nothing links them."""
    tags = set()
    for _ in range(10):
        area = area_of(OPENER)
        tags.add(split(area)[place(OPENER, area)][:TAG_BYTES])
    assert len(tags) == 10
    shared = SealingKey(area_of(OPENER)[:HEAD_BYTES])
    bound = [sealing._bound(shared, OPENER.public(), info) for info in (INFO, INFO + b"!")]
    private = OPENER.library_key()
    assert sealing._tag(private, shared, bound[0]) != sealing._tag(private, shared, bound[1])


def test_one_hpke_opening_is_made_however_many_stanzas_there_are(monkeypatch):
    area = area_of(OPENER, *(OpeningKey.generate() for _ in range(100)))
    tried = Mock(side_effect=open_sealed)
    monkeypatch.setattr(sealing, "open_sealed", tried)
    assert open_stanzas(OPENER, INFO, area) is not None
    assert open_stanzas(OTHER, INFO, area) is None
    assert tried.call_count == 1


def test_equal_tags_are_all_tried_but_not_without_end(monkeypatch):
    area = area_of(OPENER)
    mine = split(area)[place(OPENER, area)]
    foreign = mine[:TAG_BYTES] + split(area_of(OTHER))[0][TAG_BYTES:]
    head, tried = area[:HEAD_BYTES], Mock(return_value=None)
    assert open_stanzas(OPENER, INFO, head + foreign + mine) is not None
    monkeypatch.setattr(sealing, "open_sealed", tried)
    assert open_stanzas(OPENER, INFO, head + foreign * 1000) is None
    assert tried.call_count == sealing.EQUAL_TAGS_TRIED


def test_dummies_look_like_sealed_texts():
    """Each dummy's `enc` is a usable curve point, as a true one always is."""
    dummies = split(area_of())
    assert len(set(dummies)) == 16
    for stanza in dummies:
        point = int.from_bytes(stanza[TAG_BYTES : TAG_BYTES + 32], "little")
        prime = 2**255 - 19
        square = (point**3 + 486662 * point**2 + point) % prime
        assert pow(square, (prime - 1) // 2, prime) in (0, 1)


@pytest.mark.parametrize("raw", [bytes(32), b"\1" + bytes(31)])
def test_a_low_order_key_is_refused_not_used(raw):
    with pytest.raises(CryptoError, match="nothing can be sealed"):
        seal_stanzas(ContentKey.generate(), [SealingKey.from_bytes(raw)], INFO)
    assert open_stanzas(OPENER, INFO, raw + area_of(OPENER)[HEAD_BYTES:]) is None


def test_a_cut_or_altered_area_no_longer_opens():
    area = area_of(OPENER)
    for broken in (b"", area[:HEAD_BYTES], *(area[:-cut] for cut in (1, 87, 89))):
        assert open_stanzas(OPENER, INFO, broken) is None
    start = HEAD_BYTES + place(OPENER, area) * STANZA_BYTES
    for offset in (*range(HEAD_BYTES - 1), *range(start, start + STANZA_BYTES)):
        altered = bytearray(area)
        altered[offset] ^= 1
        assert open_stanzas(OPENER, INFO, bytes(altered)) is None
