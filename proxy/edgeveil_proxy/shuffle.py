"""Split & shuffle on the disk: a round's uploads in, one batch in random order out."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgeveil.protocol.proxy_tasks import ShuffledBatch, ShuffleRound
from edgeveil.storage import FileData, sync_folder

Shuffle = Callable[[list[int]], None]
"""Permutes a list in place, uniformly, from the operating system's randomness."""

_BLOCK_BYTES = 1 << 20


def shuffle_round(
    task: ShuffleRound, uploads: Path, batch: Path, shuffle: Shuffle
) -> ShuffledBatch:
    """Write `batch` from `uploads`, durably, in place of an earlier try's. Raises OSError.

    Memory: a number per segment, whatever the segments' size, and two blocks. A block is hashed
    while it is written and the next one read.
    """
    groups, order = _places(task, shuffle)
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    source = os.open(uploads, os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(batch, flags, 0o600)
    try:
        with ThreadPoolExecutor(1) as hasher:
            hashed = hasher.submit(digest.update, b"")
            for block in _blocks(source, _pieces(task.segment_bytes, groups)):
                hashed.result()
                hashed = hasher.submit(digest.update, block)
                _write(target, block)
            hashed.result()
        os.fdatasync(target)
    finally:
        os.close(source)
        os.close(target)
    sync_folder(batch.parent)
    return ShuffledBatch(tuple(map(len, groups)), digest.digest(), FileData(batch), order)


def _pieces(
    segment_bytes: Sequence[int], groups: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """(place, size) of what is read at once, in the order of the batch."""
    for size_bytes, places in zip(segment_bytes, groups, strict=True):
        for place in places:
            for start in range(0, size_bytes, _BLOCK_BYTES):
                yield place + start, min(_BLOCK_BYTES, size_bytes - start)


def _blocks(source: int, pieces: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
    """The pieces one after the other. A block is good until the next but one is asked for."""
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


def _write(target: int, block: memoryview) -> None:
    while block:
        block = block[os.write(target, block) :]


def _places(task: ShuffleRound, shuffle: Shuffle) -> tuple[list[list[int]], tuple[int, ...]]:
    """Where each group's segments lie, in the batch's order; of a group below the floor, none.

    With it, which uploads the groups that stay together come from.
    """
    groups: list[list[int]] = [[] for _ in task.segment_bytes]
    for slot, held in task.uploads:
        place = slot * task.slot_bytes
        for group in held:
            groups[group].append(place)
            place += task.segment_bytes[group]
    rank = dict[int, int]()  # by slot, of the groups that stay together: an upload has all or none
    for group, places in enumerate(groups):
        if group in task.together and rank:
            places.sort(key=lambda place: rank[place // task.slot_bytes])
        elif not task.keep_order:
            shuffle(places)
        if len(places) < task.floor:
            places.clear()
        elif group in task.together:
            rank = {place // task.slot_bytes: at for at, place in enumerate(places)}
    uploads = {slot: upload for upload, (slot, _) in enumerate(task.uploads)}
    return groups, tuple(uploads[slot] for slot in rank)
