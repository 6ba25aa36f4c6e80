"""Files that claim more than they hold: refused by their headers, before memory is taken."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil.parts.sources.csvfile import read_csv
from edgeveil.parts.sources.idx import read_idx
from edgeveil.parts.sources.npz import read_npz

ROOM = 1 << 20
BOMB_BYTES = 32 << 20
MAGIC = b"\x93NUMPY"


def peak_bytes(read: Callable[[], object], match: str) -> int:
    """Memory taken at most while the file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def npy(shape: str, version: int = 1, header_bytes: int | None = None, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = len(text) if header_bytes is None else header_bytes
    return MAGIC + bytes((version, 0)) + size.to_bytes(2 * version, "little") + text


def npz(path: Path, x: bytes, padding_bytes: int = 0) -> Path:
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
    assert peak_bytes(lambda: read_npz(bomb, ROOM), match) < 4 * ROOM


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
    assert peak_bytes(lambda: read_idx(bomb, labels, ROOM), match) < 4 * ROOM


def test_a_table_is_refused_by_its_size(tmp_path):
    wide = tmp_path / "wide.csv"
    wide.write_bytes(b"," * ROOM)
    assert peak_bytes(lambda: read_csv(wide, max_bytes=ROOM), "is larger than") < ROOM


def test_an_array_that_holds_what_it_says_is_read(tmp_path):
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)
    for version in ((1, 0), (2, 0)):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            for name, array in (("x", x), ("y", y)):
                raw = io.BytesIO()
                np.lib.format.write_array(raw, array, version=version)
                archive.writestr(f"{name}.npy", raw.getvalue())
        got = read_npz(tmp_path / "a.npz", ROOM)
        assert (got.x == x).all() and (got.y == y).all()
