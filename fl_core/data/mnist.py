"""MNIST in its original IDX files: a folder with the 60,000 for training and the 10,000 for tests.

Pixels stay 0 to 255. Any data set that is published in the same four files is read alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fl_core.algorithms.base import Records
from fl_core.data.idx import idx_array
from fl_core.data.limits import MAX_BYTES, as_records
from fl_core.errors import DataError

Half = Literal["train", "t10k"]
FILES = tuple(
    f"{half}-{what}.gz"
    for half in ("train", "t10k")
    for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)


def read_mnist(folder: Path | None, half: Half, max_bytes: int = MAX_BYTES) -> Records:
    """One half, x (n, rows, columns) float32. Raises DataError that names the file and the fault.

    Files may be gzipped or not, whatever their ending says.
    """
    if folder is None:
        raise DataError(
            "no folder is named", where="data.path", fix=f"set it to a folder with {_listed()}"
        )
    if not folder.is_dir():
        raise DataError("no such folder", where=str(folder), fix=f"name one with {_listed()}")
    images, labels = (_file(folder, name) for name in FILES if name.startswith(half))
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


def mnist_test(folder: Path | None, test_records: int | None = None) -> Records:
    """The first `test_records` of the test half; None: all of it."""
    records = read_mnist(folder, "t10k")
    if test_records is None:
        return records
    if not 0 <= test_records <= len(records):
        raise DataError(
            f"cannot test on {test_records} of {len(records)} records",
            where="test_records",
            fix=f"choose 0 to {len(records)}, or leave it out for all",
        )
    return Records(records.x[:test_records], records.y[:test_records])


def missing_files(folder: Path) -> list[str]:
    """The names that the folder lacks; empty where it can be read."""
    return [name for name in FILES if _found(folder, name) is None]


def _file(folder: Path, name: str) -> Path:
    found = _found(folder, name)
    if found is None:
        raise DataError(
            f"has no {name} (nor one without .gz)",
            where=str(folder),
            fix=f"name the folder with {_listed()}",
        )
    return found


def _found(folder: Path, name: str) -> Path | None:
    """The file as it is published, unpacked, or with the dot that some archives write."""
    plain = name.removesuffix(".gz")
    dotted = plain.replace("-idx", ".idx")
    for one in (name, plain, dotted, f"{dotted}.gz"):
        if (folder / one).is_file():
            return folder / one
    return None


def _listed() -> str:
    return ", ".join(FILES)
