"""Split & shuffle on the disk: a round's uploads in, one batch in random order out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from fl_core.file_data import FileData, sync_folder
from fl_core.protocol.proxy_tasks import Shuffled, ShuffleRound

Shuffle = Callable[[list[int]], None]
"""Permutes a list in place, uniformly, from the operating system's randomness."""

_BUFFER_BYTES = 1 << 20


def shuffle_round(task: ShuffleRound, uploads: Path, batch: Path, shuffle: Shuffle) -> Shuffled:
    """Write `batch` from `uploads`, durably, in place of an earlier try's. Raises OSError.

    Memory: a number per segment, whatever the segments' size.
    """
    groups = _places(task)
    source, digest = FileData(uploads), hashlib.sha256()
    descriptor = os.open(batch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES) as target:
        for size_bytes, places in zip(task.segment_bytes, groups, strict=True):
            shuffle(places)
            for place in places:
                segment = source[place : place + size_bytes]
                digest.update(segment)
                target.write(segment)
        target.flush()
        os.fdatasync(target.fileno())
    source.close()
    sync_folder(batch.parent)
    return Shuffled(tuple(map(len, groups)), digest.digest(), FileData(batch))


def _places(task: ShuffleRound) -> list[list[int]]:
    """Where each group's segments lie; of a group below the floor, none."""
    groups: list[list[int]] = [[] for _ in task.segment_bytes]
    for slot, held in task.uploads:
        place = slot * task.slot_bytes
        for group in held:
            groups[group].append(place)
            place += task.segment_bytes[group]
    return [places if len(places) >= task.floor else [] for places in groups]
