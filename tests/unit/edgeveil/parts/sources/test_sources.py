"""Data files: no single record fails its source; files that claim more than they hold are refused
by their headers, before memory is taken."""

import gzip
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.data.records import as_records, whole_labels
from edgeveil.errors import DataError
from edgeveil.parts.features import valid_records
from edgeveil.parts.sources import load_records
from edgeveil.parts.sources.arrays import read_npz
from edgeveil.parts.sources.idx import read_idx
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
    np.savez(file, x=np.array([[1.5, 2], ["secret", 3], [True, -4]]), y=np.array(["0", "a", "2"]))
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
    "text",
    [
        "a,b,label\r\n\r\n1,2,0\r\n3,4,1",
        '"p 1",b,"x,y"\n1,2,0\n\n3,4,1\n',
        "\ufeffa,b,label\n1,2,0\n3,4,1",
    ],
)
def test_csv_under_a_header(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    got = load_records("csv", Origin(header=True, path=tmp_path / "a.csv"))
    assert got.x.tolist() == [[1, 2], [3, 4]]
    assert got.y.tolist() == [0, 1]


def test_idx_is_big_endian(tmp_path):
    (tmp_path / "i").write_bytes(bytes((0, 0, 11, 2)) + struct.pack(">2I2h", 1, 2, 258, -1))
    (tmp_path / "l").write_bytes(bytes((0, 0, 8, 1)) + struct.pack(">IB", 1, 0))
    got = load_records("idx", Origin(path=tmp_path / "i", labels_path=tmp_path / "l"))
    assert got.x.tolist() == [[258, -1]]


@pytest.mark.parametrize(
    "first", ["1,2,0", "n/a,2,0", "a,b,", "0,1,label", "nan,b,label", "inf,-inf,nan"]
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
        ("my_records_module:absent", "my_records_module"),
        ("sys:exit", "raised SystemExit"),
        ("no_such_module_here:f", "No module"),
        ("nothing", "module:function"),
    ):
        assert why in refused(f"python: {place}")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            np.array([0, 2.5, np.nan, np.inf, -np.inf, 1e300, 2.0**53 + 2, -3, 7]),
            [0, -1, -1, -1, -1, -1, -1, -3, 7],
        ),
        (np.array([2**64 - 1, 2**63, 4], np.uint64), [-1, -1, 4]),
        (np.array([1.5, 3], np.float16), [-1, 3]),
    ],
    ids=range(3),
)
def test_labels_that_are_no_class_become_minus_one(given, found):
    assert whole_labels(given).tolist() == found


def test_a_value_too_large_for_its_type_drops_its_record_alone(recwarn):
    got = as_records(np.array([[1.0, 2.0], [1e300, 0.0]]), np.array([0, 1]), "x")
    assert valid_records(got.x, got.y, 2).tolist() == [True, False]
    assert not recwarn.list


@pytest.mark.parametrize(
    "line",
    [
        *("5,secret,1", "5,6,secret", "5,6,0.5", "5,6,1e300", "5,6,nan", "5,,1", "5,6,", ","),
        *("5,6", "5,6,1,2", "x", '5,"6,1', '"5,6,1', "5,\udcff,1", "5,6\0,1"),
        '"' + "9" * 200_000 + '"',
    ],
    ids=range(16),
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
    """Memory taken at most while the file is refused."""
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
    """An archive with `x`, followed by zeros that take next to nothing in the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x + bytes(padding_bytes))
    return path


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (npy("(99999999999, 4)"), "the limit is"),
        (npy("(-5,)"), "shape"),
        (npy("(-3, -7)"), "shape"),
        (npy("(0, 4611686018427387904, 4)"), "the limit is"),
        (npy("(2, 2)"), "bytes of data where"),
        (npy("(2, 2)", version=2, header_bytes=BOMB_BYTES), "header of"),
        (npy("(2, 2)", version=2, header_bytes=2**32 - 1), "header of"),
        (npy("(2, 2"), "header is damaged"),
        (npy("(" * 3000), "header is damaged"),
        (npy("(2,)", descr="|O"), "not numbers"),
        (npy("(2,)", descr="|V2000000000"), "not numbers"),
    ],
    ids=range(11),
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
        ((2, 2, 2), "it holds more"),
        ((60, 40, 40), "it holds more"),
        ((2**32 - 1,) * 8, "the limit is"),
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
    assert peak_bytes(lambda: read_csv(wide), "is larger than") < ROOM


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_array_that_holds_what_it_says_is_read(tmp_path, version):
    x, raw = np.arange(6, dtype=np.float32).reshape(3, 2), io.BytesIO()
    np.lib.format.write_array(raw, x, version=version)
    np.savez(tmp_path / "a.npz", y=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("x.npy", raw.getvalue())
    assert np.array_equal(read_npz(Origin(tmp_path / "a.npz", max_bytes=ROOM)).x, x)
