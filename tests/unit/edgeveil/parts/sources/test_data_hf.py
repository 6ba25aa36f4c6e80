"""Folders of `datasets.save_to_disk`: what is read, and what a damaged or hostile one comes to."""

import json
import random

import datasets
import numpy as np
import pyarrow as pa
import pytest

from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError
from edgeveil.parts.sources import load_records
from edgeveil.parts.sources.source import Origin

COLUMNS = {"age": [20, None, 40, 60], "work": ["a", "b", None, "a"], "rich": [0, 1, 1, 0]}
SCHEMA = {
    "origin": "public",
    "label": {"column": "rich", "classes": ["yes", "no"]},
    "columns": [{"name": "age", "number": [0, 100]}, {"name": "work", "category": ["a", "b"]}],
}


def schema_of(plain):
    return DataSchema.model_validate_json(json.dumps(plain), strict=True)


@pytest.fixture
def folder(tmp_path):
    held = datasets.Dataset.from_dict(COLUMNS)
    held = held.cast_column("rich", datasets.ClassLabel(names=["no", "yes"]))
    held.save_to_disk(tmp_path / "set", num_shards=2)
    return tmp_path / "set"


def test_a_saved_set_is_read_by_names_as_numbers_and_as_pictures(folder, tmp_path):
    found = load_records("hf", Origin(path=folder, schema=schema_of(SCHEMA)))
    assert found.y.tolist() == [1, 0, 0, 1]  # by name: the set counts the classes the other way
    assert found.x[:, 0].tolist() == [np.float32(age) for age in (-0.6, 0, -0.2, 0.2)]
    assert found.x[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    table = load_records("hf", Origin(path=folder))
    assert table.x.shape == (4, 2) and np.isnan(table.x[:, 1]).all()
    assert table.y.tolist() == [0, 1, 1, 0]
    pixels = [np.full((4, 4), 40 * n, np.uint8) for n in range(3)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    pictures = datasets.Dataset.from_dict(
        {"image": pixels, "label": [1, 0, 1]}, features=datasets.Features(kinds)
    )
    pictures.save_to_disk(tmp_path / "pictures")
    schema = {"origin": "public", "label": {"classes": ["cat", "dog"]}, "image": {"size": [4, 4]}}
    drawn = load_records("hf", Origin(path=tmp_path / "pictures", schema=schema_of(schema)))
    assert drawn.x[:, 1, 1].tolist() == [0, 40, 80] and drawn.y.tolist() == [1, 0, 1]


def written(folder, table, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(folder / "data.arrow", table.schema, options=options) as stream:
        stream.write_table(table)
    state(folder, "data.arrow")


def state(folder, *names):
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))


PLAIN = pa.table({"a": ["x", "y"], "label": [1, 2]})
DAMAGED = {
    "packed": lambda folder: written(folder, PLAIN, "zstd"),
    "a packed dictionary": lambda folder: written(
        folder, pa.table({"a": pa.array(["x" * 99]).dictionary_encode(), "label": [1]}), "lz4"
    ),
    "columns that differ": lambda folder: (
        written(folder, PLAIN),
        (folder / "data.arrow").rename(folder / "one.arrow"),
        written(folder, PLAIN.rename_columns(["b", "label"])),
        state(folder, "one.arrow", "data.arrow"),
    ),
    "a file elsewhere": lambda folder: state(folder, "../set/dataset_info.json"),
    "a file that is gone": lambda folder: state(folder, "absent.arrow"),
    "no file": lambda folder: state(folder),
    "no list": lambda folder: (folder / "state.json").write_text("[1"),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "several sets": lambda folder: ((folder / "state.json").rename(folder / "dataset_dict.json"),),
    "one column": lambda folder: written(folder, PLAIN.select(["label"])),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_folder_of_another_form_is_refused_by_its_place(how, folder):
    DAMAGED[how](folder)
    with pytest.raises(DataError) as raised:
        load_records("hf", Origin(path=folder))
    assert raised.value.where.startswith(str(folder)) and raised.value.fix


def test_no_record_fails_it_and_rows_without_bytes_take_no_memory(folder):
    invalid = pa.array([b"\xff", b"a"]).view(pa.string())
    written(folder, pa.table({"age": [1, 2], "work": invalid, "rich": ["no", "yes"]}))
    found = load_records("hf", Origin(path=folder, schema=schema_of(SCHEMA)))
    assert found.x[:, 1:].tolist() == [[0, 0, 1], [1, 0, 0]] and found.y.tolist() == [1, 0]
    written(folder, PLAIN[:0])
    assert len(load_records("hf", Origin(path=folder))) == 0
    nothing = pa.Array.from_buffers(pa.null(), 1 << 30, [None])
    written(folder, pa.table({"a": nothing, "label": nothing}))
    with pytest.raises(DataError, match="bytes of numbers"):
        load_records("hf", Origin(path=folder))
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 2000), pa.array(["x" * 10_000]))
    written(folder, pa.table({"age": repeated, "work": repeated, "rich": repeated}))
    with pytest.raises(DataError, match="bytes of numbers"):
        load_records("hf", Origin(path=folder, schema=schema_of(SCHEMA), max_bytes=1 << 20))


def test_changed_bytes_give_records_or_an_error_that_names_the_file(folder):
    table = pa.table({"age": [1.5, None], "work": pa.array(["a", "b"]).dictionary_encode()})
    written(folder, table.append_column("rich", pa.array(["yes", "no"])))
    file = folder / "data.arrow"
    raw, chance, read = file.read_bytes(), random.Random(1), 0
    for turn in range(600):
        changed = bytearray(raw)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        file.write_bytes(changed[: chance.randrange(len(raw))] if turn % 4 == 0 else changed)
        try:
            read += len(load_records("hf", Origin(path=folder, schema=schema_of(SCHEMA)))) >= 0
        except DataError as error:
            assert error.where.startswith(str(folder))
    assert 10 < read < 590
