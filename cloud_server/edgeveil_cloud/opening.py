"""A batch is opened with suspicion: what is counted, what is refused, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from edgeveil.jobs.plan import Plan
from edgeveil.parts.aggregation.mean import BLOCK_VALUES
from edgeveil.parts.exchange import Array, Exchange, SegmentSpec
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Batch, ExchangeId, Group
from edgeveil.protocol.sealed import Sealing, segment_mark
from edgeveil.protocol.transfer import Data
from edgeveil_cloud.round_secret import RoundSecret

NORM_FACTOR = 100.0  # a segment this many times the group's median norm is not a noised update
KEPT_BYTES = 192 << 20  # opened arrays in memory; the others are opened again when they are needed


@dataclass(frozen=True)
class Opener:
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
        """The tensor, on the same memory."""
        dtype = np.dtype(self.spec.dtype).newbyteorder("<")
        return np.frombuffer(plain[: self.spec.byte_count], dtype).reshape(self.spec.shape)

    def again(self, offset: int) -> Array:
        """A segment that was valid before."""
        plain = self.plain(self.sealed(offset))
        if plain is None:
            raise ValueError("a segment changed while it was read")
        return self.array(plain)


@dataclass(frozen=True)
class Found:
    """A valid segment: where it is, its mark, its L2 norm and largest absolute value;
    the array where it is kept.
    """

    offset: int
    name: bytes
    norm: float
    largest: float
    array: Array | None


class Arrays(Sequence[Array]):
    """The valid arrays of one group; what is not in memory is opened each time it is asked for."""

    def __init__(self, opener: Opener, found: Sequence[Found]) -> None:
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
    def __getitem__(self, index: slice) -> Arrays: ...
    def __getitem__(self, index: int | slice) -> Array | Arrays:
        if isinstance(index, slice):
            return Arrays(self._opener, self._found[index])
        return self._array(self._found[index])

    def _array(self, found: Found) -> Array:
        return self._opener.again(found.offset) if found.array is None else found.array


@dataclass
class Opened:
    """What was in a batch: valid arrays by segment, their marks, refusals."""

    arrays: dict[str, Sequence[Array]] = field(default_factory=dict)
    accepted: list[bytes] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def open_batch(
    plan: Plan,
    exchange: Exchange,
    secret: RoundSecret,
    batch: Batch,
    data: Data,
    selected: int,
    sealing: Sealing = real_sealing,
    kept_bytes: int = KEPT_BYTES,
) -> Opened:
    """Open and validate every segment; a group with more than `selected` valid ones is void.

    Arrays beyond `kept_bytes` are let go and opened again from `data`, which must stay as it is.
    """
    result, offset = Opened(), 0
    specs, groups = plan.segments(exchange), plan.groups(exchange)
    sizes = [g.padded_bytes + SEAL_OVERHEAD_BYTES for g in groups]
    fits = len(batch.counts) == len(groups)
    if not fits or sum(n * s for n, s in zip(batch.counts, sizes, strict=True)) != len(data):
        result.refused["malformed_batch"] += 1
        return result
    digest = plan.job.digest()
    for spec, group, count in zip(specs, groups, batch.counts, strict=True):
        opener = Opener(spec, group, secret, batch.at, digest, data, sealing)
        room = kept_bytes // max(1, spec.byte_count)
        found = _valid(opener, offset, count, room, result.refused)
        offset += count * opener.size_bytes
        found = _of_usual_size(found, result.refused)
        if len(found) > selected:
            result.refused["more_than_selected"] += len(found)
            found = []
        kept_bytes -= spec.byte_count * sum(one.array is not None for one in found)
        result.arrays[spec.name] = Arrays(opener, found)
        result.accepted += [one.name for one in found]
    return result


def _valid(opener: Opener, start: int, count: int, room: int, refused: Counter[str]) -> list[Found]:
    """The segments of one group that may count; the first `room` of them with their arrays."""
    found: list[Found] = []
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
            largest = max(float(array.max(initial=0)), -float(array.min(initial=0)))
            if not math.isfinite(largest):
                refused["not_finite"] += 1
                continue
            kept = array if len(found) < room else None
            found.append(Found(offset, name, _norm(array), largest, kept))
    return found


def _norm(array: Array) -> float:
    # Not numpy's: that goes to BLAS, whose threads stand in the way of everybody else here.
    flat, total = array.ravel(), 0.0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, BLOCK_VALUES):
            block = flat[start : start + BLOCK_VALUES].astype(np.float64)
            total += float(np.einsum("i,i->", block, block))
    return math.sqrt(total)


def _of_usual_size(found: list[Found], refused: Counter[str]) -> list[Found]:
    """Drop arrays whose norm is far above the group's median: no honest noise reaches there."""
    # A device without records sends zeros where there is no noise: they do not say what is usual.
    norms = [one.norm for one in found if one.norm > 0]
    if len(norms) < 3:
        return found
    limit = NORM_FACTOR * float(np.median(norms))
    kept = [one for one in found if one.norm <= limit]
    if len(kept) < len(found):
        refused["norm"] += len(found) - len(kept)
    return kept
