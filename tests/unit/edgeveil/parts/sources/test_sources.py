"""Data files: no record fails its source; what claims more than it holds is refused."""

import gzip
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.config.data import DataSource
from edgeveil.data.records import as_records, whole_labels
from edgeveil.errors import DataError
from edgeveil.parts import own_records as device
from edgeveil.parts.features import valid_records
from edgeveil.parts.own_records import local_records, own_records
from edgeveil.parts.sources import SOURCES, load_records
from edgeveil.parts.sources.arrays import read_npz
from edgeveil.parts.sources.idx import (
    CIFAR10_FILES,
    CIFAR100_FILES,
    EMNIST_FILES,
    MNIST_FILES,
    read_idx,
)
from edgeveil.parts.sources.source import Origin
from edgeveil.parts.sources.tables import csv_faults, read_csv

Y = np.array([0, 1, 2])


def refused(source, **origin):
    with pytest.raises(DataError) as caught:
        load_records(source, Origin(**{"header": source == "csv" or None, **origin}))
    assert caught.value.where
    return str(caught.value)


def test_one_text_among_numbers_costs_its_own_record_alone(tmp_path):
    """NumPy makes an array of texts of them all, and of dates or complex numbers likewise."""
    file = tmp_path / "a.npz"
    np.savez(file, x=np.array([[1.5, 2], ["1_000", 3], [True, -4]]), y=np.array(["0", "a", "2"]))
    got = load_records("npz", Origin(path=file))
    assert np.array_equal(got.x, [[1.5, 2], [np.nan, 3], [1, -4]], equal_nan=True)
    assert got.y.tolist() == [0, -1, 2]
    np.savez(file, x=np.array([[1.5, 2j], [3, 4]]), y=np.array([b"1", b"\xff"]))
    got = load_records("npz", Origin(path=file))
    assert np.array_equal(got.x, [[1.5, np.nan], [3, 4]], equal_nan=True)
    assert got.y.tolist() == [1, -1]


def test_npz_never_runs_a_pickle(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("owned",))

    np.savez(tmp_path / "a.npz", x=np.array([Evil()], dtype=object), y=Y[:1])
    assert "object" in refused("npz", path=tmp_path / "a.npz")


@pytest.mark.parametrize(
    "text", ["a,b,label\r\n\r\n1,2,0\r\n3,4,1", '\ufeff"p 1",b,"x,y"\n1,2,0\n\n3,4,1\n']
)
def test_csv_under_a_header(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    got = load_records("csv", Origin(header=True, path=tmp_path / "a.csv"))
    assert (got.x.tolist(), got.y.tolist()) == ([[1, 2], [3, 4]], [0, 1])


@pytest.mark.parametrize(
    "first", ["1,2,0", "n/a,2,0", ",,", "a,a,b", "0,1,label", "nan,b,label", "inf,-inf,nan"]
)
def test_csv_whose_first_line_may_be_a_record_is_refused(tmp_path, first):
    """Else the line after it would state the form once it is gone, or none would."""
    (tmp_path / "a.csv").write_text(f"{first}\n3,4,1\n")
    assert f"{tmp_path / 'a.csv'}:1: " in refused("csv", path=tmp_path / "a.csv")


CODE = """
def lists():
    return [[1.0, 2.0]], [3]
def bad():
    return [[1.0]]
def boom():
    raise ValueError('no')
"""


def test_a_function_of_the_owner_that_gives_no_records_is_refused(tmp_path, monkeypatch):
    (tmp_path / "my_records_module.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    for place, why in (
        ("my_records_module:bad", "two arrays"),
        ("my_records_module:lists", "returned a list"),
        ("my_records_module:boom", "ValueError: no"),
        ("sys:exit", "raised SystemExit"),
        ("no_such_module_here:f", "No module"),
        ("nothing", "module:function"),
    ):
        assert why in refused(f"python: {place}")


def test_labels_that_are_no_class_become_minus_one():
    given = np.array([0, 2.5, np.nan, np.inf, -np.inf, 1e300, 2.0**53 + 2, -3, 7])
    assert whole_labels(given).tolist() == [0, -1, -1, -1, -1, -1, -1, -3, 7]
    large = np.array([2**64 - 1, 2**63, 4], np.uint64)
    assert whole_labels(large).tolist() == [-1, -1, 4]


def test_a_value_too_large_for_its_type_drops_its_record_alone(recwarn):
    got = as_records(np.array([[1.0, 2.0], [1e300, 0.0]]), np.array([0, 1]), "x")
    assert valid_records(got.x, got.y, 2).tolist() == [True, False]
    assert not recwarn.list


@pytest.mark.parametrize(
    "line",
    [
        *("5,secret,1", "5,6,secret", "5,6,0.5", "5,6,1e300", "5,6,nan", "5,,1", "5,6,", ","),
        *("5_0,6,1", "5,6", "5,6,1,2", "x", '5,"6,1', '"5,6,1', "5,\udcff,1", "5,6\0,1"),
        '"' + "9" * 200_000 + '"',
    ],
    ids=range(17),
)
def test_a_line_out_of_form_drops_its_record_alone(tmp_path, line):
    file = tmp_path / "a.csv"
    text = f"a,b,label\n1,2,0\n{line}\n3,4,1\n"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    got = load_records("csv", Origin(header=True, path=file))
    assert got.x.shape == (3, 2)
    assert got.x[[0, 2]].tolist() == [[1, 2], [3, 4]]
    assert valid_records(got.x, got.y, 2).tolist() == [True, False, True]
    faults = csv_faults(Origin(file, header=True))
    # an owner may leave a value empty; it is counted, not a fault
    assert [fault.split(": ")[0] for fault in faults] == [f"{file}:3"] * (line != "5,,1")
    assert "secret" not in str(faults)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20).filter(lambda row: not {10, 13} & set(row)), max_size=4))
def test_no_line_makes_a_file_unreadable(tmp_path_factory, rows):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(b"\n".join([b"a,b,label", b"1,2,0", *rows, b"3,4,1"]))
    got = load_records("csv", Origin(header=True, path=file))
    assert len(got) == 2 + sum(bool(row.decode(errors="replace").strip()) for row in rows)
    assert valid_records(got.x, got.y, 2)[[0, -1]].all()
    assert all(fault.startswith(f"{file}:") for fault in csv_faults(Origin(file, header=True)))


ROOM = 1 << 20
BOMB_BYTES = 32 << 20
MAGIC = b"\x93NUMPY"


def peak_bytes(read, match):
    tracemalloc.start()
    with pytest.raises(DataError, match=match):
        read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def npy(shape, version=1, header_bytes=None, descr="<f4"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = len(text) if header_bytes is None else header_bytes
    return MAGIC + bytes((version, 0)) + size.to_bytes(2 * version, "little") + text


def npz(path, x, padding_bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x + bytes(padding_bytes))
    return path


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (npy("(99999999999, 4)"), "the limit is"),
        (npy("(-3, -7)"), "shape"),
        (npy("(0, 4611686018427387904, 4)"), "the limit is"),
        (npy("(2, 2)"), "bytes of data, but"),
        (npy("(2, 2)", version=2, header_bytes=2**32 - 1), "header of"),
        (npy("(" * 3000), "header is damaged"),
        (npy("(2,)", descr="|O"), "not numbers"),
        (npy("(2,)", descr="|V2000000000"), "not numbers"),
    ],
    ids=range(8),
)
def test_a_zip_bomb_is_refused_by_its_header(tmp_path, header, match):
    bomb = npz(tmp_path / "bomb.npz", header, BOMB_BYTES)
    assert bomb.stat().st_size < 1 << 20
    assert peak_bytes(lambda: read_npz(Origin(bomb, max_bytes=ROOM)), match) < 4 * ROOM


@pytest.mark.parametrize(
    ("axes", "match"),
    [
        ((2**32 - 1,) * 3, "the limit is"),
        ((0, 2**32 - 1, 2**32 - 1), "the limit is"),
        ((60, 40, 40), "it has more"),
    ],
)
def test_a_gzipped_image_file_is_refused_by_its_header(tmp_path, axes, match):
    header = bytes((0, 0, 8, len(axes))) + struct.pack(f">{len(axes)}I", *axes)
    bomb, labels = tmp_path / "images.gz", tmp_path / "labels"
    bomb.write_bytes(gzip.compress(header + bytes(BOMB_BYTES)))
    labels.write_bytes(b"\0\0\x08\1" + struct.pack(">I", 2) + b"\0\1")
    assert peak_bytes(lambda: read_idx(Origin(bomb, labels, max_bytes=ROOM)), match) < 4 * ROOM


def test_a_table_is_refused_by_its_size(tmp_path):
    wide = Origin(tmp_path / "wide.csv", header=True, max_bytes=ROOM)
    wide.path.write_bytes(b"," * ROOM)
    assert peak_bytes(lambda: read_csv(wide), "is larger than") < 4 * ROOM


TRAIN, TEST = 30, 12


def read_published(name, folder):
    return SOURCES[name].read(Origin(path=folder))


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def pixels(count):
    return (np.arange(count * 28 * 28) % 251).reshape(count, 28, 28)


@pytest.fixture
def folder(tmp_path):
    for (images, labels), count in ((MNIST_FILES.train, TRAIN), (MNIST_FILES.test, TEST)):
        (tmp_path / images).write_bytes(idx(pixels(count)))
        (tmp_path / labels).write_bytes(idx(np.arange(count) % 10))
    return tmp_path


def source(folder, index=None, **more):
    if index is not None:
        more["shard"] = {"devices": 3, "index": index, "partition": {"kind": "iid"}}
    return DataSource(name="mnist", source="mnist", path=folder, **more)


def put_emnist(folder, labels=(0, 46, 9)):
    images = pixels(len(labels))
    for names in (EMNIST_FILES.train, EMNIST_FILES.test):
        (folder / names[0]).write_bytes(idx(images))
        (folder / names[1]).write_bytes(idx(np.array(labels)))
    return images


def cifar_record(*labels):
    """A record whose first row is red, green and blue of another strength in each column."""
    planes = [bytes(colour + column for column in range(32)) + bytes(992) for colour in (1, 2, 3)]
    return bytes(labels) + b"".join(planes)


def put_cifar(folder, files, *records):
    for name in files.names:
        (folder / name).write_bytes(b"".join(records))


def test_training_half_is_dealt_and_test_half_is_the_clouds(folder):
    train = read_published("mnist", folder)
    assert (train.x.shape, train.x.dtype) == ((TRAIN, 28, 28), np.float32)
    assert np.array_equal(train.x, pixels(TRAIN))
    parts = [own_records(source(folder, index)) for index in range(3)]
    assert sorted(np.concatenate([p.x for p in parts]).sum((1, 2))) == sorted(train.x.sum((1, 2)))
    test = local_records(source(folder))
    assert np.array_equal(test.x, pixels(TEST))
    assert list(test.y) == list(np.arange(TEST) % 10)
    assert np.array_equal(local_records(source(folder, test_records=5)).x, pixels(5))
    with pytest.raises(DataError, match="0 to 12"):
        local_records(source(folder, test_records=13))


def test_devices_of_one_process_read_their_files_once_and_change_no_others_records(
    folder, monkeypatch
):
    device.dealt_records.cache_clear()
    own_records(source(folder, 0)).x[:] = -1
    monkeypatch.setattr(device, "load_records", None)
    assert len(own_records(source(folder, 2))) == TRAIN // 3
    assert own_records(source(folder, 0)).x.min() == 0


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images.idx3-ubyte"])
def test_unpacked_and_dotted_names_are_found(folder, name):
    packed = folder / "train-images-idx3-ubyte.gz"
    (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert not MNIST_FILES.missing(folder)
    assert len(read_published("mnist", folder)) == TRAIN


@pytest.mark.parametrize("place", ["", "gzip"])  # that of its archive
def test_emnist_is_turned_upright_and_keeps_its_labels(tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    images = put_emnist(tmp_path / place)
    records = read_published("emnist", tmp_path)
    assert np.array_equal(records.x, images.transpose(0, 2, 1))
    assert records.y.tolist() == [0, 46, 9]
    assert records.x.flags.c_contiguous


@pytest.mark.parametrize(
    ("name", "files", "labels", "wanted"),
    [("cifar10", CIFAR10_FILES, (7,), 7), ("cifar100", CIFAR100_FILES, (3, 99), 99)],
)
def test_cifar_is_read_by_colour_row_and_column(tmp_path, name, files, labels, wanted):
    put_cifar(tmp_path, files, cifar_record(*labels), cifar_record(*[0] * len(labels)))
    train = read_published(name, tmp_path)
    assert train.x.shape == (2 * len(files.train), 3, 32, 32)
    assert train.y[:2].tolist() == [wanted, 0]
    assert train.x[0, :, 0, 5].tolist() == [1 + 5, 2 + 5, 3 + 5]
    assert train.x[0, :, 1:].max() == 0


def test_a_label_outside_the_classes_is_refused_with_record_and_byte(tmp_path):
    put_cifar(tmp_path, CIFAR10_FILES, cifar_record(9), cifar_record(10))
    put_cifar(tmp_path, CIFAR100_FILES, cifar_record(0, 100))
    put_emnist(tmp_path, (1, 47))
    for name, place, label in (
        ("cifar10", "byte 3073: record 1", 10),
        ("cifar100", "byte 1: record 0", 100),
        ("emnist", "byte 9: record 1", 47),  # of another split
    ):
        with pytest.raises(DataError, match=f"{place} has the label {label}") as caught:
            read_published(name, tmp_path)
        assert caught.value.where and caught.value.fix
