"""CIFAR-10 and CIFAR-100 in their binary version: one byte or two of labels, then the pixels. A
label outside the classes is refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from edgeveil.data.records import MAX_BYTES, Records, as_records, require_room
from edgeveil.errors import DataError
from edgeveil.parts.sources.source import FileSet, published_part

SHAPE = (3, 32, 32)  # red, green, blue; then rows and columns
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Form:
    """How one record stands in the file: `labels` bytes, of which the last is the class."""

    name: str
    labels: int
    classes: int

    @property
    def record_bytes(self) -> int:
        return self.labels + _PIXELS


_CIFAR10 = _Form("CIFAR-10", 1, 10)
_CIFAR100 = _Form("CIFAR-100", 2, 100)  # the coarse class, then the fine one

CIFAR10_FILES = FileSet(
    tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",), "cifar-10-batches-bin"
)
CIFAR100_FILES = FileSet(("train.bin",), ("test.bin",), "cifar-100-binary")


def _read(form: _Form, files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    """Records x (n, 3, 32, 32) float32 in 0..255 of all files. Raises DataError with the place."""
    counts = [_count(file, form) for file in files]
    require_room((sum(counts), *SHAPE), 1, max_bytes, str(files[0].parent))
    rows = [_rows(file, count, form) for file, count in zip(files, counts, strict=True)]
    whole = np.concatenate(rows)
    x = whole[:, form.labels :].reshape(-1, *SHAPE)
    return as_records(x, whole[:, form.labels - 1], str(files[0].parent))


def _count(file: Path, form: _Form) -> int:
    size = file.stat().st_size
    count, rest = divmod(size, form.record_bytes)
    if rest or not count:
        raise DataError(
            f"holds {size} bytes, no multiple of the {form.record_bytes} of a {form.name} record",
            where=str(file),
            fix=f"copy the file again, or take it from the binary version of {form.name}",
        )
    return count


def _rows(file: Path, count: int, form: _Form) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    with file.open("rb") as stream:
        content = stream.read(count * form.record_bytes)
    if len(content) != count * form.record_bytes:
        raise DataError("became shorter while it was read", where=str(file), fix="copy it again")
    rows = np.frombuffer(content, np.uint8).reshape(count, form.record_bytes)
    wrong = np.flatnonzero(rows[:, form.labels - 1] >= form.classes)
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"record {first} has the label {rows[first, form.labels - 1]}, {form.name} has "
            f"0 to {form.classes - 1}",
            where=f"{file}, byte {first * form.record_bytes + form.labels - 1}",
            fix=f"take the file from the binary version of {form.name}",
        )
    return rows


read_cifar10, read_cifar100 = partial(_read, _CIFAR10), partial(_read, _CIFAR100)

PARTS = (
    published_part(
        CIFAR10_FILES,
        read_cifar10,
        name="cifar10",
        shape=SHAPE,
        classes=10,
        source="Krizhevsky 2009, binary version",
        needs="the folder of the published files",
        summary="60,000 coloured photographs of 32×32 pixels, 10 classes.",
        example="local_run: {data: {source: cifar10, path: data/cifar10}}",
    ),
    published_part(
        CIFAR100_FILES,
        read_cifar100,
        name="cifar100",
        shape=SHAPE,
        classes=100,
        source="Krizhevsky 2009, binary version",
        needs="the folder of the published files",
        summary="60,000 coloured photographs of 32×32 pixels, 100 classes.",
        example="local_run: {data: {source: cifar100, path: data/cifar100}}",
    ),
)
