"""Split & shuffle on the disk: a round's uploads in, one batch in random order out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from fl_core.file_data import FileData, sync_folder
from fl_core.protocol.proxy_tasks import Shuffled, ShuffleRound

Shuffle = Callable[[list[int]], None]
"""Permutes a list in place, uniformly, from the operating system's randomness."""

_BLOCK_BYTES = 4 << 20


def shuffle_round(task: ShuffleRound, uploads: Path, batch: Path, shuffle: Shuffle) -> Shuffled:
    """Write `batch` from `uploads`, durably, in place of an earlier try's. Raises OSError.

    Memory: a number per segment, whatever the segments' size, and two blocks. A block is hashed
    while it is written and the next one read.
    """
    groups = _places(task)
    for places in groups:
        shuffle(places)
    source, digest = FileData(uploads), hashlib.sha256()
    descriptor = os.open(batch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as target, ThreadPoolExecutor(1) as hasher:
        hashed: Future[None] | None = None
        for block in _blocks(task.segment_bytes, groups, source):
            if hashed is not None:
                hashed.result()
            hashed = hasher.submit(digest.update, block)
            _write(target, block)
        if hashed is not None:
            hashed.result()
        os.fdatasync(target.fileno())
    source.close()
    sync_folder(batch.parent)
    return Shuffled(tuple(map(len, groups)), digest.digest(), FileData(batch))


def _blocks(
    segment_bytes: Sequence[int], groups: Sequence[Sequence[int]], source: FileData
) -> Iterator[bytes]:
    """The segments in the order of their places, some megabytes at a time."""
    held: list[bytes] = []
    room = _BLOCK_BYTES
    for size_bytes, places in zip(segment_bytes, groups, strict=True):
        for place in places:
            held.append(source[place : place + size_bytes])
            room -= size_bytes
            if room <= 0:
                yield b"".join(held)
                held, room = [], _BLOCK_BYTES
    if held:
        yield b"".join(held)


def _write(target: BinaryIO, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[target.write(rest) :]


def _places(task: ShuffleRound) -> list[list[int]]:
    """Where each group's segments lie; of a group below the floor, none."""
    groups: list[list[int]] = [[] for _ in task.segment_bytes]
    for slot, held in task.uploads:
        place = slot * task.slot_bytes
        for group in held:
            groups[group].append(place)
            place += task.segment_bytes[group]
    return [places if len(places) >= task.floor else [] for places in groups]
