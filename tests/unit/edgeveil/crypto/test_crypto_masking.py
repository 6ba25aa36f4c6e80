"""Vectors under masks: exact sums, sizes, masks of their own for each use, and checks that hold."""

import hashlib
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from edgeveil.crypto.keys import CheckKey, MaskSeed
from edgeveil.crypto.labels import MASK, context
from edgeveil.crypto.masking import (
    PackedSum,
    Vector,
    add_mask,
    check_of,
    masked,
    pack,
    signed,
    sum_of_masks,
    unmasked,
    unpack,
)
from edgeveil.crypto.ring import CHECK_BYTES, LEAST_BITS, MOST_BITS, Ring
from edgeveil.errors import CryptoError

USE = b"job, exchange, attempt, group"
KEY = CheckKey(bytes(range(32)))
bits_ = st.integers(LEAST_BITS, MOST_BITS)


def seed(number):
    return MaskSeed(hashlib.sha256(b"seed %d" % number).digest())


def mask_of(ring, number, use):
    total = sum_of_masks([seed(number)], use, ring)
    return unpack(ring, pack(ring, total.numbers))


# --- packed ---


@given(st.data())
def test_numbers_of_every_width_come_back_without_higher_bits(data):
    ring = Ring(data.draw(st.integers(1, 40)), data.draw(bits_))
    words = st.lists(st.integers(0, 2**64 - 1), min_size=ring.count, max_size=ring.count)
    drawn = data.draw(words)
    packed = pack(ring, np.array(drawn, np.uint64))
    assert 0 <= len(packed) - -(-ring.count * ring.bits // 8) <= 7
    assert (len(packed), ring.byte_count) == (ring.packed_bytes, len(packed) + CHECK_BYTES)
    found = unpack(ring, packed)
    assert found.tolist() == [number % 2**ring.bits for number in drawn]


def test_the_ends_of_a_ring_are_signed():
    for bits in range(LEAST_BITS, MOST_BITS + 1):
        ends = [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]
        ring = Ring(len(ends), bits)
        raw = pack(ring, np.array(ends, np.int64).view(np.uint64))
        assert signed(ring, unpack(ring, raw)).tolist() == ends


@pytest.mark.parametrize("size", [-1, 1])
def test_another_size_is_refused(size):
    ring = Ring(9, 13)
    for take, length in (
        (unpack, ring.packed_bytes),
        (Vector.from_bytes, ring.byte_count),
        (lambda ring, raw: PackedSum(ring).add(raw), ring.byte_count),
    ):
        with pytest.raises(CryptoError, match="bytes"):
            take(ring, bytes(length + size))


@pytest.mark.parametrize("bits", [7, 61])
def test_a_ring_that_no_check_fits_is_refused(bits):
    with pytest.raises(CryptoError, match="8 to 60 bits"):
        Ring(3, bits)


# --- masks ---


@pytest.mark.parametrize(("bits", "count"), [(8, 5), (32, 20_000), (33, 8192), (60, 20_000)])
def test_a_mask_is_keystream_of_a_key_for_its_use(bits, count):
    """Computed again by the standard alone: HKDF-SHA256, ChaCha20, words of 4 or 8 bytes."""
    key = HKDF(SHA256(), 32, salt=None, info=context(MASK, USE)).derive(seed(0).to_bytes())
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    check = int.from_bytes(stream.update(bytes(8)))
    size = 8 if bits > 32 else 4
    words = np.frombuffer(stream.update(bytes(size * count)), f"<u{size}").astype(np.uint64)
    ring = Ring(count, bits)
    total = Vector.zeros(ring)
    add_mask(total, seed(0), USE)
    assert total.check == check
    assert np.array_equal(unpack(ring, pack(ring, total.numbers)), words % 2**bits)


def test_another_seed_or_use_has_nothing_of_a_mask():
    ring = Ring(4096, 40)
    others = (0, USE), (1, USE), (0, USE + b"2"), (0, USE[:-1])
    for one, other in combinations([mask_of(ring, *key) for key in others], 2):
        assert not np.any(one == other)  # by chance one of 2^28 times, for fixed seeds never


# --- sums ---


@given(st.data())
def test_sums_are_exact(data):
    bits, count = data.draw(bits_), data.draw(st.integers(1, 30))
    uploads = data.draw(st.integers(1, 6))
    ring, most = Ring(count, bits), (2 ** (bits - 1) - 1) // uploads
    values = st.lists(st.integers(-most, most), min_size=count, max_size=count)
    plain = [np.array(data.draw(values), np.int64) for _ in range(uploads)]
    total = Vector.zeros(ring)
    for number, numbers in enumerate(plain):
        sent = masked(numbers, seed(number), KEY, USE, ring).to_bytes()
        assert len(sent) == ring.byte_count
        total.add(Vector.from_bytes(ring, sent))
    masks = sum_of_masks(map(seed, range(uploads)), USE, ring)
    # What the two servers tell each other and keep is packed on its way.
    total, masks = (Vector.from_bytes(ring, one.to_bytes()) for one in (total, masks))
    found = unmasked(total, masks, KEY, USE)
    assert found is not None
    assert found.tolist() == np.sum(plain, axis=0).tolist()


def summed(ring, *plain):
    total = Vector.zeros(ring)
    for number, numbers in enumerate(plain):
        total.add(masked(np.array(numbers), seed(number), KEY, USE, ring))
    return total, sum_of_masks(map(seed, range(len(plain))), USE, ring)


@pytest.mark.parametrize("bits", [LEAST_BITS, 13, 32, 40, MOST_BITS])
def test_a_wrong_mask_key_or_use_is_found(bits):
    """One step in one number; of the highest bit alone 2^(bits - 65) of all keys miss it."""
    ring = Ring(3, bits)
    total, masks = summed(ring, [1, -2, 3], [4, 5, -6])
    assert unmasked(total, masks, KEY, USE) is not None
    for place in range(3):
        for step in (1, 2, 5):
            wrong = Vector(ring, masks.numbers.copy(), masks.check)
            wrong.numbers[place] += np.uint64(step)
            assert unmasked(total, wrong, KEY, USE) is None
    assert unmasked(total, Vector(ring, masks.numbers, masks.check ^ 1), KEY, USE) is None
    for seeds in ([0], [0, 2], [0, 1, 2], [0, 0]):
        assert unmasked(total, sum_of_masks(map(seed, seeds), USE, ring), KEY, USE) is None
    assert unmasked(total, masks, CheckKey(bytes(32)), USE) is None
    assert unmasked(total, masks, KEY, USE + b"2") is None


@pytest.mark.parametrize("bits", [LEAST_BITS, 32, 33, MOST_BITS])
def test_a_sum_that_left_the_ring_is_not_taken_for_one(bits):
    ring, most = Ring(2, bits), 2 ** (bits - 1) - 1
    total, masks = summed(ring, [most, 0], [1, 0])
    assert unmasked(total, masks, KEY, USE) is None
    total, masks = summed(ring, [-most, 0], [-1, 0])
    found = unmasked(total, masks, KEY, USE)
    assert found is not None
    assert found.tolist() == [-(2 ** (bits - 1)), 0]


def test_a_check_is_linear_over_blocks():
    rng = np.random.default_rng(1)
    first, second = (rng.integers(-(2**40), 2**40, 20_000) for _ in range(2))
    both = check_of(first, KEY, USE) + check_of(second, KEY, USE)
    assert check_of(first + second, KEY, USE) == both % 2**64
    assert check_of(-first, KEY, USE) == -check_of(first, KEY, USE) % 2**64


@pytest.mark.parametrize("added", [1, 257, 600])
@pytest.mark.parametrize("bits", [LEAST_BITS, 13, 32, MOST_BITS])
def test_a_sum_of_packed_vectors_is_that_of_the_vectors(bits, added):
    """Also of all the largest numbers, where each place of the sum is as full as it can be."""
    ring, rng = Ring(11, bits), np.random.default_rng(bits)
    largest = np.full(11, 2**bits - 1, np.uint64)
    total, packed = Vector.zeros(ring), PackedSum(ring)
    for number in range(added):
        numbers = largest if number % 3 else rng.integers(0, 2**bits, 11, np.uint64)
        vector = Vector(ring, numbers, int(rng.integers(0, 2**63)) * 2 + 1)
        total.add(vector)
        packed.add(memoryview(vector.to_bytes()))
        if number == added // 2:
            packed.total()  # looked at in between, and nothing is changed by it
    assert packed.total().to_bytes() == total.to_bytes()
    assert packed.total().check == total.check
