"""Files of every form that owners have, written for the audit's attack on single records."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORDS, CLASSES, SIDE, SEED = 60, 3, 4, 7
PYTHON_MODULE = "edgeveil_audit_records"


@dataclass(frozen=True)
class Table:
    """Records in no form yet: x (n, side, side) in 0..255, NaN where a value is missing; y (n,)."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]

    def without(self, index: int | None) -> Table:
        """All but one of them; None: all."""
        gone = [] if index is None else [index]
        return Table(np.delete(self.x, gone, axis=0), np.delete(self.y, gone))


def made_up(count: int = RECORDS) -> Table:
    """Random pictures, three of them equal, one of these of another class, and one broken; the last
    class has one record."""
    chance = np.random.default_rng(SEED)
    x = chance.integers(0, 256, (count, SIDE, SIDE)).astype(np.float64)
    y = np.arange(count) % (CLASSES - 1)
    x[2], x[3], x[5, 0, 0], y[7] = x[0], x[0], math.nan, CLASSES - 1
    return Table(x, y)


def _npz(place: Path, table: Table) -> dict[str, Any]:
    np.savez(place.with_suffix(".npz"), x=table.x, y=table.y)
    return {"source": "npz", "path": str(place.with_suffix(".npz"))}


def _csv(place: Path, table: Table) -> dict[str, Any]:
    names = [f"v{k}" for k in range(SIDE * SIDE)] + ["label"]
    rows = ([*map(_cell, row.ravel()), str(y)] for row, y in zip(table.x, table.y, strict=True))
    place.with_suffix(".csv").write_text("\n".join(",".join(row) for row in (names, *rows)))
    return {"source": "csv", "path": str(place.with_suffix(".csv"))}


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:g}"


def _parquet(place: Path, table: Table) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    flat = table.x.reshape(len(table.x), SIDE * SIDE)
    columns = {f"v{k}": [None if math.isnan(v) else int(v) for v in flat[:, k]] for k in range(16)}
    written = pa.table({**columns, "label": table.y})
    parquet.write_table(written, place.with_suffix(".parquet"))
    return {"source": "parquet", "path": str(place.with_suffix(".parquet"))}


def _idx(place: Path, table: Table) -> dict[str, Any]:
    for name, array in (("x", np.nan_to_num(table.x)), ("y", table.y)):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        place.with_suffix(f".{name}").write_bytes(header + array.astype(np.uint8).tobytes())
    paths = {"path": place.with_suffix(".x"), "labels_path": place.with_suffix(".y")}
    return {"source": "idx", **{key: str(path) for key, path in paths.items()}}


def _images(place: Path, table: Table) -> dict[str, Any]:
    from PIL import Image

    names = [f"class-{label}" for label in range(CLASSES)]
    for name in names:
        (place / name).mkdir(parents=True)
    for number, (values, label) in enumerate(zip(table.x, table.y, strict=True)):
        file = place / names[label] / f"{number:03}.png"
        if np.isnan(values).any():
            file.write_bytes(b"no picture")
        else:
            Image.fromarray(values.astype(np.uint8)).save(file)
    return {
        "source": "images",
        "path": str(place),
        "images": {"size": [SIDE, SIDE], "classes": names},
    }


def _python(place: Path, table: Table) -> dict[str, Any]:
    np.savez(place.with_suffix(".npz"), x=table.x, y=table.y)
    code = (
        "from functools import partial\nfrom pathlib import Path\nimport numpy as np\n"
        "def read(name):\n    file = np.load(Path(__file__).with_name(name + '.npz'))\n"
        "    return file['x'], file['y']\n"
        "def __getattr__(name):\n    return partial(read, name)\n"
    )
    place.with_name(f"{PYTHON_MODULE}.py").write_text(code)
    return {"source": f"python: {PYTHON_MODULE}:{place.name}"}


FORMS: Mapping[str, Callable[[Path, Table], dict[str, Any]]] = {
    "npz": _npz,
    "csv": _csv,
    "parquet": _parquet,
    "idx": _idx,
    "images": _images,
    "python": _python,
}
"""By `data.source`: writes a table beside or below a path, and says what a site file says of it."""


def forms() -> list[str]:
    """The forms that can be written here: some need a library."""
    needs = {"parquet": "pyarrow", "images": "PIL"}
    return [form for form in FORMS if form not in needs or find_spec(needs[form]) is not None]
