"""Targets: data sets of pictures and tables in formats of their own."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError
from edgeveil.parts.sources.audio import PART as RECORDINGS
from edgeveil.parts.sources.hf import STATE, read_hf
from edgeveil.parts.sources.idx import read_cifar10, read_cifar100
from edgeveil.parts.sources.images import PART
from edgeveil.parts.sources.source import Origin
from edgeveil.parts.sources.tables import read_parquet
from tests.fuzz.files import MAX_BYTES, sound
from tests.fuzz.target import Tape, Target, as_file, demand, scratch

_PIXELS = 3072


def _cifar(data):
    """The tape says which set, and a few bytes; the pixels are put behind them."""
    tape = Tape(data)
    labels, count = 1 + tape.number(2), tape.number(4)
    content = b"".join(tape.take(labels) + bytes(_PIXELS) for _ in range(count)) + tape.rest()
    read, classes = ((read_cifar10, 10), (read_cifar100, 100))[labels - 1]
    records = read((as_file("batch.bin", content),), MAX_BYTES)
    sound(records)
    demand(bool(np.all(records.y < classes)), "a label of the classes")


def _cifar_seeds():
    yield b"\0\2\3\7"
    yield b"\1\2\3\x63\0\1"
    yield b"\0\1\x0a"
    yield b"\1\3\0\0\0\0\0\0rest"


def _parquet(data):
    column = (None, "label")[data[0] % 2 if data else 0]
    file = as_file("records.parquet", data[1:])
    sound(read_parquet(Origin(path=file, label_column=column, max_bytes=MAX_BYTES)))


def _parquet_seeds():
    import pyarrow as pa
    from pyarrow import parquet

    for number, packed in enumerate(("NONE", "SNAPPY", "GZIP")):
        made = io.BytesIO()
        table = pa.table({"a": [1.5, None, 3.0], "b": [1, 2, 3], "label": [0, 1, None]})
        parquet.write_table(table, made, compression=packed, use_dictionary=bool(number))
        yield bytes((number,)) + made.getvalue()


def _hf(data):
    as_file(STATE, b'{"_data_files": [{"filename": "records.arrow"}]}')
    as_file("records.arrow", data[1:])
    column = (None, "label")[data[0] % 2 if data else 0]
    sound(read_hf(Origin(path=scratch(), label_column=column, max_bytes=MAX_BYTES)))


def _hf_seeds():
    import pyarrow as pa

    texts = pa.array(["1", None, "x"]).dictionary_encode()
    table = pa.table({"a": texts, "b": [[1], None, [2, 3]], "label": [0, 1, None]})
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as stream:
        stream.write_table(table)
    yield b"\1" + made.getvalue()


_AUDIO = '{"origin": "public", "label": {"classes": ["a"]}, "audio": {"seconds": 0.05}}'


def _recording(data):
    folder, schema = scratch() / "sounds", DataSchema.model_validate_json(_AUDIO)
    (folder / "a").mkdir(parents=True, exist_ok=True)
    (folder / "a" / "one.flac").write_bytes(data)
    records = RECORDINGS.read(Origin(path=folder, schema=schema, max_bytes=MAX_BYTES))
    demand(records.y.tolist() == [0], "one recording, one record")
    told = RECORDINGS.faults(Origin(path=folder, schema=schema))
    demand(np.isfinite(records.x).all() != bool(told), "what is dropped is told")


def _recording_seeds():
    import soundfile

    wave = np.sin(np.arange(400) / 3) / 2
    for rate, kind, code in ((8000, "FLAC", "PCM_16"), (11025, "WAV", "FLOAT")):
        made = io.BytesIO()
        soundfile.write(made, wave, rate, code, format=kind)
        yield made.getvalue()


@dataclass(frozen=True)
class _Form:
    size: tuple[int, int] = (4, 4)
    colours: str = "grey"
    classes: tuple[str, ...] | None = ("a",)


@cache
def _pictures():
    warnings.simplefilter("ignore")  # of pictures that claim many pixels
    folder = scratch() / "pictures"
    (folder / "a").mkdir(parents=True)
    return folder


def _picture(data):
    form = _Form(colours=("grey", "rgb")[data[0] % 2 if data else 0])
    (_pictures() / "a" / "one.png").write_bytes(data[1:])
    records = PART.read(Origin(path=_pictures(), images=form, max_bytes=MAX_BYTES))
    sound(records)
    demand(records.y.tolist() == [0], "one picture, one record")
    dropped = bool(np.isnan(records.x).any())
    told = PART.faults(Origin(path=_pictures(), images=form))
    demand(dropped == bool(told), "what is dropped is told")


def _picture_seeds():
    from PIL import Image

    png, jpeg = product(("L", "RGB", "P", "I;16"), ["PNG"]), product(("L", "RGB"), ["JPEG"])
    for number, (mode, kind) in enumerate((*png, *jpeg)):
        made = io.BytesIO()
        Image.new(mode, (5, 3), 7).save(made, kind)
        yield bytes((number % 2,)) + made.getvalue()


TARGETS = {
    "cifar": Target(_cifar, _cifar_seeds, (DataError,), 4096),
    "hf": Target(_hf, _hf_seeds, (DataError,), 4096),
    "recording": Target(_recording, _recording_seeds, (DataError,), 4096, (b"fLaC", b"fmt ")),
    "parquet": Target(_parquet, _parquet_seeds, (DataError,), 4096, (b"PAR1",)),
    "picture": Target(
        _picture, _picture_seeds, (DataError,), 2048, (b"IHDR", b"PLTE", b"\xff\xd8")
    ),
}
