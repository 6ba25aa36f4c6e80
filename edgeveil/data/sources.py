"""The table of data sources: the name in the table is `data.source` of a device's site file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from edgeveil.data.csvfile import read_csv
from edgeveil.data.digits import load_digits_split
from edgeveil.data.idx import read_idx
from edgeveil.data.images import ImageForm, read_images
from edgeveil.data.limits import MAX_BYTES, as_records, require_room
from edgeveil.data.npz import read_npz
from edgeveil.data.parquet import read_parquet
from edgeveil.data.published import PUBLISHED, read_published
from edgeveil.data.records import Records
from edgeveil.errors import DataError
from edgeveil.registry import Table


@dataclass(frozen=True)
class Origin:
    """Where the records are. `function` is `module:function`, for the source `python` alone."""

    path: Path | None = None
    labels_path: Path | None = None
    label_column: str | None = None
    function: str | None = None
    images: ImageForm | None = None
    test_records: int | None = None  # of digits and published sets; None: as these have it
    test_share: float | None = None  # of own files, held back for the cloud; None: nothing is
    max_bytes: int = MAX_BYTES


Source = Callable[[Origin], Records]


def load_records(source: str, origin: Origin | None = None) -> Records:
    """Records of a source named as in the YAML: a name of SOURCES, or `python: module:function`.

    Raises DataError (file, place, fix) for bad data, also where its file is gone or becomes another
    while it is read; UsageError for an unknown name.
    """
    chosen = origin or Origin()
    name, colon, function = source.partition(":")
    if colon and name.strip() == "python":
        chosen = Origin(**{**chosen.__dict__, "function": function.strip()})
        name = "python"
    read = SOURCES[name if name == "python" else source]
    try:
        before = _state(source, chosen)
        records = read(chosen)
        after = _state(source, chosen)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror or type(error).__name__})",
            where=str(error.filename or chosen.path or source),
            fix="see that the file is there and may be read",
        ) from error
    changed = next((path for path, state in before.items() if after.get(path) != state), None)
    if changed is not None:
        raise DataError(
            "was changed while it was read",
            where=str(changed),
            fix="let nothing write to it meanwhile, or write another file and rename it",
        )
    return records


def _state(source: str, origin: Origin) -> dict[Path, tuple[int, int, int]]:
    """(inode, bytes, time of the last change) of each own file of an origin that is there.

    Of a folder also those of the folders in it, which change with what these hold. A published
    set's files say their sizes, and stand in a folder where others may write.
    """
    if brings_its_test(source):
        return {}
    named = [path for path in (origin.path, origin.labels_path) if path is not None]
    below = [inner for path in named if path.is_dir() for inner in path.iterdir() if inner.is_dir()]
    seen = {path: path.stat() for path in (*named, *below) if path.exists()}
    return {path: (one.st_ino, one.st_size, one.st_mtime_ns) for path, one in seen.items()}


def brings_its_test(source: str) -> bool:
    """Whether a source says itself which of its records the cloud tests on."""
    return source == "digits" or source in PUBLISHED


def _digits(origin: Origin) -> Records:
    return load_digits_split(origin.test_records)[0]


def _npz(origin: Origin) -> Records:
    return read_npz(origin.path, origin.max_bytes)


def _csv(origin: Origin) -> Records:
    return read_csv(origin.path, origin.label_column, origin.max_bytes)


def _idx(origin: Origin) -> Records:
    return read_idx(origin.path, origin.labels_path, origin.max_bytes)


def _parquet(origin: Origin) -> Records:
    return read_parquet(origin.path, origin.label_column, origin.max_bytes)


def _images(origin: Origin) -> Records:
    return read_images(origin.path, origin.images, origin.max_bytes)


def _published(name: str) -> Source:
    return lambda origin: read_published(name, origin.path, "train", origin.max_bytes)


def _python(origin: Origin) -> Records:
    """The owner's own function: `module:function`, called without arguments, gives (x, y).

    Two arrays, whose type and shape state the form of the records: those of a list would follow
    from what it holds.
    """
    where = f"data.source python: {origin.function or ''}"
    module_name, _, function_name = (origin.function or "").partition(":")
    if not module_name or not function_name:
        raise DataError("names no function", where=where, fix="write python: module:function")
    try:
        function = getattr(import_module(module_name), function_name)
    except Exception as error:  # the owner's module may raise anything
        raise DataError(
            f"cannot be imported, {type(error).__name__}: {error}",
            where=where,
            fix="install the module, check both names",
        ) from error
    try:
        found = function()
    except Exception as error:  # the owner's code may raise anything
        raise DataError(
            f"raised {type(error).__name__}: {error}", where=where, fix="correct the function"
        ) from error
    if isinstance(found, Records):
        found = (found.x, found.y)
    if not isinstance(found, tuple) or len(found) != 2:
        raise DataError("did not return (x, y)", where=where, fix="return two arrays")
    if any(isinstance(part, list | tuple) for part in found):
        raise DataError(
            "returned a list, whose form would follow from its records",
            where=where,
            fix="return two arrays, numpy.asarray(x, numpy.float32) and numpy.asarray(y)",
        )
    try:
        x, y = np.asarray(found[0]), np.asarray(found[1])
    except ValueError as error:
        raise DataError(str(error), where=where, fix="return two arrays of numbers") from error
    require_room(x.shape, 4, origin.max_bytes, where)
    return as_records(x, y, where)


SOURCES: Table[Source] = Table(
    "data source",
    {
        "digits": _digits,
        **{name: _published(name) for name in PUBLISHED},
        "npz": _npz,
        "csv": _csv,
        "parquet": _parquet,
        "idx": _idx,
        "images": _images,
        "python": _python,
    },
)
