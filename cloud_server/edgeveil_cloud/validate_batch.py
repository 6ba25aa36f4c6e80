"""Spooling, opening and validation of the batches that the proxy hands over."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.chunked import TAG_BYTES
from edgeveil.crypto.masking import PackedSum, Vector
from edgeveil.crypto.ring import CHECK_BYTES
from edgeveil.errors import ProtocolError
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.aggregation.mean import ExactSum, Grids, largest_of
from edgeveil.parts.round import TRAIN, Array, SegmentSpec
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.cloud_job import BatchPart
from edgeveil.protocol.messages import (
    SEAL_OVERHEAD_BYTES,
    Batch,
    Blob,
    Group,
    RoundId,
    Unmask,
    encode_inner,
)
from edgeveil.protocol.sealed import (
    RoundCheck,
    Sealing,
    choice,
    chosen_of,
    dealt,
    masked_vectors,
    segment_mark,
)
from edgeveil.protocol.tensors import (
    correlated_sums,
    exact_sums,
    pack_tensors,
    packed_vectors,
    unpack_tensors,
    unpacked_vectors,
)
from edgeveil.protocol.transfer import Data
from edgeveil_cloud.compute.processes import BatchFile, WorkerProcesses
from edgeveil_cloud.open_segments import (
    Found,
    FoundUpload,
    MaskedSlice,
    PlainSlice,
    RoundOpening,
    RoundSecret,
    Slice,
    Upload,
    sealed_bytes,
)

NORM_FACTOR = 100.0  # limit of a segment's norm, in medians of its group
KEPT_BYTES = 192 << 20  # of opened arrays in memory; others are opened again on each access
_READ_BYTES = 1 << 20
_SLICE_BYTES = 16 << 20  # largest slice of a worker
_OPENING_BYTES = 32 << 10  # fixed cost of opening a segment, as bytes
_LEAST_ADDED = 4  # uploads per slice, since each slice returns a sum
_SEARCHED = 4  # segments searched for one that is not zero
_SPARE_BITS = 3  # headroom for larger values in other segments
_MARK_BYTES = 32


# --- on the disk ---


class SpooledBatch:
    """One batch in an unnamed temporary file, a `Data`; freed with its last reader."""

    def __init__(self, digest: bytes, folder: Path | None) -> None:
        self.digest = digest
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see __del__
        self._bytes = 0
        self._running = hashlib.sha256()  # of the first `_hashed` bytes
        self._hashed = 0
        self.front: MaskedUploads | None = None  # opened so far

    def write(self, offset: int, data: bytes) -> None:
        if offset < self._hashed:  # overwrites bytes that are hashed already
            self._running, self._hashed, self.front = hashlib.sha256(), 0, None
        start, view = offset, memoryview(data)
        while view:
            offset += (count := os.pwrite(self._file.fileno(), view, offset))
            view = view[count:]
        self._bytes = max(self._bytes, offset)
        if start == self._hashed:
            self._running.update(data)
            self._hashed += len(data)

    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def front_bytes(self) -> int:
        """Size of the gapless prefix that was written in order."""
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
    """At most one batch; after a write error `whole` raises, and the round is repeated."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._batch: SpooledBatch | None = None
        self._failure: OSError | None = None

    def put(self, part: BatchPart) -> None:
        try:
            if self._batch is None or self._batch.digest != part.digest:
                self.drop()
                self._batch = SpooledBatch(part.digest, self._folder)
            self._batch.write(part.offset, part.data)
        except OSError as error:
            self._failure = error

    def whole(self, blob: Blob, stream: bytes = b"") -> SpooledBatch:
        """Return the batch; raises ProtocolError `bad_digest`, or the OSError of its writing."""
        if self._failure:
            raise self._failure
        if self._batch is None or self._batch.digest != (stream or blob.digest):
            raise ProtocolError("bad_digest")
        self._batch.check(blob)
        return self._batch

    @property
    def under_way(self) -> SpooledBatch | None:
        """The unchecked batch so far, or None after a write error."""
        return None if self._failure else self._batch

    def drop(self) -> None:
        self._batch, self._failure = None, None


# --- opened ---


@dataclass(frozen=True)
class _Reader:
    """Opens segments of one batch, here or in workers that can read its file."""

    opening: RoundOpening
    data: Data
    workers: WorkerProcesses | None = None

    def mark(self, offset: int, size_bytes: int) -> bytes:
        """Return the mark of the sealed segment at `offset`, reading only its ends."""
        end = offset + size_bytes
        ends = self.data[offset : offset + SEAL_OVERHEAD_BYTES] + self.data[end - TAG_BYTES : end]
        return segment_mark(self.opening.membership, ends)

    def cuts(self, count: int, size_bytes: int) -> list[slice]:
        """Return how to divide `count` segments or uploads among workers; one cut is opened here.

        Each slice returns sums, which are as large as four uploads of float32 numbers."""
        workers, most = self.workers, max(1, count)
        if (
            workers is not None
            and self.opening.sealing is real_sealing
            and isinstance(self.data, BatchFile)
            and count * (size_bytes + _OPENING_BYTES) >= workers.least_bytes
        ):
            often = min(-(-count // (4 * workers.count)), _SLICE_BYTES // size_bytes)
            most = max(1, often, min(_LEAST_ADDED, -(-count // workers.count)))
        return [slice(start, start + most) for start in range(0, count, most)]

    def run(self, slices: Sequence[Slice], take: Callable[[int, Any], None]) -> None:
        """Open all slices; `take` gets number and result in any order. Raises ComputeError."""
        if len(slices) > 1 and self.workers is not None and isinstance(self.data, BatchFile):
            self.workers.run(self.opening, self.data, slices, take)
            return
        for number, one in enumerate(slices):
            take(number, one.opened(self.opening, self.data))


class _ValidSegment(NamedTuple):
    offset: int
    mark: bytes
    found: Found


class GroupArrays(Sequence[Array]):
    """The valid arrays of one group; those not in memory are opened again on each access."""

    def __init__(self, reader: _Reader, spec: SegmentSpec, group: Group) -> None:
        self._reader, self._spec, self._group = reader, spec, group
        self._single = PlainSlice(spec, group)
        self.found = list[_ValidSegment]()
        self._total: ExactSum | None = None  # if it was computed while opening

    def validate(
        self, offsets: Sequence[int], room: int, adds: bool, selected: int, refused: Counter[str]
    ) -> None:
        """Take the valid segments, `room` of them with arrays; more than `selected` are void.

        With `adds` their sum is kept too, unless the norm limit excludes one of its terms."""
        size = sealed_bytes(self._group)
        marks = {offset: self._reader.mark(offset, size) for offset in offsets}
        first = {mark: offset for offset, mark in reversed(marks.items())}
        new = [offset for offset, mark in marks.items() if first[mark] == offset]
        if len(new) < len(marks):
            refused["repeated_segment"] += len(marks) - len(new)
        opened, total = self._opened(new, room, adds, self._likely_grids(new) if adds else None)
        valid = list[_ValidSegment]()
        for offset, one in zip(new, opened, strict=True):
            if one.refused:
                refused[one.refused] += 1
            else:
                valid.append(_ValidSegment(offset, marks[offset], one))
        # No honest noise reaches a norm far above the group's median.
        limit = norm_limit([one.found.norm for one in valid])
        usual = [one for one in valid if one.found.norm <= limit]
        if len(usual) < len(valid):
            refused["norm"] += len(valid) - len(usual)
            total = None
        if len(usual) > selected:
            refused["more_than_selected"] += len(usual)
        else:
            self.found, self._total = usual, total

    def _opened(
        self, offsets: Sequence[int], room: int, adds: bool, grids: Grids | None
    ) -> tuple[list[Found], ExactSum | None]:
        """Return the results, with up to `room` arrays, and with `adds` the sum of valid ones."""
        slices = list[PlainSlice]()
        for cut in self._reader.cuts(len(offsets), sealed_bytes(self._group)):
            part = offsets[cut]
            kept = min(room, len(part))
            slices.append(PlainSlice(self._spec, self._group, part, kept, adds, grids))
            room -= kept
        found: list[list[Found]] = [[] for _ in slices]
        total: ExactSum | None = None

        def take(number: int, part: tuple[list[Found], ExactSum | None]) -> None:
            nonlocal total
            found[number] = part[0]
            if part[1] is not None:
                total = part[1] if total is None else total.join(part[1])

        self._reader.run(slices, take)
        return [one for part in found for one in part], total

    def _likely_grids(self, offsets: Sequence[int]) -> Grids | None:
        """Return grids on which the sum is probably exact, estimated from the first segments."""
        if np.issubdtype(np.dtype(self._spec.dtype), np.integer):
            return None
        looked = partial(self._single.open_one, self._reader.opening, self._reader.data)
        largest = (looked(offset)[0].largest for offset in offsets[:_SEARCHED])
        most = next(filter(None, largest), 1.0)  # a device without records may send zeros
        return Grids.of(most, max(1, len(offsets)), _SPARE_BITS)

    @property
    def largest(self) -> float:
        return max((one.found.largest for one in self.found), default=0.0)

    @property
    def kept_bytes(self) -> int:
        return sum(one.found.array.nbytes for one in self.found if one.found.array is not None)

    def added(self, grids: Grids | None) -> ExactSum:
        """Implement `parts.aggregation.mean.AddedUp`; a precomputed sum is returned only once."""
        total, self._total = self._total, None
        return total if total is not None and total.same_as_on(grids) else self.added_on(grids)

    def added_on(self, grids: Grids | None) -> ExactSum:
        """Return the sum on exactly these grids, opening again the arrays not in memory."""
        gone = [one.offset for one in self.found if one.found.array is None]
        total = self._opened(gone, 0, True, grids)[1]
        total = ExactSum(self._spec.count, grids) if total is None else total
        return total.add(one.found.array for one in self.found if one.found.array is not None)

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Array]:
        return map(self._array, self.found)

    def __getitem__(self, index: Any) -> Any:
        found = self.found[index]
        return list(map(self._array, found)) if isinstance(index, slice) else self._array(found)

    def _array(self, one: _ValidSegment) -> Array:
        if one.found.array is not None:
            return one.found.array
        plain = self._reader.opening.plain(self._group, self._reader.data, one.offset)
        if plain is None:
            raise ValueError("a segment changed while it was read")
        return self._single.array(plain)


class JoinedArrays(Sequence[Array]):
    def __init__(self, parts: Sequence[Sequence[Array]]) -> None:
        self._parts = list[Sequence[Array]]()
        for part in parts:
            found = part._parts if isinstance(part, JoinedArrays) else [part]
            self._parts += [one for one in found if len(one)]

    @property
    def largest(self) -> float:
        return max(map(largest_of, self._parts), default=0.0)

    def added(self, grids: Grids | None) -> ExactSum:
        """Implement `AddedUp` anew: sums of single batches have different grids and do not join."""
        total = ExactSum(np.asarray(self[0]).size, grids)
        for part in self._parts:
            if isinstance(part, GroupArrays):
                total.join(part.added_on(grids))
            else:
                total.add(part)
        return total

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Array]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        for part in self._parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(index)


@dataclass
class ValidatedBatch:
    """Valid arrays by segment, their marks, and refusals by reason.

    Masked groups: `totals` are the sums of each set, `chosen` the indexes of their uploads, of
    `masked` in all, `misfits` those that no honest device sends; `uploads` until masks are checked.
    """

    arrays: dict[str, Sequence[Array]] = field(default_factory=dict)
    accepted: list[bytes] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    totals: list[list[Vector]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    masked: int = 0
    misfits: set[int] = field(default_factory=set)
    uploads: MaskedUploads | None = None


def validate_batch(
    context: RoundContext,
    secret: RoundSecret,
    batch: Batch,
    data: Data,
    sealing: Sealing = real_sealing,
    kept_bytes: int = KEPT_BYTES,
    front: MaskedUploads | None = None,
    workers: WorkerProcesses | None = None,
) -> ValidatedBatch:
    """Open and validate every segment; raises ComputeError.

    Masked segments, and those that the job's rule only sums, are summed one by one while opening.
    Of others, arrays beyond `kept_bytes` are opened again from `data`, which must not change.
    `front` holds uploads already opened from the stream."""
    result, offset, selected = ValidatedBatch(), 0, len(secret.recipients)
    groups, sizes = context.groups, context.segment_bytes
    fits = len(batch.counts) == len(groups)
    masked = {batch.counts[one.group] for one in context.masked} if fits else set()
    fits = fits and sum(n * s for n, s in zip(batch.counts, sizes, strict=True)) == len(data)
    if not fits or len(masked) > 1:  # each upload has one index in all masked groups
        result.refused["malformed_batch"] += 1
        return result
    result.masked = max(masked, default=0)
    if front is None or front.broken or front.opened > result.masked:
        front = MaskedUploads(context, secret, batch.at, sealing, workers)
    if batch.stream:
        offset = result.masked * front.upload_bytes
        front.open_front(data, offset)
    reader = _Reader(front.opening, data, workers)
    starts: list[int] = []  # of masked groups
    for spec, group, count in zip(context.segments, groups, batch.counts, strict=True):
        if spec.bits:
            starts.append(offset)
            offset += 0 if batch.stream else count * sealed_bytes(group)
            continue
        size, adds = sealed_bytes(group), adds_up(context, spec)
        offsets = range(offset, offset + count * size, size)
        offset += count * size
        room = 0 if adds else kept_bytes // max(1, spec.byte_count)
        arrays = result.arrays[spec.name] = GroupArrays(reader, spec, group)
        arrays.validate(offsets, room, adds, selected, result.refused)
        kept_bytes -= arrays.kept_bytes
        result.accepted += [one.mark for one in arrays.found]
    if starts:
        if not batch.stream:
            front.open_groups(data, starts, result.masked)
        front.add_to(result, selected)
    return result


def adds_up(context: RoundContext, spec: SegmentSpec) -> bool:
    """Return whether the rule needs only this segment's mean over all uploads."""
    return spec.name != SOFTMAX and (needs_mean_only(context) or not under_rule(context))


def under_rule(context: RoundContext) -> bool:
    """Return whether the job's rule combines this round's uploads; otherwise they are averaged."""
    round = context.round
    return not round.evaluates and (context.plan.rule.sums or round.phase == TRAIN)


def needs_mean_only(context: RoundContext) -> bool:
    return AGGREGATIONS[context.job.aggregation.name].adds_up


class MaskedUploads:
    """Masked uploads, summed in batch order; of a masked number only the form can be checked.

    Holds one sum per set and masked group, and offsets, marks and checks of each upload."""

    def __init__(
        self,
        context: RoundContext,
        secret: RoundSecret,
        at: RoundId,
        sealing: Sealing,
        workers: WorkerProcesses | None = None,
    ) -> None:
        digest = context.job.digest()
        self.opening = RoundOpening(
            secret.opening, secret.membership, at, digest, secret.checked, sealing
        )
        self._workers = workers
        pairs = zip(context.segments, context.groups, strict=True)
        self._groups = tuple(group for spec, group in pairs if spec.bits)
        self._sizes = [sealed_bytes(group) for group in self._groups]
        self._vectors = masked_vectors(at, context.groups, context.masked)
        self._totals = [[PackedSum(one.ring) for one in self._vectors] for _ in range(context.sets)]
        self._seen = set[bytes]()
        # Per upload: offsets of its masked segments, their marks, the checks of its masks.
        self._counted = dict[int, tuple[tuple[int, ...], list[bytes], bytes]]()
        self._refused, self._misfits = Counter[str](), set[int]()
        self.opened = 0
        self.broken = False  # an opening failed half-way: the sums are unusable

    @property
    def upload_bytes(self) -> int:
        return sum(self._sizes)

    def open_front(self, data: Data, size_bytes: int, counts: Sequence[int] = ()) -> None:
        """Open further uploads of the first `size_bytes`, at most `counts`; raises ComputeError."""
        uploads = size_bytes // self.upload_bytes if self._sizes else 0
        if counts:
            limits = [counts[one.group] for one in self._vectors if one.group < len(counts)]
            uploads = min([uploads, *limits]) if limits else 0
        within = list(accumulate(self._sizes[:-1], initial=0))
        new = range(self.opened, uploads)
        self._open(
            data, [(at, tuple(at * self.upload_bytes + start for start in within)) for at in new]
        )

    def open_groups(self, data: Data, starts: Sequence[int], uploads: int) -> None:
        """Open `uploads` uploads with groups at the offsets `starts`; raises ComputeError."""
        sized = list(zip(starts, self._sizes, strict=True))
        self._open(
            data, [(at, tuple(start + at * size for start, size in sized)) for at in range(uploads)]
        )

    def _open(self, data: Data, uploads: Sequence[Upload]) -> None:
        reader, self.broken = _Reader(self.opening, data, self._workers), True
        names = [list(map(reader.mark, offsets, self._sizes)) for _, offsets in uploads]
        repeated = [self._repeats(of_upload) for of_upload in names]
        new = [one for one, again in zip(uploads, repeated, strict=True) if not again]
        added = iter(self._added(reader, new))
        for (index, offsets), of_upload, again in zip(uploads, names, repeated, strict=True):
            refused, checks = ("repeated_segment", b"") if again else next(added)
            if not refused:
                self._counted[index] = offsets, of_upload, checks
                continue
            self._refused[refused] += 1
            if refused != "not_for_this_round":  # which is what cover traffic looks like
                self._misfits.add(index)
        self.opened, self.broken = self.opened + len(uploads), False

    def _repeats(self, names: Sequence[bytes]) -> bool:
        """Return whether any of these segments was seen before, and record them if not."""
        if not self._seen.isdisjoint(names):
            return True
        self._seen.update(names)
        return False

    def _slice(self, uploads: Sequence[Upload]) -> MaskedSlice:
        return MaskedSlice(self._groups, self._vectors, len(self._totals), uploads)

    def _added(self, reader: _Reader, uploads: Sequence[Upload]) -> list[FoundUpload]:
        cuts = reader.cuts(len(uploads), self.upload_bytes)
        slices = [self._slice(uploads[cut]) for cut in cuts]
        if len(slices) < 2:
            added = (one.add_to(self._totals, self.opening, reader.data) for one in slices)
            return [found for part in added for found in part]
        found: list[list[FoundUpload]] = [[] for _ in slices]

        def take(number: int, part: tuple[list[FoundUpload], list[list[Vector]]]) -> None:
            found[number] = part[0]
            for of_set, more in zip(self._totals, part[1], strict=True):
                for total, other in zip(of_set, more, strict=True):
                    total.join(other)

        reader.run(slices, take)
        return [one for part in found for one in part]

    def add_to(self, result: ValidatedBatch, selected: int) -> None:
        result.refused.update(self._refused)
        result.misfits |= self._misfits
        if len(self._counted) > selected:
            result.refused["more_than_selected"] += len(self._counted)
            return
        result.chosen = list(self._counted)
        result.totals = [[one.total() for one in of_set] for of_set in self._totals]
        result.accepted += [mark for _, marks, _ in self._counted.values() for mark in marks]
        result.uploads = self if self.opening.checked and self._counted else None

    def compare(self, result: ValidatedBatch, checks: bytes, data: Data) -> None:
        """Subtract uploads whose masks differ from the proxy's checks, opening them again.

        Raises ProtocolError `wrong_mask_checks` for another size."""
        size = CHECK_BYTES * len(self._vectors)
        if len(checks) != size * result.masked:
            raise ProtocolError("wrong_mask_checks")
        gone, out = set[bytes](), set[int]()
        for index, (offsets, marks, own) in self._counted.items():
            if checks[index * size : (index + 1) * size] == own:
                continue
            packed = self._slice(()).packed(self.opening, data, offsets)
            of_set = result.totals[index % len(self._totals)]
            for vector, total, raw in zip(self._vectors, of_set, packed, strict=True):
                total.subtract(Vector.from_bytes(vector.ring, bytes(raw)))
            gone.update(marks)
            out.add(index)
        result.misfits |= out
        result.refused.update({"wrong_mask": len(out)} if out else {})
        result.chosen = [index for index in result.chosen if index not in out]
        result.accepted = [mark for mark in result.accepted if mark not in gone]
        result.uploads = None


def norm_limit(norms: Sequence[float]) -> float:
    """Return the norm above which an array of a group with these norms is refused."""
    # Without noise, devices without records send zeros, which would distort the median.
    usual = [norm for norm in norms if norm > 0]
    return NORM_FACTOR * float(np.median(usual)) if len(usual) >= 3 else math.inf


# --- a round under masks, until its masks are taken away -----------------------------------------


class KeptSums(msgspec.Struct, frozen=True, array_like=True):
    """The masked sums of one cell's batch, the request for their masks, and the unmasked rest.

    Stored before the proxy is asked: it answers for one choice of uploads only, and validating
    another batch, or this one again, could choose others."""

    batch: Batch
    unmask: Unmask
    uploads: int
    totals: bytes
    softmax: bytes
    accepted: bytes
    refused: dict[str, int]

    @classmethod
    def of(
        cls, batch: Batch, valid: ValidatedBatch, key: bytes = b"", before: bytes = b""
    ) -> KeptSums:
        """Return the sums and their request; of correlated noise with `key` and `before` of it."""
        chosen = choice(valid.chosen, valid.masked)
        rows = valid.arrays.get(SOFTMAX, ())
        stacked = {SOFTMAX: np.stack([np.asarray(row) for row in rows])} if rows else {}
        return cls(
            batch,
            Unmask(batch.at, batch.blob.digest, chosen, key, before),
            len(valid.chosen),
            b"".join(map(packed_vectors, valid.totals)),
            pack_tensors(stacked),
            b"".join(valid.accepted),
            dict(valid.refused),
        )

    def valid(self) -> ValidatedBatch:
        rows = unpack_tensors(self.softmax)
        starts = range(0, len(self.accepted), _MARK_BYTES)
        marks = [self.accepted[start : start + _MARK_BYTES] for start in starts]
        arrays: dict[str, Sequence[Array]] = {name: list(rows[name]) for name in rows}
        return ValidatedBatch(arrays, marks, Counter(self.refused))

    @property
    def chosen(self) -> list[int]:
        uploads = 8 * len(self.unmask.chosen)
        return chosen_of(self.unmask.chosen, uploads)

    @property
    def question(self) -> bytes:
        """Digest of the request, by which the proxy knows the round's noise."""
        return hashlib.sha256(encode_inner(self.unmask)).digest()

    def half(self, context: RoundContext) -> bytes:
        """Return the question, then this cloud's half of the round's correlated noise."""
        noise = masked_vectors(self.batch.at, context.groups, context.masked)[-1]
        return self.question + self.totals[-noise.ring.byte_count :]

    def sums(
        self, context: RoundContext, masks: bytes, secret: RoundSecret, half: bytes = b""
    ) -> list[tuple[int, dict[str, NDArray[np.int64]]]]:
        """Return upload count and exact sums per set; raises ProtocolError `wrong_mask_sums`.

        `half`: that of the round before, of whose correlated noise a share is taken back."""
        vectors = masked_vectors(self.batch.at, context.groups, context.masked)
        check = RoundCheck.of(self.batch.at, secret.membership, disclosed=secret.checked)
        shapes = {spec.name: spec.shape for spec in context.segments}
        if context.correlated is not None:
            totals = unpacked_vectors(vectors, self.totals)
            before = half[len(self.question) :] if self.unmask.before else b""
            of = context.correlated.coefficient
            sums = correlated_sums(vectors, totals, masks, of, before, check)
            return [(len(self.chosen), {n: a.reshape(shapes[n]) for n, a in sums.items()})]
        size, sets = sum(one.ring.byte_count for one in vectors), context.sets
        if len(masks) != size * sets:
            raise ProtocolError("wrong_mask_sums")
        result = []
        for number, members in enumerate(dealt(self.chosen, sets)):
            of_set = slice(number * size, (number + 1) * size)
            totals = unpacked_vectors(vectors, self.totals[of_set])
            sums = exact_sums(vectors, totals, masks[of_set], check)
            shaped = {name: numbers.reshape(shapes[name]) for name, numbers in sums.items()}
            result.append((len(members), shaped))
        return result


def pack_kept(by_cell: Mapping[str, KeptSums]) -> bytes:
    """Serialize for the store; a single cell without a name is stored as in earlier versions."""
    return msgspec.msgpack.encode(by_cell if set(by_cell) != {""} else by_cell[""])


def unpack_kept(raw: bytes) -> dict[str, KeptSums]:
    kept = msgspec.msgpack.decode(raw, type=dict[str, KeptSums] | KeptSums)
    return {"": kept} if isinstance(kept, KeptSums) else kept


def kept_unmasks(raw: bytes) -> dict[str, Unmask]:
    return {cell: kept.unmask for cell, kept in unpack_kept(raw).items()}
