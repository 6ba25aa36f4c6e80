"""A batch that the proxy hands over: kept on the disk, opened with suspicion, validated.

What is counted, what is refused, and why.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import overload

import numpy as np

from edgeveil.crypto.masking import PackedSum, Vector
from edgeveil.errors import ProtocolError
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation.mean import BLOCK_VALUES, largest, largest_of
from edgeveil.parts.exchange import Array, SegmentSpec
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud_tasks import BatchPart
from edgeveil.protocol.mask_seeds import masked_vectors
from edgeveil.protocol.masked_sums import unpadded
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Batch, Blob, ExchangeId, Group
from edgeveil.protocol.sealed import Sealing, segment_mark
from edgeveil.protocol.transfer import Data
from edgeveil_cloud.round_secret import RoundSecret
from edgeveil_cloud.store_tables import StoreError

NORM_FACTOR = 100.0  # a segment this many times the group's median norm is not a noised update
KEPT_BYTES = 192 << 20  # opened arrays in memory; the others are opened again when they are needed
_READ_BYTES = 1 << 20


# --- on the disk ---


class SpooledBatch:
    """One batch in a file without a name: it is gone with the process, or with its last reader.

    An `edgeveil.protocol.transfer.Data`: only what is sliced is read.
    """

    def __init__(self, digest: bytes, folder: Path | None) -> None:
        self.digest = digest
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see __del__
        self._bytes = 0
        self._running = hashlib.sha256()  # of the first `_hashed` bytes
        self._hashed = 0
        self.front: MaskedUploads | None = None  # what was opened of them

    def write(self, offset: int, data: bytes) -> None:
        """Put a part in its place. Raises OSError."""
        if offset < self._hashed:  # written again: what was hashed is not there any more
            self._running, self._hashed, self.front = hashlib.sha256(), 0, None
        start, view = offset, memoryview(data)
        while view:
            offset += (count := os.pwrite(self._file.fileno(), view, offset))
            view = view[count:]
        self._bytes = max(self._bytes, offset)
        if start == self._hashed:
            self._running.update(data)
            self._hashed += len(data)

    @property
    def front_bytes(self) -> int:
        """So many are there from the beginning on without a gap, of those that came in turn."""
        return self._hashed

    def __len__(self) -> int:
        return self._bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._bytes)
        return os.pread(self._file.fileno(), max(0, stop - start), start)

    def check(self, blob: Blob) -> None:
        """Raise ProtocolError `bad_digest` unless the file holds this blob."""
        digest = self._running.copy()
        for start in range(self._hashed, self._bytes, _READ_BYTES):
            digest.update(self[start : start + _READ_BYTES])
        if self._bytes != blob.size_bytes or digest.digest() != blob.digest:
            raise ProtocolError("bad_digest")

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class BatchSpool:
    """At most one batch, in `folder` (None: the system's folder for temporary files).

    A disk that is full spoils the batch and not the process: `whole` says so, and the round is
    asked for again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._batch: SpooledBatch | None = None
        self._failure = ""

    def put(self, part: BatchPart) -> None:
        """Keep a part; the first one of another batch takes the place of the one before."""
        try:
            if self._batch is None or self._batch.digest != part.digest:
                self.drop()
                self._batch = SpooledBatch(part.digest, self._folder)
            self._batch.write(part.offset, part.data)
        except OSError as error:
            self._failure = error.strerror or type(error).__name__

    def whole(self, blob: Blob, stream: bytes = b"") -> SpooledBatch:
        """The batch, checked. Raises ProtocolError `bad_digest`, or StoreError with its fix."""
        if self._failure:
            raise StoreError(
                f"the batch cannot be written ({self._failure})",
                where=str(self._folder or tempfile.gettempdir()),
                fix="make room on the disk",
            )
        if self._batch is None or self._batch.digest != (stream or blob.digest):
            raise ProtocolError("bad_digest")
        self._batch.check(blob)
        return self._batch

    @property
    def under_way(self) -> SpooledBatch | None:
        """The batch as far as it came, unchecked."""
        return None if self._failure else self._batch

    def drop(self) -> None:
        """Forget the batch; its room on the disk is free when the last reader is done."""
        self._batch, self._failure = None, ""


# --- opened ---


@dataclass(frozen=True)
class SegmentOpener:
    """Opens the segments of one group of a batch."""

    spec: SegmentSpec
    group: Group
    secret: RoundSecret
    at: ExchangeId
    job_digest: bytes
    data: Data
    sealing: Sealing

    @property
    def size_bytes(self) -> int:
        """Of each sealed segment."""
        return self.group.padded_bytes + SEAL_OVERHEAD_BYTES

    def sealed(self, offset: int) -> bytes:
        """The segment at an offset, as it came."""
        return self.data[offset : offset + self.size_bytes]

    def plain(self, sealed: bytes) -> bytes | None:
        """The padded tensor; None if it was not made for this round."""
        return self.sealing.open_segment(
            self.secret.opening,
            self.at,
            self.job_digest,
            self.group,
            self.secret.membership,
            sealed,
        )

    def array(self, plain: bytes) -> Array:
        """The tensor, on the same memory; halves are widened, since no sum of them is exact."""
        dtype = np.dtype(self.spec.dtype).newbyteorder("<")
        found = np.frombuffer(plain[: self.spec.byte_count], dtype).reshape(self.spec.shape)
        return found.astype(np.float32) if self.spec.dtype == "float16" else found

    def again(self, offset: int) -> Array:
        """A segment that was valid before."""
        plain = self.plain(self.sealed(offset))
        if plain is None:
            raise ValueError("a segment changed while it was read")
        return self.array(plain)


@dataclass(frozen=True)
class ValidSegment:
    """A valid segment: where it is, its mark, its L2 norm and largest absolute value;
    the array where it is kept.
    """

    offset: int
    name: bytes
    norm: float
    largest: float
    array: Array | None


class GroupArrays(Sequence[Array]):
    """The valid arrays of one group; what is not in memory is opened each time it is asked for."""

    def __init__(self, opener: SegmentOpener, found: Sequence[ValidSegment]) -> None:
        self._opener, self._found = opener, found

    @property
    def largest(self) -> float:
        """The largest absolute value in all arrays; none is opened for it."""
        return max((one.largest for one in self._found), default=0.0)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Array]:
        return map(self._array, self._found)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> GroupArrays: ...
    def __getitem__(self, index: int | slice) -> Array | GroupArrays:
        if isinstance(index, slice):
            return GroupArrays(self._opener, self._found[index])
        return self._array(self._found[index])

    def _array(self, found: ValidSegment) -> Array:
        return self._opener.again(found.offset) if found.array is None else found.array


class JoinedArrays(Sequence[Array]):
    """The valid arrays of one group in several batches, one after the other."""

    def __init__(self, parts: Sequence[Sequence[Array]]) -> None:
        self._parts = [part for part in parts if len(part)]

    @property
    def largest(self) -> float:
        """The largest absolute value in all arrays."""
        return max(map(largest_of, self._parts), default=0.0)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Array]:
        return chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | Sequence[Array]:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            found, begin = [], 0
            for part in self._parts:
                found.append(part[max(0, start - begin) : max(0, stop - begin)])
                begin += len(part)
            return JoinedArrays(found)
        place = range(len(self))[index]
        for part in self._parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(index)


@dataclass
class ValidatedBatch:
    """What was in a batch: valid arrays by segment, their marks, refusals.

    Of masked groups there are `totals`, for each set of uploads the sums under masks in the groups'
    order, and which uploads are in them: the `chosen` of so many `masked`, by their place in the
    batch.
    """

    arrays: dict[str, Sequence[Array]] = field(default_factory=dict)
    accepted: list[bytes] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    totals: list[list[Vector]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    masked: int = 0


def validate_batch(
    context: RoundContext,
    secret: RoundSecret,
    batch: Batch,
    data: Data,
    selected: int,
    sealing: Sealing = real_sealing,
    kept_bytes: int = KEPT_BYTES,
    front: MaskedUploads | None = None,
) -> ValidatedBatch:
    """Open and validate every segment; a group with more than `selected` valid ones is void. Those
    under masks are added up on the way, and no two are in memory.

    Arrays beyond `kept_bytes` are let go and opened again from `data`, which must stay as it is.
    `front` is what was opened of its stream before, of these bytes.
    """
    result, offset = ValidatedBatch(), 0
    groups, sizes = context.groups, context.segment_bytes
    fits = len(batch.counts) == len(groups)
    masked = {batch.counts[one.group] for one in context.masked} if fits else set()
    fits = fits and sum(n * s for n, s in zip(batch.counts, sizes, strict=True)) == len(data)
    if not fits or len(masked) > 1:  # each upload has one place in all masked groups
        result.refused["malformed_batch"] += 1
        return result
    digest = context.job.digest()
    result.masked = max(masked, default=0)
    if front is None or front.opened > result.masked:
        front = MaskedUploads(context, secret, batch.at, sealing)
    if batch.stream:
        offset = result.masked * front.upload_bytes
        front.open_front(data, offset)
    starts: list[int] = []  # of masked groups
    for spec, group, count in zip(context.segments, groups, batch.counts, strict=True):
        if spec.bits:
            starts.append(offset)
            offset += 0 if batch.stream else count * (group.padded_bytes + SEAL_OVERHEAD_BYTES)
            continue
        opener = SegmentOpener(spec, group, secret, batch.at, digest, data, sealing)
        room = kept_bytes // max(1, spec.byte_count)
        found = _valid(opener, offset, count, room, result.refused)
        offset += count * opener.size_bytes
        found = _of_usual_size(found, result.refused)
        if len(found) > selected:
            result.refused["more_than_selected"] += len(found)
            found = []
        kept_bytes -= spec.byte_count * sum(one.array is not None for one in found)
        result.arrays[spec.name] = GroupArrays(opener, found)
        result.accepted += [one.name for one in found]
    if starts:
        if not batch.stream:
            front.open_groups(data, starts, result.masked)
        front.tell(result, selected)
    return result


class MaskedUploads:
    """Whole uploads under masks, opened and added up one by one, in the order of their batch; of a
    number under a mask only the form can be looked at. Memory: for each set of uploads a sum of
    each masked group, and the marks.
    """

    def __init__(
        self, context: RoundContext, secret: RoundSecret, at: ExchangeId, sealing: Sealing
    ) -> None:
        self._vectors = masked_vectors(at, context.groups, context.masked)
        digest, nothing = context.job.digest(), b""
        self._openers = [
            SegmentOpener(spec, group, secret, at, digest, nothing, sealing)
            for spec, group in zip(context.segments, context.groups, strict=True)
            if spec.bits
        ]
        self._membership = secret.membership
        self._totals = [[PackedSum(one.ring) for one in self._vectors] for _ in range(context.sets)]
        self._seen, self._marks = set[bytes](), list[bytes]()
        self._chosen, self._refused = list[int](), Counter[str]()
        self.opened = 0

    @property
    def upload_bytes(self) -> int:
        """Of all masked segments of one upload."""
        return sum(one.size_bytes for one in self._openers)

    def open_front(self, data: Data, size_bytes: int, counts: Sequence[int] = ()) -> None:
        """Those of the first bytes that were not opened yet; they stand one after the other.

        As many as `counts` says of their groups, if it says it: others follow.
        """
        uploads = size_bytes // self.upload_bytes if self._openers else 0
        if counts:
            said = [counts[one.group] for one in self._vectors if one.group < len(counts)]
            uploads = min([uploads, *said]) if said else 0
        for index in range(self.opened, uploads):
            offset, segments = index * self.upload_bytes, list[bytes]()
            for one in self._openers:
                segments.append(data[offset : offset + one.size_bytes])
                offset += one.size_bytes
            self._open(index, segments)

    def open_groups(self, data: Data, starts: Sequence[int], uploads: int) -> None:
        """So many, whose groups begin at these places."""
        for index in range(uploads):
            places = zip(starts, self._openers, strict=True)
            offsets = [(start + index * one.size_bytes, one.size_bytes) for start, one in places]
            self._open(index, [data[offset : offset + size] for offset, size in offsets])

    def _open(self, index: int, segments: Sequence[bytes]) -> None:
        self.opened = index + 1
        names = [segment_mark(self._membership, sealed) for sealed in segments]
        if not self._seen.isdisjoint(names):
            self._refused["repeated_segment"] += 1
            return
        self._seen.update(names)
        plain = [one.plain(sealed) for one, sealed in zip(self._openers, segments, strict=True)]
        opened = [one for one in plain if one is not None]
        if len(opened) < len(plain):
            self._refused["not_for_this_round"] += 1
            return
        try:
            pairs = zip(self._vectors, opened, strict=True)
            found = [unpadded(of, one) for of, one in pairs]
        except ProtocolError as error:
            self._refused[error.reason] += 1
            return
        of_set = self._totals[index % len(self._totals)]  # as `dealt` deals them
        for total, packed in zip(of_set, found, strict=True):
            total.add(packed)
        self._chosen.append(index)
        self._marks += names

    def tell(self, result: ValidatedBatch, selected: int) -> None:
        """What they come to."""
        result.refused.update(self._refused)
        if len(self._chosen) > selected:
            result.refused["more_than_selected"] += len(self._chosen)
            return
        result.chosen = list(self._chosen)
        result.totals = [[one.total() for one in of_set] for of_set in self._totals]
        result.accepted += self._marks


def _valid(
    opener: SegmentOpener, start: int, count: int, room: int, refused: Counter[str]
) -> list[ValidSegment]:
    """The segments of one group that may count; the first `room` of them with their arrays."""
    found: list[ValidSegment] = []
    seen: set[bytes] = set()
    for offset in range(start, start + count * opener.size_bytes, opener.size_bytes):
        sealed = opener.sealed(offset)
        name = segment_mark(opener.secret.membership, sealed)
        if name in seen:
            refused["repeated_segment"] += 1
            continue
        seen.add(name)
        plain = opener.plain(sealed)
        if plain is None:
            refused["not_for_this_round"] += 1
        elif any(plain[opener.spec.byte_count :]):
            refused["bad_padding"] += 1
        else:
            array = opener.array(plain)
            most = largest(array)
            if not math.isfinite(most):
                refused["not_finite"] += 1
                continue
            kept = array if len(found) < room else None
            found.append(ValidSegment(offset, name, norm(array), most, kept))
    return found


def norm(array: Array) -> float:
    """L2 norm, infinite where it passes float64."""
    # Not numpy's: that goes to BLAS, whose threads stand in the way of everybody else here.
    flat, total = array.ravel(), 0.0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, BLOCK_VALUES):
            block = flat[start : start + BLOCK_VALUES].astype(np.float64)
            total += float(np.einsum("i,i->", block, block))
    return math.sqrt(total)


def _of_usual_size(found: list[ValidSegment], refused: Counter[str]) -> list[ValidSegment]:
    """Drop arrays whose norm is far above the group's median: no honest noise reaches there."""
    limit = norm_limit([one.norm for one in found])
    kept = [one for one in found if one.norm <= limit]
    if len(kept) < len(found):
        refused["norm"] += len(found) - len(kept)
    return kept


def norm_limit(norms: Sequence[float]) -> float:
    """The norm above which an array of a group with these norms does not count."""
    # A device without records sends zeros where there is no noise: they do not say what is usual.
    usual = [norm for norm in norms if norm > 0]
    return NORM_FACTOR * float(np.median(usual)) if len(usual) >= 3 else math.inf
