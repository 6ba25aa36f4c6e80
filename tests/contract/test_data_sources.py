"""Laws that every source of records keeps: what comes out, and what is said of a bad file."""

import gzip
import struct
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from edgeveil.config.data import DataSource, Images
from edgeveil.errors import DataError
from edgeveil.parts.own_records import devices_records, held_records
from edgeveil.parts.sources import SOURCES, brings_its_test, load_records, published_files
from edgeveil.parts.sources.source import Origin

COUNT = 12
LABELS = np.arange(COUNT) % 3
VALUES = np.random.default_rng(0).integers(0, 255, (COUNT, 4))


def idx(array):
    """An IDX file of bytes."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def npz(folder):
    np.savez(folder / "own.npz", x=VALUES, y=LABELS)
    return Origin(path=folder / "own.npz")


def csv(folder):
    lines = [",".join(map(str, [*row, label])) for row, label in zip(VALUES, LABELS, strict=True)]
    (folder / "own.csv").write_text("\n".join(["a,b,c,d,kind", *lines]))
    return Origin(path=folder / "own.csv", header=True, label_column="kind")


def parquet_file(folder):
    columns = {**dict(zip("abcd", VALUES.T, strict=True)), "kind": LABELS}
    parquet.write_table(pa.table(columns), folder / "own.parquet")
    return Origin(path=folder / "own.parquet")


def idx_files(folder):
    (folder / "x").write_bytes(idx(VALUES.reshape(COUNT, 2, 2)))
    (folder / "y").write_bytes(idx(LABELS))
    return Origin(path=folder / "x", labels_path=folder / "y")


def images(folder):
    for number, (row, label) in enumerate(zip(VALUES, LABELS, strict=True)):
        kind = folder / "pictures" / str(label)
        kind.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(2, 2).astype(np.uint8)).save(kind / f"{number:02}.png")
    return Origin(path=folder / "pictures", images=Images(size=(2, 2), classes=("0", "1", "2")))


def python(folder):
    code = f"import numpy as np\ndef make():\n    return np.eye({COUNT}), np.arange({COUNT}) % 3\n"
    (folder / "contract_source.py").write_text(code)
    return Origin(function="contract_source:make")


def letters(folder):
    """As MNIST and EMNIST are published."""
    for one in (published_files()["mnist"], published_files()["emnist"]):
        for half in (one.train, one.test):
            pictures = np.zeros((COUNT, 28, 28), np.uint8)
            (folder / half[0]).write_bytes(gzip.compress(idx(pictures)))
            (folder / half[1]).write_bytes(gzip.compress(idx(LABELS)))
    return Origin(path=folder)


def cifar(folder):
    for name, labels in (("cifar10", 1), ("cifar100", 2)):
        for file in published_files()[name].names:
            (folder / file).write_bytes(bytes(labels + 3072) * COUNT)
    return Origin(path=folder)


MAKERS = {
    "digits": lambda _folder: Origin(),
    "mnist": letters,
    "emnist": letters,
    "cifar10": cifar,
    "cifar100": cifar,
    "npz": npz,
    "csv": csv,
    "parquet": parquet_file,
    "idx": idx_files,
    "images": images,
    "python": python,
}
IN_FILES = [name for name in MAKERS if name not in ("digits", "python")]
PACKED = [name for name in IN_FILES if name not in ("csv", "images")]
"""Files whose end is known from their beginning: of the others a cut takes records away."""


@pytest.fixture(params=list(MAKERS))
def made(request, tmp_path, monkeypatch):
    """Name and origin."""
    monkeypatch.syspath_prepend(tmp_path)
    yield request.param, MAKERS[request.param](tmp_path)
    sys.modules.pop("contract_source", None)


def files_of(origin):
    """The files behind an origin, in the order of their names."""
    found = [path for path in (origin.path, origin.labels_path) if path is not None]
    listed = [inner for path in found for inner in (path.rglob("*") if path.is_dir() else [path])]
    return sorted(path for path in listed if path.is_file())


def test_every_source_is_here():
    assert set(MAKERS) == set(SOURCES)


def test_records_are_rows_of_numbers_with_whole_labels(made):
    name, origin = made
    records = SOURCES[name].read(origin)
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


def test_reading_twice_gives_the_same_and_changes_no_file(made):
    name, origin = made
    before = {path: path.read_bytes() for path in files_of(origin)}
    one, other = SOURCES[name].read(origin), SOURCES[name].read(origin)
    assert np.array_equal(one.x, other.x)
    assert np.array_equal(one.y, other.y)
    assert {path: path.read_bytes() for path in files_of(origin)} == before


def test_what_the_cloud_tests_on_is_not_among_the_devices_records(made):
    name, origin = made
    source = "python: contract_source:make" if name == "python" else name
    whole = load_records(source, origin)
    if brings_its_test(name):
        rest = devices_records(source, replace(origin, test_records=3))
        assert len(whole) - len(rest) == {"digits": 3 - 360}.get(name, 0)
        return
    shared = replace(origin, test_share=0.4)
    shown = {key: value for key, value in vars(shared).items() if key in DataSource.model_fields}
    held = held_records(DataSource(name="own", source=source, **shown))
    rest = devices_records(source, shared)
    assert 0 < len(held) < COUNT
    everything = np.concatenate([rest.x, held.x])
    assert sorted(everything.tolist()) == sorted(whole.x.tolist())


@pytest.mark.parametrize("name", IN_FILES)
def test_a_missing_file_is_named(name, tmp_path):
    origin = MAKERS[name](tmp_path)
    with pytest.raises(DataError, match="gone"):
        SOURCES[name].read(replace(origin, path=tmp_path / "gone"))
    with pytest.raises(DataError, match=r"data\.path"):
        SOURCES[name].read(replace(origin, path=None))


@pytest.mark.parametrize("name", IN_FILES)
def test_more_than_the_memory_it_may_take_is_refused(name, tmp_path):
    with pytest.raises(DataError) as raised:
        SOURCES[name].read(replace(MAKERS[name](tmp_path), max_bytes=40))
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("kept", [0.0, 0.52, 0.99])
def test_a_file_that_is_cut_off_is_named(name, kept, tmp_path):
    origin = MAKERS[name](tmp_path)
    for path in files_of(origin):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(DataError) as raised:
        SOURCES[name].read(origin)
    assert str(tmp_path) in raised.value.where
    assert raised.value.fix


@pytest.mark.parametrize("name", ["csv", "images"])
def test_what_is_cut_off_in_the_middle_of_a_record_drops_that_record_alone(name, tmp_path):
    origin = MAKERS[name](tmp_path)
    last = files_of(origin)[-1]
    content = last.read_bytes()
    last.write_bytes(content[:-4] if name == "csv" else content[: len(content) // 2])
    records = SOURCES[name].read(origin)
    usable = np.isfinite(records.x).all(axis=tuple(range(1, records.x.ndim))) & (records.y >= 0)
    assert (len(records), int(usable.sum())) == (COUNT, COUNT - 1)
