"""MNIST and EMNIST in their original IDX files: images and labels, for training and for tests.

Pixels stay 0 to 255.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fl_core.algorithms.base import Records
from fl_core.data.file_set import FileSet
from fl_core.data.idx import idx_array
from fl_core.data.limits import MAX_BYTES, as_records
from fl_core.errors import DataError

_KINDS = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
EMNIST_CLASSES = 47


def _named(begin: str) -> tuple[str, ...]:
    return tuple(f"{begin}-{kind}" for kind in _KINDS)


MNIST_FILES = FileSet(_named("train"), _named("t10k"))
EMNIST_FILES = FileSet(_named("emnist-balanced-train"), _named("emnist-balanced-test"), "gzip")


def read_mnist(files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    """Records x (n, rows, columns) float32 of an images and a labels file.

    Any data set that is published in the same form is read alike. Files may be gzipped or not,
    whatever their ending says. Raises DataError that names the file and the fault.
    """
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


def read_emnist(files: tuple[Path, ...], max_bytes: int = MAX_BYTES) -> Records:
    """EMNIST Balanced (Cohen et al. 2017): 47 classes from 0, images upright.

    The files hold each image with rows and columns exchanged. A label outside the classes means
    another split of EMNIST: DataError with its place.
    """
    records = read_mnist(files, max_bytes)
    wrong = np.flatnonzero((records.y < 0) | (records.y >= EMNIST_CLASSES))
    if len(wrong):
        raise DataError(
            f"label {wrong[0]} (from 0) is {records.y[wrong[0]]}, EMNIST Balanced has 0 to "
            f"{EMNIST_CLASSES - 1}",
            where=str(files[1]),
            fix="take the files of the split `balanced`",
        )
    return Records(np.ascontiguousarray(records.x.swapaxes(1, 2)), records.y)
