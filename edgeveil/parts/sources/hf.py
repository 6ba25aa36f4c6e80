"""Data sets of Hugging Face on disk, a folder written by `save_to_disk` (`hf`), read by pyarrow.

The folder has Arrow files and `state.json`, which names them. Files are mapped, not loaded; packed
ones are refused, since their size says nothing about the memory that they take. As in Parquet
files, the columns' names are the form, and no value makes the set unreadable."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from edgeveil.data.encoding import Encoded
from edgeveil.data.records import Records, as_records, require_room
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError, needs_extra
from edgeveil.parts.sources.memory import Frame, arrow_table, encode_table, of_numbers
from edgeveil.parts.sources.source import Origin, SourcePart, require_folder

STATE, _HALVES = "state.json", "dataset_dict.json"
_STATE_BYTES = 1 << 20
_TIMES_ROOM = 4  # largest ratio of the files' bytes to `max_bytes`
_FIX = "write it with datasets.Dataset.save_to_disk"


def read_hf(origin: Origin) -> Records:
    """Return records by the origin's schema, or x (n, columns-1) float32 and the label column.

    Raises DataError for a folder without the form, or beyond `max_bytes`."""
    if origin.schema is not None:
        return encode_hf(origin, origin.schema).records
    table, where = _table(origin)
    found = of_numbers(table, where, origin.label_column, total=True)
    return as_records(found.x, np.asarray(found.y), where)


def encode_hf(origin: Origin, schema: DataSchema, *, labelled: bool | None = True) -> Encoded:
    """Return the records by a job's schema, and statistics of the columns. Raises DataError."""
    table, where = _table(origin)
    return encode_table(table, schema, origin, where, labelled=labelled)


@needs_extra("parquet")
def _table(origin: Origin) -> tuple[Frame, str]:
    import pyarrow as pa

    folder = require_folder(origin.path, "name a folder written by save_to_disk")
    files = _files(folder)
    size = sum(file.stat().st_size for file in files)
    require_room((size,), 1, _TIMES_ROOM * origin.max_bytes, str(folder))
    parts: list[Any] = []
    for file in files:
        try:
            parts.append(_mapped(file, origin.max_bytes))
            table = arrow_table(pa.concat_tables(parts))
        except (pa.ArrowException, OSError, ValueError, OverflowError, struct.error) as error:
            what = f"is no readable Arrow file: {str(error)[:200]}"
            raise DataError(what, where=str(file), fix=_FIX) from None
    return table, str(folder)


def _files(folder: Path) -> list[Path]:
    state = folder / STATE
    if not state.is_file():
        if (folder / _HALVES).is_file():
            what, fix = "holds several sets", "name the folder of one, such as its train"
            raise DataError(what, where=str(folder), fix=fix)
        raise DataError(f"has no {STATE}", where=str(folder), fix=_FIX)
    try:
        if state.stat().st_size > _STATE_BYTES:
            raise ValueError("too large")
        names = [str(one["filename"]) for one in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DataError("does not list the files", where=str(state), fix=_FIX) from None
    files = [folder / name for name in names]
    if not files or any(Path(name).name != name or not (folder / name).is_file() for name in names):
        what = "names no file, or one that is not in the folder"
        raise DataError(what, where=str(state), fix=_FIX)
    return files


def _mapped(file: Path, max_bytes: int) -> Any:
    """Return a mapped file's table, validated; raises DataError, ValueError or ArrowException."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as mapped:
        for message in pa.ipc.MessageReader.open_stream(mapped):
            if _is_packed(message.metadata.to_pybytes()):
                raise ValueError("its batches are compressed")
        mapped.seek(0)
        with pa.ipc.open_stream(mapped) as stream:
            found = pa.Table.from_batches(list(stream), stream.schema)
    require_room(found.shape, 8, max_bytes, str(file))  # an empty type takes no bytes in the file
    # Texts become bytes, so that invalid UTF-8 in a record does not fail the validation.
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    schema = pa.schema([(one.name, kinds.get(one.type, one.type)) for one in found.schema])
    found = found.cast(schema.with_metadata(found.schema.metadata))
    found.validate(full=True)
    return found


def _is_packed(message: bytes) -> bool:
    """Return whether a batch is compressed, by the tables of Arrow's format (Message.fbs)."""
    root = struct.unpack_from("<I", message)[0]
    kind, header = _field(message, root, 1), _field(message, root, 2)
    number = message[kind] if kind else 0
    if number not in (2, 3) or not header:  # neither a batch of a dictionary nor of records
        return False
    batch = header + struct.unpack_from("<I", message, header)[0]
    if number == 2:
        data = _field(message, batch, 1)
        batch = data + struct.unpack_from("<I", message, data)[0]
    return bool(_field(message, batch, 3))


def _field(message: bytes, table: int, index: int) -> int:
    """Return the place of a field of a FlatBuffers table; 0 for none."""
    layout = table - struct.unpack_from("<i", message, table)[0]
    if 4 + 2 * index >= struct.unpack_from("<H", message, layout)[0]:
        return 0
    place = struct.unpack_from("<H", message, layout + 4 + 2 * index)[0]
    return table + place if place else 0


PART = SourcePart(
    name="hf",
    read=read_hf,
    place="folder",
    reads=("label_column",),
    tallies=encode_hf,
    by_schema="any",
    source="the user's own data",
    needs="a folder of the user's; pip install 'edgeveil[parquet]'",
    summary="A data set of Hugging Face on disk, as `save_to_disk` writes it.",
    example="local_run: {data: {source: hf, path: dataset}}",
)
