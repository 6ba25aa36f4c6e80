"""Laws that every source of records keeps: what comes out, and what is said of a bad file."""

import gzip
import json
import struct
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from edgeveil.config.data import DataSource
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError
from edgeveil.parts.own_records import all_device_records, local_records, origin_of
from edgeveil.parts.sources import SOURCES, has_own_test, load_records, published_files
from edgeveil.parts.sources.source import Origin
from edgeveil_lab.audit.record_guard import FORMS, PYTHON_MODULE, SIDE, RecordTable

COUNT = 12
LABELS = np.arange(COUNT) % 3
VALUES = np.random.default_rng(0).integers(0, 255, (COUNT, SIDE, SIDE)).astype(np.float64)


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def letters(folder):
    for one in (published_files()["mnist"], published_files()["emnist"]):
        for half in (one.train, one.test):
            (folder / half[0]).write_bytes(idx(np.zeros((COUNT, 28, 28))))
            (folder / half[1]).write_bytes(idx(LABELS))
    return Origin(path=folder)


def cifar(folder):
    for name, labels in (("cifar10", 1), ("cifar100", 2)):
        for file in published_files()[name].names:
            (folder / file).write_bytes(bytes(labels + 3072) * COUNT)
    return Origin(path=folder)


PUBLISHED = {
    "digits": lambda _folder: Origin(),
    "mnist": letters,
    "emnist": letters,
    "cifar10": cifar,
    "cifar100": cifar,
}
SPOKEN = DataSchema.model_validate_json(
    json.dumps(
        {
            "origin": "public",
            "label": {"classes": ["0", "1", "2"]},
            "audio": {"rate_hz": 4000, "seconds": 0.05, "form": "waveform"},
        }
    )
)


def recordings(folder):
    for number, (sound, label) in enumerate(zip(VALUES, LABELS, strict=True)):
        (folder / "own" / str(label)).mkdir(parents=True, exist_ok=True)
        path = folder / "own" / str(label) / f"{number:03}.wav"
        soundfile.write(path, sound.ravel() / 255, 4000)
    return Origin(path=folder / "own", schema=SPOKEN)


BY_SCHEMA = {"audio": recordings}
NAMES = [*PUBLISHED, *FORMS, *BY_SCHEMA]
IN_FILES = [name for name in NAMES if name not in ("digits", "python")]
DIVIDED = ("csv", "images", "audio")
PACKED = [name for name in IN_FILES if name not in DIVIDED]
"""Files whose end is known from their beginning: of the others a cut takes records away."""


def made(name, folder):
    if name in PUBLISHED:
        return name, PUBLISHED[name](folder)
    if name in BY_SCHEMA:
        return name, BY_SCHEMA[name](folder)
    block = {"name": "own", **FORMS[name](folder / "own", RecordTable(VALUES, LABELS))}
    data = DataSource.model_validate_json(json.dumps(block))
    return data.source, origin_of(data)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(PYTHON_MODULE, None)


def files_of(origin):
    found = [path for path in (origin.path, origin.labels_path) if path is not None]
    listed = [inner for path in found for inner in (path.rglob("*") if path.is_dir() else [path])]
    return sorted(path for path in listed if path.is_file())


def test_every_source_is_here():
    elsewhere = {"jsonl", "memory"}  # read by a schema alone, and in no file
    assert {*NAMES, *elsewhere} == set(SOURCES)


def test_records_are_rows_of_numbers_with_whole_labels_and_no_file_changes(name, tmp_path):
    source, origin = made(name, tmp_path)
    before = {path: path.read_bytes() for path in files_of(origin)}
    records = load_records(source, origin)
    assert {path: path.read_bytes() for path in files_of(origin)} == before
    assert (records.x.dtype, records.y.dtype) == (np.float32, np.int64)
    assert records.x.ndim >= 2
    assert len(records.x) == len(records.y) >= COUNT
    assert records.x.flags.c_contiguous
    assert np.isfinite(records.x).all()
    if name in published_files():
        assert records.x.shape[1:] == SOURCES[name].shape
        assert records.y.max() < SOURCES[name].classes
    elif name != "digits":
        assert sorted(records.y.tolist()) == sorted(LABELS.tolist())


def test_what_the_cloud_tests_on_is_not_among_the_devices_records(name, tmp_path):
    source, origin = made(name, tmp_path)
    whole = load_records(source, origin)
    if has_own_test(name):
        rest = all_device_records(source, replace(origin, test_records=3))
        assert len(whole) - len(rest) == {"digits": 3 - 360}.get(name, 0)
        return
    rest = all_device_records(source, replace(origin, test_share=0.4))
    shown = {key: value for key, value in vars(origin).items() if key in DataSource.model_fields}
    data = DataSource(name="own", source=source, **{**shown, "test_share": 0.4})
    held = local_records(data, origin.schema)
    assert 0 < len(held) < COUNT
    everything = np.concatenate([rest.x, held.x])
    assert sorted(everything.tolist()) == sorted(whole.x.tolist())


@pytest.mark.parametrize("name", IN_FILES)
def test_a_missing_or_too_large_file_is_named(name, tmp_path):
    source, origin = made(name, tmp_path)
    for change, place in (
        ({"path": tmp_path / "gone"}, "gone"),
        ({"path": None}, "data.path"),
        ({"max_bytes": 40}, str(tmp_path)),
    ):
        with pytest.raises(DataError) as raised:
            load_records(source, replace(origin, **change))
        assert place in str(raised.value)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("kept", [0.0, 0.52, 0.99])
def test_a_file_that_is_cut_off_is_named(name, kept, tmp_path):
    source, origin = made(name, tmp_path)
    for path in files_of(origin):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(DataError) as raised:
        load_records(source, origin)
    assert str(tmp_path) in raised.value.where
    assert raised.value.fix


@pytest.mark.parametrize("name", DIVIDED)
def test_what_is_cut_off_in_the_middle_of_a_record_drops_that_record_alone(name, tmp_path):
    source, origin = made(name, tmp_path)
    last = files_of(origin)[-1]
    content = last.read_bytes()
    last.write_bytes(content[:-4] if name == "csv" else content[: len(content) // 2])
    records = load_records(source, origin)
    usable = np.isfinite(records.x).all(axis=tuple(range(1, records.x.ndim))) & (records.y >= 0)
    assert (len(records), int(usable.sum())) == (COUNT, COUNT - 1)
