"""Data files: read as they are, refused with file, place and fix when they are not.

Whether a device takes part may not depend on a record: no single one fails its source.

Files that claim more than they hold: refused by their headers, before memory is taken.
"""

import gzip
import io
import struct
import sys
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


def idx_bytes(array, type_byte=0x08, dtype=">u1"):
    header = bytes([0, 0, type_byte, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(dtype).tobytes()


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
        "a,b,label\n1,2,0\n3,4,1\n",
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


@pytest.mark.parametrize(
    "first", ["1,2,0", "n/a,2,0", "a,b,", "0,1,label", "nan,b,label", "inf,-inf,nan"]
)
def test_csv_whose_first_line_may_be_a_record_is_refused(tmp_path, first):
    """Else the line after it would state the form once it is gone, or none would."""
    file = tmp_path / "a.csv"
    file.write_text(f"{first}\n3,4,1\n")
    said = refused("csv", path=file)
    assert f"{file}:1: holds no header" in said
    assert "write a first line that names every column" in said


def test_idx_is_big_endian(tmp_path):
    (tmp_path / "i").write_bytes(idx_bytes(np.array([[258, -1]]), 0x0B, ">i2"))
    (tmp_path / "l").write_bytes(idx_bytes(Y[:1]))
    got = load_records("idx", Origin(path=tmp_path / "i", labels_path=tmp_path / "l"))
    assert got.x.tolist() == [[258, -1]]


def test_python_source(tmp_path, monkeypatch):
    (tmp_path / "my_records_module.py").write_text(
        "import numpy as np\n"
        "def good():\n    return np.ones((1, 2)), np.array([3])\n"
        "def lists():\n    return [[1.0, 2.0]], [3]\n"
        "def bad():\n    return [[1.0]]\n"
        "def boom():\n    raise ValueError('no')\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert load_records("python: my_records_module:good").y.tolist() == [3]
    assert "two arrays" in refused("python:my_records_module:bad")
    assert "returned a list" in refused("python: my_records_module:lists")
    assert "ValueError: no" in refused("python: my_records_module:boom")
    assert "raised SystemExit" in refused("python: sys:exit")
    assert "my_records_module" in refused("python: my_records_module:absent")
    assert "No module" in refused("python: no_such_module_here:f")
    assert "module:function" in refused("python: nothing")


HEADER, GOOD = "a,b,label", ["1,2,0", "3,4,1"]


def csv(path, *lines, label_column=None):
    text = "".join(f"{line}\n" for line in lines)
    (path / "a.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    return load_records("csv", Origin(header=True, path=path / "a.csv", label_column=label_column))


def test_labels_that_are_no_class_become_minus_one():
    y = np.array([0, 2.5, np.nan, np.inf, -np.inf, 1e300, 2.0**53 + 2, -3, 7])
    assert whole_labels(y).tolist() == [0, -1, -1, -1, -1, -1, -1, -3, 7]
    assert whole_labels(np.array([2**64 - 1, 2**63, 4], np.uint64)).tolist() == [-1, -1, 4]
    assert whole_labels(np.array([1.5, 3], np.float16)).tolist() == [-1, 3]


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
    got = csv(tmp_path, HEADER, GOOD[0], line, GOOD[1])
    assert got.x.shape == (3, 2)
    assert got.x[[0, 2]].tolist() == [[1, 2], [3, 4]]
    assert valid_records(got.x, got.y, 2).tolist() == [True, False, True]
    faults = csv_faults(Origin(tmp_path / "a.csv", header=True))
    missing_value = line == "5,,1"  # an owner may leave a value empty; it is counted, not a fault
    assert [fault.split(": ")[0] for fault in faults] == (
        [] if missing_value else [f"{tmp_path / 'a.csv'}:3"]
    )
    assert "secret" not in str(faults)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=4))
def test_no_line_makes_a_file_unreadable(tmp_path_factory, lines):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    rows = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]
    file.write_bytes(b"a,b,label\n1,2,0\n" + b"".join(row + b"\n" for row in rows) + b"3,4,1\n")
    got = load_records("csv", Origin(header=True, path=file))
    assert len(got) == 2 + sum(bool(row.decode(errors="replace").strip()) for row in rows)
    assert valid_records(got.x, got.y, 2)[[0, -1]].all()
    assert all(fault.startswith(f"{file}:") for fault in csv_faults(Origin(file, header=True)))


def test_faults_name_the_line_and_the_column(tmp_path):
    csv(tmp_path, "a,b,label", "", "1,2,0", "3,secret,1", "3,1", "5,6,0.5", "5,6,1.5")
    file = tmp_path / "a.csv"
    assert csv_faults(Origin(file, header=True)) == [
        f"{file}:4: column 2 holds text where a number belongs",
        f"{file}:5: 2 columns, the first line has 3",
        f"{file}:6: the label is missing or no whole number",
        f"{file}:7: the label is missing or no whole number",
    ]


ROOM = 1 << 20
BOMB_BYTES = 32 << 20
MAGIC = b"\x93NUMPY"


def peak_bytes(read, match):
    """Memory taken at most while the file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def npy(shape, version=1, header_bytes=None, descr="<f4"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = len(text) if header_bytes is None else header_bytes
    return MAGIC + bytes((version, 0)) + size.to_bytes(2 * version, "little") + text


def npz(path, x, padding_bytes=0):
    """An archive with `x`, followed by zeros that take next to nothing in the file."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(x)
        for _ in range(padding_bytes >> 20):
            member.write(bytes(1 << 20))
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
    magic = bytes((0, 0, 8, len(axes)))
    with gzip.open(tmp_path / "images.gz", "wb") as file:
        file.write(magic + struct.pack(f">{len(axes)}I", *axes))
        for _ in range(BOMB_BYTES >> 20):
            file.write(bytes(1 << 20))
    (tmp_path / "labels").write_bytes(b"\0\0\x08\1" + struct.pack(">I", 2) + b"\0\1")
    bomb, labels = tmp_path / "images.gz", tmp_path / "labels"
    assert peak_bytes(lambda: read_idx(Origin(bomb, labels, max_bytes=ROOM)), match) < 4 * ROOM


def test_a_table_is_refused_by_its_size(tmp_path):
    wide = tmp_path / "wide.csv"
    wide.write_bytes(b"," * ROOM)
    assert (
        peak_bytes(lambda: read_csv(Origin(wide, header=True, max_bytes=ROOM)), "is larger than")
        < ROOM
    )


def test_an_array_that_holds_what_it_says_is_read(tmp_path):
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)
    for version in ((1, 0), (2, 0)):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            for name, array in (("x", x), ("y", y)):
                raw = io.BytesIO()
                np.lib.format.write_array(raw, array, version=version)
                archive.writestr(f"{name}.npy", raw.getvalue())
        got = read_npz(Origin(tmp_path / "a.npz", max_bytes=ROOM))
        assert (got.x == x).all() and (got.y == y).all()
