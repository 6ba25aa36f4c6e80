"""A batch that the proxy hands over: kept on the disk, opened with suspicion, validated."""

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
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Batch, Blob, Group, RoundId, Unmask
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

NORM_FACTOR = 100.0  # a segment this many times the group's median norm is not a noised update
KEPT_BYTES = 192 << 20  # opened arrays in memory; the others are opened again when they are needed
_READ_BYTES = 1 << 20
_SLICE_BYTES = 16 << 20  # what one worker opens at one go
_OPENING_BYTES = 32 << 10  # an opening costs what so many bytes cost, beside its own
_LEAST_ADDED = 4  # uploads for one sum, which has to come back
_LOOKED_AT = 4  # segments, for one that is not zero
_SPARE_BITS = 3  # others may have values so much larger
_MARK_BYTES = 32


# --- on the disk ---


class SpooledBatch:
    """One batch in a file without a name, a `Data`: gone with the process or its last reader."""

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

    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def front_bytes(self) -> int:
        """Bytes that are there without a gap from the beginning on, of those that came in turn."""
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
    """At most one batch, in `folder` (None: the system's folder for temporary files). A disk that
    is full spoils the batch and not the process: `whole` says so, and the round is asked for
    again."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._batch: SpooledBatch | None = None
        self._failure: OSError | None = None

    def put(self, part: BatchPart) -> None:
        """Keep a part; the first one of another batch takes the place of the one before."""
        try:
            if self._batch is None or self._batch.digest != part.digest:
                self.drop()
                self._batch = SpooledBatch(part.digest, self._folder)
            self._batch.write(part.offset, part.data)
        except OSError as error:
            self._failure = error

    def whole(self, blob: Blob, stream: bytes = b"") -> SpooledBatch:
        """The batch, checked. Raises ProtocolError `bad_digest`, or the OSError of its writing."""
        if self._failure:
            raise self._failure
        if self._batch is None or self._batch.digest != (stream or blob.digest):
            raise ProtocolError("bad_digest")
        self._batch.check(blob)
        return self._batch

    @property
    def under_way(self) -> SpooledBatch | None:
        """The batch as far as it came, unchecked."""
        return None if self._failure else self._batch

    def drop(self) -> None:
        self._batch, self._failure = None, None


# --- opened ---


@dataclass(frozen=True)
class Reader:
    """Opens segments of one batch: here, or in workers that can read it."""

    opening: RoundOpening
    data: Data
    workers: WorkerProcesses | None = None

    def mark(self, offset: int, size_bytes: int) -> bytes:
        """Of the sealed segment there; only its ends are read for it."""
        end = offset + size_bytes
        ends = self.data[offset : offset + SEAL_OVERHEAD_BYTES] + self.data[end - TAG_BYTES : end]
        return segment_mark(self.opening.membership, ends)

    def cuts(self, count: int, size_bytes: int) -> list[slice]:
        """How to share out so many segments or uploads of one size; one cut: they are opened here.
        Sums come back with each slice and are as large as four uploads of float32 numbers."""
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
        """Open all; `take` gets each one's number and result, in any order. Raises ComputeError."""
        if len(slices) > 1 and self.workers is not None and isinstance(self.data, BatchFile):
            self.workers.run(self.opening, self.data, slices, take)
            return
        for number, one in enumerate(slices):
            take(number, one.opened(self.opening, self.data))


class ValidSegment(NamedTuple):
    offset: int
    mark: bytes
    found: Found


class GroupArrays(Sequence[Array]):
    """The valid arrays of one group; what is not in memory is opened each time it is asked for."""

    def __init__(self, reader: Reader, spec: SegmentSpec, group: Group) -> None:
        self._reader, self._spec, self._group = reader, spec, group
        self._single = PlainSlice(spec, group)
        self.found = list[ValidSegment]()
        self._total: ExactSum | None = None  # where it was made as they were opened

    def validate(
        self, offsets: Sequence[int], room: int, adds: bool, selected: int, refused: Counter[str]
    ) -> None:
        """Take the segments that count, the first `room` of them with their arrays; with `adds`
        their sum, unless all that was added up does not count. More than `selected` are void."""
        size = sealed_bytes(self._group)
        marks = {offset: self._reader.mark(offset, size) for offset in offsets}
        first = {mark: offset for offset, mark in reversed(marks.items())}
        new = [offset for offset, mark in marks.items() if first[mark] == offset]
        if len(new) < len(marks):
            refused["repeated_segment"] += len(marks) - len(new)
        opened, total = self._opened(new, room, adds, self._likely_grids(new) if adds else None)
        valid = list[ValidSegment]()
        for offset, one in zip(new, opened, strict=True):
            if one.refused:
                refused[one.refused] += 1
            else:
                valid.append(ValidSegment(offset, marks[offset], one))
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
        """What they are; of `room` of them the arrays, or with `adds` the sum of all valid ones."""
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
        """Grids on which a sum of all is likely to be exact, by a look at the first ones."""
        if np.issubdtype(np.dtype(self._spec.dtype), np.integer):
            return None
        looked = partial(self._single.looked_at, self._reader.opening, self._reader.data)
        largest = (looked(offset)[0].largest for offset in offsets[:_LOOKED_AT])
        most = next(filter(None, largest), 1.0)  # a device without records may send zeros
        return Grids.of(most, max(1, len(offsets)), _SPARE_BITS)

    @property
    def largest(self) -> float:
        return max((one.found.largest for one in self.found), default=0.0)

    @property
    def kept_bytes(self) -> int:
        return sum(one.found.array.nbytes for one in self.found if one.found.array is not None)

    def added(self, grids: Grids | None) -> ExactSum:
        """See `edgeveil.parts.aggregation.mean.AddedUp`. The one that was made on the way is given
        away, and is not there a second time."""
        total, self._total = self._total, None
        return total if total is not None and total.same_as_on(grids) else self.added_on(grids)

    def added_on(self, grids: Grids | None) -> ExactSum:
        """Their sum on just these grids; those that are not in memory are opened for it."""
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

    def _array(self, one: ValidSegment) -> Array:
        if one.found.array is not None:
            return one.found.array
        plain = self._reader.opening.plain(self._group, self._reader.data, one.offset)
        if plain is None:
            raise ValueError("a segment changed while it was read")
        return self._single.array(plain)


class JoinedArrays(Sequence[Array]):
    """The valid arrays of one group in several batches."""

    def __init__(self, parts: Sequence[Sequence[Array]]) -> None:
        self._parts = list[Sequence[Array]]()
        for part in parts:
            found = part._parts if isinstance(part, JoinedArrays) else [part]
            self._parts += [one for one in found if len(one)]

    @property
    def largest(self) -> float:
        return max(map(largest_of, self._parts), default=0.0)

    def added(self, grids: Grids | None) -> ExactSum:
        """See `edgeveil.parts.aggregation.mean.AddedUp`. What was added up as it was opened was so
        on grids of each batch's own, whose sums do not join."""
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
    """Valid arrays by segment, their marks, refusals. Of masked groups: `totals`, for each set of
    uploads the sums under masks in the groups' order; the `chosen` of so many `masked` uploads that
    are in them, by their place in the batch; `misfits`, the places of those that no honest device
    sends; `uploads`, while their masks are yet to be checked."""

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
    """Open and validate every segment; a group with more valid ones than were selected is void.
    Those under masks, and those that the job's rule adds up, are added on the way: no two are in
    memory. Of others, arrays beyond `kept_bytes` are opened again from `data`, which must stay as
    it is. `front` is what was opened of its stream before. With `workers` the result is the same.
    Raises ComputeError."""
    result, offset, selected = ValidatedBatch(), 0, len(secret.recipients)
    groups, sizes = context.groups, context.segment_bytes
    fits = len(batch.counts) == len(groups)
    masked = {batch.counts[one.group] for one in context.masked} if fits else set()
    fits = fits and sum(n * s for n, s in zip(batch.counts, sizes, strict=True)) == len(data)
    if not fits or len(masked) > 1:  # each upload has one place in all masked groups
        result.refused["malformed_batch"] += 1
        return result
    result.masked = max(masked, default=0)
    if front is None or front.broken or front.opened > result.masked:
        front = MaskedUploads(context, secret, batch.at, sealing, workers)
    if batch.stream:
        offset = result.masked * front.upload_bytes
        front.open_front(data, offset)
    reader = Reader(front.opening, data, workers)
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
        front.tell(result, selected)
    return result


def adds_up(context: RoundContext, spec: SegmentSpec) -> bool:
    """Whether a segment's mean over all uploads is all that the job's rule asks for."""
    return spec.name != SOFTMAX and (looks_at_none(context) or not under_rule(context))


def under_rule(context: RoundContext) -> bool:
    """Whether the job's rule combines what comes of this round; else it is averaged."""
    round = context.round
    return not round.evaluates and (context.plan.rule.sums or round.phase == TRAIN)


def looks_at_none(context: RoundContext) -> bool:
    """Whether the job's rule asks for the mean of all uploads alone."""
    return AGGREGATIONS[context.job.aggregation.name].adds_up


class MaskedUploads:
    """Whole uploads under masks, opened and added up in the order of their batch; of a number
    under a mask only the form can be checked. Memory: for each set of uploads a sum of each
    masked group, and places, marks and checks."""

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
        # Where an upload's masked segments begin, their marks, and the checks of its masks.
        self._counted = dict[int, tuple[tuple[int, ...], list[bytes], bytes]]()
        self._refused, self._misfits = Counter[str](), set[int]()
        self.opened = 0
        self.broken = False  # it failed half-way, and sums of some are not those of any

    @property
    def upload_bytes(self) -> int:
        return sum(self._sizes)

    def open_front(self, data: Data, size_bytes: int, counts: Sequence[int] = ()) -> None:
        """Open those of the first bytes, which stand one after the other, that are not opened
        yet; at most as many as `counts` says of their groups. Raises ComputeError."""
        uploads = size_bytes // self.upload_bytes if self._sizes else 0
        if counts:
            said = [counts[one.group] for one in self._vectors if one.group < len(counts)]
            uploads = min([uploads, *said]) if said else 0
        within = list(accumulate(self._sizes[:-1], initial=0))
        new = range(self.opened, uploads)
        self._open(
            data, [(at, tuple(at * self.upload_bytes + start for start in within)) for at in new]
        )

    def open_groups(self, data: Data, starts: Sequence[int], uploads: int) -> None:
        """So many, whose groups begin at these places. Raises ComputeError."""
        sized = list(zip(starts, self._sizes, strict=True))
        self._open(
            data, [(at, tuple(start + at * size for start, size in sized)) for at in range(uploads)]
        )

    def _open(self, data: Data, uploads: Sequence[Upload]) -> None:
        reader, self.broken = Reader(self.opening, data, self._workers), True
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
            if refused != "not_for_this_round":  # as one who covers others sends it
                self._misfits.add(index)
        self.opened, self.broken = self.opened + len(uploads), False

    def _repeats(self, names: Sequence[bytes]) -> bool:
        """Whether one of these segments came before; if not, they have come now."""
        if not self._seen.isdisjoint(names):
            return True
        self._seen.update(names)
        return False

    def _slice(self, uploads: Sequence[Upload]) -> MaskedSlice:
        return MaskedSlice(self._groups, self._vectors, len(self._totals), uploads)

    def _added(self, reader: Reader, uploads: Sequence[Upload]) -> list[FoundUpload]:
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

    def tell(self, result: ValidatedBatch, selected: int) -> None:
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
        """Leave out of what they came to those whose masks are not those of their seeds, by the
        proxy's checks. Their segments are opened again from `data`. Raises ProtocolError
        `wrong_mask_checks`: of another size."""
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
    """The norm above which an array of a group with these norms does not count."""
    # A device without records sends zeros where there is no noise: they do not say what is usual.
    usual = [norm for norm in norms if norm > 0]
    return NORM_FACTOR * float(np.median(usual)) if len(usual) >= 3 else math.inf


# --- a round under masks, until its masks are taken away -----------------------------------------


class KeptSums(msgspec.Struct, frozen=True, array_like=True):
    """The sums under masks of one cell's batch, the question for their masks, and the rest of the
    batch. Durable before the proxy is asked, which answers for one choice of uploads only: another
    batch, or another look at the same, could come to another."""

    batch: Batch
    unmask: Unmask
    uploads: int
    totals: bytes
    softmax: bytes
    accepted: bytes
    refused: dict[str, int]

    @classmethod
    def of(cls, batch: Batch, valid: ValidatedBatch) -> KeptSums:
        chosen = choice(valid.chosen, valid.masked)
        rows = valid.arrays.get(SOFTMAX, ())
        stacked = {SOFTMAX: np.stack([np.asarray(row) for row in rows])} if rows else {}
        return cls(
            batch,
            Unmask(batch.at, batch.blob.digest, chosen),
            len(valid.chosen),
            b"".join(map(packed_vectors, valid.totals)),
            pack_tensors(stacked),
            b"".join(valid.accepted),
            dict(valid.refused),
        )

    def valid(self) -> ValidatedBatch:
        """The batch again, but for its sums."""
        rows = unpack_tensors(self.softmax)
        starts = range(0, len(self.accepted), _MARK_BYTES)
        marks = [self.accepted[start : start + _MARK_BYTES] for start in starts]
        arrays: dict[str, Sequence[Array]] = {name: list(rows[name]) for name in rows}
        return ValidatedBatch(arrays, marks, Counter(self.refused))

    @property
    def chosen(self) -> list[int]:
        uploads = 8 * len(self.unmask.chosen)
        return chosen_of(self.unmask.chosen, uploads)

    def sums(
        self, context: RoundContext, masks: bytes, secret: RoundSecret
    ) -> list[tuple[int, dict[str, NDArray[np.int64]]]]:
        """Uploads and exact sums of each set. Raises ProtocolError `wrong_mask_sums`."""
        vectors = masked_vectors(self.batch.at, context.groups, context.masked)
        check = RoundCheck.of(self.batch.at, secret.membership, disclosed=secret.checked)
        shapes = {spec.name: spec.shape for spec in context.segments}
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
    """For the store; a cell without a name stands alone, as in earlier versions."""
    return msgspec.msgpack.encode(by_cell if set(by_cell) != {""} else by_cell[""])


def unpack_kept(raw: bytes) -> dict[str, KeptSums]:
    kept = msgspec.msgpack.decode(raw, type=dict[str, KeptSums] | KeptSums)
    return {"": kept} if isinstance(kept, KeptSums) else kept


def kept_unmasks(raw: bytes) -> dict[str, Unmask]:
    """Each cell's question for its masks."""
    return {cell: kept.unmask for cell, kept in unpack_kept(raw).items()}
