"""The real handwritten digits that ship inside scikit-learn: 1,797 images of 8×8 pixels."""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.public_order import SPLIT_SEED, hold_back
from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.parts.sources.source import SourcePart

TEST_RECORDS = 360


def load_digits_split(test_records: int | None = None) -> tuple[Records, Records]:
    """Return scikit-learn's digits (train, test), stratified; x (n, 64) in 0..16."""
    count = TEST_RECORDS if test_records is None else test_records
    return hold_back(Records(*_all_digits()), count, SPLIT_SEED, "digits")


@lru_cache(maxsize=1)
def _all_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        what = "the source 'digits' needs scikit-learn, which is not installed"
        fix = "install scikit-learn or name a file of your own with source npz, csv or idx"
        raise DataError(what, where="data.source", fix=fix)
    # The table is read directly: importing sklearn.datasets takes a second and 100 MB (scipy),
    # too much for a small device. If the file ever moves, the import still finds it.
    table = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if not table.is_file():
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return np.asarray(x, np.float32), np.asarray(y, np.int64)
    with gzip.open(table, "rt") as lines:
        values = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return values[:, :-1].copy(), values[:, -1].astype(np.int64)


PART = SourcePart(
    name="digits",
    read=lambda at: load_digits_split(at.test_records)[0],
    test=lambda at: load_digits_split(at.test_records)[1],
    shape=(64,),
    classes=10,
    source="Alpaydin and Kaynak 1998, in scikit-learn",
    summary="1,797 handwritten digits of 8×8 pixels.",
    example="local_run: {data: {source: digits}}",
)
