"""Open, check and add up a few segments of a batch, wherever that is.

A slice knows neither the round's secret nor where the bytes are. It comes to the same result in
the cloud's own process and in a worker's, whatever the cuts between slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from edgeveil.crypto.keys import OpeningKey
from edgeveil.crypto.masking import PackedSum, Vector
from edgeveil.errors import ProtocolError
from edgeveil.parts.aggregation.mean import BLOCK_VALUES, ExactSum, Grids, largest
from edgeveil.parts.round import Array, SegmentSpec
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Group, RoundId
from edgeveil.protocol.sealed import MaskedVector, RoundCheck, Sealing
from edgeveil.protocol.tensors import MaskChecks, unpadded
from edgeveil.protocol.transfer import Data

Place = tuple[int, int]
"""Where a sealed segment begins in its batch, and its bytes."""
Upload = tuple[int, tuple[int, ...]]
"""Its place among the uploads of its batch, and where its masked segments begin."""
ToldOpening = tuple[bytes, bytes, RoundId, bytes, bool]


@dataclass(frozen=True)
class RoundSecret:
    """What opens the answers to one round, or the reports on one release; deleted when the round
    commits (forward secrecy). Every attempt at a round asks the same `recipients`: a device sends
    the same tensors again, and what comes back from differing selections would show who sent which.
    `checked`: the manifest commits to the factors by which the masks of single uploads are
    checked."""

    opening: OpeningKey
    membership: bytes = field(repr=False)
    recipients: tuple[bytes, ...] = field(default=(), repr=False)
    checked: bool = False

    def to_bytes(self) -> bytes:
        """Key (32), membership tag (32), recipients (32 each); one byte more if `checked`."""
        recipients = b"".join(self.recipients)
        return self.opening.to_bytes() + self.membership + recipients + b"\1" * self.checked

    @classmethod
    def from_bytes(cls, raw: bytes) -> RoundSecret:
        checked = len(raw) % 32 == 1
        keys = tuple(raw[i : i + 32] for i in range(64, len(raw) - checked, 32))
        return cls(OpeningKey(raw[:32]), raw[32:64], keys, checked)


@dataclass(frozen=True)
class RoundOpening:
    """Opens the segments of one round. Its key refuses to be pickled: see `told`."""

    key: OpeningKey
    membership: bytes = field(repr=False)
    at: RoundId
    job_digest: bytes
    checked: bool = False  # the masks of single uploads
    sealing: Sealing = real_sealing

    def told(self) -> ToldOpening:
        return self.key.to_bytes(), self.membership, self.at, self.job_digest, self.checked

    @classmethod
    def heard(cls, told: ToldOpening) -> RoundOpening:
        return cls(OpeningKey(told[0]), *told[1:])

    def checks(self, vectors: Sequence[MaskedVector]) -> MaskChecks | None:
        """What computes the checks of single masks, where they are compared."""
        if not self.checked:
            return None
        return MaskChecks(vectors, RoundCheck.of(self.at, self.membership, disclosed=True))

    def plain(self, group: Group, data: Data, offset: int) -> bytes | None:
        """The padded tensor of the segment there; None if it was not made for this round."""
        sealed = data[offset : offset + sealed_bytes(group)]
        return self.sealing.open_segment(
            self.key, self.at, self.job_digest, group, self.membership, sealed
        )


def sealed_bytes(group: Group) -> int:
    """Bytes of each sealed segment of a group."""
    return group.padded_bytes + SEAL_OVERHEAD_BYTES


class Found(NamedTuple):
    """Why a segment does not count, or its norms; the tensor where it is kept."""

    refused: str
    norm: float = 0.0
    largest: float = 0.0
    array: Array | None = None


# --- slices -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainSlice:
    """Segments of one group that is not masked; of the valid ones the first `kept` tensors come
    back. With `adds` all valid ones are added up, floats on `grids`."""

    spec: SegmentSpec
    group: Group
    offsets: Sequence[int] = ()
    kept: int = 0
    adds: bool = False
    grids: Grids | None = None

    def places(self) -> Iterator[Place]:
        """All that is read of the batch, in the order of reading."""
        return ((offset, sealed_bytes(self.group)) for offset in self.offsets)

    def opened(self, opening: RoundOpening, data: Data) -> tuple[list[Found], ExactSum | None]:
        """What is found of each, and the sum of those that may count where it is asked for. One
        tensor is in memory beside what is kept and the sum."""
        found, room = list[Found](), self.kept
        total = ExactSum(self.spec.count, self.grids) if self.adds else None
        for offset in self.offsets:
            one, array = self.looked_at(opening, data, offset)
            if array is not None:
                if total is not None:
                    total.add([array])
                if room > 0:
                    room -= 1
                    one = one._replace(array=array)
            found.append(one)
            del array  # before the next one is opened beside it
        return found, total

    def array(self, plain: bytes) -> Array:
        """The tensor, on the same memory; halves are widened, since no sum of them is exact."""
        dtype = np.dtype(self.spec.dtype).newbyteorder("<")
        found = np.frombuffer(plain, dtype, self.spec.count).reshape(self.spec.shape)
        return found.astype(np.float32) if self.spec.dtype == "float16" else found

    def looked_at(
        self, opening: RoundOpening, data: Data, offset: int
    ) -> tuple[Found, Array | None]:
        """What is found at an offset, and the tensor where it may count."""
        plain = opening.plain(self.group, data, offset)
        if plain is None:
            return Found("not_for_this_round"), None
        if any(memoryview(plain)[self.spec.byte_count :]):
            return Found("bad_padding"), None
        array = self.array(plain)
        most = largest(array)
        if not math.isfinite(most):
            return Found("not_finite"), None
        if self.spec.largest is not None and most > self.spec.largest:
            return Found("out_of_range"), None
        return Found("", norm(array), most), array


FoundUpload = tuple[str, bytes]
"""Why an upload under masks does not count, or ""; the checks of its masks."""


@dataclass(frozen=True)
class MaskedSlice:
    """Whole uploads under masks, each in the set that its place deals it to."""

    groups: tuple[Group, ...]
    vectors: tuple[MaskedVector, ...]
    sets: int
    uploads: Sequence[Upload]

    def places(self) -> Iterator[Place]:
        """As those of `PlainSlice`."""
        for _, offsets in self.uploads:
            for offset, group in zip(offsets, self.groups, strict=True):
                yield offset, sealed_bytes(group)

    def opened(
        self, opening: RoundOpening, data: Data
    ) -> tuple[list[FoundUpload], list[list[Vector]]]:
        """What each upload is, and for each set the sums, one of each masked group."""
        sums = [[PackedSum(one.ring) for one in self.vectors] for _ in range(self.sets)]
        found = self.add_to(sums, opening, data)
        return found, [[one.total() for one in of_set] for of_set in sums]

    def add_to(
        self, sums: Sequence[Sequence[PackedSum]], opening: RoundOpening, data: Data
    ) -> list[FoundUpload]:
        """Add them to sums that there are already; what each of them is."""
        checks, result = opening.checks(self.vectors), list[FoundUpload]()
        for index, offsets in self.uploads:
            try:
                found = self.packed(opening, data, offsets)
            except ProtocolError as error:
                result.append((error.reason, b""))
                continue
            for total, packed in zip(sums[index % self.sets], found, strict=True):
                total.add(packed)
            result.append(("", checks.of_masked(found) if checks else b""))
        return result

    def packed(self, opening: RoundOpening, data: Data, offsets: Sequence[int]) -> list[memoryview]:
        """The packed vectors of one upload, by masked group. Raises ProtocolError
        `not_for_this_round` or `bad_padding`."""
        result = []
        for group, vector, offset in zip(self.groups, self.vectors, offsets, strict=True):
            plain = opening.plain(group, data, offset)
            if plain is None:
                raise ProtocolError("not_for_this_round")
            result.append(unpadded(vector, plain))
        return result


Slice = PlainSlice | MaskedSlice


def norm(array: Array) -> float:
    """L2 norm, infinite where it passes float64."""
    # Not numpy's: that goes to BLAS, whose threads stand in the way of everybody else here.
    flat, total = array.ravel(), 0.0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, BLOCK_VALUES):
            block = flat[start : start + BLOCK_VALUES].astype(np.float64)
            total += float(np.einsum("i,i->", block, block))
    return math.sqrt(total)
