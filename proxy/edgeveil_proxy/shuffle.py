"""Split & shuffle on disk: a round's uploads in, one batch in random order out.

`MaskedStream` forwards masked uploads before the last ones arrive.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

from edgeveil.protocol.proxy_rounds import (
    ShuffledBatch,
    ShuffleRound,
    StreamedUploads,
    StreamUploads,
)
from edgeveil.protocol.transfer import Data, Piece
from edgeveil.storage import FileData, sync_folder

Shuffle = Callable[[list[int]], None]
"""Permutes a list in place, uniformly, with operating system randomness."""

_BLOCK_BYTES = 1 << 20
_NAME_BYTES = 32


def shuffle_round(
    task: ShuffleRound, uploads: Path, batch: Path, shuffle: Shuffle
) -> ShuffledBatch:
    """Write `batch` durably from `uploads`; memory is a number per segment. Raises OSError."""
    groups, order = _places(task, shuffle)
    digest = _written(batch, uploads, _pieces(task.segment_bytes, groups))
    return ShuffledBatch(tuple(map(len, groups)), digest, FileData(batch), order)


def batch_order(task: ShuffleRound, shuffle: Shuffle) -> list[list[int]]:
    """Return the upload slots of each group's segments, in the batch's order."""
    groups, _ = _places(task, shuffle)
    return [[place // task.slot_bytes for place in places] for places in groups]


def _written(batch: Path, uploads: Path, pieces: Iterable[tuple[int, int]]) -> bytes:
    """Copy these (place, size) durably into the file `batch`; return its digest."""
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    source = os.open(uploads, os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(batch, flags, 0o600)
    try:
        with ThreadPoolExecutor(1) as hasher:
            hashed = hasher.submit(digest.update, b"")
            for block in _blocks(source, pieces):
                hashed.result()
                hashed = hasher.submit(digest.update, block)
                while block:
                    block = block[os.write(target, block) :]
            hashed.result()
        os.fdatasync(target)
    finally:
        os.close(source)
        os.close(target)
    sync_folder(batch.parent)
    return digest.digest()


def _pieces(
    segment_bytes: Sequence[int], groups: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    for size_bytes, places in zip(segment_bytes, groups, strict=True):
        for place in places:
            yield from _cut(place, size_bytes)


def _cut(place: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size_bytes, _BLOCK_BYTES):
        yield place + start, min(_BLOCK_BYTES, size_bytes - start)


def _blocks(source: int, pieces: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
    """Yield the pieces' bytes; a block is valid until the next but one."""
    now, other = memoryview(bytearray(_BLOCK_BYTES)), memoryview(bytearray(_BLOCK_BYTES))
    filled = 0
    for place, size_bytes in pieces:
        if filled + size_bytes > _BLOCK_BYTES:
            yield now[:filled]
            now, other, filled = other, now, 0
        if os.preadv(source, [now[filled : filled + size_bytes]], place) != size_bytes:
            raise OSError(errno.EIO, "the round's uploads are cut off")
        filled += size_bytes
    yield now[:filled]


def _places(
    task: ShuffleRound, shuffle: Shuffle, but: AbstractSet[int] = frozenset()
) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return each group's offsets in batch order, and the uploads of the `together` groups.

    Groups below the floor, and those in `but`, have none."""
    groups: list[list[int]] = [[] for _ in task.segment_bytes]
    for slot, held in task.uploads:
        place = slot * task.slot_bytes
        for group in held:
            groups[group].append(place)
            place += task.segment_bytes[group]
    rank = dict[int, int]()  # slot -> rank in `together` groups, of which an upload has all or none
    for group, places in enumerate(groups):
        if group in but:
            places.clear()
        elif group in task.together and rank:
            places.sort(key=lambda place: rank[place // task.slot_bytes])
        elif not task.keep_order:
            shuffle(places)
        if len(places) < task.floor:
            places.clear()
        elif group in task.together:
            rank = {place // task.slot_bytes: at for at, place in enumerate(places)}
    uploads = {slot: upload for upload, (slot, _) in enumerate(task.uploads)}
    return groups, tuple(uploads[slot] for slot in rank)


class PiecedData:
    """A blob as (place, size) of the file `path`, neighbours merged; raises OSError."""

    def __init__(self, path: Path, pieces: Iterable[tuple[int, int]] = ()) -> None:
        self._file = FileData(path, 0, 1 << 62)
        self._places, self._sizes, self._ends = array("q"), array("q"), array("q")
        self.add(pieces)

    def add(self, pieces: Iterable[tuple[int, int]]) -> None:
        for place, size in pieces:
            if self._places and self._places[-1] + self._sizes[-1] == place:
                self._sizes[-1] += size
                self._ends[-1] += size
            else:
                self._places.append(place)
                self._sizes.append(size)
                self._ends.append(len(self) + size)

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._places, self._sizes, strict=True))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(len(self))
        found, at = [], bisect_right(self._ends, start)
        while start < stop:
            behind = self._ends[at] - start
            place = self._places[at] + self._sizes[at] - behind
            size = min(behind, stop - start)
            found.append(self._file[place : place + size])
            if len(found[-1]) != size:
                raise OSError(errno.EIO, "the round's uploads are cut off")
            start, at = start + size, at + 1
        return found[0] if len(found) == 1 else b"".join(found)


class MaskedStream:
    """The order in which one round's masked uploads are forwarded."""

    def __init__(self, uploads: Path) -> None:
        self.name = secrets.token_bytes(_NAME_BYTES)
        self._lock = threading.Lock()  # chunks and the batch are made in threads
        self._path = uploads
        self._data = PiecedData(uploads)
        self._digest = hashlib.sha256()
        self._order: list[int] = []
        self._finished = False

    def add(self, task: StreamUploads, shuffle: Shuffle) -> StreamedUploads:
        """Add a chunk unless the batch is finished; raises OSError and then changes nothing."""
        with self._lock:
            if not self._finished:
                self._add(task, shuffle)
            return StreamedUploads(self.name, Piece(self._data, 0, len(self._data)))

    def finish(self, task: ShuffleRound, batch: Path, shuffle: Shuffle) -> ShuffledBatch:
        """Add the last chunk and the other groups; raises OSError.

        With other groups all is copied to `batch`: no file may show one device's segments of both.
        """
        with self._lock:
            self._finished, known = True, set(self._order)
            late = tuple(
                (index, slot, groups)
                for index, (slot, groups) in enumerate(task.uploads)
                if index not in known and task.together.intersection(groups)
            )
            chunk = StreamUploads(
                task.at, task.segment_bytes, task.slot_bytes, late, task.together, task.keep_order
            )
            self._add(chunk, shuffle)
            others, _ = _places(task, shuffle, but=task.together)
            counts = [len(places) for places in others]
            for group in task.together:
                counts[group] = len(self._order)
            order = (tuple(self._order),)
            if not any(others):
                pieces, digest = self._data.pieces, self._digest.digest()
                data: Data = self._data
                return ShuffledBatch(tuple(counts), digest, data, *order, pieces, self.name)
            front = (cut for piece in self._data.pieces for cut in _cut(*piece))
            digest = _written(batch, self._path, [*front, *_pieces(task.segment_bytes, others)])
            return ShuffledBatch(tuple(counts), digest, FileData(batch), *order, stream=self.name)

    def _add(self, task: StreamUploads, shuffle: Shuffle) -> None:
        places = list(range(len(task.uploads)))
        if not task.keep_order:
            shuffle(places)
        chunk = [task.uploads[place] for place in places]
        pieces = [piece for _, slot, groups in chunk for piece in _masked(task, slot, groups)]
        digest = self._digest.copy()
        new = PiecedData(self._path, pieces)
        for start in range(0, len(new), _BLOCK_BYTES):
            digest.update(new[start : start + _BLOCK_BYTES])
        self._data.add(pieces)
        self._digest = digest
        self._order += [index for index, _, _ in chunk]


def _masked(task: StreamUploads, slot: int, groups: Sequence[int]) -> Iterator[tuple[int, int]]:
    places = accumulate((task.segment_bytes[g] for g in groups), initial=slot * task.slot_bytes)
    for group, place in zip(groups, places, strict=False):
        if group in task.together:
            yield place, task.segment_bytes[group]
