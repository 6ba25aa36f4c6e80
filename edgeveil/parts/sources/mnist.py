"""MNIST and EMNIST in their original IDX files: images and labels, for training and for tests.

Pixels stay 0 to 255.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeveil.data.records import MAX_BYTES, Records, as_records
from edgeveil.errors import DataError
from edgeveil.parts.sources.idx import idx_array
from edgeveil.parts.sources.source import FileSet, published_part

_KINDS = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
EMNIST_CLASSES = 47
_HEADER_BYTES = 8  # of a file of labels


def _named(begin: str) -> tuple[str, ...]:
    return tuple(f"{begin}-{kind}" for kind in _KINDS)


MNIST_FILES = FileSet(_named("train"), _named("t10k"))
EMNIST_FILES = FileSet(_named("emnist-balanced-train"), _named("emnist-balanced-test"), "gzip")


def read_mnist(files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    """MNIST, or a data set of ten classes that is published in the same form.

    Files may be gzipped or not, whatever their ending says. Raises DataError that names the file,
    the place and the fault.
    """
    return _labelled(_read(files, max_bytes), 10, files[1], "MNIST", "copy the file again")


def read_emnist(files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    """EMNIST Balanced (Cohen et al. 2017): 47 classes from 0, images upright.

    The files hold each image with rows and columns exchanged. Raises DataError as `read_mnist`.
    """
    records = _labelled(
        _read(files, max_bytes),
        EMNIST_CLASSES,
        files[1],
        "EMNIST Balanced",
        "take the files of the split `balanced`",
    )
    return Records(np.ascontiguousarray(records.x.swapaxes(1, 2)), records.y)


def _read(files: tuple[Path, ...], max_bytes: int) -> Records:
    """Records x (n, rows, columns) float32 of an images and a labels file."""
    images, labels = files
    x, y = idx_array(images, max_bytes), idx_array(labels, max_bytes)
    if (x.ndim, y.ndim) == (1, 3):
        raise DataError(
            "these are labels; are the two files swapped?",
            where=str(images),
            fix=f"give {images.name} and {labels.name} each other's name",
        )
    records = as_records(x, y, where=f"{images} and {labels}")
    if records.x.ndim != 3:
        raise DataError(
            f"holds records of shape {list(records.x.shape[1:])}, wanted rows and columns",
            where=str(images),
            fix="copy the images' file to this name",
        )
    return records


def _labelled(records: Records, classes: int, labels: Path, name: str, fix: str) -> Records:
    """The records, if every label is one of the classes; else DataError with its place."""
    wrong = np.flatnonzero((records.y < 0) | (records.y >= classes))
    if len(wrong):
        raise DataError(
            f"record {wrong[0]} has the label {records.y[wrong[0]]}, {name} has 0 to {classes - 1}",
            where=f"{labels}, byte {_HEADER_BYTES + wrong[0]} unpacked",
            fix=fix,
        )
    return records


PARTS = (
    published_part(
        MNIST_FILES,
        read_mnist,
        name="mnist",
        shape=(28, 28),
        classes=10,
        source="LeCun et al. 1998",
        needs="the folder of the published files",
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
        needs="the folder of the published files",
        summary="131,600 handwritten letters and digits of 28×28 pixels, 47 classes.",
        example="local_run: {data: {source: emnist, path: data/emnist}}",
    ),
)
