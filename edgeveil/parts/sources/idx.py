"""IDX files (an owner's own, MNIST, EMNIST; plain or gzipped) and binary CIFAR-10 and CIFAR-100.

Pixels stay 0 to 255. A CIFAR record is one or two label bytes, then the pixels. A label outside the
classes is refused."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import MAX_BYTES, Records, as_records, require_file, require_room
from edgeveil.errors import DataError
from edgeveil.parts.sources.source import FileSet, Origin, SourcePart, published_part

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(origin: Origin) -> Records:
    """Return records from images (n, rows, columns) and labels (n,). Raises DataError."""
    images = require_file(origin.path, "data.path")
    labels = require_file(origin.labels_path, "data.labels_path")
    x, y = idx_array(images, origin.max_bytes), idx_array(labels, origin.max_bytes)
    return as_records(x, y, where=f"{images} and {labels}")


def idx_array(file: Path, max_bytes: int = MAX_BYTES) -> NDArray[Any]:
    with file.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    try:
        with cast(IO[bytes], gzip.open(file, "rb") if zipped else file.open("rb")) as stream:
            return _read_array(stream, file, max_bytes)
    except (OSError, EOFError, zlib.error) as error:
        what = f"cannot be read: {error}"
        raise DataError(what, where=str(file), fix="copy the file again") from error


def _read_array(stream: IO[bytes], file: Path, max_bytes: int) -> NDArray[Any]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 8:
        what = f"is no IDX file: it begins with {magic.hex() or 'nothing'}"
        fix = "name the original file, for example train-images-idx3-ubyte.gz"
        raise DataError(what, where=f"{file}, byte 0", fix=fix)
    dtype, axes = np.dtype(_TYPES[magic[2]]), magic[3]
    header = stream.read(4 * axes)
    if len(header) < 4 * axes:
        raise DataError("ends inside its header", where=f"{file}, byte 4", fix="copy it again")
    shape = struct.unpack(f">{axes}I", header)
    require_room(shape, dtype.itemsize, max_bytes, str(file))
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    content = stream.read(size + 1)
    if len(content) != size:
        have = "more" if len(content) > size else f"only {len(content)}"
        what = f"its header declares {size} bytes of data, it has {have}"
        raise DataError(what, where=f"{file}, byte {4 + 4 * axes}", fix="copy the file again")
    return np.frombuffer(content, dtype=dtype).reshape(shape)


EMNIST_CLASSES = 47
SHAPE = (3, 32, 32)  # of CIFAR: red, green, blue; then rows and columns


def _halves(train: str, test: str, below: str = "") -> FileSet:
    kinds = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
    first, second = (tuple(f"{half}-{kind}" for kind in kinds) for half in (train, test))
    return FileSet(first, second, below)


MNIST_FILES = _halves("train", "t10k")
EMNIST_FILES = _halves("emnist-balanced-train", "emnist-balanced-test", "gzip")
CIFAR10_FILES = FileSet(
    tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",), "cifar-10-batches-bin"
)
CIFAR100_FILES = FileSet(("train.bin",), ("test.bin",), "cifar-100-binary")


def read_mnist(files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    return _read_half(files, max_bytes, 10, "MNIST", "copy the file again")


def read_emnist(files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    """Return EMNIST Balanced (Cohen et al. 2017), 47 classes, rows and columns swapped back."""
    fix = "use the files of the split `balanced`"
    records = _read_half(files, max_bytes, EMNIST_CLASSES, "EMNIST Balanced", fix)
    return Records(np.ascontiguousarray(records.x.swapaxes(1, 2)), records.y)


def _read_half(
    files: tuple[Path, ...], max_bytes: int, classes: int, name: str, fix: str
) -> Records:
    images, labels = files
    x, y = idx_array(images, max_bytes), idx_array(labels, max_bytes)
    if x.ndim != 3:
        raise DataError(
            f"holds an array of shape {list(x.shape)}, wanted (records, rows, columns)",
            where=str(images),
            fix=f"see that {images.name} and {labels.name} are not swapped, or copy them again",
        )
    records = as_records(x, y, where=f"{images} and {labels}")
    _check_labels(records.y, classes, name, f"{labels}, unpacked byte", 8, 1, fix)
    return records


def _check_labels(
    labels: NDArray[Any], classes: int, name: str, where: str, start: int, step: int, fix: str
) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        what = f"record {first} has the label {labels[first]}, {name} has 0 to {classes - 1}"
        raise DataError(what, where=f"{where} {start + first * step}", fix=fix)


def _read_cifar(
    name: str, labels: int, classes: int, files: tuple[Path, ...], max_bytes: int = MAX_BYTES
) -> Records:
    """Return records x (n, 3, 32, 32) float32 in 0..255; `labels` bytes precede the pixels."""
    size = labels + math.prod(SHAPE)
    fix = f"copy the file again, or use the binary version of {name}"
    counts = []
    for file in files:
        count, rest = divmod(file.stat().st_size, size)
        if rest or not count:
            what = (
                f"holds {file.stat().st_size} bytes, no multiple of the {size} of a {name} record"
            )
            raise DataError(what, where=str(file), fix=fix)
        counts.append(count)
    require_room((sum(counts), *SHAPE), 1, max_bytes, str(files[0].parent))
    rows = []
    for file, count in zip(files, counts, strict=True):
        with file.open("rb") as stream:
            content = stream.read(count * size)
        if len(content) != count * size:
            raise DataError("became shorter while it was read", where=str(file), fix=fix)
        rows.append(np.frombuffer(content, np.uint8).reshape(count, size))
        found, where = rows[-1][:, labels - 1], f"{file}, byte"
        _check_labels(found, classes, name, where, labels - 1, size, fix)
    whole = np.concatenate(rows)
    return as_records(
        whole[:, labels:].reshape(-1, *SHAPE), whole[:, labels - 1], str(files[0].parent)
    )


read_cifar10 = partial(_read_cifar, "CIFAR-10", 1, 10)
read_cifar100 = partial(_read_cifar, "CIFAR-100", 2, 100)  # the coarse class, then the fine one


PARTS = (
    SourcePart(
        name="idx",
        read=read_idx,
        place="file",
        reads=("labels_path",),
        demands={"labels_path": "idx stores labels in a separate file; add labels_path"},
        source="the user's own data",
        needs="a file of the user's and one of labels",
        summary="Arrays in the format of MNIST.",
        example="local_run: {data: {source: idx, path: images.idx, labels_path: labels.idx}}",
    ),
    published_part(
        MNIST_FILES,
        read_mnist,
        name="mnist",
        shape=(28, 28),
        classes=10,
        source="LeCun et al. 1998",
        summary="70,000 handwritten digits of 28×28 pixels.",
        example="local_run: {data: {source: mnist, path: data/mnist}}",
    ),
    published_part(
        EMNIST_FILES,
        read_emnist,
        name="emnist",
        shape=(28, 28),
        classes=EMNIST_CLASSES,
        source="Cohen et al. 2017, Balanced",
        summary="131,600 handwritten letters and digits of 28×28 pixels, 47 classes.",
        example="local_run: {data: {source: emnist, path: data/emnist}}",
    ),
    published_part(
        CIFAR10_FILES,
        read_cifar10,
        name="cifar10",
        shape=SHAPE,
        classes=10,
        source="Krizhevsky 2009, binary version",
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
        summary="60,000 coloured photographs of 32×32 pixels, 100 classes.",
        example="local_run: {data: {source: cifar100, path: data/cifar100}}",
    ),
)
