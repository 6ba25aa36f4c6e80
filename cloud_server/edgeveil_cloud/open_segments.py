"""Open, check and sum slices of a batch, in the cloud's process or in a worker.

A slice holds neither the round's secret nor the bytes. Results do not depend on how a batch is cut.
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
"""Offset of a sealed segment in its batch, and its size in bytes."""
Upload = tuple[int, tuple[int, ...]]
"""Index of an upload in its batch, and the offsets of its masked segments."""
OpeningFields = tuple[bytes, bytes, RoundId, bytes, bool]


@dataclass(frozen=True)
class RoundSecret:
    """Secret that opens the answers to one round, or the reports on one release.

    Deleted when the round commits (forward secrecy). All attempts have the same `recipients`:
    devices resend the same tensors, so differing selections would link tensors to devices.
    `checked`: the manifest commits to the factors of mask checks."""

    opening: OpeningKey
    membership: bytes = field(repr=False)
    recipients: tuple[bytes, ...] = field(default=(), repr=False)
    checked: bool = False

    def to_bytes(self) -> bytes:
        """Return key, membership tag and recipients, 32 bytes each; one byte more if `checked`."""
        recipients = b"".join(self.recipients)
        return self.opening.to_bytes() + self.membership + recipients + b"\1" * self.checked

    @classmethod
    def from_bytes(cls, raw: bytes) -> RoundSecret:
        checked = len(raw) % 32 == 1
        keys = tuple(raw[i : i + 32] for i in range(64, len(raw) - checked, 32))
        return cls(OpeningKey(raw[:32]), raw[32:64], keys, checked)


@dataclass(frozen=True)
class RoundOpening:
    """The key and context that open one round's segments."""

    key: OpeningKey
    membership: bytes = field(repr=False)
    at: RoundId
    job_digest: bytes
    checked: bool = False
    sealing: Sealing = real_sealing

    def to_fields(self) -> OpeningFields:
        return self.key.to_bytes(), self.membership, self.at, self.job_digest, self.checked

    @classmethod
    def from_fields(cls, fields: OpeningFields) -> RoundOpening:
        return cls(OpeningKey(fields[0]), *fields[1:])

    def checks(self, vectors: Sequence[MaskedVector]) -> MaskChecks | None:
        """Return the checks of single masks, or None if this round does not compare them."""
        if not self.checked:
            return None
        return MaskChecks(vectors, RoundCheck.of(self.at, self.membership, disclosed=True))

    def plain(self, group: Group, data: Data, offset: int) -> bytes | None:
        """Return the padded tensor at `offset`, or None if the segment is not of this round."""
        sealed = data[offset : offset + sealed_bytes(group)]
        return self.sealing.open_segment(
            self.key, self.at, self.job_digest, group, self.membership, sealed
        )


def sealed_bytes(group: Group) -> int:
    return group.padded_bytes + SEAL_OVERHEAD_BYTES


class Found(NamedTuple):
    """Result of one segment: reason of refusal ("" if valid), norms, the array if it is kept."""

    refused: str
    norm: float = 0.0
    largest: float = 0.0
    array: Array | None = None


@dataclass(frozen=True)
class PlainSlice:
    """Segments of one group that is not masked; returns the first `kept` valid arrays.

    With `adds` it also returns the sum of all valid ones, floats on `grids`."""

    spec: SegmentSpec
    group: Group
    offsets: Sequence[int] = ()
    kept: int = 0
    adds: bool = False
    grids: Grids | None = None

    def places(self) -> Iterator[Place]:
        """Return the ranges that are read of the batch, in reading order."""
        return ((offset, sealed_bytes(self.group)) for offset in self.offsets)

    def opened(self, opening: RoundOpening, data: Data) -> tuple[list[Found], ExactSum | None]:
        """Return one result per segment and the sum; opens one tensor at a time."""
        found, room = list[Found](), self.kept
        total = ExactSum(self.spec.count, self.grids) if self.adds else None
        for offset in self.offsets:
            one, array = self.open_one(opening, data, offset)
            if array is not None:
                if total is not None:
                    total.add([array])
                if room > 0:
                    room -= 1
                    one = one._replace(array=array)
            found.append(one)
            del array  # free it before the next one is opened
        return found, total

    def array(self, plain: bytes) -> Array:
        """Return the tensor as a view; float16 is widened, since no sum of halves is exact."""
        dtype = np.dtype(self.spec.dtype).newbyteorder("<")
        found = np.frombuffer(plain, dtype, self.spec.count).reshape(self.spec.shape)
        return found.astype(np.float32) if self.spec.dtype == "float16" else found

    def open_one(
        self, opening: RoundOpening, data: Data, offset: int
    ) -> tuple[Found, Array | None]:
        """Return the result at an offset, with the tensor if it is valid."""
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
"""Reason of refusal of a masked upload ("" if valid), and the checks of its masks."""


@dataclass(frozen=True)
class MaskedSlice:
    """Whole masked uploads; upload `index` belongs to set `index % sets`."""

    groups: tuple[Group, ...]
    vectors: tuple[MaskedVector, ...]
    sets: int
    uploads: Sequence[Upload]

    def places(self) -> Iterator[Place]:
        for _, offsets in self.uploads:
            for offset, group in zip(offsets, self.groups, strict=True):
                yield offset, sealed_bytes(group)

    def opened(
        self, opening: RoundOpening, data: Data
    ) -> tuple[list[FoundUpload], list[list[Vector]]]:
        """Return one result per upload, and for each set the sum of each masked group."""
        sums = [[PackedSum(one.ring) for one in self.vectors] for _ in range(self.sets)]
        found = self.add_to(sums, opening, data)
        return found, [[one.total() for one in of_set] for of_set in sums]

    def add_to(
        self, sums: Sequence[Sequence[PackedSum]], opening: RoundOpening, data: Data
    ) -> list[FoundUpload]:
        """Add the valid uploads to `sums`; return one result per upload."""
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
        """Return an upload's vectors by group; raises ProtocolError if a segment is invalid."""
        result = []
        for group, vector, offset in zip(self.groups, self.vectors, offsets, strict=True):
            plain = opening.plain(group, data, offset)
            if plain is None:
                raise ProtocolError("not_for_this_round")
            result.append(unpadded(vector, plain))
        return result


Slice = PlainSlice | MaskedSlice


def norm(array: Array) -> float:
    """Return the L2 norm, infinite beyond the range of float64."""
    # numpy.linalg.norm calls BLAS, whose threads compete with other work of this process.
    flat, total = array.ravel(), 0.0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, BLOCK_VALUES):
            block = flat[start : start + BLOCK_VALUES].astype(np.float64)
            total += float(np.einsum("i,i->", block, block))
    return math.sqrt(total)
