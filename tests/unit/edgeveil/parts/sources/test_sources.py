"""Data files: read as they are, refused with file, place and fix when they are not."""

import gzip
import struct
import sys

import numpy as np
import pytest

from edgeveil.errors import DataError, UsageError
from edgeveil.parts.sources import SOURCES, load_records
from edgeveil.parts.sources.digits import load_digits_split
from edgeveil.parts.sources.source import Origin

X = np.array([[0.0, 1.5], [2.0, 3.0], [4.0, 5.0]], np.float32)
Y = np.array([0, 1, 2])


def idx_bytes(array, type_byte=0x08, dtype=">u1"):
    header = bytes([0, 0, type_byte, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(dtype).tobytes()


def refused(source, **origin):
    with pytest.raises(DataError) as caught:
        load_records(source, Origin(**{"header": source == "csv" or None, **origin}))
    assert caught.value.where
    return str(caught.value)


def test_digits_are_the_real_ones_and_the_split_is_stratified():
    from sklearn.datasets import load_digits

    train, test = load_digits_split(360)
    assert (train.x.shape, test.x.shape) == ((1437, 64), (360, 64))
    assert train.x.dtype == np.float32
    assert train.y.dtype == np.int64
    whole = load_digits()
    theirs = sorted(map(tuple, np.column_stack([whole.data, whole.target]).tolist()))
    both = np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])
    assert sorted(map(tuple, np.column_stack(both).tolist())) == theirs
    share = np.bincount(test.y) / np.bincount(whole.target)
    assert np.all(np.abs(share - 360 / 1797) < 0.006)


def test_the_digits_split_is_stable_and_follows_its_seed():
    first, again, other = load_digits_split(10), load_digits_split(10), load_digits_split(10, 1)
    assert np.array_equal(first[1].x, again[1].x)
    assert not np.array_equal(first[1].x, other[1].x)
    with pytest.raises(DataError, match=r"0 to 1797"):
        load_digits_split(1798)


def test_digits_without_scikit_learn_say_what_is_missing(monkeypatch):
    from edgeveil.parts.sources import digits

    digits._all_digits.cache_clear()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="scikit-learn"):
        load_records("digits")
    monkeypatch.undo()
    assert len(load_records("digits")) == 1437


def test_npz_roundtrip(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=X.astype(np.float64), y=Y)
    got = load_records("npz", Origin(path=tmp_path / "a.npz"))
    assert np.array_equal(got.x, X)
    assert got.y.tolist() == [0, 1, 2]


def test_npz_fortran_order_is_kept(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(X), y=Y)
    assert np.array_equal(load_records("npz", Origin(path=tmp_path / "a.npz")).x, X)


def test_npz_refusals(tmp_path):
    file = tmp_path / "a.npz"
    assert "no such file" in refused("npz", path=file)
    assert "data.path" in refused("npz")
    file.write_bytes(b"not a zip")
    assert str(file) in refused("npz", path=file)
    np.savez(file, x=X)
    assert "no array 'y'" in refused("npz", path=file)
    np.savez(file, x=X, y=Y[:2])
    assert "one label for each record" in refused("npz", path=file)
    np.savez(file, x=X, y=np.array([("a", 1)] * 3, dtype="U1,i4"))
    assert "not numbers" in refused("npz", path=file)


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


def test_a_size_is_refused_from_the_header(tmp_path):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x=np.zeros((1000, 1000), np.uint8), y=np.zeros(1000))
    assert file.stat().st_size < 10_000
    assert "limit" in refused("npz", path=file, max_bytes=3_999_999)
    images = tmp_path / "i"
    images.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31))
    (tmp_path / "l").write_bytes(idx_bytes(Y))
    assert "limit" in refused("idx", path=images, labels_path=tmp_path / "l")


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


def test_csv_label_by_name_and_missing_values(tmp_path):
    (tmp_path / "a.csv").write_text("kind,u,v\n1,,2\n,3,4\n")
    got = load_records("csv", Origin(header=True, path=tmp_path / "a.csv", label_column="kind"))
    assert got.y.tolist() == [1, -1]
    assert np.isnan(got.x[0, 0])
    assert got.x[1].tolist() == [3, 4]


def test_csv_refusals_are_about_the_file_as_a_whole(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("a,b,label\n1,2,0\n")
    assert "did you mean 'label'" in refused("csv", path=file, label_column="lable")
    file.write_text("")
    assert "is empty" in refused("csv", path=file)
    file.write_text(" \n\n")
    assert "is empty" in refused("csv", path=file)
    file.write_text("label\n1\n")
    assert "single column" in refused("csv", path=file)
    file.write_bytes(b"\xff\xfe1,2")
    assert "UTF-8" in refused("csv", path=file)
    file.write_text('1,"2\n3,4\n')
    assert f"{file}:1" in refused("csv", path=file)
    file.write_text("1,2,0\n" * 100)
    assert "larger" in refused("csv", path=file, max_bytes=2000)


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


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(tmp_path, zipped):
    pixels = np.arange(24).reshape(3, 2, 4)
    pack = gzip.compress if zipped else bytes
    (tmp_path / "i").write_bytes(pack(idx_bytes(pixels)))
    (tmp_path / "l").write_bytes(pack(idx_bytes(Y)))
    got = load_records("idx", Origin(path=tmp_path / "i", labels_path=tmp_path / "l"))
    assert np.array_equal(got.x, pixels)
    assert got.y.tolist() == [0, 1, 2]


def test_idx_is_big_endian(tmp_path):
    (tmp_path / "i").write_bytes(idx_bytes(np.array([[258, -1]]), 0x0B, ">i2"))
    (tmp_path / "l").write_bytes(idx_bytes(Y[:1]))
    got = load_records("idx", Origin(path=tmp_path / "i", labels_path=tmp_path / "l"))
    assert got.x.tolist() == [[258, -1]]


def test_idx_refusals(tmp_path):
    images, labels = tmp_path / "i", tmp_path / "l"
    good = idx_bytes(np.zeros((3, 2, 2)))
    labels.write_bytes(idx_bytes(Y))
    files = {"path": images, "labels_path": labels}
    for content, text in [
        (b"", "no IDX file"),
        (b"\x89PNG....", "no IDX file"),
        (good[:9], "header"),
        (good[:-1], "only 11"),
        (good + b"x", "more"),
        (gzip.compress(good)[:-6], "cannot be read"),
        (idx_bytes(np.zeros((2, 2, 2))), "one label for each"),
    ]:
        images.write_bytes(content)
        assert text in refused("idx", **files), content
    images.write_bytes(good)
    assert "data.labels_path" in refused("idx", path=images)


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


def test_unknown_source_is_named():
    with pytest.raises(UsageError, match="did you mean 'digits'"):
        load_records("digit")
    assert set(SOURCES) >= {"digits", "mnist", "npz", "csv", "parquet", "idx", "images", "python"}
