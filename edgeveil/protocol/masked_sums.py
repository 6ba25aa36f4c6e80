"""Sums of which no party sees a part: what of them devices, proxy and cloud each compute.

A device adds masks to its integers and seals the result to the cloud, and the seed of the masks to
the proxy. The cloud adds up what it opens and asks the proxy for the sum of those masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.keys import MaskSeed
from edgeveil.crypto.masking import Factors, Vector, masked, sum_of_masks, unmasked
from edgeveil.crypto.ring import CHECK_BYTES
from edgeveil.errors import ProtocolError
from edgeveil.protocol.mask_seeds import MaskedVector, RoundCheck


def masked_segment(
    of: MaskedVector, numbers: NDArray[np.int64], seed: MaskSeed, check: RoundCheck
) -> bytes:
    """A device's numbers, as many as the ring has, as they are sealed to the cloud."""
    return masked(numbers.ravel(), seed, check.key, of.use, of.ring).to_bytes()


def unpadded(of: MaskedVector, padded: bytes) -> memoryview:
    """The packed vector and its check in an opened segment. Raises ProtocolError `bad_padding`."""
    size = of.ring.byte_count
    if any(padded[size:]):
        raise ProtocolError("bad_padding")
    return memoryview(padded)[:size]


def opened_vector(of: MaskedVector, padded: bytes) -> Vector:
    """What a segment holds. Raises ProtocolError `bad_padding`."""
    return Vector.from_bytes(of.ring, bytes(unpadded(of, padded)))


def mask_sums(vectors: Sequence[MaskedVector], seeds: Sequence[MaskSeed]) -> bytes:
    """What the proxy answers: the sum of these seeds' masks of each masked group."""
    return packed_vectors([sum_of_masks(seeds, one.use, one.ring) for one in vectors])


class MaskChecks:
    """Checks of single masks, by factors that are disclosed: of a masked vector at the cloud, of
    the mask alone at the proxy. They agree where the vector's own check is right.
    """

    def __init__(self, vectors: Sequence[MaskedVector], check: RoundCheck) -> None:
        self._vectors = vectors
        self._factors = [Factors(check.key, one.use, one.ring) for one in vectors]

    def of_seed(self, seed: MaskSeed) -> bytes:
        """Return the checks of a seed's masks, 8 bytes for each masked group."""
        return b"".join(_word(one.check_of_mask(seed)) for one in self._factors)

    def of_masked(self, packed: Sequence[bytes | memoryview]) -> bytes:
        """Return what they are for the masks of these packed vectors, if they are sound."""
        pairs = zip(self._vectors, self._factors, packed, strict=True)
        return b"".join(
            _word(factors.check_of_masked(Vector.from_bytes(one.ring, bytes(raw))))
            for one, factors, raw in pairs
        )


def _word(check: int) -> bytes:
    return check.to_bytes(CHECK_BYTES)


def mask_checks(
    vectors: Sequence[MaskedVector], seeds: Sequence[MaskSeed], check: RoundCheck
) -> bytes:
    """What the proxy answers to `CheckMasks`."""
    checks = MaskChecks(vectors, check)
    return b"".join(map(checks.of_seed, seeds))


def exact_sums(
    vectors: Sequence[MaskedVector], totals: Sequence[Vector], masks: bytes, check: RoundCheck
) -> dict[str, NDArray[np.int64]]:
    """The sums by group, from those under masks and the proxy's answer.

    Raises ProtocolError `wrong_mask_sums`: of another size, or the check of a sum does not hold.
    """
    if len(masks) != sum(one.ring.byte_count for one in vectors):
        raise ProtocolError("wrong_mask_sums")
    result = {}
    for one, total, removed in zip(vectors, totals, _vectors(vectors, masks), strict=True):
        numbers = unmasked(total, removed, check.key, one.use, check.bits(one.ring))
        if numbers is None:
            raise ProtocolError("wrong_mask_sums")
        result[one.name] = numbers
    return result


def packed_vectors(totals: Sequence[Vector]) -> bytes:
    """Of all masked groups, one after the other."""
    return b"".join(total.to_bytes() for total in totals)


def unpacked_vectors(vectors: Sequence[MaskedVector], raw: bytes) -> list[Vector]:
    """As `packed_vectors` gave them."""
    return list(_vectors(vectors, raw))


def _vectors(vectors: Sequence[MaskedVector], raw: bytes) -> Iterator[Vector]:
    start = 0
    for one in vectors:
        end = start + one.ring.byte_count
        yield Vector.from_bytes(one.ring, raw[start:end])
        start = end
