"""Encoding of tensors, and of masked vectors that are only revealed as sums.

A device adds masks to its integers and seals the result to the cloud, and the mask seed to the
proxy. The cloud sums the opened vectors and requests the sum of their masks. Seeds and the choice
of uploads are in `sealed.py`, so a proxy without masked sums does not load numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from edgeveil.crypto.keys import MaskSeed
from edgeveil.crypto.masking import (
    Factors,
    UInt64,
    Vector,
    masked,
    signed,
    sum_of_masks,
    taken_back,
    unmasked,
)
from edgeveil.crypto.ring import CHECK_BYTES
from edgeveil.errors import ProtocolError
from edgeveil.protocol.sealed import MaskedVector, RoundCheck

# Types of safetensors, in its order of tensors.
_TYPES = {
    np.dtype("?" if name == "BOOL" else name[0].lower() + str(int(name[1:]) // 8)): name
    for name in ["U64", "I64", "F64", "F32", "U32", "I32", "F16", "U16", "I16", "I8", "U8", "BOOL"]
}
_ORDER = {dtype: place for place, dtype in enumerate(_TYPES)}
_DTYPES = {name: dtype.newbyteorder("<") for dtype, name in _TYPES.items()}
_LENGTH_BYTES = _ALIGNMENT_BYTES = 8


class _Placed(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_places: msgspec.json.Decoder[dict[str, _Placed]] = msgspec.json.Decoder(dict[str, _Placed])


def pack_tensors(
    tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Encode named arrays as safetensors, with one copy. Raises ValueError for non-numbers."""
    named = sorted(
        ((name, _laid_out(array)) for name, array in tensors.items()),
        key=lambda one: (_ORDER[one[1].dtype], one[0]),
    )
    placed, end = dict[str, _Placed](), 0
    for name, array in named:
        start, end = end, end + array.nbytes
        placed[name] = _Placed(_TYPES[array.dtype], array.shape, (start, end))
    header = msgspec.json.encode({"__metadata__": metadata, **placed} if metadata else placed)
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    views = [array.reshape(-1).view(np.uint8).data for _, array in named]
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *views])


def _laid_out(array: NDArray[np.generic]) -> NDArray[np.generic]:
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _TYPES:
        raise ValueError(f"tensors are real numbers, not {dtype}")
    return np.ascontiguousarray(array, dtype)


def tensor_views(data: bytes | memoryview) -> dict[str, NDArray[np.generic]]:
    """Return read-only views into packed tensors. Raises ProtocolError `malformed_tensors`."""
    view = memoryview(data)
    begin = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    found, end = dict[str, NDArray[np.generic]](), 0
    try:
        for name, one in _places.decode(view[_LENGTH_BYTES:begin]).items():
            start, end = end, one.data_offsets[1]
            dtype, count = _DTYPES[one.dtype], math.prod(one.shape)
            whole = one.data_offsets[0] == start and end - start == count * dtype.itemsize
            if not whole or min(one.shape, default=0) < 0:
                raise ProtocolError("malformed_tensors")
            found[name] = np.frombuffer(view, dtype, count, begin + start).reshape(one.shape)
    except (msgspec.DecodeError, ValueError, KeyError, OverflowError, RecursionError):
        raise ProtocolError("malformed_tensors") from None
    if begin + end != len(view):
        raise ProtocolError("malformed_tensors")
    return found


def unpack_tensors(data: bytes) -> dict[str, NDArray[np.generic]]:
    """Return named arrays of real numbers. Raises ProtocolError `malformed_tensors`."""
    try:
        found = dict(load(data))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError):
        raise ProtocolError("malformed_tensors") from None
    if any(array.dtype.kind not in "buif" for array in found.values()):
        raise ProtocolError("malformed_tensors")
    return found


def masked_segment(
    of: MaskedVector, numbers: NDArray[np.int64], seed: MaskSeed, check: RoundCheck
) -> bytes:
    """Return a device's integers, as many as the ring has, masked for sealing."""
    return masked(numbers.ravel(), seed, check.key, of.use, of.ring).to_bytes()


def unpadded(of: MaskedVector, padded: bytes) -> memoryview:
    """Return the packed vector and its check. Raises ProtocolError `bad_padding`."""
    size = of.ring.byte_count
    if any(padded[size:]):
        raise ProtocolError("bad_padding")
    return memoryview(padded)[:size]


def opened_vector(of: MaskedVector, padded: bytes) -> Vector:
    """Return the vector of an opened segment. Raises ProtocolError `bad_padding`."""
    return Vector.from_bytes(of.ring, bytes(unpadded(of, padded)))


def mask_sums(vectors: Sequence[MaskedVector], seeds: Sequence[MaskSeed]) -> bytes:
    """Return the packed sum of these seeds' masks for each masked group."""
    return packed_vectors([sum_of_masks(seeds, one.use, one.ring) for one in vectors])


class MaskChecks:
    """Checks of masks by disclosed factors, equal for a valid masked vector and its seed."""

    def __init__(self, vectors: Sequence[MaskedVector], check: RoundCheck) -> None:
        self._vectors = vectors
        self._factors = [Factors(check.key, one.use, one.ring) for one in vectors]

    def of_seed(self, seed: MaskSeed) -> bytes:
        """Return the checks of a seed's masks, 8 bytes for each masked group."""
        return b"".join(one.check_of_mask(seed).to_bytes(CHECK_BYTES) for one in self._factors)

    def of_masked(self, packed: Sequence[bytes | memoryview]) -> bytes:
        pairs = zip(self._vectors, self._factors, packed, strict=True)
        return b"".join(
            factors.check_of_masked(Vector.from_bytes(one.ring, bytes(raw))).to_bytes(CHECK_BYTES)
            for one, factors, raw in pairs
        )


def mask_checks(
    vectors: Sequence[MaskedVector], seeds: Sequence[MaskSeed], check: RoundCheck
) -> bytes:
    checks = MaskChecks(vectors, check)
    return b"".join(map(checks.of_seed, seeds))


def exact_sums(
    vectors: Sequence[MaskedVector], totals: Sequence[Vector], masks: bytes, check: RoundCheck
) -> dict[str, NDArray[np.int64]]:
    """Return the sums by group. Raises ProtocolError `wrong_mask_sums` if a check fails."""
    if len(masks) != sum(one.ring.byte_count for one in vectors):
        raise ProtocolError("wrong_mask_sums")
    result = {}
    for one, total, removed in zip(vectors, totals, unpacked_vectors(vectors, masks), strict=True):
        numbers = unmasked(total, removed, check.key, one.use, check.bits(one.ring))
        if numbers is None:
            raise ProtocolError("wrong_mask_sums")
        result[one.name] = numbers
    return result


def correlated_mask_sums(
    vectors: Sequence[MaskedVector],
    seeds: Sequence[MaskSeed],
    coefficient: int,
    before: bytes,
    check: RoundCheck,
) -> tuple[bytes, bytes]:
    """Return the proxy's answer for a round of correlated noise, and its half of that noise.

    The last of `vectors` is the noise; `before`: the proxy's half of the round before, or b"". The
    answer: one byte, whether a share of that is taken back, and the updates' mask sums minus it."""
    *updates, noise = vectors
    half = sum_of_masks(seeds, noise.use, noise.ring)
    back = None
    if before:
        back = taken_back(np.frombuffer(before, np.uint64), noise.ring, coefficient)
    sums = [sum_of_masks(seeds, one.use, one.ring) for one in updates]
    for one, total, part in zip(updates, sums, _shares(updates, back), strict=True):
        if part is not None:
            total.numbers -= part
            form = Factors(check.key, one.use, one.ring).form(part)
            # One more for the first byte. Higher bits would tell which numbers wrapped around.
            total.check = (total.check - form - 1) % (1 << one.ring.bits)
    return bytes([back is not None]) + packed_vectors(sums), half.numbers.tobytes()


def correlated_sums(
    vectors: Sequence[MaskedVector],
    totals: Sequence[Vector],
    answer: bytes,
    coefficient: int,
    before: bytes,
    check: RoundCheck,
) -> dict[str, NDArray[np.int64]]:
    """Return the updates' sums with noise, less a share of the round before's; within one step.

    `before`: the cloud's half of that round's noise. Raises ProtocolError `wrong_mask_sums`."""
    *updates, noise = vectors
    back = None
    if answer[:1] == b"\x01" and before:
        half = Vector.from_bytes(noise.ring, before).numbers
        back = taken_back(half, noise.ring, -coefficient) + np.uint64(1)
    if answer[:1] != bytes([back is not None]):
        raise ProtocolError("wrong_mask_sums")
    for total in totals:
        total.check -= answer[0]
    sums = exact_sums(updates, totals[:-1], answer[1:], check)
    for one, part in zip(updates, _shares(updates, back), strict=True):
        if part is not None:
            sums[one.name] = signed(one.ring, sums[one.name].view(np.uint64) + part)
    return sums


def _shares(updates: Sequence[MaskedVector], whole: UInt64 | None) -> list[UInt64 | None]:
    if whole is None:
        return [None] * len(updates)
    ends = list(accumulate(one.ring.count for one in updates))
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def packed_vectors(totals: Sequence[Vector]) -> bytes:
    return b"".join(total.to_bytes() for total in totals)


def unpacked_vectors(vectors: Sequence[MaskedVector], raw: bytes) -> list[Vector]:
    ends = list(accumulate(one.ring.byte_count for one in vectors))
    parts = zip(vectors, [0, *ends], ends, strict=False)
    return [Vector.from_bytes(one.ring, raw[start:end]) for one, start, end in parts]
