"""Buckets: where a key's stanza is, how large all are, and that none tells how full it is."""

import os
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from edgeveil.crypto.buckets import (
    CAPACITY,
    LEVELS,
    bucket_bytes,
    bucket_level,
    bucket_of,
    bucket_stanzas,
    fitting,
    seal_buckets,
)
from edgeveil.crypto.keys import ContentKey, OpeningKey, SealingKey
from edgeveil.crypto.sealing import open_stanzas

INFO = b"edgeveil/v1/content-key\0context"


def keys_of(bucket, level, count):
    """As somebody would look for them who wants to crowd a bucket."""
    drawn = iter(lambda: SealingKey(os.urandom(32)), None)
    return list(islice((key for key in drawn if bucket_of(key, level) == bucket), count))


def test_a_bucket_is_the_published_hash_of_the_key():
    # SHA-256("edgeveil/v1/bucket" ‖ NUL ‖ 00000020 ‖ key) begins with 3fd1.
    found = [bucket_of(SealingKey(bytes(range(32))), level) for level in LEVELS]
    assert found == [0x3FD1 >> shift for shift in (14, 12, 10, 8, 6, 4, 2, 0)]


@pytest.mark.parametrize(
    ("recipients", "level"),
    [(1, 1), (64, 1), (65, 4), (96, 4), (97, 16), (1000, 64), (20_000, 1024)],
)
def test_the_level_follows_from_how_many_are_asked(recipients, level):
    assert bucket_level([SealingKey(os.urandom(32)) for _ in range(recipients)]) == level


@given(st.integers(65, 1_500_000))
@settings(deadline=None, max_examples=200)
def test_a_bucket_is_small_and_hardly_ever_too_small(recipients):
    level = next(one for one in LEVELS if recipients <= 24 * one)
    stanzas = bucket_stanzas(recipients, level)
    assert stanzas <= CAPACITY
    assert bucket_bytes(stanzas) <= 5664
    assert level * binom.sf(stanzas, recipients, 1 / level) <= 2.0**-20


def test_every_recipient_finds_its_stanza_in_its_bucket_and_in_no_other():
    recipients = [OpeningKey.generate() for _ in range(100)]
    content, level = ContentKey.generate(), 16
    area = seal_buckets(content, [key.public() for key in recipients], INFO, level)
    size = len(area) // level
    assert size == bucket_bytes(bucket_stanzas(100, level))
    buckets = [area[i * size : (i + 1) * size] for i in range(level)]
    for key in recipients:
        own = bucket_of(key.public(), level)
        found = [open_stanzas(key, INFO, bucket) for bucket in buckets]
        assert [one is not None for one in found] == [i == own for i in range(level)]
        assert found[own] == content
    stranger = OpeningKey.generate()
    assert [open_stanzas(stranger, INFO, bucket) for bucket in buckets] == [None] * level


def test_an_empty_bucket_is_as_large_as_a_full_one():
    recipients = [OpeningKey.generate().public() for _ in range(60)]
    area = seal_buckets(ContentKey.generate(), recipients, INFO, 4)
    assert len(area) == 4 * bucket_bytes(bucket_stanzas(60, 4))
    crowded = seal_buckets(ContentKey.generate(), keys_of(3, 4, 40), INFO, 4)
    assert len(crowded) == 4 * (32 + 40 * 88)


def test_who_crowds_the_finest_bucket_is_left_out_of_it_and_harms_nobody_elsewhere():
    crowd, others = [bytes(32)] * 90, [os.urandom(32) for _ in range(50)]  # one place, as if ground
    kept = fitting([*crowd, *others])
    assert kept.count(bytes(32)) == CAPACITY
    assert [one for one in kept if one != bytes(32)] == others
    assert bucket_level([SealingKey(one) for one in kept]) > 1


@given(st.lists(st.integers(0, 40), min_size=65, max_size=300))
@settings(deadline=None, max_examples=50)
def test_whatever_fits_can_be_sealed_and_so_can_a_part_of_it(places):
    """A round is asked for again without those that were revoked meanwhile."""
    keys = fitting(bytes([place]) * 32 for place in places)
    for some in (keys, keys[::2], keys[5:]):
        sealing = [SealingKey(one) for one in some]
        level = bucket_level(sealing)
        loads = [bucket_of(key, level) for key in sealing] if level > 1 else []
        assert all(loads.count(bucket) <= CAPACITY for bucket in set(loads))
