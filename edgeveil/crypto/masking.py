"""Vectors of integers mod 2^k under additive masks: packed, masked, summed, checked.

A masked vector `x + mask(seed) mod 2^k` is uniform without knowledge of the seed, by the
keystream's pseudo-randomness (one-time pad in the group). The sum of masked vectors is the exact
sum of the vectors under the sum of their masks (Bonawitz et al. 2017, section 4; with two servers
Prio, Corrigan-Gibbs and Boneh 2017). Masks are ChaCha20 keystream (RFC 8439) under a key of
HKDF-SHA256 (RFC 5869) that is bound to its use.

Each vector has a check, Σ r_j·x_j mod 2^64, under its own mask; devices and cloud share the key of
the factors r_j. Mod 2^k the check is a linear form over the ring. So the form of a masked vector
minus its check equals the form of the mask minus the check's mask (`check_of_mask`), which a holder
of seed and key can compute too. If the two agree, the vector is some vector with its own check
under this seed's mask, whatever its sender did, and sums of such vectors fit the sum of their
checks with certainty. For an unrelated seed they agree with probability 2^-k.

If the key is not disclosed, the check holds mod 2^64 for integers whose sums do not leave the ring:
subtracting wrong masks without that key changes some x_j by e_j with 0 < |e_j| < 2^k, and the check
holds with a probability of at most 2^(k - 65): r_j·e_j is uniform over the multiples of the largest
power of two, at most 2^(k - 1), that divides e_j.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from edgeveil.crypto.keys import CheckKey, MaskSeed, SecretKey, derived
from edgeveil.crypto.labels import MASK, MASK_CHECK, context
from edgeveil.crypto.ring import CHECK_BYTES, NOISE_BITS, Ring
from edgeveil.errors import CryptoError

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

_NONCE = bytes(16)  # constant, since every keystream has its own key
_WORD = np.dtype("<u8")
_BLOCK = 8192
_ZEROS = bytes(8 * _BLOCK)
_MOST_ADDED = 0xFFFF // 0xFF  # bytes whose sum fits in 16 bits
_FACTORS_KEPT = 1 << 21  # of 8 bytes each


def pack(ring: Ring, numbers: UInt64) -> bytes:
    """Pack a vector (count,): planes of whole bytes, lowest first, then planes of bits."""
    whole, extra_bits = divmod(ring.bits, 8)
    octets = np.ascontiguousarray(numbers, _WORD).view(np.uint8).reshape(-1, 8)
    packed, each = np.empty(ring.packed_bytes, np.uint8), -(-ring.count // 8)
    for index in range(whole):
        packed[index * ring.count : (index + 1) * ring.count] = octets[:, index]
    last = octets[:, whole].copy() if extra_bits else octets
    for bit in range(extra_bits):
        start = whole * ring.count + bit * each
        packed[start : start + each] = np.packbits(last & (1 << bit))
    return packed.tobytes()


def unpack(ring: Ring, packed: bytes) -> UInt64:
    """Invert `pack`. Raises CryptoError for another size."""
    if len(packed) != ring.packed_bytes:
        raise CryptoError(f"a packed vector has {ring.packed_bytes} bytes, not {len(packed)}")
    whole, extra_bits = divmod(ring.bits, 8)
    octets, raw = np.zeros((ring.count, 8), np.uint8), np.frombuffer(packed, np.uint8)
    for index in range(whole):
        octets[:, index] = raw[index * ring.count : (index + 1) * ring.count]
    last, each = np.zeros(ring.count, np.uint8), -(-ring.count // 8)
    for bit in range(extra_bits):
        start = whole * ring.count + bit * each
        last |= np.unpackbits(raw[start : start + each], count=ring.count) << bit
    octets[:, whole] = last
    return octets.reshape(-1).view(_WORD)


def signed(ring: Ring, numbers: UInt64) -> Int64:
    """Return the representatives in [-2^(bits-1), 2^(bits-1))."""
    room = np.uint64(64 - ring.bits)
    return (numbers << room).view(np.int64) >> room.astype(np.int64)


@dataclass
class Vector:
    """Vector over a ring, uint64 (count,) with `bits` significant low bits, and its check."""

    ring: Ring
    numbers: UInt64
    check: int

    @classmethod
    def zeros(cls, ring: Ring) -> Vector:
        return cls(ring, np.zeros(ring.count, _WORD), 0)

    @classmethod
    def from_bytes(cls, ring: Ring, raw: bytes) -> Vector:
        """Invert `to_bytes`. Raises CryptoError for another size."""
        if len(raw) != ring.byte_count:
            raise CryptoError(f"a vector and its check have {ring.byte_count} bytes here")
        return cls(ring, unpack(ring, raw[:-CHECK_BYTES]), int.from_bytes(raw[-CHECK_BYTES:]))

    def to_bytes(self) -> bytes:
        return pack(self.ring, self.numbers) + self.check.to_bytes(CHECK_BYTES)

    def add(self, other: Vector) -> None:
        """`other` on top, mod 2^bits; the check mod 2^64."""
        self.numbers += other.numbers
        self.check = (self.check + other.check) % 2**64

    def subtract(self, other: Vector) -> None:
        self.numbers -= other.numbers
        self.check = (self.check - other.check) % 2**64


class PackedSum:
    """Sum of packed vectors and checks, in 16-bit counters flushed before they overflow."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._whole, self._extra_bits = divmod(ring.bits, 8)
        self._places = np.zeros((self._whole + self._extra_bits) * ring.count, np.uint16)
        self._added, self._total = 0, Vector.zeros(ring)

    def add(self, raw: bytes | memoryview) -> None:
        """Add the result of `Vector.to_bytes`. Raises CryptoError for another size."""
        ring = self.ring
        if len(raw) != ring.byte_count:
            raise CryptoError(f"a vector and its check have {ring.byte_count} bytes here")
        packed, begin = np.frombuffer(raw, np.uint8), self._whole * ring.count
        self._places[:begin] += packed[:begin]
        each = -(-ring.count // 8)
        for bit in range(self._extra_bits):
            plane = packed[begin + bit * each : begin + (bit + 1) * each]
            at = begin + bit * ring.count
            self._places[at : at + ring.count] += np.unpackbits(plane, count=ring.count)
        check = int.from_bytes(raw[-CHECK_BYTES:])
        self._total.check = (self._total.check + check) % 2**64
        self._added += 1
        if self._added == _MOST_ADDED:
            self._move()

    def join(self, other: Vector) -> None:
        self._total.add(other)

    def total(self) -> Vector:
        self._move()
        return Vector(self.ring, self._total.numbers.copy(), self._total.check)

    def _move(self) -> None:
        for place in range(self._whole + self._extra_bits):
            shift = 8 * place if place < self._whole else 7 * self._whole + place
            part = self._places[place * self.ring.count : (place + 1) * self.ring.count]
            self._total.numbers += part.astype(_WORD) << np.uint64(shift)
        self._places.fill(0)
        self._added = 0


def add_mask(total: Vector, seed: MaskSeed, use: bytes) -> None:
    """Add the seed's mask; two vectors of one seed must never have the same `use`."""
    words = _WORD if total.ring.bits > 32 else np.dtype("<u4")
    stream = _Keystream(seed, context(MASK, use))
    total.check = (total.check + int.from_bytes(stream.next(CHECK_BYTES))) % 2**64
    for part in _blocks(total.ring.count):
        total.numbers[part] += stream.words(part, words)


def masked(numbers: Int64, seed: MaskSeed, key: CheckKey, use: bytes, ring: Ring) -> Vector:
    """Return `numbers` (count,) with their check, both under the seed's mask."""
    plain = np.array(numbers, np.int64).view(np.uint64)
    result = Vector(ring, plain, check_of(numbers, key, use))
    add_mask(result, seed, use)
    return result


def sum_of_masks(seeds: Iterable[MaskSeed], use: bytes, ring: Ring) -> Vector:
    total = Vector.zeros(ring)
    for seed in seeds:
        add_mask(total, seed, use)
    return total


def taken_back(half: UInt64, ring: Ring, coefficient: int) -> UInt64:
    """Return `coefficient`/2⁸ of one half (count,) of correlated noise, rounded down.

    The two halves' results add up, mod 2^(bits - 8), to the noise's share less 0 to 2 steps. Not
    rounded, they would show the noise itself in their low bits."""
    found: UInt64 = half * np.uint64(coefficient % 2**64)
    found &= np.uint64((1 << ring.bits) - 1)
    found >>= np.uint64(NOISE_BITS)
    return found


def check_of(numbers: Int64, key: CheckKey, use: bytes) -> int:
    """Return Σ r_j·x_j mod 2^64 with this key's factors."""
    plain = np.ascontiguousarray(numbers, np.int64).view(np.uint64)
    stream, total = _Keystream(key, context(MASK_CHECK, use)), 0
    for part in _blocks(len(plain)):
        total += int(np.dot(stream.words(part, _WORD), plain[part]))
    return total % 2**64


def unmasked(
    total: Vector, masks: Vector, key: CheckKey, use: bytes, bits: int = 64
) -> Int64 | None:
    """Return the exact sum, int64 (count,), or None if the check's lowest `bits` bits differ.

    With `masks` the sum of the masks in `total`, all 64 bits match if no sum leaves the ring, else
    as many bits as the ring has.
    """
    numbers = signed(total.ring, total.numbers - masks.numbers)
    checked = total.check - masks.check
    return numbers if (check_of(numbers, key, use) - checked) % 2**bits == 0 else None


class Factors:
    """Factors r_j for checks of many vectors of one ring: cached if few, else derived again."""

    def __init__(self, key: CheckKey, use: bytes, ring: Ring) -> None:
        self.ring, self._use, self._key = ring, use, key
        self._modulus = 1 << ring.bits
        self._kept: UInt64 | None = None

    def blocks(self) -> Iterator[tuple[slice, UInt64]]:
        if self.ring.count > _FACTORS_KEPT:
            yield from self._derived()
            return
        if self._kept is None:
            self._kept = np.concatenate([words.copy() for _, words in self._derived()])
        for part in _blocks(self.ring.count):
            yield part, self._kept[part]

    def form(self, numbers: UInt64) -> int:
        parts = (int(np.dot(words, numbers[part])) for part, words in self.blocks())
        return sum(parts) % self._modulus

    def check_of_masked(self, vector: Vector) -> int:
        """Return form minus check, mod 2^bits; for a valid vector equal to `check_of_mask`."""
        return (self.form(vector.numbers) - vector.check) % self._modulus

    def check_of_mask(self, seed: MaskSeed) -> int:
        """Return the form of the seed's mask minus the check's mask, mod 2^bits, for the proxy.

        Higher bits must not be sent: they would reveal which numbers wrapped around under the mask.
        """
        mask = Vector.zeros(self.ring)
        add_mask(mask, seed, self._use)
        return self.check_of_masked(mask)

    def _derived(self) -> Iterator[tuple[slice, UInt64]]:
        stream = _Keystream(self._key, context(MASK_CHECK, self._use))
        for part in _blocks(self.ring.count):
            yield part, stream.words(part, _WORD)


class _Keystream:
    """ChaCha20 keystream under its own derived key, read block by block in one buffer."""

    def __init__(self, key: SecretKey, info: bytes) -> None:
        own = ChaCha20(derived(key.to_bytes(), info), _NONCE)
        self._stream = Cipher(own, mode=None).encryptor()
        self._buffer = bytearray(8 * _BLOCK)

    def next(self, size: int) -> bytes:
        return self._stream.update(bytes(size))

    def words(self, part: slice, word: np.dtype[Any]) -> NDArray[np.unsignedinteger]:
        """Return one word per place of the part; valid until the next call."""
        size = (part.stop - part.start) * word.itemsize
        self._stream.update_into(memoryview(_ZEROS)[:size], self._buffer)
        return np.frombuffer(self._buffer, word, part.stop - part.start)


def _blocks(count: int) -> Iterator[slice]:
    # Small enough for the processor's caches; the buffer is reused.
    return (slice(start, min(count, start + _BLOCK)) for start in range(0, count, _BLOCK))
