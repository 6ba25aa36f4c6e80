"""Data sets that are published as files: a folder of them is dealt to devices, its test half is
the cloud's. The name in the table is `data.source`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeveil.data import cifar, mnist
from edgeveil.data.file_set import FileSet, Half
from edgeveil.data.limits import MAX_BYTES
from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.registry import Table


@dataclass(frozen=True)
class Published:
    """What the files are, and the form of the records in them."""

    files: FileSet
    shape: tuple[int, ...]
    classes: int
    read: Callable[[tuple[Path, ...], int], Records]
    largest: float = 255.0  # that a value of a record can be


PUBLISHED: Table[Published] = Table(
    "published data set",
    {
        "mnist": Published(mnist.MNIST_FILES, (28, 28), 10, mnist.read_mnist),
        "emnist": Published(mnist.EMNIST_FILES, (28, 28), mnist.EMNIST_CLASSES, mnist.read_emnist),
        "cifar10": Published(cifar.CIFAR10_FILES, cifar.SHAPE, 10, cifar.read_cifar10),
        "cifar100": Published(cifar.CIFAR100_FILES, cifar.SHAPE, 100, cifar.read_cifar100),
    },
)


def read_published(
    name: str, folder: Path | None, half: Half, max_bytes: int = MAX_BYTES
) -> Records:
    """One half of a published data set. Raises DataError that names the file and the fault."""
    data_set = PUBLISHED[name]
    return data_set.read(data_set.files.paths(folder, half), max_bytes)


def published_test(name: str, folder: Path | None, test_records: int | None = None) -> Records:
    """The first `test_records` of the test half; None: all of it."""
    records = read_published(name, folder, "test")
    if test_records is None:
        return records
    if not 0 <= test_records <= len(records):
        raise DataError(
            f"cannot test on {test_records} of {len(records)} records",
            where="test_records",
            fix=f"choose 0 to {len(records)}, or leave it out for all",
        )
    return Records(records.x[:test_records], records.y[:test_records])
