"""IDX files, plain or gzipped, as MNIST is published: images in one, labels in another."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import MAX_BYTES, Records, as_records, require_file, require_room
from edgeveil.errors import DataError
from edgeveil.parts.sources.source import Origin, SourcePart

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path | None, labels_path: Path | None, max_bytes: int = MAX_BYTES) -> Records:
    """Records from an images file (n, rows, columns) and a labels file (n,), pixels as stored.

    Raises DataError on a wrong magic number, a size that the header contradicts, or counts
    that differ.
    """
    images = require_file(path, "data.path")
    labels = require_file(labels_path, "data.labels_path")
    return as_records(
        idx_array(images, max_bytes), idx_array(labels, max_bytes), where=f"{images} and {labels}"
    )


def idx_array(file: Path, max_bytes: int = MAX_BYTES) -> NDArray[Any]:
    """The one array of an IDX file; decided to be gzipped by its first two bytes."""
    with file.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    try:
        with cast(IO[bytes], gzip.open(file, "rb") if zipped else file.open("rb")) as stream:
            return _read(stream, file, max_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot be read: {error}", where=str(file), fix="copy the file again"
        ) from error


def _read(stream: IO[bytes], file: Path, max_bytes: int) -> NDArray[Any]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 8:
        raise DataError(
            f"is no IDX file: it begins with {magic.hex() or 'nothing'}",
            where=f"{file}, byte 0",
            fix="name the original file, for example train-images-idx3-ubyte.gz",
        )
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
        raise DataError(
            f"its header says {size} bytes of data, it holds {have}",
            where=f"{file}, byte {4 + 4 * axes}",
            fix="copy the file again",
        )
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def _read_pair(origin: Origin) -> Records:
    return read_idx(origin.path, origin.labels_path, origin.max_bytes)


PART = SourcePart(
    name="idx",
    read=_read_pair,
    place="file",
    reads=("labels_path",),
    demands={"labels_path": "idx keeps labels in a file of their own; add labels_path"},
    source="the user's own data",
    needs="a file of the user's and one of labels",
    summary="Arrays in the format of MNIST.",
    example="local_run: {data: {source: idx, path: images.idx, labels_path: labels.idx}}",
)
